"""Rows to messages, and the ids by which the broker knows them again."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from warrenmq.pipeline.errors import BadOption, PipelineError
from warrenmq.pipeline.source.access import BrokerAccess

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'warrenmq[spark]'")

import pyarrow as pa
from pyspark.sql import types as t

from warrenmq.pipeline.sink.messages import DEDUPLICATION_HEADER, MessageBuilder, OutgoingMessage
from warrenmq.pipeline.sink.options import OPTIONS, WriteOptions, parse_write_options

ACCESS = BrokerAccess(url="amqp://127.0.0.1")


def schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


VALUE = schema(value=t.BinaryType(), routing_key=t.StringType())


def parse(
    columns: t.StructType = VALUE, is_streaming: bool = False, overwrite: bool = False, **options: str
) -> WriteOptions:
    given = {name.lower(): value for name, value in ({"url": "amqp://127.0.0.1"} | options).items()}
    return parse_write_options(given, columns, overwrite=overwrite, is_streaming=is_streaming)


def messages(rows: list[dict[str, Any]], **options: Any) -> list[OutgoingMessage]:
    chosen = WriteOptions(ACCESS, **options)
    return list(MessageBuilder(chosen, "w/3/0").build_all(pa.Table.from_pylist(rows).to_batches()))


def test_columns_become_key_body_headers_and_properties() -> None:
    (message,) = messages(
        [
            {
                "value": "hello",
                "key": b"by.key",
                "headers": [{"key": "tenant", "value": b"acme"}, {"key": "raw", "value": b"\xff"}],
                "message_id": "m",
                "priority": 3,
                "timestamp": datetime(2026, 11, 16, tzinfo=UTC),
                "exchange": "orders",
                "correlation_id": None,
            }
        ],
        routing_key="default",
        has_value=True,
    )
    assert (message.exchange, message.routing_key, message.body) == ("orders", "by.key", b"hello")
    properties = message.properties
    assert (properties.message_id, properties.priority, properties.delivery_mode) == ("m", 3, 2)
    assert (properties.correlation_id, properties.content_type) == (None, None)
    assert properties.timestamp == datetime(2026, 11, 16, tzinfo=UTC)
    assert properties.headers is not None
    assert properties.headers["tenant"] == "acme"
    assert properties.headers["raw"] == b"\xff"
    assert properties.headers[DEDUPLICATION_HEADER].startswith("w/3/0/")


def test_options_stand_in_for_columns() -> None:
    rows = [
        {"value": b"x", "routing_key": "mine", "exchange": "e"},
        {"value": None, "routing_key": None, "exchange": "e"},
    ]
    first, second = messages(rows, routing_key="default", exchange="", has_value=True)
    assert (first.exchange, first.routing_key, second.routing_key, second.body) == ("", "mine", "default", b"")
    with pytest.raises(PipelineError, match="no routing key"):
        messages(rows, has_value=True)


def test_rows_without_a_value_are_json() -> None:
    (message,) = messages(
        [
            {
                "routing_key": "k",
                "id": 7,
                "price": Decimal("1.50"),
                "at": datetime(2026, 11, 16, 10, tzinfo=UTC),
                "day": date(2026, 11, 16),
                "bytes": b"\x00",
                "type": "order",
                "nothing": None,
                "window": {"start": datetime(2026, 11, 16, tzinfo=UTC)},
            }
        ]
    )
    assert json.loads(message.body) == {
        "id": 7,
        "price": "1.50",
        "at": "2026-11-16T10:00:00+00:00",
        "day": "2026-11-16",
        "bytes": "AA==",
        "type": "order",
        "window": {"start": "2026-11-16T00:00:00+00:00"},
    }
    assert message.properties.content_type == "application/json"


def ids(rows: list[dict[str, Any]], **options: Any) -> list[str]:
    options = {"routing_key": "k"} | options
    return [message.properties.headers[DEDUPLICATION_HEADER] for message in messages(rows, **options)]  # type: ignore[index]


def test_the_same_rows_in_another_order_have_the_same_ids() -> None:
    rows = [{"a": 1, "b": 1.0}, {"a": 2, "b": 2.0}, {"a": 1, "b": 1.0}]
    first = ids(rows)
    assert len(set(first)) == 3
    assert set(first) == set(ids(rows[::-1]))
    assert set(ids([{"a": 1, "b": 1.5}])).isdisjoint(first)
    assert set(ids(rows, routing_key="other")).isdisjoint(first)


def test_id_columns_name_a_row_whatever_else_it_says() -> None:
    assert ids([{"a": 1, "b": 0.1}], id_columns=("a",)) == ids([{"a": 1, "b": 0.1000001}], id_columns=("a",))
    assert ids([{"a": 1}], id_columns=("a",)) != ids([{"a": 2}], id_columns=("a",))


def test_unknown_options_are_reported_with_the_known_ones() -> None:
    with pytest.raises(BadOption) as refused:
        parse(routngKey="x")
    assert all(name in str(refused.value) for name in OPTIONS)
    assert parse(is_streaming=True, checkpointLocation="/x").writer_name is None


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (schema(value=t.LongType()), {"routingKey": "k"}, "`value` is long"),
        (schema(value=t.StringType()), {}, "give a routing key"),
        (schema(id=t.LongType()), {}, "give a routing key"),
        (schema(value=t.StringType(), price=t.LongType()), {"routingKey": "k"}, "there can be no column price"),
        (schema(value=t.StringType(), priority=t.StringType()), {"routingKey": "k"}, "`priority` is string"),
        (schema(id=t.LongType(), headers=t.StringType()), {"routingKey": "k"}, "`headers` is string"),
        (VALUE, {"declare": "exchange"}, "stream, queue"),
        (VALUE, {"declare": "stream"}, "needs routingKey"),
        (VALUE, {"declare": "stream", "routingKey": "k", "exchange": "e"}, "no exchange"),
        (VALUE, {"deduplicationWindow": "5"}, "declare"),
        (VALUE, {"batchId": "5"}, "writerName"),
        (VALUE, {"batchId": "x", "writerName": "w"}, "number"),
        (VALUE, {"idColumns": "id"}, "no column"),
        (VALUE, {"mandatory": "yes"}, "true or false"),
    ],
)
def test_unwritable_rows_are_reported_before_anything_is_written(
    columns: t.StructType, options: dict[str, str], words: str
) -> None:
    with pytest.raises(BadOption, match=words):
        parse(columns, **options)


def test_overwriting_and_numbering_batches_oneself_are_refused() -> None:
    with pytest.raises(BadOption, match="append"):
        parse(overwrite=True)
    parse(overwrite=True, is_streaming=True)  # the output mode "complete"
    with pytest.raises(BadOption, match="numbers its batches"):
        parse(is_streaming=True, batchId="3", writerName="w")


def test_what_is_declared() -> None:
    stream = parse(declare="stream", routingKey="totals")
    assert stream.declared_arguments() == {"x-queue-type": "stream", "x-message-deduplication": True}
    queue = parse(declare="queue", routingKey="totals", deduplicationWindow="500")
    assert queue.declared_arguments() == {"x-message-deduplication": True, "x-cache-size": 500}
