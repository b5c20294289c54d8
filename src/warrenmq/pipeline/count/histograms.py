"""Durations as histograms: exact counts in logarithmic buckets.

Such counts merge exactly and in any order. Quantile sketches are random or depend on the order, so a restarted analysis
would not agree with a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from warrenmq.pipeline.count.event_arrays import EncodedNames
from warrenmq.pipeline.count.partials import COUNT_SCHEMA
from warrenmq.pipeline.facts import GROWTH, PRIORITY, TIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_AGGREGATES = [
    ("time", "min"), ("time", "max"), ("uid", "min"), ("uid", "max"), ("duration", "sum"), ("duration", "max"),
    ([], "count_all"),
]  # fmt: skip
_KEYS = ["window", "vhost", "queue", "bucket"]


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations in us, with the time at which each ended, its message and its queue."""

    time: Ints
    uid: Ints
    duration: Ints
    vhost: EncodedNames
    queue: EncodedNames


def bucket_of(duration_us: Ints) -> NDArray[np.int32]:
    """Return the bucket of each duration: bucket b holds durations in (GROWTH**(b-1), GROWTH**b]."""
    found: NDArray[np.int32] = np.ceil(np.log(np.maximum(duration_us, 1)) / math.log(GROWTH)).astype(np.int32)
    return found


def duration_counts(name: str, durations: Durations, window_us: int) -> pa.Table:
    """Return facts of kind time, by window, queue and bucket."""
    grouped = _group(durations, window_us, {})
    return _counts(TIME, durations, grouped, pa.repeat(name, grouped.num_rows))


def priority_duration_counts(priority: Ints, durations: Durations, window_us: int) -> pa.Table:
    """Return facts of kind priority: grouped by the priority of the messages as well, which becomes the name."""
    grouped = _group(durations, window_us, {"priority": priority})
    return _counts(PRIORITY, durations, grouped, grouped["priority"].cast(pa.string()))


def _group(durations: Durations, window_us: int, more_keys: dict[str, Ints]) -> pa.Table:
    columns = {
        "window": durations.time - durations.time % window_us,
        "vhost": durations.vhost.codes,
        "queue": durations.queue.codes,
        "bucket": bucket_of(durations.duration),
        "time": durations.time,
        "uid": durations.uid,
        "duration": durations.duration,
    }
    table = pa.table({name: pa.array(values) for name, values in (columns | more_keys).items()})
    return table.group_by([*_KEYS, *more_keys], use_threads=False).aggregate(_AGGREGATES)


def _counts(fact: str, durations: Durations, grouped: pa.Table, name: pa.Array) -> pa.Table:
    rows = grouped.num_rows
    columns = {
        "window_start": grouped["window"].cast(COUNT_SCHEMA.field("window_start").type),
        "fact": pa.repeat(fact, rows),
        "vhost": durations.vhost.decode(grouped["vhost"]),
        "queue": durations.queue.decode(grouped["queue"]),
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
    return counts_table(columns, rows)


def counts_table(columns: dict[str, pa.Array], rows: int) -> pa.Table:
    """Return counts with these columns; all others are empty: '' or 0, and null for depths and durations."""
    arrays = [columns[field.name] if field.name in columns else _empty(field, rows) for field in COUNT_SCHEMA]
    return pa.table([array.cast(field.type) for array, field in zip(arrays, COUNT_SCHEMA, strict=True)], COUNT_SCHEMA)


def _empty(field: pa.Field, rows: int) -> pa.Array:
    if field.name.startswith(("depth", "total", "longest")):
        return pa.nulls(rows, field.type)
    return pa.repeat("" if field.type == pa.string() else pa.scalar(0, field.type), rows)
