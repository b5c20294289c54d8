"""Exchange types beyond AMQP's, by pika: those of RabbitMQ's plugins as their documentation shows them, and ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import warrenmq

pytestmark = pytest.mark.skipif("WARREN_TEST_URL" in os.environ, reason="another broker needs plugins for this")

Namer = Callable[[str], str]


@pytest.fixture
def channel(broker_url: str) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        yield connection.channel()


def declare_queues(channel: BlockingChannel, count: int) -> list[str]:
    return [str(channel.queue_declare("", exclusive=True).method.queue) for _ in range(count)]


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def test_weights_by_the_routing_key(channel: BlockingChannel, name: Namer) -> None:
    exchange = name("e")
    channel.exchange_declare(exchange, "x-consistent-hash", durable=True)
    queues = declare_queues(channel, 4)
    for queue, weight in zip(queues, ("1", "1", "2", "2"), strict=True):
        channel.queue_bind(queue, exchange, weight)
    for number in range(3000):
        channel.basic_publish(exchange, str(number), b"")
    found = [count(channel, queue) for queue in queues]
    assert sum(found) == 3000
    assert all(370 < each < 630 for each in found[:2])
    assert all(840 < each < 1160 for each in found[2:])


@pytest.mark.parametrize(
    ("arguments", "make"),
    [
        ({"hash-header": "hash-on"}, lambda value: pika.BasicProperties(headers={"hash-on": value})),
        ({"hash-property": "message_id"}, lambda value: pika.BasicProperties(message_id=value)),
        ({"hash-property": "correlation_id"}, lambda value: pika.BasicProperties(correlation_id=value)),
        ({"hash-property": "timestamp"}, lambda value: pika.BasicProperties(timestamp=int(value))),
    ],
)
def test_hashes_of_a_header_or_property(
    channel: BlockingChannel, name: Namer, arguments: dict[str, str], make: Callable[[str], pika.BasicProperties]
) -> None:
    exchange = name("e2")
    channel.exchange_declare(exchange, "x-consistent-hash", arguments=arguments)
    queues = declare_queues(channel, 3)
    for queue in queues:
        channel.queue_bind(queue, exchange, "1")
    for number in range(300):
        value = str(number % 30)
        channel.basic_publish(exchange, str(number), value.encode(), make(value))
    found = [set(drain(channel, queue)) for queue in queues]
    assert sum(map(len, found)) == 30
    assert all(found)


@pytest.mark.parametrize("kind", ["x-random", "x-modulus-hash", "x-least-loaded"])
def test_confirmed_mandatory_messages_reach_one_queue_each(channel: BlockingChannel, name: Namer, kind: str) -> None:
    exchange = name("x")
    channel.exchange_declare(exchange, kind)
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(exchange, "k", b"", mandatory=True)
    queues = declare_queues(channel, 3)
    for queue in queues:
        channel.queue_bind(queue, exchange, "")
    for number in range(150):
        channel.basic_publish(exchange, str(number), b"", mandatory=True)
    found = [count(channel, queue) for queue in queues]
    assert sum(found) == 150
    assert all(found)


def test_jobs_go_where_the_fewest_wait_or_are_unacked(channel: BlockingChannel, name: Namer) -> None:
    jobs = name("jobs")
    channel.exchange_declare(jobs, "x-least-loaded", durable=True)
    channel.confirm_delivery()
    slow, quick = declare_queues(channel, 2)
    for queue in (slow, quick):
        channel.queue_bind(queue, jobs, "ignored", {"ignored": True})
    for number in range(20):
        channel.basic_publish(jobs, str(number), b"")
    assert (count(channel, slow), count(channel, quick)) == (10, 10)
    channel.basic_get(slow)  # unacked from now on: as much load as before
    drain(channel, quick)
    for number in range(10):
        channel.basic_publish(jobs, str(number), b"")
    assert (count(channel, slow), count(channel, quick)) == (9, 10)
    for number in range(10):
        channel.basic_publish(jobs, str(number), b"")
    assert (count(channel, slow), count(channel, quick)) == (14, 15)


def test_a_chat_history(channel: BlockingChannel, name: Namer) -> None:
    room = name("room")
    channel.exchange_declare(room, "x-recent-history", arguments={"x-recent-history-length": 2})
    for word in (b"hello", b"anybody", b"there"):
        channel.basic_publish(room, "", word)
    secret = pika.BasicProperties(headers={"x-recent-history-no-store": True})
    channel.basic_publish(room, "", b"secret", secret)
    (queue,) = declare_queues(channel, 1)
    received: list[bytes] = []
    channel.basic_consume(queue, lambda _channel, _method, _properties, body: received.append(body), auto_ack=True)
    channel.queue_bind(queue, room)
    channel.basic_publish(room, "", b"yes")
    while len(received) < 3:
        channel.connection.process_data_events(10)
    assert received == [b"anybody", b"there", b"yes"]


def test_a_bad_weight_closes_the_channel_with_406(channel: BlockingChannel, name: Namer) -> None:
    exchange = name("e")
    channel.exchange_declare(exchange, "x-consistent-hash")
    (queue,) = declare_queues(channel, 1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="The binding key must be an integer") as refused:
        channel.queue_bind(queue, exchange, "orders.*")
    assert refused.value.reply_code == 406


def test_a_restart_keeps_placements_and_history(tmp_path: Path) -> None:
    placed = []
    for life in range(2):
        with (
            warrenmq.Broker(data_dir=tmp_path / "data") as broker,
            pika.BlockingConnection(pika.URLParameters(broker.url)) as connection,
        ):
            channel = connection.channel()
            channel.confirm_delivery()
            channel.exchange_declare("e", "x-consistent-hash", durable=True)
            channel.exchange_declare("h", "x-recent-history", durable=True)
            for number in range(4):
                channel.queue_declare(f"q{number}", durable=True)
                channel.queue_bind(f"q{number}", "e", str(number + 1))
            for key in range(100):
                channel.basic_publish("e", str(key), b"%d" % key)
            placed.append([drain(channel, f"q{number}") for number in range(4)])
            if life == 0:
                channel.basic_publish("h", "", b"kept", pika.BasicProperties(delivery_mode=2))
                channel.basic_publish("h", "", b"transient")
            else:
                (queue,) = declare_queues(channel, 1)
                channel.queue_bind(queue, "h")
                assert drain(channel, queue) == [b"kept"]
    assert placed[0] == placed[1]
