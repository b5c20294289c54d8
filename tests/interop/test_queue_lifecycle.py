"""Every client sees single active consumers, delivery limits, consumer timeouts and queues that expire."""

from __future__ import annotations

import os
from typing import Any

import pytest

from .clients.contract import GLANCE, Channel, Refused, Scope
from .conftest import Connect, Namer
from .proxy import Proxy

is_rabbitmq = "WARREN_TEST_URL" in os.environ


def publish_all(channel: Channel, queue: str, bodies: str) -> None:
    for letter in bodies:
        channel.publish("", queue, letter.encode(), {"delivery_mode": 2})


def bodies_of(channel: Channel, count: int) -> str:
    return b"".join(delivery.body for delivery in channel.take(count)).decode()


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_another_consumer_takes_over_in_order(connect: Connect, proxy: Proxy, name: Namer, queue_type: str) -> None:
    queue = name("sac")
    arguments = {"x-single-active-consumer": True, "x-queue-type": queue_type}
    publisher, first, waiting = connect().channel(), connect(proxy.url).channel(), connect().channel()
    publisher.declare_queue(queue, durable=True, arguments=arguments)
    first.qos(2)
    first.consume(queue)
    waiting.consume(queue)
    publish_all(publisher, queue, "abcd")
    assert bodies_of(first, 2) == "ab"
    assert waiting.next_delivery(GLANCE) is None
    proxy.cut()
    assert bodies_of(waiting, 4) == "abcd"


@pytest.mark.skipif(is_rabbitmq, reason="of quorum queues of RabbitMQ 4")
def test_a_consumer_with_a_higher_priority_takes_over(connect: Connect, name: Namer) -> None:
    queue = name("sac")
    first, second = connect().channel(), connect().channel()
    first.declare_queue(queue, durable=True, arguments={"x-single-active-consumer": True})
    first.consume(queue)
    publish_all(first, queue, "a")
    (held,) = first.take(1)
    second.consume(queue, arguments={"x-priority": 5})
    publish_all(first, queue, "b")
    assert second.next_delivery(GLANCE) is None
    first.ack(held.tag)
    assert bodies_of(second, 1) == "b"


def test_an_exclusive_consumer_of_such_a_queue_is_refused(channel: Channel, name: Namer) -> None:
    queue = name("sac")
    channel.declare_queue(queue, durable=True, arguments={"x-single-active-consumer": True})
    with pytest.raises(Refused) as refused:
        channel.consume(queue, exclusive=True)
        raise channel.wait_closed()
    assert (refused.value.scope, refused.value.code) == (Scope.CHANNEL, 403)


def test_a_poisonous_message_is_dropped_after_some_deliveries(channel: Channel, name: Namer) -> None:
    queue = name("limited")
    channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
    publish_all(channel, queue, "a")
    channel.qos(1)
    channel.consume(queue)
    counts: list[Any] = []
    for _ in range(3):
        (delivery,) = channel.take(1)
        counts.append(delivery.headers.get("x-delivery-count"))
        channel.reject(delivery.tag, requeue=True)
    assert counts == [None, 1, 2]
    publish_all(channel, queue, "b")
    assert bodies_of(channel, 1) == "b"


@pytest.mark.skipif(is_rabbitmq, reason="x-consumer-timeout came after RabbitMQ 3.10")
def test_a_consumer_that_does_not_ack_loses_its_channel_and_no_other(connect: Connect, name: Namer) -> None:
    queue = name("timing")
    client = connect()
    slow, quick = client.channel(), client.channel()
    quick.declare_queue(queue, durable=True, arguments={"x-consumer-timeout": 300})
    publish_all(quick, queue, "a")
    slow.consume(queue)
    assert bodies_of(slow, 1) == "a"
    refused = slow.wait_closed()
    assert (refused.scope, refused.code) == (Scope.CHANNEL, 406)
    assert "timed out. Timeout value used: 300 ms" in refused.text
    delivery = quick.get(queue)
    assert delivery is not None
    assert (delivery.body, delivery.redelivered) == (b"a", True)
    quick.ack(delivery.tag)
    assert quick.declare_queue(queue, passive=True).messages == 0


def test_a_queue_that_is_not_used_goes(channel: Channel, connect: Connect, name: Namer) -> None:
    queue, letters = name("expiring"), name("letters")
    arguments = {"x-expires": 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    channel.declare_queue(letters)
    channel.declare_queue(queue, durable=True, arguments=arguments)
    publish_all(channel, queue, "a")
    client = connect()
    for _ in range(600):  # each one waits a little
        client.idle(0.1)
        try:
            client.channel().bind_queue(queue, "amq.direct", "x")
        except Refused as refused:
            if refused.code != 404:
                raise
            break
    else:
        pytest.fail("the queue did not expire")
    assert channel.get(letters) is None
