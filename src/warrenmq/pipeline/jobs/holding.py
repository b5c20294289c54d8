"""Which consumer holds which messages, window by window. Pure: facts in, states out.

A consumer holds what was delivered to it and is not settled. Nobody tells that a consumer does nothing: so each window
with any events has a state for each consumer that holds messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from warrenmq.pipeline.jobs.arrow_tables import columns_of
from warrenmq.pipeline.settings import Settings

COLUMNS = (
    "window_start", "window_end", "queue", "consumer", "connection", "channel", "kind", "reason", "count",
    "first_time", "last_time", "last_uid",
)  # fmt: skip


class Who(NamedTuple):
    queue: str
    consumer: str
    connection: str
    channel: int


class Window(NamedTuple):
    """`now_us`: the last time that anything happened in it."""

    start_us: int
    end_us: int
    now_us: int


@dataclass(slots=True)
class Work:
    """What a consumer did in a window. Times are 0 where there is none."""

    at_us: int
    delivered: int = 0
    got: int = 0  # delivered, and to be settled
    settled: int = 0
    first_got_us: int = 0
    last_got_us: int = 0
    settled_us: int = 0
    closed_us: int = 0
    uid: int = 0  # of the last message that it got
    began_us: int = 0  # when it got something after it had held nothing


@dataclass(frozen=True, slots=True)
class State:
    """What a consumer holds at the end of a window, and for how long it has settled nothing."""

    window: Window
    who: Who
    delivered: int
    settled: int
    outstanding: int
    since_us: int
    silent_seconds: float
    example: int

    def is_stuck(self, settings: Settings) -> bool:
        return self.outstanding > 0 and self.silent_seconds >= settings.stuck_after


def states_of(table: pa.Table, settings: Settings) -> Iterator[State]:
    """The states of all consumers of a virtual host, consumer by consumer, each in the order of time."""
    windows, work = _read(table)
    reach = settings.consumer_windows * settings.window_us
    for who, by_window in work.items():
        yield from _states_of_one(who, by_window, windows, reach)


def _states_of_one(who: Who, by_window: dict[int, Work], windows: list[Window], reach: int) -> Iterator[State]:
    past: deque[Work] = deque()
    held_before = 0
    for window in windows:
        while past and past[0].at_us < window.start_us - reach:
            past.popleft()
        now = by_window.get(window.start_us)
        if now is not None:
            if now.got and held_before == 0:
                now.began_us = now.first_got_us
            past.append(now)
        if not past:
            held_before = 0
            continue
        outstanding = held_before = _outstanding(past)
        if now is None and outstanding == 0:
            continue
        since = _since(past)
        silent = (window.now_us - since) / 1_000_000 if outstanding else 0.0
        delivered, settled = (now.delivered, now.settled) if now is not None else (0, 0)
        if delivered or settled or outstanding:
            example = max(work.uid for work in past)
            yield State(window, who, delivered, settled, outstanding, since, silent, example)


def _outstanding(past: deque[Work]) -> int:
    closed = max(work.closed_us for work in past)
    if closed and closed >= max(max(work.last_got_us, work.settled_us) for work in past):
        return 0
    return max(sum(work.got - work.settled for work in past), 0)


def _since(past: deque[Work]) -> int:
    last = max(max(work.settled_us, work.began_us) for work in past)
    return last or min((work.first_got_us for work in past if work.first_got_us), default=0)


def _read(table: pa.Table) -> tuple[list[Window], dict[Who, dict[int, Work]]]:
    columns = columns_of(table)
    windows: dict[int, Window] = {}
    work: dict[Who, dict[int, Work]] = {}
    for (
        start, end, queue, consumer, connection, channel, kind, reason, count, first_us, last_us, uid,
    ) in zip(*(columns[name] for name in COLUMNS), strict=True):  # fmt: skip
        known = windows.get(start)
        if known is None or known.now_us < last_us:
            windows[start] = Window(start, end, last_us)
        if consumer:
            by_window = work.setdefault(Who(queue, consumer, connection, channel), {})
            if start not in by_window:
                by_window[start] = Work(start)
            _count(by_window[start], kind, reason, count, first_us, last_us, uid or 0)
    return [windows[start] for start in sorted(windows)], work


def _count(work: Work, kind: str, reason: str, count: int, first_us: int, last_us: int, uid: int) -> None:
    if kind == "delivered":
        work.delivered += count
        if reason != "auto_ack":
            work.got += count
            work.first_got_us = min(work.first_got_us or first_us, first_us)
            work.last_got_us = max(work.last_got_us, last_us)
            work.uid = max(work.uid, uid)
    # A nack that gives back is told as nacked and requeued; what comes back by itself, as requeued alone.
    elif kind in ("acked", "nacked", "rejected") or (kind == "requeued" and reason != "client"):
        work.settled += count
        work.settled_us = max(work.settled_us, last_us)
    elif kind == "consumer_closed":
        work.closed_us = max(work.closed_us, last_us)
