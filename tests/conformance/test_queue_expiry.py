"""Queues that expire. Times are short and only their order matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import Connect, Namer
from tests.support.waiting import wait_until
from tests.support.wire import ChannelRefusal, WireChannel

EXPIRES_MS = 1000


def declare(channel: WireChannel, name: str, **arguments: Any) -> str:
    channel.call("queue.declare", queue=name, arguments={"x-expires": EXPIRES_MS, **arguments})
    return name


@pytest.fixture
def is_gone(connect: Connect) -> Callable[[str], bool]:
    """Whether there is no such queue, found without using it: queue.bind is no use."""
    connection = connect()

    def ask(name: str) -> bool:
        channel = connection.channel()
        try:
            channel.call("queue.bind", queue=name, exchange="amq.direct", routing_key="x")
        except ChannelRefusal as refused:
            if refused.refusal.code != 404:
                raise
            channel.send("channel.close-ok")
            return True
        channel.close()
        return False

    return ask


def test_an_unused_queue_goes_with_its_messages(
    channel: WireChannel, name: Namer, is_gone: Callable[[str], bool]
) -> None:
    queue = declare(channel, name("expiring"))
    channel.publish(b"a", routing_key=queue)
    wait_until(lambda: is_gone(queue), "expiry")
    assert channel.call("queue.declare", queue=queue)["message_count"] == 0


def test_messages_of_an_expired_queue_are_not_dead_lettered(
    channel: WireChannel, name: Namer, is_gone: Callable[[str], bool]
) -> None:
    letters = channel.call("queue.declare", exclusive=True)["queue"]
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    queue = declare(channel, name("expiring"), **arguments)
    channel.publish(b"a", routing_key=queue)
    wait_until(lambda: is_gone(queue), "expiry")
    assert channel.get(letters) is None


def test_a_queue_with_a_consumer_stays_until_it_leaves(
    channel: WireChannel, connect: Connect, name: Namer, is_gone: Callable[[str], bool]
) -> None:
    queue = declare(channel, name("expiring"))
    consumer = connect().channel()
    consumer.call("basic.consume", queue=queue, consumer_tag="one")
    beside = declare(channel, name("beside"))
    wait_until(lambda: is_gone(beside), "expiry of the other")
    assert not is_gone(queue)
    consumer.call("basic.cancel", consumer_tag="one")
    wait_until(lambda: is_gone(queue), "expiry")


@pytest.mark.parametrize("use", ["declare", "passive", "get"])
def test_a_queue_that_is_asked_for_stays(
    channel: WireChannel, name: Namer, is_gone: Callable[[str], bool], use: str
) -> None:
    queue = declare(channel, name("expiring"))
    beside = declare(channel, name("beside"))
    while not is_gone(beside):
        if use == "declare":
            declare(channel, queue)
        elif use == "passive":
            channel.call("queue.declare", queue=queue, passive=True)
        else:
            assert channel.get(queue) is None
    wait_until(lambda: is_gone(queue), "expiry")
