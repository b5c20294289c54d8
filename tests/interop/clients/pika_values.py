"""How pika's values and ours translate, for all of pika's connections."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika

from .contract import PROPERTY_NAMES, Delivery

HEADER_SAMPLES: Mapping[str, Any] = {
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -5,
    "32 bit": 2**31 - 1,
    "64 bit": 2**40,
    "negative 64 bit": -(2**40),
    "text": "grüße, 世界",
    "empty text": "",
    "long text": "x" * 5000,
    "bytes": b"\x00\xff\xfe",
    "decimal": Decimal("3.14"),
    "timestamp": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
    "nothing": None,
    "list": [1, "two", [3, {"four": 4}], None],
    "table": {"inner": {"deeper": [True, False]}, "number": 7},
    "empty list": [],
    "empty table": {},
}


def properties_for(properties: Mapping[str, Any] | None) -> pika.BasicProperties | None:
    return None if properties is None else pika.BasicProperties(**properties)


def delivery_from(method: Any, properties: pika.BasicProperties, body: bytes) -> Delivery:
    kept = {name: value for name in PROPERTY_NAMES if (value := getattr(properties, name)) is not None}
    return Delivery(
        body=bytes(body),
        exchange=method.exchange,
        routing_key=method.routing_key,
        tag=method.delivery_tag,
        redelivered=method.redelivered,
        properties=kept,
        consumer=getattr(method, "consumer_tag", None),
        remaining=getattr(method, "message_count", None),
    )
