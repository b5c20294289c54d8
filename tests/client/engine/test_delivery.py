"""Deliveries: what they tell, and whom they tell when they are settled."""

from __future__ import annotations

from typing import Any

import pytest

from warrenmq.client.delivery import Delivery, Returned, Settler
from warrenmq.client.errors import MalformedMessage
from warrenmq.protocol.properties import BasicProperties, content_header


class Notes(Settler):
    """A channel that takes notes."""

    def __init__(self, says: bool = True) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.says = says

    def ack(self, tag: int, multiple: bool = False) -> bool:
        self.notes.append(("ack", tag, multiple))
        return self.says

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> bool:
        self.notes.append(("nack", tag, multiple, requeue))
        return self.says

    def reject(self, tag: int, requeue: bool = True) -> bool:
        self.notes.append(("reject", tag, requeue))
        return self.says

    def is_stale(self, tag: int) -> bool:
        return tag < 5

    def facade(self) -> Any:
        return "the channel"


def make(settler: Settler, tag: int = 7, header: bytes | None = None) -> Delivery:
    properties = BasicProperties(content_type="text/plain", headers={"a": 1})
    return Delivery(settler, None, "c", tag, True, "x", "key", header or content_header(4, properties), b"body")


def test_delivery_contains_all_of_the_message() -> None:
    delivery = make(Notes())
    assert (delivery.exchange, delivery.routing_key, delivery.body) == ("x", "key", b"body")
    assert (delivery.delivery_tag, delivery.redelivered, delivery.consumer_tag) == (7, True, "c")
    assert delivery.properties.content_type == "text/plain"
    assert delivery.headers == {"a": 1}
    assert delivery.message_count is None
    assert delivery.channel == "the channel"
    assert "7" in repr(delivery)


def test_properties_are_decoded_when_asked_for() -> None:
    delivery = make(Notes(), header=b"\x00" * 12 + b"\xff\xff")
    assert delivery.body == b"body"
    with pytest.raises(MalformedMessage):
        _ = delivery.properties


def test_settling_goes_to_the_channel_it_came_by() -> None:
    notes = Notes()
    assert make(notes).ack(multiple=True) is True
    assert make(notes).nack(requeue=False) is True
    assert make(notes).reject() is True
    assert notes.notes == [("ack", 7, True), ("nack", 7, False, False), ("reject", 7, True)]


def test_settling_returns_whether_anything_was_sent() -> None:
    delivery = make(Notes(says=False))
    assert delivery.ack() is False
    assert delivery.is_settled


def test_delivery_of_an_earlier_life_is_stale() -> None:
    assert make(Notes(), tag=4).is_stale
    assert not make(Notes(), tag=5).is_stale


def test_delivery_knows_whose_it_is() -> None:
    notes = Notes()
    assert make(notes).is_of(notes)
    assert not make(notes).is_of(Notes())


def test_returned_message_contains_the_reason() -> None:
    header = content_header(1, BasicProperties(headers={"k": "v"}))
    returned = Returned(312, "NO_ROUTE", "x", "key", header, b"b")
    assert (returned.reply_code, returned.reply_text, returned.headers) == (312, "NO_ROUTE", {"k": "v"})
    assert "NO_ROUTE" in repr(returned)
