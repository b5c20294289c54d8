"""Tables of facts, and the few verbs by which jobs ask them: Arrow in, Arrow out.

Facts are few, whatever the number of events: a plan of joins and windows over them costs Spark a second to make, and
these functions milliseconds. Every function gives a new table or column; groups and ranks do not depend on the order
of the rows, so that an answer is the same however the facts came together.

Nothing is owned here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from warrenmq.events.ids import uid_text

Numbers = NDArray[np.int64]
Column: TypeAlias = pa.ChunkedArray
Columns = dict[str, pa.DataType]
Row = dict[str, Any]

TIMESTAMP, TEXT, WHOLE, REAL, FLAG = pa.timestamp("us", "UTC"), pa.string(), pa.int64(), pa.float64(), pa.bool_()
TEXTS = pa.list_(TEXT)

WINDOW = ("window_start", "window_end", "vhost")  # every row of an answer begins with them
WINDOW_COLUMNS: Columns = {"window_start": TIMESTAMP, "window_end": TIMESTAMP, "vhost": TEXT}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# -- choosing rows -----------------------------------------------------------------------------------------------------


def where(table: pa.Table, **wanted: str | Sequence[str]) -> pa.Table:
    """The rows whose columns have this value, or one of these: `where(facts, fact="step", kind=("acked", "nacked"))`"""
    for name, values in wanted.items():
        table = table.filter(is_one_of(table[name], values))
    return table


def is_one_of(column: Column, values: str | Sequence[str]) -> Column:
    if isinstance(values, str):
        return pc.equal(column, values)
    return pc.is_in(column, pa.array(values, TEXT))


def since(table: pa.Table, since_us: int) -> pa.Table:
    """The rows of the windows from this time on; a part of the same memory where they are in the order of time."""
    starts = numbers(table["window_start"])
    if np.all(starts[1:] >= starts[:-1]):
        return table.slice(int(np.searchsorted(starts, since_us)))
    return table.filter(pa.array(starts >= since_us))


def by_vhost(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The facts of each virtual host."""
    vhosts = sorted(pc.unique(table["vhost"]).to_pylist())
    for vhost in vhosts:
        yield vhost, table if len(vhosts) == 1 else where(table, vhost=vhost)


def ranked(table: pa.Table, within: Sequence[str], by: Sequence[str], rank: str = "rank") -> pa.Table:
    """With the place of each row within its group, from 1 on; `-count` in `by`: the highest first."""
    order = [(name.removeprefix("-"), "descending" if name[0] == "-" else "ascending") for name in by]
    ordered = table.sort_by([*((name, "ascending") for name in within), *order])
    first = first_of_groups(ordered, within)
    sizes = np.diff(np.append(first, ordered.num_rows))
    return put(ordered, **{rank: pa.array(np.arange(ordered.num_rows) - np.repeat(first, sizes) + 1)})


def first_of_groups(ordered: pa.Table, within: Sequence[str]) -> Numbers:
    """Where groups begin, in a table that is in the order of these columns."""
    is_new = np.arange(ordered.num_rows) == 0
    for name in within:
        column = ordered[name].combine_chunks()
        is_new[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_new)


# -- counting ----------------------------------------------------------------------------------------------------------


def totals(table: pa.Table, keys: Sequence[str], **measures: str) -> pa.Table:
    """One row per group: `totals(steps, ("queue",), count="sum", last_time="max")`; "last": of the last row."""
    found = table.group_by(list(keys), use_threads=False).aggregate(list(measures.items()))
    columns = {key: key for key in keys} | {f"{name}_{how}": name for name, how in measures.items()}
    return found.select(list(columns)).rename_columns(list(columns.values()))


def count_of(table: pa.Table, *kinds: str, measure: str = "count") -> Column:
    """How often these kinds of events happened: 0 in rows of others."""
    return pc.if_else(is_one_of(table["kind"], kinds), table[measure], 0)


def per_second(table: pa.Table, name: str) -> Column:
    return pc.divide(table[name].cast(REAL), seconds_of(table))


def seconds_of(table: pa.Table) -> Column:
    """How long the window of each row is."""
    length = pc.subtract(plain(table["window_end"]), plain(table["window_start"]))
    return pc.divide(length.cast(REAL), 1_000_000.0)


def ratio(part: Column, whole: Column) -> Column:
    """A share; 0 of nothing."""
    has_whole = pc.fill_null(pc.greater(whole, 0), False)
    return pc.if_else(has_whole, pc.divide(part.cast(REAL), pc.if_else(has_whole, whole, 1).cast(REAL)), 0.0)


# -- columns and rows --------------------------------------------------------------------------------------------------


def put(table: pa.Table, **columns: Any) -> pa.Table:
    """With these columns, added or in the place of those of the same name; a text stands in every row."""
    for name, column in columns.items():
        value = pa.repeat(column, table.num_rows) if isinstance(column, str) else column
        place = table.schema.get_field_index(name)
        table = table.append_column(name, value) if place < 0 else table.set_column(place, name, value)
    return table


def stacked(*tables: pa.Table) -> pa.Table:
    """The rows of all of them."""
    return pa.concat_tables(tables, promote_options="default")  # whether a column may be null need not agree


def joined(table: pa.Table, other: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Each row with what the other table has of the same keys; null where it has nothing."""
    return table.join(other, list(keys), join_type="left outer", use_threads=False)


def uid_texts(column: Column) -> Column:
    """Uids as people see them, and as the page of traces finds them; null where there is none."""
    return pa.array([None if uid is None else uid_text(uid) for uid in column.to_pylist()], TEXT)


def table_of(rows: Sequence[Row], columns: Columns) -> pa.Table:
    return pa.Table.from_pylist(list(rows), pa.schema(list(columns.items())))


def shaped(table: pa.Table, columns: Columns) -> pa.Table:
    """Exactly these columns."""
    return table.select(list(columns)).cast(pa.schema(list(columns.items())))


def columns_of(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of these columns; times are microseconds since 1970."""
    return zip(*(plain(table[name]).to_pylist() for name in names), strict=True)


def numbers(column: Column) -> Numbers:
    """As an array; times are microseconds since 1970, null is 0."""
    found: Numbers = plain(column).cast(WHOLE).fill_null(0).to_numpy()
    return found


def codes(column: Column) -> tuple[list[str], Any]:
    """The texts of a column, and which of them each row has."""
    encoded = column.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def plain(column: Column) -> Column:
    """Times as microseconds since 1970, in whatever unit they came; others as they are."""
    return column.cast(TIMESTAMP).cast(WHOLE) if pa.types.is_timestamp(column.type) else column


def to_time(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
