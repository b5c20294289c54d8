"""Pieces: what a part of the events counts up to, small enough to be moved about, and how pieces become facts.

A piece is a table of one kind and one place, packed as an Arrow stream: so Spark moves some rows of bytes, however
many events there were. All measures merge exactly and in any order (sums, least and greatest ones), so the pieces of a
window are the same facts whatever parts the events were read in. In batch Spark brings the pieces of a place together
(facts.facts_of); a --follow keeps them in its store (analysis/facts_store.py). Both use the functions here.

| kind | place | rows |
| --- | --- | --- |
| counts | the begin of a window | facts of kind step, key, time and priority |
| message, session | the begin of a window | ids, each with what happened to it |
| ends | a number made of the message | deliveries and settlements whose other end is not known here (legs.py) |
| seen | 0 | none: how many events there were, and the time of the newest |

Nothing is owned here: tables go in and come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.facts import DEPTH_MASK, GROUP_KEYS, KEY, MEASURES, MESSAGE, SHORTENING

COUNTS, ENDS, SEEN = "counts", "ends", "seen"
DDL = "kind string, place bigint, events bigint, newest bigint, body binary"
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("place", pa.int64()),
        ("events", pa.int64()),
        ("newest", pa.int64()),
        ("body", pa.binary()),
    ]
)

TIME = pa.timestamp("us", "UTC")
# `depth_at`: when within the window, and how deep; the greatest tells the depth at the end of the window.
MERGED = {
    "count": "sum", "messages": "sum", "settled": "sum", "failed": "sum", "redelivered": "sum", "octets": "sum",
    "depth_max": "max", "depth_at": "max", "total_us": "sum", "longest_us": "max", "first_uid": "min",
    "last_uid": "max", "first_time": "min", "last_time": "max",
}  # fmt: skip
_NUMBERS = {"channel": pa.int32(), "bucket": pa.int32(), "first_time": TIME, "last_time": TIME}
COUNT_KEYS = ("window_start", *GROUP_KEYS)
COUNT_SCHEMA = pa.schema(
    [("window_start", TIME), *((name, _NUMBERS.get(name, pa.string())) for name in GROUP_KEYS)]
    + [(name, _NUMBERS.get(name, pa.int64())) for name in MERGED]
)
ID_KEYS = ("vhost", "name")
ID_MEASURES = tuple(name for name in MERGED if not name.startswith(("depth", "total", "longest")))
ID_SCHEMA = pa.schema([COUNT_SCHEMA.field(name) for name in (*ID_KEYS, *ID_MEASURES)])
FACT_SCHEMA = pa.schema(
    [
        ("window_start", TIME),
        ("window_end", TIME),
        ("part", pa.int64()),
        *(COUNT_SCHEMA.field(name) for name in GROUP_KEYS),
        *((name, _NUMBERS.get(name, pa.int64())) for name in MEASURES),
    ]
)
_SHORTENING = pa.array([schema.kind_name(kind) for kind in SHORTENING], pa.string())
# Small tables: handing them to threads takes longer than packing them.
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_UNPACKED = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True, slots=True)
class Piece:
    """`events` and `newest` (us since 1970) are those of the piece of kind seen."""

    kind: str
    place: int
    body: bytes = b""
    events: int = 0
    newest: int = 0

    def table(self) -> pa.Table:
        return unpacked(self.body)


def rows_of(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """As Spark moves them."""
    columns = {name: [getattr(piece, name) for piece in pieces] for name in SCHEMA.names}
    return pa.RecordBatch.from_pydict(columns, SCHEMA)


def pieces_in(rows: pa.Table) -> list[Piece]:
    """The same from rows that Spark brought."""
    return [Piece(**row) for row in rows.select(SCHEMA.names).to_pylist()]


def packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    whole = table.combine_chunks()
    with pa.ipc.new_stream(sink, whole.schema, options=_PACKED) as writer:
        writer.write_table(whole)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


def unpacked(octets: bytes) -> pa.Table:
    with pa.ipc.open_stream(octets, options=_UNPACKED) as reader:
        return reader.read_all()


def merged_counts(tables: Iterable[pa.Table]) -> pa.Table:
    """Facts of the same keys as one."""
    return _merged(tables, COUNT_SCHEMA, COUNT_KEYS)


def merged_ids(tables: Iterable[pa.Table]) -> pa.Table:
    """What is known of each id as one row."""
    return _merged(tables, ID_SCHEMA, ID_KEYS)


def by_window(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each window, and the begin of it (us since 1970); the oldest first."""
    starts = np.asarray(table.column("window_start").cast(pa.int64()))
    order = np.argsort(starts, kind="stable")
    bounds = np.flatnonzero(np.diff(starts[order], prepend=-1, append=-1)).tolist() if len(order) else []
    in_order = table if len(bounds) <= 2 else table.take(pa.array(order))
    for first, end in pairwise(bounds):
        yield int(starts[order[first]]), in_order.slice(first, end - first)


