"""What needs the events of one id together: duplicates by message id, sessions by correlation id.

As many rows as there are ids: so the windows are short (`settings.keyed_window`), and only message ids that came more
than once, and the worst sessions, become facts when all of a window is together (pieces.facts_of_ids).

Nothing is owned here: a chunk of events goes in, tables of pieces.ID_SCHEMA come out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from warrenmq.events import schema
from warrenmq.pipeline.count.event_arrays import Chunk
from warrenmq.pipeline.count.partials import ID_KEYS, ID_SCHEMA, MERGED, by_window
from warrenmq.pipeline.facts import ARRIVING, FAILING, MESSAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Truths = NDArray[np.bool_]

_IN_SESSION = (*ARRIVING, schema.DELIVERED, schema.ACKED, *FAILING, schema.UNROUTABLE)
_SUMS = ("messages", "settled", "failed", "redelivered", "octets")
_AGGREGATES = [
    *((name, MERGED[name]) for name in _SUMS),
    ("uid", "min"), ("uid", "max"), ("time", "min"), ("time", "max"), ([], "count_all"),
]  # fmt: skip


def ids_of(events: Chunk, fact: str, window_us: int) -> Iterator[tuple[int, pa.Table]]:
    """The ids of each window, and the begin of it; each id once."""
    column = "message_id" if fact == MESSAGE else "correlation_id"
    # A message that the broker publishes again is no duplicate.
    kinds = (schema.PUBLISHED,) if fact == MESSAGE else _IN_SESSION
    chosen = events.where(np.isin(events.kind, kinds) & events.has(column))
    for start, ids in by_window(_ids(chosen, column, window_us)):
        yield start, ids.select(ID_SCHEMA.names)


def _ids(events: Chunk, column: str, window_us: int) -> pa.Table:
    vhost = events.names("vhost")
    is_arriving = np.isin(events.kind, ARRIVING)
    is_again = (events.kind == schema.DELIVERED) & (events.numbers("attempt") > 1)
    table = pa.table(
        {
            "window_start": events.time - events.time % window_us,
            "vhost": vhost.codes,
            "name": events.texts(column),
            "messages": _ones(is_arriving),
            "settled": _ones(events.kind == schema.ACKED),
            "failed": _ones(np.isin(events.kind, FAILING)),
            "redelivered": _ones(is_again),
            "octets": np.where(is_arriving, events.numbers("size"), 0),
            "uid": events.uid,
            "time": events.time,
        }
    )
    grouped = table.group_by(["window_start", *ID_KEYS], use_threads=False).aggregate(_AGGREGATES)
    found = {
        "window_start": grouped["window_start"],
        "vhost": vhost.named(grouped["vhost"]),
        "name": grouped["name"],
        "count": grouped["count_all"],
        **{name: grouped[f"{name}_sum"] for name in _SUMS},
        "first_uid": grouped["uid_min"],
        "last_uid": grouped["uid_max"],
        "first_time": grouped["time_min"].cast(ID_SCHEMA.field("first_time").type),
        "last_time": grouped["time_max"].cast(ID_SCHEMA.field("last_time").type),
    }
    return pa.table(found)


def _ones(is_so: Truths) -> NDArray[np.int64]:
    return is_so.astype(np.int64)
