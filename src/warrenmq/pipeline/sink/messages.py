"""Arrow rows to messages: key, body, properties and deduplication id.

The id is WRITER/BATCH/PARTITION/ROW, where ROW is a hash of the row and its number among equal rows: when Spark
computes a batch again, the rows of a partition may come in another order, but with the same content.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from warrenmq import client
from warrenmq.pipeline.errors import PipelineError
from warrenmq.pipeline.sink.options import PROPERTY_COLUMNS, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

DEDUPLICATION_HEADER = "x-deduplication-header"
PERSISTENT = 2
JSON_TYPE = "application/json"
_SLICE_ROWS = 1024  # rows converted to Python values at a time


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """The message of a row."""

    exchange: str
    routing_key: str
    body: bytes
    properties: client.Properties


class MessageBuilder:
    """Builds the messages of one partition. `origin` is WRITER/BATCH/PARTITION."""

    def __init__(self, options: WriteOptions, origin: str) -> None:
        self._options = options
        self._origin = origin
        self._seen: dict[bytes, int] = {}  # number of rows with this hash so far

    def build_all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[OutgoingMessage]:
        for batch in batches:
            for first in range(0, batch.num_rows, _SLICE_ROWS):
                for row in batch.slice(first, _SLICE_ROWS).to_pylist():
                    yield self.build(row)

    def build(self, row: dict[str, Any]) -> OutgoingMessage:
        options = self._options
        body = _bytes(row["value"]) if options.has_value else _json_body(row)
        exchange = options.exchange
        if exchange is None:
            exchange = (row.get("exchange") if options.has_value else None) or ""
        routing_key = self._routing_key(row)
        properties = _properties(row) if options.has_value else client.Properties(content_type=JSON_TYPE)
        properties.delivery_mode = properties.delivery_mode or PERSISTENT
        headers = _headers(row.get("headers"))
        headers[DEDUPLICATION_HEADER] = self._id(row, exchange, routing_key, body, headers)
        properties.headers = headers
        return OutgoingMessage(exchange, routing_key, body, properties)

    def _routing_key(self, row: Mapping[str, Any]) -> str:
        key = row.get("routing_key")
        if key is None and self._options.has_value:
            key = row.get("key")
        if key is None:
            key = self._options.routing_key
        if key is None:
            raise PipelineError("a row has no routing key: it is null, and there is no option routingKey")
        return key.decode() if isinstance(key, (bytes, bytearray)) else str(key)

    def _id(self, row: Mapping[str, Any], exchange: str, key: str, body: bytes, headers: Mapping[str, Any]) -> str:
        """Return an id that is the same whenever the same row of the same batch is written."""
        if self._options.id_columns:
            content = repr([row[name] for name in self._options.id_columns]).encode()
        else:
            extra = [row.get(name) for name in PROPERTY_COLUMNS] if self._options.has_value else []
            content = repr((exchange, key, sorted(headers.items()), extra)).encode() + body
        digest = blake2b(content, digest_size=12).digest()
        number = self._seen.get(digest, 0)
        self._seen[digest] = number + 1
        return f"{self._origin}/{digest.hex()}.{number}"


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return b"" if value is None else bytes(value)  # type: ignore[call-overload]


def _json_body(row: Mapping[str, Any]) -> bytes:
    """Encode all columns except routing key and headers; nulls are omitted, as by Spark's to_json."""
    shown = {name: value for name, value in row.items() if name not in ("routing_key", "headers") and value is not None}
    return json.dumps(shown, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return str(value)


def _properties(row: Mapping[str, Any]) -> client.Properties:
    return client.Properties(**{name: row[name] for name in PROPERTY_COLUMNS if row.get(name) is not None})


def _headers(given: Any) -> dict[str, Any]:
    """Convert a map, or an array of structs with key and value; bytes that are valid UTF-8 become strings."""
    if not given:
        return {}
    pairs = [(each["key"], each["value"]) if isinstance(each, Mapping) else each for each in given]
    return {str(name): _header_value(value) for name, value in pairs}


def _header_value(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value)
    return value
