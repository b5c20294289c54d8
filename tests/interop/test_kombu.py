"""kombu, as its users write it: producers, consumers, simple queues, serializers, retries after a lost connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from amqp.exceptions import AccessRefused

from .clients.contract import PATIENCE
from .conftest import Namer
from .proxy import Proxy


@pytest.fixture
def connection(broker_url: str, name: Namer) -> Iterator[kombu.Connection]:
    with kombu.Connection(broker_url, transport_options={"confirm_publish": True}) as opened:
        yield opened


@pytest.fixture
def queue(name: Namer) -> kombu.Queue:
    exchange = kombu.Exchange(name("exchange"), type="topic", durable=True)
    return kombu.Queue(name("queue"), exchange, routing_key="task.#", durable=True)


def drain(connection: kombu.Connection, bag: list[Any], count: int) -> None:
    while len(bag) < count:
        connection.drain_events(timeout=PATIENCE)


def test_producer_declares_what_it_needs_and_consumer_gets_the_body(
    connection: kombu.Connection, queue: kombu.Queue
) -> None:
    payload = {"hello": "wörld", "numbers": [1, 2.5, None]}
    connection.Producer().publish(payload, exchange=queue.exchange, routing_key="task.one", declare=[queue])
    received: list[Any] = []

    def on_message(body: Any, message: kombu.Message) -> None:
        received.append((body, message.content_type, message.delivery_info["routing_key"]))
        message.ack()

    with connection.Consumer(queue, callbacks=[on_message]):
        drain(connection, received, 1)
    assert received == [(payload, "application/json", "task.one")]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compression", [None, "zlib", "bzip2"])
def test_serialized_and_compressed_bodies_survive(
    connection: kombu.Connection, queue: kombu.Queue, serializer: str, compression: str | None
) -> None:
    payload = {"text": "x" * 300_000}
    connection.Producer(serializer=serializer).publish(
        payload, exchange=queue.exchange, routing_key="task", declare=[queue], compression=compression
    )
    received: list[Any] = []
    with connection.Consumer(queue, accept=["json", "pickle"], no_ack=True) as consumer:
        consumer.register_callback(lambda body, _message: received.append(body))
        drain(connection, received, 1)
    assert received == [payload]


def test_message_is_acknowledged_rejected_or_requeued(connection: kombu.Connection, queue: kombu.Queue) -> None:
    bound = queue(connection.default_channel)
    bound.declare()
    producer = connection.Producer()
    for number in range(3):
        producer.publish(number, exchange=queue.exchange, routing_key="task")
    first, second, third = bound.get(), bound.get(), bound.get()
    first.ack()
    second.reject()
    third.requeue()
    again = bound.get()
    assert (again.payload, again.delivery_info["redelivered"]) == (2, True)
    again.ack()
    assert bound.get() is None


def test_prefetch_bounds_a_consumer(connection: kombu.Connection, queue: kombu.Queue) -> None:
    held: list[kombu.Message] = []
    with connection.Consumer(queue, callbacks=[lambda _body, message: held.append(message)], prefetch_count=2):
        for number in range(5):
            connection.Producer().publish(number, exchange=queue.exchange, routing_key="task")
        drain(connection, held, 2)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.3)
        for message in held:
            message.ack()
        drain(connection, held, 4)
        assert [message.payload for message in held] == [0, 1, 2, 3]


def test_unroutable_message_is_returned(connection: kombu.Connection, name: Namer) -> None:
    returned: list[Any] = []
    producer = connection.Producer(on_return=lambda *told: returned.append(told))
    producer.publish("lost", exchange="", routing_key=name("missing"), mandatory=True)
    drain(connection, returned, 1)
    assert returned[0][0].reply_code == 312


def test_simple_queue_works_like_a_queue(connection: kombu.Connection, name: Namer) -> None:
    simple = connection.SimpleQueue(name("simple"))
    for number in range(3):
        simple.put({"number": number})
    assert simple.qsize() == 3
    for number in range(3):
        message = simple.get(timeout=PATIENCE)
        assert message.payload == {"number": number}
        message.ack()
    with pytest.raises(simple.Empty):
        simple.get_nowait()
    simple.close()


def test_missing_entity_is_a_channel_error(connection: kombu.Connection, name: Namer) -> None:
    with pytest.raises(connection.channel_errors) as failure:
        kombu.Queue(name("missing"), channel=connection.channel()).queue_declare(passive=True)
    assert failure.value.reply_code == 404
    assert connection.connected


def test_wrong_password_is_not_retried_for_ever(broker_url: str) -> None:
    url = broker_url.replace("guest:guest", "guest:wrong")
    with kombu.Connection(url) as refused, pytest.raises(AccessRefused, match="Login was refused"):
        refused.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


def test_publisher_with_retry_comes_back_after_a_cut(proxy: Proxy, queue: kombu.Queue) -> None:
    options = {"confirm_publish": True}
    with kombu.Connection(proxy.url, transport_options=options) as connection:
        producer = connection.Producer()
        retry = {"max_retries": 10, "interval_start": 0.05, "interval_step": 0.05}
        for number in range(3):
            producer.publish(
                number, exchange=queue.exchange, routing_key="task", declare=[queue], retry=True, retry_policy=retry
            )
            proxy.cut()
        received: list[Any] = []
        with kombu.Connection(proxy.url) as again, again.Consumer(queue, no_ack=True) as consumer:
            consumer.register_callback(lambda body, _message: received.append(body))
            drain(again, received, 3)
        assert received == [0, 1, 2]
        assert proxy.connections_made >= 3
