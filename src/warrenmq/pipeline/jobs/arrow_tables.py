"""Facts as Arrow tables, for jobs whose logic is plain Python: all facts of one virtual host, after one exchange.

Facts are few, whatever the number of events. A plan of many joins and windows over them costs Spark seconds to make; a
function over a table costs what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from warrenmq.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = dict[str, Any]

_TYPES = {
    "timestamp": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "double": pa.float64(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def answer_by_vhost(
    facts: DataFrame,
    columns: Sequence[str],
    answer: Callable[[pa.Table, Settings], list[Row]],
    schema: Mapping[str, str],
    settings: Settings,
) -> DataFrame:
    """The rows that the function makes of these columns of each virtual host; `schema`: names to types of Spark."""
    types = dict(schema)

    def answer_one(table: pa.Table) -> pa.Table:
        return pa.Table.from_pylist(answer(table, settings), pa.schema([(n, _TYPES[t]) for n, t in types.items()]))

    declared = ", ".join(f"{name} {kind}" for name, kind in types.items())
    return facts.select("vhost", *columns).groupBy("vhost").applyInArrow(answer_one, declared)


def columns_of(table: pa.Table) -> dict[str, list[Any]]:
    """The columns as lists; times are microseconds since 1970."""
    return {name: plain(table[name]).to_pylist() for name in table.column_names}


def to_time(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as microseconds since 1970, in whatever unit they came; others as they are."""
    return column.cast(_TYPES["timestamp"]).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
