"""Lengths of time as facts: exact counts in logarithmic buckets.

That is why they merge exactly and in any order: sketches of quantiles are random or depend on the order, and then a
restarted analysis would not agree with a batch.

Nothing is owned here: arrays go in, tables come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from warrenmq.pipeline.count.event_arrays import Names
from warrenmq.pipeline.count.partials import COUNT_SCHEMA
from warrenmq.pipeline.facts import GROWTH, PRIORITY, TIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_AGGREGATES = [
    ("time", "min"), ("time", "max"), ("uid", "min"), ("uid", "max"), ("duration", "sum"), ("duration", "max"),
    ([], "count_all"),
]  # fmt: skip
_KEYS = ["window", "vhost", "queue", "bucket"]


@dataclass(frozen=True, slots=True)
class Timed:
    """What took so long, in us: when it ended, of which message, in which queue."""

    time: Numbers
    uid: Numbers
    duration: Numbers
    vhost: Names
    queue: Names


def bucket_of(duration_us: Numbers) -> NDArray[np.int32]:
    """The number of the bucket of a duration: bucket b holds what is above GROWTH**(b-1) and not above GROWTH**b."""
    found: NDArray[np.int32] = np.ceil(np.log(np.maximum(duration_us, 1)) / math.log(GROWTH)).astype(np.int32)
    return found


def time_counts(name: str, timed: Timed, window_us: int) -> pa.Table:
    """Facts of kind time, by window, queue and bucket."""
    grouped = _grouped(timed, window_us, {})
    return _counts(TIME, timed, grouped, pa.repeat(name, grouped.num_rows))


def priority_counts(priority: Numbers, timed: Timed, window_us: int) -> pa.Table:
    """Facts of kind priority, by the priority of the messages as well, which is the name."""
    grouped = _grouped(timed, window_us, {"priority": priority})
    return _counts(PRIORITY, timed, grouped, grouped["priority"].cast(pa.string()))


def _grouped(timed: Timed, window_us: int, more: dict[str, Numbers]) -> pa.Table:
    columns = {
        "window": timed.time - timed.time % window_us,
        "vhost": timed.vhost.codes,
        "queue": timed.queue.codes,
        "bucket": bucket_of(timed.duration),
        "time": timed.time,
        "uid": timed.uid,
        "duration": timed.duration,
    }
    table = pa.table({name: pa.array(values) for name, values in (columns | more).items()})
    return table.group_by([*_KEYS, *more], use_threads=False).aggregate(_AGGREGATES)


def _counts(fact: str, timed: Timed, grouped: pa.Table, name: pa.Array) -> pa.Table:
    rows = grouped.num_rows
    found = {
        "window_start": grouped["window"].cast(COUNT_SCHEMA.field("window_start").type),
        "fact": pa.repeat(fact, rows),
        "vhost": timed.vhost.named(grouped["vhost"]),
        "queue": timed.queue.named(grouped["queue"]),
        "name": name,
        "bucket": grouped["bucket"],
        "count": grouped["count_all"],
        "total_us": grouped["duration_sum"],
        "longest_us": grouped["duration_max"],
        "first_uid": grouped["uid_min"],
        "last_uid": grouped["uid_max"],
        "first_time": grouped["time_min"],
        "last_time": grouped["time_max"],
    }
    return count_table(found, rows)


def count_table(columns: dict[str, pa.Array], rows: int) -> pa.Table:
    """Counts with these columns; others are empty: no text, 0, and for depths and times nothing."""
    arrays = [columns[field.name] if field.name in columns else _empty(field, rows) for field in COUNT_SCHEMA]
    return pa.table([array.cast(field.type) for array, field in zip(arrays, COUNT_SCHEMA, strict=True)], COUNT_SCHEMA)


def _empty(field: pa.Field, rows: int) -> pa.Array:
    if field.name.startswith(("depth", "total", "longest")):
        return pa.nulls(rows, field.type)
    return pa.repeat("" if field.type == pa.string() else pa.scalar(0, field.type), rows)
