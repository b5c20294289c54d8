"""Messages that consumers hold, window by window. Pure: facts in, states out.

A consumer holds the messages delivered to it that are not settled, as far back as `consumer_windows` reach. Idle
consumers have no events, so every window with any events has a state for each consumer that holds messages.

The activity of a consumer is a set of arrays indexed by window; times are us since 1970, 0 for none. Windows do not
overlap, so the latest of some times is that of the latest window that has one.
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
# `manual`: deliveries that have to be settled
ACTIVITY = {
    "delivered": "sum", "manual": "sum", "settled": "sum", "first_delivery_us": "min", "last_delivery_us": "max",
    "settled_us": "max", "closed_us": "max", "uid": "max",
}  # fmt: skip
_SETTLED_BEFORE = ("client", "rejected")  # reasons of messages that come back after a nack or reject
_NO_TIME = np.iinfo(np.int64).max


class ConsumerKey(NamedTuple):
    queue: str
    consumer: str
    connection: str
    channel: int


class Window(NamedTuple):
    """`last_event_us`: the time of the last event in it."""

    start_us: int
    end_us: int
    last_event_us: int


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """What a consumer holds at the end of a window, and how long it has settled nothing."""

    window: Window
    key: ConsumerKey
    delivered: int
    settled: int
    outstanding: int
    since_us: int
    silent_seconds: float
    example: int  # uid of one of the messages delivered last

    def is_stuck(self, options: AnalysisOptions) -> bool:
        return self.outstanding > 0 and self.silent_seconds >= options.stuck_after


def consumer_states(steps: pa.Table, options: AnalysisOptions, since_us: int = 0) -> Iterator[ConsumerState]:
    """Yield the states in windows from this time on, by consumer of a virtual host and in order of time."""
    ends = aggregate(steps, ("window_start", "window_end"), last_time="max").sort_by("window_start")
    windows = [Window(*row) for row in iter_rows(ends, ("window_start", "window_end", "last_time"))]
    starts = to_ints(ends["window_start"])
    lookback = _Lookback.of(starts, options.consumer_windows * options.window_us)
    first = int(np.searchsorted(starts, since_us))
    for key, activity in _activity_by_consumer(steps, starts):
        yield from _states_of_one(key, activity, lookback, windows, first)


class _Lookback(NamedTuple):
    """How far back each window looks: to which time, and to which window."""

    since_us: Ints
    first: Ints

    @classmethod
    def of(cls, starts: Ints, length_us: int) -> _Lookback:
        since_us = starts - length_us
        return cls(since_us, np.searchsorted(starts, since_us))

    def latest(self, times: Ints) -> Ints:
        """Return for each window the latest of these times within the lookback, or 0."""
        found = np.maximum.accumulate(times)
        return np.where(found >= self.since_us, found, 0)


def _states_of_one(
    key: ConsumerKey, activity: dict[str, Ints], lookback: _Lookback, windows: list[Window], first: int
) -> Iterator[ConsumerState]:
    held, since = _outstanding(activity, lookback), _silent_since(activity, lookback)
    last_delivery = np.maximum.accumulate(np.where(activity["manual"] > 0, np.arange(len(windows)), 0))
    example = np.where(last_delivery >= lookback.first, activity["uid"][last_delivery], 0)
    has_state = (activity["delivered"] > 0) | (activity["settled"] > 0) | (held > 0)
    for at in (first + np.flatnonzero(has_state[first:])).tolist():
        outstanding, since_us = int(held[at]), int(since[at])
        silent_seconds = (windows[at].last_event_us - since_us) / 1_000_000 if outstanding else 0.0
        delivered, settled = int(activity["delivered"][at]), int(activity["settled"][at])
        yield ConsumerState(
            windows[at], key, delivered, settled, outstanding, since_us, silent_seconds, int(example[at])
        )


def _outstanding(activity: dict[str, Ints], lookback: _Lookback, before: int = 0) -> Ints:
    """Return how many messages it holds at the end of each window; with `before` = 1, at its start."""
    size = len(lookback.since_us)
    balance = np.append(0, np.cumsum(activity["manual"] - activity["settled"]))
    held = np.maximum(balance[1 - before : 1 - before + size] - balance[lookback.first], 0)
    times = (activity["closed_us"], activity["last_delivery_us"], activity["settled_us"])
    closed, delivered, settled = (lookback.latest(np.append(np.zeros(before, np.int64), some)[:size]) for some in times)
    # Closing a consumer requeues all its messages.
    return np.where((closed > 0) & (closed >= np.maximum(delivered, settled)), 0, held)


def _silent_since(activity: dict[str, Ints], lookback: _Lookback) -> Ints:
    """Return the time of its last settlement or, if later, of its first delivery after it held nothing."""
    begins = (activity["manual"] > 0) & (_outstanding(activity, lookback, before=1) == 0)
    began = np.where(begins, activity["first_delivery_us"], 0)
    last = np.maximum(lookback.latest(activity["settled_us"]), lookback.latest(began))
    delivery = np.where(activity["manual"] > 0, activity["first_delivery_us"], _NO_TIME)
    next_delivery = np.minimum.accumulate(delivery[::-1])[::-1]
    return np.where(last > 0, last, next_delivery[lookback.first])


def _activity_by_consumer(steps: pa.Table, starts: Ints) -> Iterator[tuple[ConsumerKey, dict[str, Ints]]]:
    """Yield the activity of each consumer: arrays by the names of ACTIVITY."""
    table = _activity(steps).sort_by([(name, "ascending") for name in (*CONSUMER_KEY, "window_start")])
    if table.num_rows == 0:
        return  # basic.get has no consumer
    places = np.searchsorted(starts, to_ints(table["window_start"]))
    values_of = {name: to_ints(table[name]) for name in ACTIVITY}
    firsts = group_starts(table, CONSUMER_KEY)
    bounds = zip(firsts.tolist(), [*firsts[1:].tolist(), table.num_rows], strict=True)
    for key, (begin, end) in zip(iter_rows(table.take(pa.array(firsts)), CONSUMER_KEY), bounds, strict=True):
        by_window = {name: np.zeros(len(starts), np.int64) for name in ACTIVITY}
        for name, values in values_of.items():
            by_window[name][places[begin:end]] = values[begin:end]
        yield ConsumerKey(*key), by_window


def _activity(steps: pa.Table) -> pa.Table:
    """Return the activity of each consumer in each window, in the columns of ACTIVITY."""
    facts = steps.filter(pc.not_equal(steps["consumer"], ""))
    kind, reason = facts["kind"], facts["reason"]
    is_manual_delivery = pc.and_(pc.equal(kind, "delivered"), pc.not_equal(reason, "auto_ack"))
    # A nack with requeue has two events, nacked and requeued (or retried); a message of a lost consumer has only the
    # second. Retried, or over the delivery limit, it has an event with its consumer only if that did not nack it.
    came_back = pc.and_(is_one_of(kind, ("requeued", "retried")), pc.invert(is_one_of(reason, _SETTLED_BEFORE)))
    is_over = pc.and_(is_one_of(kind, ("dropped", "dead_lettered")), pc.equal(reason, "delivery_limit"))
    came_back = pc.or_(came_back, is_over)
    is_settled = pc.or_(is_one_of(kind, ("acked", "nacked", "rejected")), came_back)
    columns = with_columns(
        facts,
        delivered=count_kinds(facts, "delivered"),
        manual=pc.if_else(is_manual_delivery, facts["count"], 0),
        settled=pc.if_else(is_settled, facts["count"], 0),
        first_delivery_us=pc.if_else(is_manual_delivery, facts["first_time"], None),
        last_delivery_us=pc.if_else(is_manual_delivery, facts["last_time"], None),
        settled_us=pc.if_else(is_settled, facts["last_time"], None),
        closed_us=pc.if_else(pc.equal(kind, "consumer_closed"), facts["last_time"], None),
        uid=pc.if_else(is_manual_delivery, facts["last_uid"], None),
    )
    return aggregate(columns, (*CONSUMER_KEY, "window_start"), **ACTIVITY)
