"""Messages as JSON, with RabbitMQ's field names: properties, headers, payload."""

from __future__ import annotations

import base64
import codecs
import math
from datetime import datetime
from decimal import Decimal
from typing import Any

from starlette.datastructures import QueryParams

from warrenmq.core.snapshot import message_properties
from warrenmq.management import paging

MAX_COUNT = 1000
DEFAULT_TRUNCATE = 50_000
MAX_TRUNCATE = 4 << 20
# A response ends when its payloads and headers exceed this many bytes, even if more messages were asked for.
MAX_RESPONSE = 8 << 20


def count_of(params: QueryParams, default: int) -> int:
    return paging.whole_number(params, "count", default, 1, MAX_COUNT)


def truncate_of(params: QueryParams) -> int:
    """Return how many bytes of a payload are wanted."""
    return paging.whole_number(params, "truncate", DEFAULT_TRUNCATE, 0, MAX_TRUNCATE)


def property_values(header: bytes) -> dict[str, Any]:
    """Return the properties that are set, as JSON can hold them."""
    return {name: json_value(value) for name, value in message_properties(header).items()}


def payload_values(body: bytes, size: int) -> dict[str, Any]:
    """Return the payload, of which `body` is the beginning: as text if it is UTF-8, else in base64."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(body, final=len(body) == size)
    except UnicodeDecodeError:
        return {"payload_bytes": size, "payload_encoding": "base64", "payload": base64.b64encode(body).decode()}
    return {"payload_bytes": size, "payload_encoding": "string", "payload": text}


def json_value(value: Any) -> Any:
    """Return a value of a field table as JSON can hold it: times in seconds since 1970, other types as text."""
    if isinstance(value, dict):
        return {key: json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value
