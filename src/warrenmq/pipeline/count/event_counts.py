"""Counts of a batch of events: by place (exchange, queue, consumer), by routing key, and by duration.

All tables have the columns of partials.COUNT_SCHEMA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.count.event_arrays import NULL_CODE, EncodedNames, EventArrays
from warrenmq.pipeline.count.histograms import Durations, counts_table, duration_counts, priority_duration_counts
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

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_CODES = range(schema.MAX_CODE + 1)
_KIND_NAMES = pa.array([schema.kind_name(code) for code in _CODES], pa.string())
_REASON_NAMES = pa.array([schema.reason_name(code) if code else "" for code in _CODES], pa.string())

_EMPTYING = (schema.R_PURGED, schema.R_QUEUE_DELETED)
_NO_MIN, _NO_MAX = 2**62, -1  # stand for null in minima and maxima
_AGGREGATES = [
    ("times", "sum"), ("redelivered", "sum"), ("size", "sum"), ("depth", "max"), ("depth_at", "max"),
    ("min_uid", "min"), ("uid", "max"), ("time", "min"), ("time", "max"),
]  # fmt: skip


class EventCounts:
    """The counts of one batch of events."""

    def __init__(self, events: EventArrays, window_us: int) -> None:
        self._events = events
        self._window_us = window_us
        self._names = {name: events.names(name) for name in ("vhost", "exchange", "queue")}
        self._columns = self._keys() | self._measures()

    def steps(self) -> pa.Table:
        """Count every event by exchange, queue, consumer, kind and reason."""
        events = self._events
        consumer, connection = events.names("consumer"), events.names("connection")
        has_consumer = consumer.codes != NULL_CODE
        more_keys = {
            "consumer": consumer.codes,
            "connection": np.where(has_consumer, connection.codes, NULL_CODE),
            "channel": np.where(has_consumer, events.ints("channel"), 0),
        }
        grouped = self._group(more_keys)
        columns = {
            "consumer": consumer.decode(grouped["consumer"]),
            "connection": connection.decode(grouped["connection"]),
            "channel": grouped["channel"],
        }
        return self._counts(STEP, grouped, columns)

    def keys(self) -> pa.Table:
        """Count publishes, by clients and as dead letters, and failures by routing key."""
        key, kind = self._events.names("routing_key"), self._events.kind
        is_dead_letter = (kind == schema.ROUTED) & (self._names["queue"].codes != NULL_CODE)
        grouped = self._group({"name": key.codes}, np.isin(kind, KINDS_WITH_KEY) | is_dead_letter)
        return self._counts(KEY, grouped, {"name": key.decode(grouped["name"])})

    def waiting(self) -> pa.Table:
        """Count times from enqueue to first delivery."""
        return duration_counts(WAITING, self._durations(self._is_first_delivery(), "enqueue_time"), self._window_us)

    def priorities(self) -> pa.Table:
        """Count the same by priority, of messages that have one: the difference is the wait of all others."""
        mask = self._is_first_delivery() & self._events.is_valid("priority")
        durations = self._durations(mask, "enqueue_time")
        return priority_duration_counts(self._events.ints("priority")[mask], durations, self._window_us)

    def end_to_end(self) -> pa.Table:
        """Count times from publish to ack."""
        events = self._events
        is_auto = (events.kind == schema.DELIVERED) & (events.ints("reason") == schema.R_AUTO_ACK)
        mask = ((events.kind == schema.ACKED) | is_auto) & self._has_duration("publish_time")
        return duration_counts(END_TO_END, self._durations(mask, "publish_time"), self._window_us)

    def _is_first_delivery(self) -> Mask:
        events = self._events
        is_first = (events.kind == schema.DELIVERED) & (np.where(events.is_valid("attempt"), self._attempt(), 1) == 1)
        found: Mask = is_first & self._has_duration("enqueue_time")
        return found

    def _has_duration(self, start: str) -> Mask:
        # Readers of streams start anywhere, so their times mean nothing; their events have no depth.
        found: Mask = self._events.is_valid("depth") & self._events.is_valid(start)
        return found

    def _durations(self, mask: Mask, start: str) -> Durations:
        events = self._events
        time = events.time[mask]
        duration = np.maximum(time - events.ints(start)[mask], 0)  # 0 if the clock was set back
        vhost, queue = (self._names[name].take(mask) for name in ("vhost", "queue"))
        return Durations(time, events.uid[mask], duration, vhost, queue)

    def _keys(self) -> dict[str, Any]:
        events = self._events
        names = {name: encoded.codes for name, encoded in self._names.items()}
        window = events.time - events.time % self._window_us
        return {"window": window, "kind": events.kind, "reason": events.ints("reason")} | names

    def _measures(self) -> dict[str, Any]:
        events = self._events
        depth, has_depth = events.ints("depth"), events.is_valid("depth")
        # When a queue removes messages that are only on disk, one event without a uid stands for `depth` messages.
        is_bulk = np.isin(events.kind, REMOVING) & (events.uid == 0) & has_depth
        is_emptied = is_bulk & np.isin(events.ints("reason"), _EMPTYING)
        depth_is_known = (has_depth & ~is_bulk) | is_emptied
        depth_after = np.where(is_emptied, 0, depth)
        last_depth = np.where(np.isin(events.kind, SHORTENING), DEPTH_MASK - depth_after, depth_after)
        since_start = events.time % self._window_us
        return {
            "times": np.where(is_bulk, depth, 1),
            "redelivered": ((events.kind == schema.DELIVERED) & (self._attempt() > 1)).astype(np.int64),
            "size": events.ints("size"),
            "depth": np.where(depth_is_known, depth_after, _NO_MAX),
            "depth_at": np.where(depth_is_known, (since_start << DEPTH_BITS) + last_depth, _NO_MAX),
            "uid": np.where(events.uid == 0, _NO_MAX, events.uid),
            "min_uid": np.where(events.uid == 0, _NO_MIN, events.uid),
            "time": events.time,
        }

    def _attempt(self) -> Ints:
        return self._events.ints("attempt")

    def _group(self, more_keys: dict[str, Any], mask: Mask | None = None) -> pa.Table:
        keys = ["window", "kind", "reason", *self._names, *more_keys]
        columns = self._columns | more_keys
        table = pa.table({name: values if mask is None else values[mask] for name, values in columns.items()})
        return table.group_by(keys, use_threads=False).aggregate(_AGGREGATES)

    def _counts(self, fact: str, grouped: pa.Table, columns: dict[str, Any]) -> pa.Table:
        """Decode the names of the groups and add the measures that follow from the kind."""
        kind, count = np.asarray(grouped["kind"]), grouped["times_sum"]
        common = {
            "window_start": grouped["window"],
            "fact": pa.repeat(fact, grouped.num_rows),
            "vhost": self._names["vhost"].decode(grouped["vhost"]),
            "exchange": _exchange_names(self._names["exchange"], grouped["exchange"]),
            "queue": self._names["queue"].decode(grouped["queue"]),
            "kind": _KIND_NAMES.take(grouped["kind"]),
            "reason": _REASON_NAMES.take(grouped["reason"]),
            "count": count,
            "messages": _count_if(np.isin(kind, ARRIVING), count),
            "settled": _count_if(kind == schema.ACKED, count),
            "failed": _count_if(np.isin(kind, FAILING), count),
            "redelivered": grouped["redelivered_sum"],
            "bytes": grouped["size_sum"],
            "depth_max": _null_if(grouped["depth_max"], _NO_MAX),
            "depth_at": _null_if(grouped["depth_at_max"], _NO_MAX),
            "first_uid": _null_if(grouped["min_uid_min"], _NO_MIN),
            "last_uid": _null_if(grouped["uid_max"], _NO_MAX),
            "first_time": grouped["time_min"],
            "last_time": grouped["time_max"],
        }
        return counts_table(common | columns, grouped.num_rows)


def _exchange_names(names: EncodedNames, codes: pa.ChunkedArray) -> pa.Array:
    """Decode exchanges: '' if the event has none; the default exchange gets its name of the HTTP API."""
    decoded = names.decode(codes)
    is_default = pc.and_(pc.equal(decoded, ""), pa.array(np.asarray(codes) != NULL_CODE))
    return pc.if_else(is_default, DEFAULT_EXCHANGE, decoded)


def _count_if(mask: Mask, count: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.where(mask, np.asarray(count), 0))


def _null_if(column: pa.ChunkedArray, missing: int) -> pa.Array:
    values = np.asarray(column)
    return pa.array(values, mask=values == missing)
