"""Effective options: arguments are interpreted in one place, and options change at run time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, make_broker
from tests.support.streams import ManualClock, StreamStorage, declare_stream
from warrenmq.core.deduplication import DeduplicationOptions
from warrenmq.core.durability import Durability
from warrenmq.core.options import ExchangeOptions, QueueOptions, exchange_options, queue_options
from warrenmq.core.queue import Queue


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, QueueOptions()),
        ({"x-queue-type": "quorum"}, QueueOptions("quorum", delivery_limit=20)),
        ({"x-queue-type": "quorum", "x-delivery-limit": -1}, QueueOptions("quorum")),
        ({"x-durability": "interval=20"}, QueueOptions(durability=Durability("interval", 20))),
        ({"x-max-length-bytes": 10}, QueueOptions(max_length_bytes=10)),
        (
            {
                "x-queue-type": "stream",
                "x-max-length-bytes": 10,
                "x-max-age": "2s",
                "x-stream-max-segment-size-bytes": 5,
            },
            QueueOptions("stream", max_length_bytes=10, max_age_ms=2000, segment_bytes=5),
        ),
        ({"x-message-deduplication": True}, QueueOptions(deduplication=DeduplicationOptions(size=0))),
        (
            {"x-message-deduplication": True, "x-cache-size": "7", "x-cache-persistence": "memory"},
            QueueOptions(deduplication=DeduplicationOptions(size=7, is_persistent=False)),
        ),
        (
            {"x-queue-type": "stream", "x-message-deduplication": True},
            QueueOptions("stream", deduplication=DeduplicationOptions()),
        ),
    ],
)
def test_arguments_of_a_queue(arguments: dict[str, Any], options: QueueOptions) -> None:
    assert queue_options(False, arguments) == options


def test_a_durable_queue_is_durable() -> None:
    assert queue_options(True, {}) == QueueOptions(is_durable=True)


@pytest.mark.parametrize(
    ("type", "arguments", "options"),
    [
        ("direct", {}, ExchangeOptions()),
        ("direct", {"alternate-exchange": "x"}, ExchangeOptions("x")),
        (
            "topic",
            {"x-message-deduplication": True, "x-cache-ttl": 5},
            ExchangeOptions(None, DeduplicationOptions(ttl_ms=5), routing_type="topic"),
        ),
        (
            "x-message-deduplication",
            {},
            ExchangeOptions(None, DeduplicationOptions(), routing_type="x-message-deduplication"),
        ),
        ("x-delayed-message", {"x-delayed-type": "topic"}, ExchangeOptions(routing_type="topic")),
    ],
)
def test_arguments_of_an_exchange(type: str, arguments: dict[str, Any], options: ExchangeOptions) -> None:
    assert exchange_options(type, arguments) == options


def test_declared_things_have_their_options(channel: ClientChannel) -> None:
    queue = channel.declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    assert queue.options == QueueOptions("quorum", is_durable=True, delivery_limit=20)
    assert channel.declare_exchange("x", alternate="y").options == ExchangeOptions("y")


# -- at run time


def test_the_alternate_of_an_exchange_changes_at_run_time(channel: ClientChannel, queue: Queue) -> None:
    vhost = channel.vhost
    exchange = channel.declare_exchange("x")
    channel.bind("amq.fanout", queue)
    assert vhost.find_route(b"method", "x", "k", b"", False, False).queues == []
    assert vhost.routes
    vhost.apply(exchange, ExchangeOptions("amq.fanout"))
    assert not vhost.routes
    assert vhost.find_route(b"method", "x", "k", b"", False, False).queues == [queue]
    vhost.apply(exchange, ExchangeOptions())
    assert vhost.find_route(b"method", "x", "k", b"", False, False).queues == []


def test_a_queue_takes_other_options_at_run_time(channel: ClientChannel, queue: Queue) -> None:
    channel.vhost.apply(queue, QueueOptions(max_length_bytes=5))
    assert queue.options.max_length_bytes == 5


def test_the_limits_of_a_stream_change_at_run_time() -> None:
    clock = ManualClock()
    channel = Client(make_broker(StreamStorage(clock))).channel()
    stream = declare_stream(channel, stream_max_segment_size_bytes=1)
    for body in (b"1", b"2", b"3"):
        channel.publish(body, "s")
        clock.pass_seconds(2)
    assert stream.message_count() == 3
    channel.vhost.apply(stream, QueueOptions("stream", True, max_length_bytes=1, segment_bytes=1))
    assert stream.message_count() == 1
    channel.publish(b"4", "s")
    assert stream.message_count() == 1
