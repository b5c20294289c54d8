"""Events and facts written by hand: only what matters is said, the rest is as the broker would tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from warrenmq.events import schema

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'warrenmq[spark]'")

from warrenmq.pipeline import facts as fact_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEN = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)

_ARROW_TYPES = {
    schema.TIME: pa.timestamp("us", "UTC"),
    schema.INT8: pa.int8(),
    schema.INT32: pa.int32(),
    schema.INT64: pa.int64(),
}
EVENT_SCHEMA = pa.schema([(column.name, _ARROW_TYPES.get(column.type, pa.string())) for column in schema.COLUMNS])

_FACT_TYPES = {"timestamp": pa.timestamp("us", "UTC"), "bigint": pa.int64(), "int": pa.int32(), "string": pa.string()}
FACT_SCHEMA = pa.schema([(f.name, _FACT_TYPES[f.dataType.simpleString()]) for f in fact_columns.SCHEMA])


def at(seconds: float) -> datetime:
    """Return the time N seconds after ten."""
    return TEN + timedelta(seconds=seconds)


def event(seconds: float, kind: str | int, uid: int = 0, **fields: Any) -> dict[str, Any]:
    code = kind if isinstance(kind, int) else schema.KIND_CODES[kind]
    reason = fields.pop("reason", None)
    fields["reason"] = schema.REASON_CODES.get(reason, reason)
    return {"time": at(seconds), "kind": code, "uid": uid, "vhost": "/"} | fields


def message(uid: int, published: float, delivered: float, acked: float | None, **fields: Any) -> list[dict[str, Any]]:
    """The life of a message in a queue, at these seconds after ten."""
    common = {"uid": uid, "exchange": "shop", "routing_key": "k", "size": 100, "publish_time": at(published)} | fields
    queue, consumer = common.pop("queue", "q"), common.pop("consumer", "c")
    place = common | {"queue": queue, "enqueue_time": at(published), "depth": 0}
    taken = place | {"consumer": consumer, "connection": f"conn-{consumer}", "channel": 1, "attempt": 1}
    life = [event(published, "published", **common), event(published, "enqueued", **place | {"depth": 1})]
    life.append(event(delivered, "delivered", **taken))
    return life if acked is None else [*life, event(acked, "acked", **taken)]


def event_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, EVENT_SCHEMA)


def events(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(event_table(rows))


def fact(kind_of_fact: str, window: int, **fields: Any) -> dict[str, Any]:
    """A fact of the window with that number from ten on, each of ten seconds."""
    texts = ("vhost", "exchange", "queue", "consumer", "connection", "kind", "reason", "name")
    counts = ("part", "channel", "bucket", "count", "messages", "settled", "failed", "redelivered", "bytes")
    start = at(10 * window)
    return {
        "window_start": start,
        "window_end": start + timedelta(seconds=10),
        "fact": kind_of_fact,
        "first_time": start,
        "last_time": start,
        **dict.fromkeys(texts, ""),
        **dict.fromkeys(counts, 0),
        "vhost": "/",
        **fields,
    }


def fact_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, FACT_SCHEMA)
