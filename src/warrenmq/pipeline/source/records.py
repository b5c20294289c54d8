"""Messages to Arrow rows, with the columns of a record (payload raw and json).

A batch is limited in rows and bytes, so that large bodies do not pile up. Types are exactly those of the schema
declared to Spark, which accepts no others. For one thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from warrenmq import client
from warrenmq.pipeline.source.broker import OFFSET
from warrenmq.pipeline.source.filters import Condition
from warrenmq.pipeline.source.json_body import JsonBody

BATCH_ROWS = 4096
BATCH_BYTES = 8 << 20

Getter = Callable[[int, client.Delivery], Any]

_PROPERTIES = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class RecordBatches:
    """Decodes messages into batches of this schema; `stream` is the name of the stream or queue."""

    def __init__(
        self,
        schema: pa.Schema,
        stream: str,
        conditions: Sequence[Condition] = (),
        body: JsonBody | None = None,
    ) -> None:
        self._schema = schema
        self._body = body
        self._getters = [self._getter(name, stream) for name in schema.names]
        self._conditions = [(condition, self._field(condition.field, stream)) for condition in conditions]

    def decode(self, records: Iterable[tuple[int, client.Delivery]]) -> Iterator[pa.RecordBatch]:
        rows: list[list[Any]] = []
        size = 0
        for offset, delivery in records:
            if self._body is not None and not self._body.parse(offset, delivery):
                continue
            if not all(condition.matches(get(offset, delivery)) for condition, get in self._conditions):
                continue
            rows.append([get(offset, delivery) for get in self._getters])
            size += len(delivery.body)
            if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._batch(rows)
                rows = []
                size = 0
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[list[Any]]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _getter(self, name: str, stream: str) -> Getter:
        if name == "value":
            body = self._body
            return (lambda _, delivery: delivery.body) if body is None else (lambda _, __: body.value)
        return _GETTERS.get(name, lambda _, __: stream)

    def _field(self, field: str, stream: str) -> Getter:
        """Return a getter for the field of a comparison."""
        if field.startswith("header."):
            name = field.removeprefix("header.")
            return lambda _, delivery: delivery.headers.get(name)
        if field.startswith("value."):
            path = field.split(".")[1:]
            body = self._body
            assert body is not None
            return lambda _, __: body.field(path)
        return self._getter(field, stream)


def _property(name: str) -> Getter:
    return lambda _, delivery: getattr(delivery.properties, name)


def _timestamp(_: int, delivery: client.Delivery) -> datetime | None:
    """The publisher's timestamp, if a datetime can hold it."""
    value = delivery.properties.timestamp
    return value.astimezone(UTC) if isinstance(value, datetime) else None


def _headers(_: int, delivery: client.Delivery) -> list[dict[str, Any]]:
    return [{"key": name, "value": header_bytes(value)} for name, value in delivery.headers.items() if name != OFFSET]


def header_bytes(value: object) -> bytes | None:
    """Encode a header value for Spark: strings as UTF-8, bytes unchanged, all others as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, default=_plain, ensure_ascii=False).encode()


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_GETTERS: dict[str, Getter] = {
    "key": lambda _, delivery: delivery.routing_key.encode("utf-8", "surrogateescape"),
    "offset": lambda offset, _: offset,
    "partition": lambda _, __: 0,
    "timestamp": _timestamp,
    "headers": _headers,
    "exchange": lambda _, delivery: delivery.exchange,
    "routing_key": lambda _, delivery: delivery.routing_key,
    "redelivered": lambda _, delivery: delivery.redelivered,
    **{name: _property(name) for name in _PROPERTIES},
}
