"""What happened where: a chunk of events as counts, by what was concerned (step), by routing key, and by time taken.

Nothing is owned here: a chunk goes in, tables of pieces.COUNT_SCHEMA come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.count.event_arrays import NO_NAME, Chunk, Names
from warrenmq.pipeline.count.histograms import Timed, count_table, priority_counts, time_counts
from warrenmq.pipeline.facts import (
    ARRIVING,
    DEFAULT_EXCHANGE,
    DEPTH_BITS,
    DEPTH_MASK,
    END_TO_END,
    FAILING,
    KEY,
    KINDS_WITH_KEY,
    REMOVING,
    SHORTENING,
    STEP,
    WAITING,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Truths = NDArray[np.bool_]

_CODES = range(schema.MAX_CODE + 1)
_KIND_NAMES = pa.array([schema.kind_name(code) for code in _CODES], pa.string())
_REASON_NAMES = pa.array([schema.reason_name(code) if code else "" for code in _CODES], pa.string())

_EMPTYING = (schema.R_PURGED, schema.R_QUEUE_DELETED)
_NONE_LEAST, _NONE_GREATEST = 2**62, -1  # stand for no value where the least or the greatest is looked for
_AGGREGATES = [
    ("times", "sum"), ("again", "sum"), ("size", "sum"), ("depth", "max"), ("depth_at", "max"),
    ("least_uid", "min"), ("uid", "max"), ("time", "min"), ("time", "max"),
]  # fmt: skip


class Steps:
    """The counts of a chunk."""

    def __init__(self, events: Chunk, window_us: int) -> None:
        self._events = events
        self._window_us = window_us
        self._names = {name: events.names(name) for name in ("vhost", "exchange", "queue")}
        self._columns = self._keys() | self._measures()

    def steps(self) -> pa.Table:
        """Every event, by where it happened and who had to do with it."""
        events = self._events
        consumer, connection = events.names("consumer"), events.names("connection")
        is_taken = consumer.codes != NO_NAME
        more = {
            "consumer": consumer.codes,
            "connection": np.where(is_taken, connection.codes, NO_NAME),
            "channel": np.where(is_taken, events.numbers("channel"), 0),
        }
        grouped = self._grouped(more)
        found = {
            "consumer": consumer.named(grouped["consumer"]),
            "connection": connection.named(grouped["connection"]),
            "channel": grouped["channel"],
        }
        return self._counts(STEP, grouped, found)

    def keys(self) -> pa.Table:
        """What is published, by clients and as dead letters, and what fails, by routing key."""
        key, kind = self._events.names("routing_key"), self._events.kind
        is_dead_letter = (kind == schema.ROUTED) & (self._names["queue"].codes != NO_NAME)
        grouped = self._grouped({"name": key.codes}, np.isin(kind, KINDS_WITH_KEY) | is_dead_letter)
        return self._counts(KEY, grouped, {"name": key.named(grouped["name"])})

    def waiting(self) -> pa.Table:
        """How long messages waited for their first delivery."""
        return time_counts(WAITING, self._timed(self._has_waited(), "enqueue_time"), self._window_us)

    def priorities(self) -> pa.Table:
        """The same by priority, of messages that have one: what the others waited is the difference."""
        chosen = self._has_waited() & self._events.has("priority")
        timed = self._timed(chosen, "enqueue_time")
        return priority_counts(self._events.numbers("priority")[chosen], timed, self._window_us)

    def end_to_end(self) -> pa.Table:
        """How long it took from the publish to the ack."""
        events = self._events
        is_auto = (events.kind == schema.DELIVERED) & (events.numbers("reason") == schema.R_AUTO_ACK)
        chosen = ((events.kind == schema.ACKED) | is_auto) & self._has_times("publish_time")
        return time_counts(END_TO_END, self._timed(chosen, "publish_time"), self._window_us)

    def _has_waited(self) -> Truths:
        """First deliveries that tell how long it took to them."""
        events = self._events
        is_first = (events.kind == schema.DELIVERED) & (np.where(events.has("attempt"), self._attempt(), 1) == 1)
        found: Truths = is_first & self._has_times("enqueue_time")
        return found

    def _has_times(self, began: str) -> Truths:
        # A reader of a stream begins where it likes: its times say nothing.
        found: Truths = self._events.has("depth") & self._events.has(began)
        return found

    def _timed(self, chosen: Truths, began: str) -> Timed:
        events = self._events
        time = events.time[chosen]
        duration = np.maximum(time - events.numbers(began)[chosen], 0)  # a clock that was set back counts as no time
        vhost, queue = (self._names[place].at(chosen) for place in ("vhost", "queue"))
        return Timed(time, events.uid[chosen], duration, vhost, queue)

    def _keys(self) -> dict[str, Any]:
        events = self._events
        names = {name: found.codes for name, found in self._names.items()}
        window = events.time - events.time % self._window_us
        return {"window": window, "kind": events.kind, "reason": events.numbers("reason")} | names

    def _measures(self) -> dict[str, Any]:
        events = self._events
        depth, has_depth = events.numbers("depth"), events.has("depth")
        # A queue that removes what lies on disk tells one event of no message, whose depth is how many these were.
        is_many = np.isin(events.kind, REMOVING) & (events.uid == 0) & has_depth
        is_emptied = is_many & np.isin(events.numbers("reason"), _EMPTYING)
        is_deep = (has_depth & ~is_many) | is_emptied
        depth_after = np.where(is_emptied, 0, depth)
        last_depth = np.where(np.isin(events.kind, SHORTENING), DEPTH_MASK - depth_after, depth_after)
        since_start = events.time % self._window_us
        return {
            "times": np.where(is_many, depth, 1),
            "again": ((events.kind == schema.DELIVERED) & (self._attempt() > 1)).astype(np.int64),
            "size": events.numbers("size"),
            "depth": np.where(is_deep, depth_after, _NONE_GREATEST),
            "depth_at": np.where(is_deep, (since_start << DEPTH_BITS) + last_depth, _NONE_GREATEST),
            "uid": np.where(events.uid == 0, _NONE_GREATEST, events.uid),
            "least_uid": np.where(events.uid == 0, _NONE_LEAST, events.uid),
            "time": events.time,
        }

    def _attempt(self) -> Numbers:
        return self._events.numbers("attempt")

    def _grouped(self, more: dict[str, Any], chosen: Truths | None = None) -> pa.Table:
        keys = ["window", "kind", "reason", *self._names, *more]
        columns = self._columns | more
        table = pa.table({name: values if chosen is None else values[chosen] for name, values in columns.items()})
        return table.group_by(keys, use_threads=False).aggregate(_AGGREGATES)

    def _counts(self, fact: str, grouped: pa.Table, found: dict[str, Any]) -> pa.Table:
        """Groups as counts: codes become names, and what follows from the kind is filled in."""
        kind, count = np.asarray(grouped["kind"]), grouped["times_sum"]
        columns = {
            "window_start": grouped["window"],
            "fact": pa.repeat(fact, grouped.num_rows),
            "vhost": self._names["vhost"].named(grouped["vhost"]),
            "exchange": _exchanges(self._names["exchange"], grouped["exchange"]),
            "queue": self._names["queue"].named(grouped["queue"]),
            "kind": _KIND_NAMES.take(grouped["kind"]),
            "reason": _REASON_NAMES.take(grouped["reason"]),
            "count": count,
            "messages": _where(np.isin(kind, ARRIVING), count),
            "settled": _where(kind == schema.ACKED, count),
            "failed": _where(np.isin(kind, FAILING), count),
            "redelivered": grouped["again_sum"],
            "octets": grouped["size_sum"],
            "depth_max": _known(grouped["depth_max"], _NONE_GREATEST),
            "depth_at": _known(grouped["depth_at_max"], _NONE_GREATEST),
            "first_uid": _known(grouped["least_uid_min"], _NONE_LEAST),
            "last_uid": _known(grouped["uid_max"], _NONE_GREATEST),
            "first_time": grouped["time_min"],
            "last_time": grouped["time_max"],
        }
        return count_table(columns | found, grouped.num_rows)


def _exchanges(names: Names, codes: pa.ChunkedArray) -> pa.Array:
    """'' where no exchange is concerned; the default exchange has its name of the HTTP API."""
    some = np.asarray(codes)
    texts = names.named(codes)
    is_default = pc.and_(pc.equal(texts, ""), pa.array(some != NO_NAME))
    return pc.if_else(is_default, DEFAULT_EXCHANGE, texts)


def _where(is_so: Truths, count: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.where(is_so, np.asarray(count), 0))


def _known(column: pa.ChunkedArray, missing: int) -> pa.Array:
    values = np.asarray(column)
    return pa.array(values, mask=values == missing)
