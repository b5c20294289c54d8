"""The offset header of a stream's messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from warrenmq.core.message import Message
from warrenmq.core.number_header import NumberHeader
from warrenmq.protocol.properties import BasicProperties, content_header


def message(**properties: Any) -> Message:
    return Message(b"\x00\x01s", content_header(4, BasicProperties(**properties)), b"body")


ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": {"a": 1, "nested": {"x-stream-offset": 5}},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "1000",
    "message_id": "m",
    "timestamp": datetime(2024, 1, 1, tzinfo=UTC),
    "type": "t",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}


@pytest.mark.parametrize(
    "given",
    [{}, {"content_type": "text/plain"}, {"message_id": "m"}, {"headers": {}}, {"headers": {"a": [1, 2]}}, ALL],
    ids=lambda given: " ".join(given) or "nothing",
)
def test_the_offset_is_added_and_everything_else_stays(given: dict[str, Any]) -> None:
    stamped = NumberHeader().stamp(message(**given), 7)
    expected = {**given, "headers": {**given.get("headers", {}), "x-stream-offset": 7}}
    assert stamped.properties == BasicProperties(**expected)
    assert (stamped.address, stamped.body) == (b"\x00\x01s", b"body")
    assert stamped.header[:12] == message(**given).header[:12]


def test_it_is_written_as_a_64_bit_integer_whatever_its_size() -> None:
    stamped = NumberHeader().stamp(message(), 1)
    assert stamped.header.endswith(b"\x0fx-stream-offsetl" + bytes(7) + b"\x01")


def test_one_that_the_publisher_wrote_is_replaced() -> None:
    stamped = NumberHeader().stamp(message(headers={"x-stream-offset": "mine", "b": 2}), 3)
    assert stamped.properties.headers == {"b": 2, "x-stream-offset": 3}


def test_different_messages_in_a_row_keep_to_themselves() -> None:
    header = NumberHeader()
    messages = [message(message_id="a"), message(message_id="a"), message(headers={"b": 1}), message(message_id="c")]
    stamped = [header.stamp(each, 2**40 + at) for at, each in enumerate(messages)]
    assert [each.properties.headers for each in stamped] == [
        {"x-stream-offset": 2**40},
        {"x-stream-offset": 2**40 + 1},
        {"b": 1, "x-stream-offset": 2**40 + 2},
        {"x-stream-offset": 2**40 + 3},
    ]
    assert [each.properties.message_id for each in stamped] == ["a", "a", None, "c"]
