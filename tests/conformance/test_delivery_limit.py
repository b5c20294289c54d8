"""The delivery limit of quorum queues, and the header that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import Connect, Namer
from tests.support.wire import Content, WireChannel


@pytest.fixture
def queue(channel: WireChannel, name: Namer) -> str:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    channel.call("queue.declare", queue=name("limited"), durable=True, arguments=arguments)
    return name("limited")


def count_of(content: Content) -> Any:
    return (content.properties.get("headers") or {}).get("x-delivery-count")


def nack(channel: WireChannel, tag: int) -> None:
    channel.send("basic.nack", delivery_tag=tag, requeue=True)


def reject(channel: WireChannel, tag: int) -> None:
    channel.send("basic.reject", delivery_tag=tag, requeue=True)


def recover(channel: WireChannel, tag: int) -> None:
    channel.send("basic.recover", requeue=True)
    channel.expect("basic.recover-ok")


@pytest.mark.parametrize("give_back", [nack, reject, recover])
def test_a_message_that_comes_back_too_often_is_dropped(
    channel: WireChannel, queue: str, give_back: Callable[[WireChannel, int], None]
) -> None:
    channel.publish(b"a", {"delivery_mode": 2}, routing_key=queue)
    channel.call("basic.consume", queue=queue)
    seen = []
    for _ in range(3):
        content = channel.content()
        seen.append((content.method["redelivered"], count_of(content)))
        give_back(channel, content.method["delivery_tag"])
    assert seen == [(False, None), (True, 1), (True, 2)]
    channel.publish(b"next", {"delivery_mode": 2}, routing_key=queue)
    assert channel.content().body == b"next"


def test_a_message_that_was_got_shows_its_count(channel: WireChannel, queue: str) -> None:
    channel.call("confirm.select")
    channel.publish(b"a", {"delivery_mode": 2}, routing_key=queue)
    channel.expect("basic.ack")
    counts = []
    while (content := channel.get(queue, no_ack=False)) is not None:
        counts.append(count_of(content) or 0)  # RabbitMQ 3.10 has it on the first one of basic.get, too
        channel.send("basic.reject", delivery_tag=content.method["delivery_tag"], requeue=True)
    assert counts == [0, 1, 2]


def test_a_lost_connection_counts(channel: WireChannel, connect: Connect, queue: str) -> None:
    channel.publish(b"a", {"delivery_mode": 2}, routing_key=queue)
    counts = []
    for _ in range(3):
        connection = connect()
        consumer = connection.channel()
        consumer.call("basic.consume", queue=queue)
        counts.append(count_of(consumer.content()))
        connection.close()
    assert counts == [None, 1, 2]
    channel.publish(b"next", {"delivery_mode": 2}, routing_key=queue)
    channel.call("basic.consume", queue=queue)
    assert channel.content().body == b"next"


def test_a_classic_queue_has_no_such_argument(channel: WireChannel, name: Namer) -> None:
    refusal = channel.refused("queue.declare", queue=name("classic"), arguments={"x-delivery-limit": 2})
    assert (refusal.code, refusal.text) == (
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-delivery-limit' for queue '{name('classic')}' in vhost '/' of queue "
        "type rabbit_classic_queue",
    )
