"""Retries, scheduled messages and reports through pika, on each type of queue."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

pytestmark = pytest.mark.skipif("WARREN_TEST_URL" in os.environ, reason="RabbitMQ has none of this")

Name = Callable[[str], str]
KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


@pytest.fixture
def channel(broker_url: str) -> Iterator[Any]:
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        yield connection.channel()


def take(channel: Any, queue: str, count: int, settle: Callable[[int, int], None]) -> list[Any]:
    """Consume this many messages; `settle` is called with how many came before and the delivery tag."""
    taken: list[Any] = []

    def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
        settle(len(taken), method.delivery_tag)
        taken.append((method, properties, body))

    tag = channel.basic_consume(queue, on_message)
    deadline = time.monotonic() + 60
    while len(taken) < count:
        assert time.monotonic() < deadline, taken
        channel.connection.process_data_events(0.05)
    channel.basic_cancel(tag)
    return taken


@KINDS
def test_a_rejected_message_is_retried_and_then_parked(channel: Any, name: Name, kind: str) -> None:
    queue = name(f"retried {kind}")
    retry = {"x-retry-max": 2, "x-retry-delay": 10, "x-retry-backoff": "linear"}
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **retry})
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"a", pika.BasicProperties(delivery_mode=2, headers={"mine": 1}))
    taken = take(channel, queue, 3, lambda _, tag: channel.basic_nack(tag, requeue=False))
    assert [properties.headers for _, properties, _ in taken] == [
        {"mine": 1},
        {"mine": 1, "x-delivery-count": 1, "x-retry-reason": "rejected"},
        {"mine": 1, "x-delivery-count": 2, "x-retry-reason": "rejected"},
    ]
    assert [method.redelivered for method, _, _ in taken] == [False, True, True]
    _, properties, body = channel.basic_get(f"{queue}.dead", auto_ack=True)
    assert body == b"a"
    assert (properties.headers["x-last-death-queue"], properties.headers["x-last-death-reason"]) == (
        queue,
        "delivery_limit",
    )
    channel.queue_delete(queue)
    channel.queue_delete(f"{queue}.dead")


def test_a_consumer_asks_for_retry(channel: Any, name: Name) -> None:
    assert channel.connection._impl.server_capabilities["warrenmq.consumer_retry"] is True
    queue = channel.queue_declare(name("plain"), durable=True).method.queue
    channel.basic_publish("", queue, b"a", pika.BasicProperties(delivery_mode=2))
    counts: list[Any] = []

    def on_message(_: Any, method: Any, properties: Any, __: bytes) -> None:
        counts.append((properties.headers or {}).get("x-delivery-count"))
        channel.basic_nack(method.delivery_tag, requeue=False)

    channel.basic_consume(queue, on_message, arguments={"x-retry-max": 1, "x-retry-delay": 10})
    while channel.queue_declare(f"{queue}.dead", durable=True).method.message_count == 0:
        channel.connection.process_data_events(0.01)
    assert counts == [None, 1]
    channel.queue_delete(queue)
    channel.queue_delete(f"{queue}.dead")


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_delayed_message_arrives_when_its_time_comes(channel: Any, name: Name, kind: str) -> None:
    queue = channel.queue_declare(name(f"later {kind}"), durable=True, arguments={"x-queue-type": kind}).method.queue
    channel.queue_bind(queue, "amq.topic", queue)
    channel.basic_qos(prefetch_count=10)
    begin = time.time()
    headers = {"x-deliver-at": int(begin * 1000) + 300}
    channel.basic_publish("amq.topic", queue, b"b", pika.BasicProperties(delivery_mode=2, headers=headers))
    channel.basic_publish("", queue, b"a", pika.BasicProperties(delivery_mode=2, headers={"x-delay": 150}))
    came: list[float] = []

    def note(_: int, tag: int) -> None:
        came.append(time.time() - begin)
        channel.basic_ack(tag)

    assert [body for _, _, body in take(channel, queue, 2, note)] == [b"a", b"b"]
    assert came[0] >= 0.149
    assert came[1] >= 0.299
    channel.queue_delete(queue)


def test_the_delayed_message_exchange_of_rabbitmqs_plugin(channel: Any, name: Name) -> None:
    exchange, queue = name("delayed"), channel.queue_declare(name("q")).method.queue
    channel.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "topic"})
    channel.queue_bind(queue, exchange, "order.*")
    channel.basic_publish(exchange, "order.new", b"b", pika.BasicProperties(headers={"x-delay": 100}))
    channel.basic_publish(exchange, "order.new", b"a")
    taken = take(channel, queue, 2, lambda _, tag: channel.basic_ack(tag))
    assert [(body, properties.headers) for _, properties, body in taken] == [(b"a", None), (b"b", {"x-delay": -100})]
    channel.queue_delete(queue)
    channel.exchange_delete(exchange)


@KINDS
def test_producers_get_reports(channel: Any, name: Name, kind: str) -> None:
    queue, reports = name(f"work {kind}"), name("reports")
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.queue_declare(reports, durable=True)
    for number in range(4):
        properties = pika.BasicProperties(
            delivery_mode=2,
            message_id=str(number),
            correlation_id="batch",
            headers={"x-report-to": reports, "x-report": "all"},
        )
        channel.basic_publish("", queue if number < 3 else name("nowhere"), b"", properties)

    def settle(count: int, tag: int) -> None:
        if count == 1:
            channel.basic_reject(tag, requeue=False)
        else:
            channel.basic_ack(tag)

    take(channel, queue, 3, settle)
    found = take(channel, reports, 4, lambda _, tag: channel.basic_ack(tag))
    assert {properties.correlation_id for _, properties, _ in found} == {"batch"}
    outcomes = [json.loads(body) for _, _, body in found]
    assert sorted((each["message_id"], each["outcome"], each["reason"]) for each in outcomes) == [
        ("0", "acked", None),
        ("1", "dropped", "rejected"),
        ("2", "acked", None),
        ("3", "unroutable", "no_route"),
    ]
    channel.queue_delete(queue)
    channel.queue_delete(reports)
