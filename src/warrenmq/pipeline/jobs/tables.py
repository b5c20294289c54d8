"""Arrow tables of facts, and the functions by which jobs query them.

Facts are few, whatever the number of events: planning joins and windows over them costs Spark a second, these functions
take milliseconds. Each returns a new table or column. Groups and ranks do not depend on the order of the rows, so an
answer does not depend on how the facts were merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.pipeline.facts import FAILING

Ints = NDArray[np.int64]
Column: TypeAlias = pa.ChunkedArray
Columns = dict[str, pa.DataType]
Row = dict[str, Any]

TIMESTAMP, TEXT, INT, FLOAT, BOOL = pa.timestamp("us", "UTC"), pa.string(), pa.int64(), pa.float64(), pa.bool_()
TEXT_LIST = pa.list_(TEXT)

WINDOW = ("window_start", "window_end", "vhost")  # the first columns of every answer
WINDOW_COLUMNS: Columns = {"window_start": TIMESTAMP, "window_end": TIMESTAMP, "vhost": TEXT}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# -- kinds of events ---------------------------------------------------------------------------------------------------

PUBLISHES = ("published", "republished")
# Facts of routing keys also count what the broker itself published: dead letters.
PUBLISHED_OR_ROUTED = (*PUBLISHES, "routed")
# Each failed delivery is one of these (see `count_once`); `nacked` and `rejected` precede them and would count it
# twice.
FAILURES = ("requeued", "retried", "expired", "dropped", "dead_lettered")
FAILURE_EVENTS = tuple(schema.KIND_NAMES[kind] for kind in FAILING)

# Reasons of `dropped` and `dead_lettered` for messages that were not waiting: a consumer had them, or the queue never
# did.
NOT_WAITING = ("rejected", "delivery_limit", "refused", "duplicate", "cycle")
# Reasons for messages that no consumer had.
_NOT_DELIVERED = ("expired", "maxlen", "purged", "queue_deleted", "refused", "duplicate", "cycle")


def count_once(facts: pa.Table) -> pa.Table:
    """Drop dead letters that expired: each of them also has an event `expired`."""
    is_duplicate = pc.and_(pc.equal(facts["kind"], "dead_lettered"), pc.equal(facts["reason"], "expired"))
    return facts.filter(pc.invert(is_duplicate))


def is_failed_delivery(facts: pa.Table) -> pa.ChunkedArray:
    """Return which facts count failed deliveries, rather than messages that no consumer had."""
    return pc.and_(is_one_of(facts["kind"], FAILURES), pc.invert(is_one_of(facts["reason"], _NOT_DELIVERED)))


# -- rows --------------------------------------------------------------------------------------------------------------


def where(table: pa.Table, **values: str | Sequence[str]) -> pa.Table:
    """Filter by values of columns: `where(facts, fact="step", kind=("acked", "nacked"))`."""
    for name, allowed in values.items():
        table = table.filter(is_one_of(table[name], allowed))
    return table


def is_one_of(column: Column, values: str | Sequence[str]) -> Column:
    if isinstance(values, str):
        return pc.equal(column, values)
    return pc.is_in(column, pa.array(values, TEXT))


def since(table: pa.Table, since_us: int) -> pa.Table:
    """Return the rows of windows from this time on; without a copy if the rows are in order of time."""
    starts = to_ints(table["window_start"])
    if np.all(starts[1:] >= starts[:-1]):
        return table.slice(int(np.searchsorted(starts, since_us)))
    return table.filter(pa.array(starts >= since_us))


def split_by_vhost(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    vhosts = sorted(pc.unique(table["vhost"]).to_pylist())
    for vhost in vhosts:
        yield vhost, table if len(vhosts) == 1 else where(table, vhost=vhost)


def with_rank(table: pa.Table, within: Sequence[str], by: Sequence[str], rank: str = "rank") -> pa.Table:
    """Add the rank of each row within its group, from 1; `-count` in `by` sorts descending."""
    order = [(name.removeprefix("-"), "descending" if name[0] == "-" else "ascending") for name in by]
    ordered = table.sort_by([*((name, "ascending") for name in within), *order])
    first = group_starts(ordered, within)
    sizes = np.diff(np.append(first, ordered.num_rows))
    return with_columns(ordered, **{rank: pa.array(np.arange(ordered.num_rows) - np.repeat(first, sizes) + 1)})


def group_starts(ordered: pa.Table, within: Sequence[str]) -> Ints:
    """Return the indices of the first rows of groups, in a table sorted by these columns."""
    is_new = np.arange(ordered.num_rows) == 0
    for name in within:
        column = ordered[name].combine_chunks()
        is_new[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_new)


# -- aggregates --------------------------------------------------------------------------------------------------------


def aggregate(table: pa.Table, keys: Sequence[str], **measures: str) -> pa.Table:
    """Group by keys: `aggregate(steps, ("queue",), count="sum", last_time="max")`; "last" takes the last row."""
    grouped = table.group_by(list(keys), use_threads=False).aggregate(list(measures.items()))
    columns = {key: key for key in keys} | {f"{name}_{how}": name for name, how in measures.items()}
    return grouped.select(list(columns)).rename_columns(list(columns.values()))


def count_kinds(table: pa.Table, *kinds: str, measure: str = "count") -> Column:
    """Return the measure in rows of these kinds of events, and 0 in others."""
    return pc.if_else(is_one_of(table["kind"], kinds), table[measure], 0)


def per_second(table: pa.Table, name: str) -> Column:
    return pc.divide(table[name].cast(FLOAT), window_seconds(table))


def window_seconds(table: pa.Table) -> Column:
    length = pc.subtract(times_to_us(table["window_end"]), times_to_us(table["window_start"]))
    return pc.divide(length.cast(FLOAT), 1_000_000.0)


def ratio(part: Column, whole: Column) -> Column:
    """Return part / whole; 0 if whole is 0 or null."""
    has_whole = pc.fill_null(pc.greater(whole, 0), False)
    return pc.if_else(has_whole, pc.divide(part.cast(FLOAT), pc.if_else(has_whole, whole, 1).cast(FLOAT)), 0.0)


# -- columns -----------------------------------------------------------------------------------------------------------


def with_columns(table: pa.Table, **columns: Any) -> pa.Table:
    """Add or replace columns; a string becomes a constant column."""
    for name, column in columns.items():
        value = pa.repeat(column, table.num_rows) if isinstance(column, str) else column
        index = table.schema.get_field_index(name)
        table = table.append_column(name, value) if index < 0 else table.set_column(index, name, value)
    return table


def concat(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables, promote_options="default")  # nullability may differ


def left_join(table: pa.Table, other: pa.Table, keys: Sequence[str]) -> pa.Table:
    return table.join(other, list(keys), join_type="left outer", use_threads=False)


def uid_texts(column: Column) -> Column:
    """Return uids in the form that the page of traces takes."""
    return pa.array([None if uid is None else uid_text(uid) for uid in column.to_pylist()], TEXT)


def uid_list(uids: Iterable[int | None]) -> list[str]:
    """Return uids in that form, each once; 0 and null are unknown."""
    return [uid_text(uid) for uid in dict.fromkeys(uids) if uid]


def to_table(rows: Sequence[Row], columns: Columns) -> pa.Table:
    return pa.Table.from_pylist(list(rows), pa.schema(list(columns.items())))


def conform(table: pa.Table, columns: Columns) -> pa.Table:
    """Select these columns and cast them to their types."""
    return table.select(list(columns)).cast(pa.schema(list(columns.items())))


def iter_rows(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield rows as tuples of these columns; times are us since 1970."""
    return zip(*(times_to_us(table[name]).to_pylist() for name in names), strict=True)


def to_ints(column: Column) -> Ints:
    """Return a column as an array; times are us since 1970, null is 0."""
    found: Ints = times_to_us(column).cast(INT).fill_null(0).to_numpy()
    return found


def encode(column: Column) -> tuple[list[str], Any]:
    """Return the distinct values of a column, and the index of each row's value."""
    encoded = column.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def times_to_us(column: Column) -> Column:
    """Return times of any unit as us since 1970; other columns are returned as they are."""
    return column.cast(TIMESTAMP).cast(INT) if pa.types.is_timestamp(column.type) else column


def to_time(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
