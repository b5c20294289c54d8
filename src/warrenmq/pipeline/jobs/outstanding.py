"""Which consumer holds which messages, window by window. Pure: facts in, states out.

A consumer holds what was delivered to it and is not settled, as far back as `consumer_windows` reach. Nobody tells that
a consumer does nothing: so each window with any events has a state for each consumer that holds messages.

What one consumer did is a set of arrays with a place for each window; times are microseconds, 0 where there is none.
Windows do not overlap: so the latest of some times is that of the latest window that has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.jobs.tables import (
    Ints,
    aggregate,
    count_kinds,
    group_starts,
    is_one_of,
    iter_rows,
    to_ints,
    with_columns,
)
from warrenmq.pipeline.options import AnalysisOptions

CONSUMER_KEY = ("queue", "consumer", "connection", "channel")
DONE = {
    "delivered": "sum", "got": "sum", "settled": "sum", "first_got_us": "min", "last_got_us": "max",
    "settled_us": "max", "closed_us": "max", "uid": "max",
}  # fmt: skip
_NEVER = np.iinfo(np.int64).max


class ConsumerKey(NamedTuple):
    queue: str
    consumer: str
    connection: str
    channel: int


class Window(NamedTuple):
    """`now_us`: the last time that anything happened in it."""

    start_us: int
    end_us: int
    now_us: int


@dataclass(frozen=True, slots=True)
class State:
    """What a consumer holds at the end of a window, and for how long it has settled nothing."""

    window: Window
    who: ConsumerKey
    delivered: int
    settled: int
    outstanding: int
    since_us: int
    silent_seconds: float
    example: int  # the uid of a message that it got last

    def is_stuck(self, options: AnalysisOptions) -> bool:
        return self.outstanding > 0 and self.silent_seconds >= options.stuck_after


def consumer_states(steps: pa.Table, options: AnalysisOptions, since_us: int = 0) -> Iterator[State]:
    """The states in windows from that time on: consumer by consumer of a virtual host, each in the order of time."""
    ends = aggregate(steps, ("window_start", "window_end"), last_time="max").sort_by("window_start")
    windows = [Window(*row) for row in iter_rows(ends, ("window_start", "window_end", "last_time"))]
    starts = to_ints(ends["window_start"])
    reach = _Reach.of(starts, options.consumer_windows * options.window_us)
    first = int(np.searchsorted(starts, since_us))
    for who, work in _work_of_each(steps, starts):
        yield from _states_of_one(who, work, reach, windows, first)


class _Reach(NamedTuple):
    """How far each window looks back: to that time, and to that place."""

    lines: Ints
    begins: Ints

    @classmethod
    def of(cls, starts: Ints, reach_us: int) -> _Reach:
        lines = starts - reach_us
        return cls(lines, np.searchsorted(starts, lines))

    def latest(self, times: Ints) -> Ints:
        """In each window, the latest time up to it that is not too long ago."""
        found = np.maximum.accumulate(times)
        return np.where(found >= self.lines, found, 0)


def _states_of_one(
    who: ConsumerKey, work: dict[str, Ints], reach: _Reach, windows: list[Window], first: int
) -> Iterator[State]:
    held, since = _held(work, reach), _since(work, reach)
    last_got = np.maximum.accumulate(np.where(work["got"] > 0, np.arange(len(windows)), 0))
    example = np.where(last_got >= reach.begins, work["uid"][last_got], 0)
    is_told = (work["delivered"] > 0) | (work["settled"] > 0) | (held > 0)
    for at in (first + np.flatnonzero(is_told[first:])).tolist():
        outstanding, since_us = int(held[at]), int(since[at])
        silent = (windows[at].now_us - since_us) / 1_000_000 if outstanding else 0.0
        delivered, settled = int(work["delivered"][at]), int(work["settled"][at])
        yield State(windows[at], who, delivered, settled, outstanding, since_us, silent, int(example[at]))


def _held(work: dict[str, Ints], reach: _Reach, before: int = 0) -> Ints:
    """How many messages it holds at the end of each window; with `before` = 1, before anything happened in it."""
    size = len(reach.lines)
    balance = np.append(0, np.cumsum(work["got"] - work["settled"]))
    held = np.maximum(balance[1 - before : 1 - before + size] - balance[reach.begins], 0)
    times = (work["closed_us"], work["last_got_us"], work["settled_us"])
    closed, got, settled = (reach.latest(np.append(np.zeros(before, np.int64), some)[:size]) for some in times)
    # All that a consumer had goes back to the queue when it is closed.
    return np.where((closed > 0) & (closed >= np.maximum(got, settled)), 0, held)


def _since(work: dict[str, Ints], reach: _Reach) -> Ints:
    """Its last settlement, or when it got something after it had held nothing; else the first that is known."""
    begins = (work["got"] > 0) & (_held(work, reach, before=1) == 0)
    began = np.where(begins, work["first_got_us"], 0)
    last = np.maximum(reach.latest(work["settled_us"]), reach.latest(began))
    got = np.where(work["got"] > 0, work["first_got_us"], _NEVER)
    next_got = np.minimum.accumulate(got[::-1])[::-1]
    return np.where(last > 0, last, next_got[reach.begins])


def _work_of_each(steps: pa.Table, starts: Ints) -> Iterator[tuple[ConsumerKey, dict[str, Ints]]]:
    """What each consumer did: arrays by the names of DONE."""
    work = _work(steps).sort_by([(name, "ascending") for name in (*CONSUMER_KEY, "window_start")])
    if work.num_rows == 0:
        return  # basic.get has no consumer
    places = np.searchsorted(starts, to_ints(work["window_start"]))
    done = {name: to_ints(work[name]) for name in DONE}
    firsts = group_starts(work, CONSUMER_KEY)
    bounds = zip(firsts.tolist(), [*firsts[1:].tolist(), work.num_rows], strict=True)
    for who, (begin, end) in zip(iter_rows(work.take(pa.array(firsts)), CONSUMER_KEY), bounds, strict=True):
        spread = {name: np.zeros(len(starts), np.int64) for name in DONE}
        for name, values in done.items():
            spread[name][places[begin:end]] = values[begin:end]
        yield ConsumerKey(*who), spread


def _work(steps: pa.Table) -> pa.Table:
    """What each consumer did in each window, in the columns of DONE."""
    facts = steps.filter(pc.not_equal(steps["consumer"], ""))
    kind, reason = facts["kind"], facts["reason"]
    is_got = pc.and_(pc.equal(kind, "delivered"), pc.not_equal(reason, "auto_ack"))
    # A nack with requeue has two events, nacked and requeued; a message of a lost consumer only has requeued. A message
    # over the delivery limit has an event with its consumer only if that consumer has not nacked it.
    came_back = pc.and_(pc.equal(kind, "requeued"), pc.not_equal(reason, "client"))
    is_over = pc.and_(is_one_of(kind, ("dropped", "dead_lettered")), pc.equal(reason, "delivery_limit"))
    came_back = pc.or_(came_back, is_over)
    is_settled = pc.or_(is_one_of(kind, ("acked", "nacked", "rejected")), came_back)
    told = with_columns(
        facts,
        delivered=count_kinds(facts, "delivered"),
        got=pc.if_else(is_got, facts["count"], 0),
        settled=pc.if_else(is_settled, facts["count"], 0),
        first_got_us=pc.if_else(is_got, facts["first_time"], None),
        last_got_us=pc.if_else(is_got, facts["last_time"], None),
        settled_us=pc.if_else(is_settled, facts["last_time"], None),
        closed_us=pc.if_else(pc.equal(kind, "consumer_closed"), facts["last_time"], None),
        uid=pc.if_else(is_got, facts["last_uid"], None),
    )
    return aggregate(told, (*CONSUMER_KEY, "window_start"), **DONE)