def facts_of_counts(counts: pa.Table, window_us: int, kept: int, part: int = 0) -> pa.Table:
    """Merged counts as facts, with at most `kept` routing keys per window and group."""
    bounded = busiest_keys(counts, kept)
    constants = {
        "window_end": pc.add(bounded.column("window_start"), pa.scalar(window_us, pa.duration("us"))),
        "part": pa.repeat(part, bounded.num_rows),
        "depth_last": _last_depth(bounded),
    }
    return _in_order(bounded, constants)


def _last_depth(counts: pa.Table) -> pa.ChunkedArray:
    depth = pc.bit_wise_and(counts.column("depth_at"), DEPTH_MASK)
    return pc.if_else(pc.is_in(counts.column("kind"), _SHORTENING), pc.subtract(DEPTH_MASK, depth), depth)


def busiest_keys(counts: pa.Table, kept: int) -> pa.Table:
    """The counts with at most so many routing keys per window and group; the same table where there are no more."""
    is_key = pc.equal(counts.column("fact"), KEY)
    keys = counts.filter(is_key)
    group = ("window_start", "vhost", "exchange", "queue", "kind", "reason")
    chosen = _first_of_each(keys, group, [("count", "descending"), ("name", "ascending")], kept)
    return counts if chosen is keys else pa.concat_tables([counts.filter(pc.invert(is_key)), chosen])


def facts_of_ids(kind: str, ids: pa.Table, start: int, window_us: int, kept: int) -> pa.Table:
    """Merged ids of one window as facts: messages that came more than once, and the `kept` worst sessions."""
    chosen = ids.filter(pc.greater(ids.column("count"), 1)) if kind == MESSAGE else worst_sessions(ids, kept)
    rows = chosen.num_rows
    texts = dict.fromkeys(("exchange", "queue", "consumer", "connection", "kind", "reason"), pa.scalar(""))
    constants = {
        "fact": pa.scalar(kind),
        "window_start": pa.scalar(start, TIME),
        "window_end": pa.scalar(start + window_us, TIME),
        "part": pa.scalar(0, pa.int64()),
        "channel": pa.scalar(0, pa.int32()),
        "bucket": pa.scalar(0, pa.int32()),
        **texts,
        **dict.fromkeys(("depth_max", "depth_last", "total_us", "longest_us"), pa.scalar(None, pa.int64())),
    }
    return _in_order(chosen, {name: pa.repeat(value, rows) for name, value in constants.items()})


def worst_sessions(ids: pa.Table, kept: int) -> pa.Table:
    """Of each virtual host those that failed most, then those that took longest."""
    duration = pc.subtract(*(ids.column(name).cast(pa.int64()) for name in ("last_time", "first_time")))
    ranked = ids.append_column("duration", duration)
    order = [("failed", "descending"), ("duration", "descending"), ("name", "ascending")]
    return _first_of_each(ranked, ("vhost",), order, kept).drop_columns(["duration"])


def _merged(tables: Iterable[pa.Table], schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
    whole = pa.concat_tables([schema.empty_table(), *tables])
    measures = [name for name in schema.names if name not in keys]
    grouped = whole.group_by(list(keys), use_threads=False).aggregate([(name, MERGED[name]) for name in measures])
    names = {f"{name}_{MERGED[name]}": name for name in measures}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names]).select(schema.names)


def _first_of_each(table: pa.Table, group: Sequence[str], order: list[tuple[str, str]], kept: int) -> pa.Table:
    """The first rows of each group; the table itself where no group has more. Few groups ever have."""
    if table.num_rows <= kept:
        return table
    sizes = table.group_by(list(group), use_threads=False).aggregate([([], "count_all")])
    large = sizes.filter(pc.greater(sizes.column("count_all"), kept)).to_pylist()
    chosen = []
    others = table
    for size in large:
        is_in = reduce(pc.and_, (pc.equal(others.column(name), size[name]) for name in group))
        rows = others.filter(is_in)
        chosen.append(rows.take(pc.select_k_unstable(rows, kept, order)))
        others = others.filter(pc.invert(is_in))
    return pa.concat_tables([others, *chosen]) if large else table


def _in_order(table: pa.Table, constants: Mapping[str, pa.Array]) -> pa.Table:
    columns = [constants[name] if name in constants else table.column(name) for name in FACT_SCHEMA.names]
    return pa.table(columns, schema=FACT_SCHEMA)
