"""Queues with a single active consumer: who gets messages, who takes over, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import Connect, Namer
from tests.support.wire import WireChannel

SAC: dict[str, Any] = {"x-single-active-consumer": True}
TYPES = pytest.mark.parametrize("queue_type", ["classic", "quorum"])


@pytest.fixture
def consumers(connect: Connect) -> list[WireChannel]:
    """Three channels of connections of their own."""
    return [connect().channel() for _ in range(3)]


def declare(channel: WireChannel, name: str, queue_type: str) -> str:
    arguments = SAC | {"x-queue-type": queue_type}
    channel.call("queue.declare", queue=name, durable=True, arguments=arguments)
    return name


def consume(channel: WireChannel, queue: str, prefetch: int = 0, **arguments: Any) -> None:
    if prefetch:
        channel.call("basic.qos", prefetch_count=prefetch)
    channel.call("basic.consume", queue=queue, consumer_tag="one", arguments=arguments)


def publish(channel: WireChannel, queue: str, bodies: str) -> None:
    for letter in bodies:
        channel.publish(letter.encode(), {"delivery_mode": 2}, routing_key=queue)


def take(channel: WireChannel, count: int, *, ack: bool = True) -> str:
    """The bodies of the next deliveries."""
    bodies = b""
    for _ in range(count):
        content = channel.content()
        bodies += content.body
        if ack:
            channel.send("basic.ack", delivery_tag=content.method["delivery_tag"])
    return bodies.decode()


@TYPES
def test_the_first_consumer_gets_everything(
    channel: WireChannel, consumers: list[WireChannel], name: Namer, queue_type: str
) -> None:
    queue = declare(channel, name("sac"), queue_type)
    for consumer in consumers:
        consume(consumer, queue)
    publish(channel, queue, "abcdef")
    assert take(consumers[0], 6) == "abcdef"
    for idle in consumers[1:]:
        idle.barrier()  # any delivery would have come before


@TYPES
def test_a_consumer_without_credit_stays_active(
    channel: WireChannel, consumers: list[WireChannel], name: Namer, queue_type: str
) -> None:
    queue = declare(channel, name("sac"), queue_type)
    consume(consumers[0], queue, prefetch=1)
    consume(consumers[1], queue)
    publish(channel, queue, "ab")
    held = consumers[0].content()
    assert held.body == b"a"
    consumers[1].barrier()
    consumers[0].send("basic.ack", delivery_tag=held.method["delivery_tag"])
    assert take(consumers[0], 1) == "b"


@TYPES
@pytest.mark.parametrize("end", ["cancel", "channel", "connection"])
def test_the_next_in_order_of_registration_takes_over(
    channel: WireChannel, consumers: list[WireChannel], name: Namer, queue_type: str, end: str
) -> None:
    queue = declare(channel, name("sac"), queue_type)
    for consumer in consumers:
        consume(consumer, queue)
    publish(channel, queue, "a")
    assert take(consumers[0], 1) == "a"
    if end == "cancel":
        consumers[0].call("basic.cancel", consumer_tag="one")
    elif end == "channel":
        consumers[0].close()
    else:
        consumers[0].connection.close()
    publish(channel, queue, "bc")
    assert take(consumers[1], 2) == "bc"
    consumers[2].barrier()


@TYPES
def test_what_a_lost_consumer_held_comes_first_and_in_order(
    channel: WireChannel, consumers: list[WireChannel], name: Namer, queue_type: str
) -> None:
    queue = declare(channel, name("sac"), queue_type)
    consume(consumers[0], queue, prefetch=3)
    consume(consumers[1], queue)
    publish(channel, queue, "abcde")
    assert take(consumers[0], 3, ack=False) == "abc"
    consumers[0].connection.close()
    assert take(consumers[1], 5) == "abcde"


def test_the_highest_priority_that_waits_takes_over(
    channel: WireChannel, consumers: list[WireChannel], name: Namer
) -> None:
    queue = declare(channel, name("sac"), "classic")
    consume(consumers[0], queue, **{"x-priority": 10})
    consume(consumers[1], queue, **{"x-priority": 1})
    consume(consumers[2], queue, **{"x-priority": 5})
    publish(channel, queue, "a")
    assert take(consumers[0], 1) == "a"
    consumers[0].connection.close()
    publish(channel, queue, "b")
    assert take(consumers[2], 1) == "b"
    consumers[1].barrier()


def test_an_exclusive_consumer_is_refused(channel: WireChannel, name: Namer) -> None:
    queue = declare(channel, name("sac"), "classic")
    refusal = channel.refused("basic.consume", queue=queue, exclusive=True)
    assert (refusal.code, refusal.text) == (403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use")


def test_basic_get_takes_from_a_classic_queue(channel: WireChannel, consumers: list[WireChannel], name: Namer) -> None:
    queue = declare(channel, name("sac"), "classic")
    consume(consumers[0], queue, prefetch=1)
    publish(channel, queue, "ab")
    assert take(consumers[0], 1, ack=False) == "a"
    got = channel.get(queue)
    assert got is not None
    assert got.body == b"b"


def test_basic_get_is_refused_on_a_quorum_queue(channel: WireChannel, name: Namer) -> None:
    queue = declare(channel, name("sac"), "quorum")
    refusal = channel.refused("basic.get", queue=queue)
    assert (refusal.code, refusal.text) == (
        405,
        f"RESOURCE_LOCKED - cannot obtain access to locked queue '{queue}' in vhost '/'. basic.get operations are not "
        "supported by quorum queues with single active consumer",
    )


def test_a_consumer_may_ask_to_be_cancelled_on_failover(channel: WireChannel, name: Namer) -> None:
    queue = declare(channel, name("sac"), "classic")
    consume(channel, queue, **{"x-cancel-on-ha-failover": True})
