"""Partial aggregates to facts: merge those of one window, and keep the routing keys and sessions that matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.count.count_events import CountSpec, count_events
from warrenmq.pipeline.count.partials import (
    COUNT_SCHEMA,
    COUNTS,
    TIMESTAMP,
    TOTALS,
    TYPES,
    UNMATCHED,
    Partial,
    merge_counts,
    merge_ids,
    partials_from_rows,
)
from warrenmq.pipeline.count.processing_times import match_deliveries
from warrenmq.pipeline.facts import ALL, DEPTH_MASK, GROUP_KEYS, KEY, MEASURES, MESSAGE, SHORTENING

if TYPE_CHECKING:
    from warrenmq.pipeline.options import AnalysisOptions

FACT_SCHEMA = pa.schema(
    [
        ("window_start", TIMESTAMP),
        ("window_end", TIMESTAMP),
        ("part", pa.int64()),
        *(COUNT_SCHEMA.field(name) for name in GROUP_KEYS),
        *((name, TYPES.get(name, pa.int64())) for name in MEASURES),
    ]
)
_SHORTENING = pa.array([schema.kind_name(kind) for kind in SHORTENING], pa.string())


def facts_from_events(events: pa.Table, options: AnalysisOptions, fact_kinds: Iterable[str] = ALL) -> pa.Table:
    """Return the facts of a table of events, computed in this process."""
    return facts_from_rows(count_events(events.to_batches(), CountSpec.of(options, fact_kinds)), options)


def facts_from_rows(rows: Iterable[pa.RecordBatch], options: AnalysisOptions) -> pa.Table:
    """Return the facts of partials as rows, merged in this process."""
    groups: dict[tuple[str, int], list[Partial]] = {}
    for batch in rows:
        for partial in partials_from_rows(batch):
            groups.setdefault((partial.kind, partial.key), []).append(partial)
    tables = [facts_from_partials(partials, options) for (kind, _), partials in groups.items() if kind != TOTALS]
    return pa.concat_tables([FACT_SCHEMA.empty_table(), *tables])


def facts_from_partials(partials: Sequence[Partial], options: AnalysisOptions) -> pa.Table:
    """Return the facts of all partials of one kind and key."""
    kind, key = partials[0].kind, partials[0].key
    tables = [partial.table() for partial in partials]
    if kind == COUNTS:
        return facts_from_counts(merge_counts(tables), options.window_us, options.max_per_group)
    if kind == UNMATCHED:
        counts, _ = match_deliveries(pa.concat_tables(tables), options.window_us)
        return facts_from_counts(counts, options.window_us, options.max_per_group, part=key + 1)
    return facts_from_ids(kind, merge_ids(tables), key, options.id_window_us, options.max_per_group)


def facts_from_counts(counts: pa.Table, window_us: int, max_keys: int, part: int = 0) -> pa.Table:
    """Return merged counts as facts, with at most `max_keys` routing keys per window and group."""
    bounded = top_routing_keys(counts, max_keys)
    columns = {
        "window_end": pc.add(bounded.column("window_start"), pa.scalar(window_us, pa.duration("us"))),
        "part": pa.repeat(part, bounded.num_rows),
        "depth_last": _last_depth(bounded),
    }
    return _fact_table(bounded, columns)


def _last_depth(counts: pa.Table) -> pa.ChunkedArray:
    depth = pc.bit_wise_and(counts.column("depth_at"), DEPTH_MASK)
    return pc.if_else(pc.is_in(counts.column("kind"), _SHORTENING), pc.subtract(DEPTH_MASK, depth), depth)


def top_routing_keys(counts: pa.Table, max_keys: int) -> pa.Table:
    """Keep the busiest routing keys of each window and group; return the same table if no group has more."""
    is_key = pc.equal(counts.column("fact"), KEY)
    keys = counts.filter(is_key)
    group = ("window_start", "vhost", "exchange", "queue", "kind", "reason")
    chosen = _top_of_each(keys, group, [("count", "descending"), ("name", "ascending")], max_keys)
    return counts if chosen is keys else pa.concat_tables([counts.filter(pc.invert(is_key)), chosen])


def facts_from_ids(kind: str, ids: pa.Table, start: int, window_us: int, max_sessions: int) -> pa.Table:
    """Return the merged ids of one window as facts: messages published more than once, or the worst sessions."""
    chosen = ids.filter(pc.greater(ids.column("count"), 1)) if kind == MESSAGE else worst_sessions(ids, max_sessions)
    rows = chosen.num_rows
    texts = dict.fromkeys(("exchange", "queue", "consumer", "connection", "kind", "reason"), pa.scalar(""))
    constants = {
        "fact": pa.scalar(kind),
        "window_start": pa.scalar(start, TIMESTAMP),
        "window_end": pa.scalar(start + window_us, TIMESTAMP),
        "part": pa.scalar(0, pa.int64()),
        "channel": pa.scalar(0, pa.int32()),
        "bucket": pa.scalar(0, pa.int32()),
        **texts,
        **dict.fromkeys(("depth_max", "depth_last", "total_us", "longest_us"), pa.scalar(None, pa.int64())),
    }
    return _fact_table(chosen, {name: pa.repeat(value, rows) for name, value in constants.items()})


def worst_sessions(ids: pa.Table, max_sessions: int) -> pa.Table:
    """Keep the sessions of each virtual host with the most failures, then those that took longest."""
    duration = pc.subtract(*(ids.column(name).cast(pa.int64()) for name in ("last_time", "first_time")))
    order = [("failed", "descending"), ("duration", "descending"), ("name", "ascending")]
    return _top_of_each(ids.append_column("duration", duration), ("vhost",), order, max_sessions).drop_columns(
        ["duration"]
    )


def _top_of_each(table: pa.Table, group: Sequence[str], order: list[tuple[str, str]], max_rows: int) -> pa.Table:
    """Keep the first rows of each group; return the same table if no group has more. Few groups ever have."""
    if table.num_rows <= max_rows:
        return table
    sizes = table.group_by(list(group), use_threads=False).aggregate([([], "count_all")])
    large = sizes.filter(pc.greater(sizes.column("count_all"), max_rows)).to_pylist()
    chosen = []
    others = table
    for size in large:
        is_in = reduce(pc.and_, (pc.equal(others.column(name), size[name]) for name in group))
        rows = others.filter(is_in)
        chosen.append(rows.take(pc.select_k_unstable(rows, max_rows, order)))
        others = others.filter(pc.invert(is_in))
    return pa.concat_tables([others, *chosen]) if large else table


def _fact_table(table: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    arrays = [columns[name] if name in columns else table.column(name) for name in FACT_SCHEMA.names]
    return pa.table(arrays, schema=FACT_SCHEMA)
