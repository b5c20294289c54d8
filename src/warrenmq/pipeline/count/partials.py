"""Partial aggregates: what a part of the events counts up to, small enough to be shuffled or stored.

A partial is a table of one kind and key, packed as an Arrow IPC stream: Spark moves a few rows of bytes, however many
events there were. All measures merge exactly and in any order (sums, minima, maxima), so the facts of a window do not
depend on how the events were split. In batch, Spark groups the partials by kind and key (facts.merge_partials); a
--follow adds them to its store (merge/facts_store.py).

| kind | key | rows |
| --- | --- | --- |
| counts | start of a window | facts of kind step, key, time and priority |
| message, session | start of a window | ids with their counts |
| unmatched | partition of the messages | deliveries and settlements without their counterpart (processing_times.py) |
| totals | 0 | none: the number of events, and the time of the newest |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from warrenmq.pipeline.facts import GROUP_KEYS

COUNTS, UNMATCHED, TOTALS = "counts", "unmatched", "totals"
DDL = "kind string, key bigint, events bigint, newest bigint, body binary"
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.int64()),
        ("events", pa.int64()),
        ("newest", pa.int64()),
        ("body", pa.binary()),
    ]
)

TIMESTAMP = pa.timestamp("us", "UTC")
# `depth_at` is (time within the window, depth) in one number: its maximum is the depth at the end of the window.
MERGED = {
    "count": "sum", "messages": "sum", "settled": "sum", "failed": "sum", "redelivered": "sum", "bytes": "sum",
    "depth_max": "max", "depth_at": "max", "total_us": "sum", "longest_us": "max", "first_uid": "min",
    "last_uid": "max", "first_time": "min", "last_time": "max",
}  # fmt: skip
TYPES = {"channel": pa.int32(), "bucket": pa.int32(), "first_time": TIMESTAMP, "last_time": TIMESTAMP}
COUNT_KEYS = ("window_start", *GROUP_KEYS)
COUNT_SCHEMA = pa.schema(
    [("window_start", TIMESTAMP), *((name, TYPES.get(name, pa.string())) for name in GROUP_KEYS)]
    + [(name, TYPES.get(name, pa.int64())) for name in MERGED]
)
ID_KEYS = ("vhost", "name")
ID_MEASURES = tuple(name for name in MERGED if not name.startswith(("depth", "total", "longest")))
ID_SCHEMA = pa.schema([COUNT_SCHEMA.field(name) for name in (*ID_KEYS, *ID_MEASURES)])
# Tables are small: handing them to threads takes longer than packing them.
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True, slots=True)
class Partial:
    """A packed table; `events` and `newest` (us since 1970) are set on the partial of kind totals only."""

    kind: str
    key: int
    body: bytes = b""
    events: int = 0
    newest: int = 0

    def table(self) -> pa.Table:
        return unpack(self.body)


def partials_to_rows(partials: Sequence[Partial]) -> pa.RecordBatch:
    """Return partials as rows for Spark."""
    columns = {name: [getattr(partial, name) for partial in partials] for name in SCHEMA.names}
    return pa.RecordBatch.from_pydict(columns, SCHEMA)


def partials_from_rows(rows: pa.Table) -> list[Partial]:
    """Return partials from rows of Spark."""
    return [Partial(**row) for row in rows.select(SCHEMA.names).to_pylist()]


def pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    whole = table.combine_chunks()
    with pa.ipc.new_stream(sink, whole.schema, options=_WRITE_OPTIONS) as writer:
        writer.write_table(whole)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def unpack(body: bytes) -> pa.Table:
    with pa.ipc.open_stream(body, options=_READ_OPTIONS) as reader:
        return reader.read_all()


def merge_counts(tables: Iterable[pa.Table]) -> pa.Table:
    """Merge rows with equal keys."""
    return _merge(tables, COUNT_SCHEMA, COUNT_KEYS)


def merge_ids(tables: Iterable[pa.Table]) -> pa.Table:
    """Merge rows of the same id."""
    return _merge(tables, ID_SCHEMA, ID_KEYS)


def split_by_window(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the start of each window (us since 1970) and its rows, oldest first."""
    starts = np.asarray(table.column("window_start").cast(pa.int64()))
    order = np.argsort(starts, kind="stable")
    bounds = np.flatnonzero(np.diff(starts[order], prepend=-1, append=-1)).tolist() if len(order) else []
    in_order = table if len(bounds) <= 2 else table.take(pa.array(order))
    for first, end in pairwise(bounds):
        yield int(starts[order[first]]), in_order.slice(first, end - first)


def _merge(tables: Iterable[pa.Table], schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
    whole = pa.concat_tables([schema.empty_table(), *tables])
    measures = [name for name in schema.names if name not in keys]
    grouped = whole.group_by(list(keys), use_threads=False).aggregate([(name, MERGED[name]) for name in measures])
    names = {f"{name}_{MERGED[name]}": name for name in measures}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names]).select(schema.names)
