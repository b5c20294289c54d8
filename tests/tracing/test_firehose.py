"""RabbitMQ's firehose: copies of what is published and delivered, in the form that its users know."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.client import ClientChannel, waiting
from tests.support.outbox import Delivered
from tests.support.tracing import TracedBroker
from warrenmq.core.vhost import TRACE_EXCHANGE
from warrenmq.protocol import properties
from warrenmq.storage.memory_store import MemoryStorage


@pytest.fixture
def traced() -> TracedBroker:
    return TracedBroker([])


@pytest.fixture
def channel(traced: TracedBroker) -> ClientChannel:
    return traced.client().channel()


@pytest.fixture
def listener(traced: TracedBroker) -> ClientChannel:
    listener = traced.client().channel()
    queue = listener.declare("firehose")
    listener.bind(TRACE_EXCHANGE, queue, "#")
    listener.consume(queue, "listener", no_ack=True)
    return listener


def heard(listener: ClientChannel) -> list[tuple[str, bytes, dict[str, Any]]]:
    return [(copy.message.routing_key, copy.body, headers_of(copy)) for copy in listener.deliveries()]


def headers_of(copy: Delivered) -> dict[str, Any]:
    found = properties.headers(copy.message.header)
    assert found is not None
    return found


def test_a_publish_and_its_delivery_are_copied(
    traced: TracedBroker, channel: ClientChannel, listener: ClientChannel
) -> None:
    traced.tracing.firehose.switch("/", True)
    queue = channel.declare("q")
    channel.bind("amq.direct", queue, "key")
    channel.publish(
        b"body",
        "key",
        "amq.direct",
        message_id="m",
        headers={"h": 1, "CC": ["other"]},
        timestamp=datetime.fromtimestamp(1_700_000_000, UTC),
        priority=3,
    )
    channel.get(queue, no_ack=False)
    (publish_key, publish_body, published), (deliver_key, deliver_body, delivered) = heard(listener)
    assert (publish_key, deliver_key) == ("publish.amq.direct", "deliver.q")
    assert publish_body == deliver_body == b"body"
    shared = {
        "exchange_name": "amq.direct",
        "routing_keys": ["key", "other"],
        "properties": {
            "message_id": "m",
            "headers": {"h": 1, "CC": ["other"]},
            "timestamp": 1_700_000_000,
            "priority": 3,
        },
        "node": published["node"],
        "vhost": "/",
        "connection": "",
        "channel": 1,
        "user": "guest",
    }
    assert published["node"].startswith("warren@")
    assert published == shared | {"routed_queues": ["q"]}
    assert delivered == shared | {"redelivered": 0}


def test_a_redelivery_is_marked(traced: TracedBroker, channel: ClientChannel, listener: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.publish(b"before", "q")
    traced.tracing.firehose.switch("/", True)
    channel.get(queue, no_ack=False)
    channel.reject(1)
    channel.consume(queue, "tag", prefetch=1)
    traced.broker.end_turn()
    assert [(key, copy["redelivered"]) for key, _, copy in heard(listener)] == [("deliver.q", 0), ("deliver.q", 1)]


def test_it_is_shut_until_it_is_opened_and_after_it_is_shut(
    traced: TracedBroker, channel: ClientChannel, listener: ClientChannel
) -> None:
    channel.declare("q")
    channel.publish(b"1", "q")
    traced.tracing.firehose.switch("/", True)
    channel.publish(b"2", "q")
    traced.tracing.firehose.switch("/", False)
    channel.publish(b"3", "q")
    assert [body for _, body, _ in heard(listener)] == [b"2"]
    assert not traced.broker.events.is_watching


def test_copies_are_not_copied_and_a_loop_cannot_be_made(
    traced: TracedBroker, channel: ClientChannel, listener: ClientChannel
) -> None:
    """Not even by binding the same queue twice over, or by reading the copies through a queue that is watched."""
    traced.tracing.firehose.switch("/", True)
    channel.bind("amq.fanout", channel.vhost.queues["firehose"])
    channel.publish(b"x", "", "amq.fanout")
    copies = listener.deliveries()
    assert [copy.message.routing_key for copy in copies] == ["", "publish.amq.fanout", "deliver.firehose"]
    assert listener.deliveries() == []


def test_each_virtual_host_has_its_own(traced: TracedBroker, listener: ClientChannel) -> None:
    traced.broker.add_vhost("other")
    firehose = traced.tracing.firehose
    assert firehose.switch("other", True)
    assert not firehose.switch("nowhere", True)
    assert firehose.open_vhosts() == ["other"]
    listener.publish(b"", "q")
    elsewhere = traced.client("other").channel()
    elsewhere.bind(TRACE_EXCHANGE, elsewhere.declare("copies"), "publish.#")
    elsewhere.publish(b"", "q")
    assert heard(listener) == []
    assert elsewhere.vhost.queues["copies"].message_count() == 1


def test_a_queue_that_is_declared_later_is_copied_too(
    traced: TracedBroker, channel: ClientChannel, listener: ClientChannel
) -> None:
    traced.tracing.firehose.switch("/", True)
    channel.consume(channel.declare("late"), "tag", no_ack=True)
    channel.publish(b"", "late")
    assert [key for key, _, _ in heard(listener)] == ["publish.", "deliver.late"]


def test_it_is_shut_after_a_start() -> None:
    storage = MemoryStorage()
    TracedBroker([], storage).tracing.firehose.switch("/", True)
    assert TracedBroker([], storage).tracing.firehose.open_vhosts() == []


def test_long_names_make_short_keys(traced: TracedBroker, channel: ClientChannel, listener: ClientChannel) -> None:
    traced.tracing.firehose.switch("/", True)
    name = "é" * 127
    channel.declare_exchange(name, "fanout")
    channel.publish(b"", "", name)
    ((key, _, _),) = heard(listener)
    assert key.startswith("publish.é")
    assert len(key.encode()) <= 255


@pytest.mark.parametrize("type", ["x-least-loaded", "x-random"])
@pytest.mark.parametrize("is_transaction", [False, True])
def test_a_copy_names_the_queue_that_is_then_chosen(
    traced: TracedBroker, channel: ClientChannel, listener: ClientChannel, type: str, is_transaction: bool
) -> None:
    channel.declare_exchange("x", type)
    queues = [channel.declare(name) for name in ("first", "second", "third")]
    for queue in queues:
        channel.bind("x", queue)
    traced.tracing.firehose.switch("/", True)
    if is_transaction:
        channel.core.select_transactions()
    for letter in "abcdefghi":
        channel.publish(letter.encode(), "", "x")
    if is_transaction:
        channel.core.commit()
    named: dict[str, str] = dict.fromkeys(("first", "second", "third"), "")
    for _, body, headers in heard(listener):
        (name,) = headers["routed_queues"]
        named[name] += body.decode()
    assert {queue.name: waiting(queue) for queue in queues} == named
