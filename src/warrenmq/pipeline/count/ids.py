"""Counts by id: duplicates by message id, sessions by correlation id.

There are as many rows as ids, so these windows are short (`AnalysisOptions.id_window`). Only message ids that were
published more than once, and the worst sessions, become facts once a window is complete (facts.facts_from_ids).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from warrenmq.events import schema
from warrenmq.pipeline.count.event_arrays import EventArrays
from warrenmq.pipeline.count.partials import ID_KEYS, ID_SCHEMA, MERGED, split_by_window
from warrenmq.pipeline.facts import ARRIVING, FAILING, MESSAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

_IN_SESSION = (*ARRIVING, schema.DELIVERED, schema.ACKED, *FAILING, schema.UNROUTABLE)
_SUMS = ("messages", "settled", "failed", "redelivered", "bytes")
_AGGREGATES = [
    *((name, MERGED[name]) for name in _SUMS),
    ("uid", "min"), ("uid", "max"), ("time", "min"), ("time", "max"), ([], "count_all"),
]  # fmt: skip


def ids_of(events: EventArrays, fact: str, window_us: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the start of each window and its ids, one row per id."""
    column = "message_id" if fact == MESSAGE else "correlation_id"
    # A message that the broker itself publishes again is no duplicate.
    kinds = (schema.PUBLISHED,) if fact == MESSAGE else _IN_SESSION
    chosen = events.filter(np.isin(events.kind, kinds) & events.is_valid(column))
    for start, ids in split_by_window(_ids(chosen, column, window_us)):
        yield start, ids.select(ID_SCHEMA.names)


def _ids(events: EventArrays, column: str, window_us: int) -> pa.Table:
    vhost = events.names("vhost")
    is_arriving = np.isin(events.kind, ARRIVING)
    is_redelivery = (events.kind == schema.DELIVERED) & (events.ints("attempt") > 1)
    table = pa.table(
        {
            "window_start": events.time - events.time % window_us,
            "vhost": vhost.codes,
            "name": events.column(column),
            "messages": _as_ints(is_arriving),
            "settled": _as_ints(events.kind == schema.ACKED),
            "failed": _as_ints(np.isin(events.kind, FAILING)),
            "redelivered": _as_ints(is_redelivery),
            "bytes": np.where(is_arriving, events.ints("size"), 0),
            "uid": events.uid,
            "time": events.time,
        }
    )
    grouped = table.group_by(["window_start", *ID_KEYS], use_threads=False).aggregate(_AGGREGATES)
    columns = {
        "window_start": grouped["window_start"],
        "vhost": vhost.decode(grouped["vhost"]),
        "name": grouped["name"],
        "count": grouped["count_all"],
        **{name: grouped[f"{name}_sum"] for name in _SUMS},
        "first_uid": grouped["uid_min"],
        "last_uid": grouped["uid_max"],
        "first_time": grouped["time_min"].cast(ID_SCHEMA.field("first_time").type),
        "last_time": grouped["time_max"].cast(ID_SCHEMA.field("last_time").type),
    }
    return pa.table(columns)


def _as_ints(mask: Mask) -> NDArray[np.int64]:
    return mask.astype(np.int64)
