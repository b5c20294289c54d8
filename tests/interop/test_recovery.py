"""Java's automatic recovery: connection, channel, exchange, queue, binding and consumer come back by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .clients.contract import PATIENCE, Client, Refused
from .clients.pika_blocking import PikaBlockingClient
from .clients.remote import JavaClient
from .conftest import Namer
from .proxy import Proxy


@pytest.fixture
def client(proxy: Proxy, name: Namer) -> Iterator[Client]:
    reason = JavaClient.unavailable()
    if reason is not None:
        pytest.skip(reason)
    opened = JavaClient.recovering(proxy.url)
    yield opened
    opened.close()


@pytest.fixture
def other(broker_url: str) -> Iterator[Client]:
    """A connection that is not cut."""
    opened = PikaBlockingClient(broker_url)
    yield opened
    opened.close()


def test_topology_and_consumer_come_back_after_a_cut(client: Client, other: Client, proxy: Proxy, name: Namer) -> None:
    exchange, queue = name("exchange"), name("queue")
    channel = client.channel()
    channel.declare_exchange(exchange, "topic", auto_delete=True)
    channel.declare_queue(queue, exclusive=True, auto_delete=True)
    channel.bind_queue(queue, exchange, "news.#")
    channel.qos(10)
    channel.consume(queue)
    for round_number in range(2):
        proxy.cut()
        for _ in range(300):
            # Until all is there again the message finds no exchange, or no queue.
            if publish(other, exchange, b"round %d" % round_number):
                break
            other.idle(0.1)
        delivery = channel.take(1)[0]
        assert delivery.body == b"round %d" % round_number
        channel.ack(delivery.tag)
    # All that was delivered is acknowledged: the tags were right over the reconnections.
    assert channel.next_delivery(0.3) is None


def publish(other: Client, exchange: str, body: bytes) -> bool:
    """Publish with a channel of its own, which an exchange that is not there closes; say whether a queue took it."""
    channel = other.channel()
    channel.select_confirms()
    try:
        return channel.confirm(exchange, "news.today", body, mandatory=True).returned is None
    except Refused as refused:
        if refused.code != 404:
            raise
        return False


def test_message_held_at_the_cut_is_delivered_again(client: Client, other: Client, proxy: Proxy, name: Namer) -> None:
    queue = name("queue")
    channel = client.channel()
    channel.declare_queue(queue)
    channel.consume(queue)
    channel.publish("", queue, b"held")
    channel.take(1)
    proxy.cut()
    after = channel.next_delivery(PATIENCE)
    assert after is not None
    assert (after.body, after.redelivered) == (b"held", True)
    channel.ack(after.tag)
    channel.close()
    assert other.channel().purge_queue(queue) == 0
