"""Filters and tracked offsets of streams on the wire; others are answered while a reader looks through a stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import warrenmq
from tests.support.wire import Address, Refusal, WireConnection

COUNT = 30_000
FIRST = {"x-stream-offset": "first"}


@pytest.fixture
def connection() -> Iterator[WireConnection]:
    with warrenmq.Broker() as broker, WireConnection(Address.of_url(broker.url)) as connection:
        connection.open()
        connection.channel(1).call("queue.declare", queue="s", durable=True, arguments={"x-queue-type": "stream"})
        yield connection


def test_tracking_needs_a_tag_of_the_client(connection: WireConnection) -> None:
    channel = connection.channel(2)
    channel.call("basic.qos", prefetch_count=1)
    arguments = {"x-stream-automatic-offset-tracking": True}
    assert channel.refused("basic.consume", queue="s", arguments=arguments) == Refusal(
        "channel",
        406,
        "PRECONDITION_FAILED - x-stream-automatic-offset-tracking needs a consumer tag of the client's own",
        "basic.consume",
    )
    again = connection.channel(3)
    again.call("basic.qos", prefetch_count=1)
    again.call("basic.consume", queue="s", arguments={"x-stream-automatic-offset-tracking": False})
    again.call("queue.declare", queue="classic")
    again.call("basic.consume", queue="classic", arguments=arguments)


def test_a_long_stream_without_a_match_delays_no_other_client(connection: WireConnection) -> None:
    """It is in memory as a whole, so that no read of a file ends a turn."""
    channel = connection.channel(2)
    channel.call("confirm.select")
    for _ in range(COUNT):
        channel.publish(b"", {"headers": {"x-stream-filter-value": "b"}}, routing_key="s")
    while channel.expect("basic.ack")["delivery_tag"] < COUNT:
        pass
    reader = connection.channel(3)
    reader.call("basic.qos", prefetch_count=1)
    reader.call("basic.consume", queue="s", consumer_tag="r", arguments={**FIRST, "x-stream-filter": "a"})
    for _ in range(20):
        channel.call("queue.declare", queue="s", passive=True)
    channel.publish(b"found", {"headers": {"x-stream-filter-value": "a"}}, routing_key="s")
    assert reader.content().body == b"found"
