"""pika and aio-pika read and write streams, as their users write it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import aio_pika
import pika
import pytest
from aio_pika.exceptions import ChannelPreconditionFailed
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from warrenmq import client

from .clients.contract import PATIENCE
from .conftest import Namer

STREAM: dict[str, Any] = {"x-queue-type": "stream"}


def open_pika(broker_url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker_url))


def fill(channel: Any, queue: str, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        properties = pika.BasicProperties(headers={"number": number}, message_id=str(number))
        channel.basic_publish("", queue, b"%d" % number, properties)


def read(channel: Any, queue: str, offset: Any, count: int, prefetch: int = 10) -> list[tuple[int, bytes]]:
    """Return the offsets and bodies of N messages from an offset on."""
    channel.basic_qos(prefetch_count=prefetch)
    received: list[tuple[int, bytes]] = []
    for method, properties, body in channel.consume(
        queue, arguments={"x-stream-offset": offset}, inactivity_timeout=PATIENCE
    ):
        assert method is not None, f"only {received} came"
        assert properties.headers["number"] == int(body)
        received.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)
        if len(received) == count:
            break
    # Without channel.cancel(), which requeues buffered messages: a stream cannot requeue.
    return received


@pytest.fixture
def stream(broker_url: str, name: Namer) -> str:
    queue = name("stream")
    connection = open_pika(broker_url)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments=STREAM)
    channel.confirm_delivery()
    fill(channel, queue, 50)
    connection.close()
    return queue


@pytest.mark.parametrize("offset", ["first", 0, 20, "1h", datetime(2000, 1, 1)])
def test_pika_reads_from_an_offset(broker_url: str, stream: str, offset: Any) -> None:
    connection = open_pika(broker_url)
    begin = offset if isinstance(offset, int) else 0
    expected = [(number, b"%d" % number) for number in range(begin, 50)]
    assert read(connection.channel(), stream, offset, 50 - begin) == expected
    connection.close()


def test_pika_readers_each_get_everything(broker_url: str, stream: str) -> None:
    for prefetch in (1, 7, 1000):
        connection = open_pika(broker_url)
        assert [number for number, _ in read(connection.channel(), stream, "first", 50, prefetch)] == list(range(50))
        connection.close()


def test_pika_waits_for_what_comes_next(broker_url: str, stream: str) -> None:
    writer, reader = open_pika(broker_url), open_pika(broker_url)
    channel = reader.channel()
    channel.basic_qos(prefetch_count=10)
    received: list[tuple[int, bytes]] = []

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        received.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(stream, take, arguments={"x-stream-offset": "next"})
    fill(writer.channel(), stream, 3, start=50)
    deadline = datetime.now(UTC) + timedelta(seconds=PATIENCE)
    while len(received) < 3 and datetime.now(UTC) < deadline:
        reader.process_data_events(time_limit=0.1)
    assert received == [(50, b"50"), (51, b"51"), (52, b"52")]
    writer.close()
    reader.close()


def test_pika_receives_the_errors_of_stream_consumers(broker_url: str, stream: str) -> None:
    connection = open_pika(broker_url)
    with pytest.raises(ChannelClosedByBroker, match="consumer prefetch count is not set"):
        connection.channel().basic_consume(stream, lambda *delivered: None)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    with pytest.raises(ConnectionClosedByBroker, match="automatic acknowledgement not supported"):
        channel.basic_consume(stream, lambda *delivered: None, auto_ack=True)


def test_aio_pika_writes_and_reads(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        async with asyncio.timeout(5 * PATIENCE), await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=20)
            queue = await channel.declare_queue(name("stream"), durable=True, arguments=STREAM)
            for number in range(30):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), routing_key=queue.name)
            for begin in (0, 10):
                received: list[tuple[Any, bytes]] = []
                done = asyncio.Event()
                await queue.consume(taker(received, 30 - begin, done), arguments={"x-stream-offset": begin})
                await done.wait()
                assert received == [(number, b"%d" % number) for number in range(begin, 30)]

    def taker(received: list[tuple[Any, bytes]], count: int, done: asyncio.Event) -> Any:
        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await message.ack()
            received.append((message.headers["x-stream-offset"], message.body))
            if len(received) == count:
                done.set()

        return take

    asyncio.run(work())


def test_aio_pika_receives_the_error_of_a_wrong_offset(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        async with asyncio.timeout(5 * PATIENCE), await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=1)
            queue = await channel.declare_queue(name("stream"), durable=True, arguments=STREAM)
            with pytest.raises(ChannelPreconditionFailed, match="invalid_stream_offset_arg"):
                await queue.consume(print, arguments={"x-stream-offset": "7"})  # type: ignore[arg-type]

    asyncio.run(work())


# -- filters and offsets, which RabbitMQ 3.10 has not got ------------------------------------------------------------


def test_pika_reads_with_a_filter(broker_url: str, name: Namer) -> None:
    queue = name("stream")
    connection = open_pika(broker_url)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={**STREAM, "x-stream-filter-size-bytes": 32})
    for number in range(300):
        headers = {"number": number}
        if number % 3:
            headers["x-stream-filter-value"] = "emea" if number % 3 == 1 else "apac"
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(headers=headers))

    def read_filtered(count: int, prefetch: int, **arguments: Any) -> list[int]:
        received: list[int] = []
        channel = connection.channel()
        channel.basic_qos(prefetch_count=prefetch)
        arguments = {"x-stream-offset": "first"} | {f"x-stream-{key}": value for key, value in arguments.items()}
        for method, properties, body in channel.consume(queue, arguments=arguments, inactivity_timeout=PATIENCE):
            assert method is not None, f"only {received} came"
            received.append(int(body))
            channel.basic_ack(method.delivery_tag)
            assert properties.headers["number"] == int(body)
            if len(received) == count:
                break
        return received

    assert read_filtered(100, 10, filter="emea") == [number for number in range(300) if number % 3 == 1]
    assert read_filtered(100, 1, filter=["apac"]) == [number for number in range(300) if number % 3 == 2]
    either = [number for number in range(300) if number % 3 != 2]
    assert read_filtered(200, 500, filter=["emea", "none"], **{"match-unfiltered": True}) == either
    refused = connection.channel()
    refused.basic_qos(prefetch_count=1)
    with pytest.raises(ChannelClosedByBroker, match=r"invalid arg 'x-stream-filter' .*unacceptable_type,signedint"):
        refused.basic_consume(queue, lambda *delivered: None, arguments={"x-stream-filter": 7})
    connection.close()


def test_pika_goes_on_where_its_tag_was(broker_url: str, stream: str) -> None:
    tracked = {"x-stream-automatic-offset-tracking": True}

    def read_on(count: int, begin: int, tag: str = "billing", **more: Any) -> None:
        """Take all there is, which begins there, and ack this many messages."""
        received: list[int] = []
        connection = open_pika(broker_url)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)

        def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            if len(received) < count:
                channel.basic_ack(method.delivery_tag)
            received.append(properties.headers["x-stream-offset"])

        channel.basic_consume(stream, take, consumer_tag=tag, arguments={**tracked, **more})
        deadline = datetime.now(UTC) + timedelta(seconds=PATIENCE)
        while len(received) < 50 - begin and datetime.now(UTC) < deadline:
            connection.process_data_events(time_limit=0.1)
        connection.close()
        assert received == list(range(begin, 50))

    read_on(7, 0)
    read_on(20, 7)
    read_on(5, 30, "other", **{"x-stream-offset": 30})
    read_on(0, 35, "other", **{"x-stream-offset": 30})
    read_on(23, 27)
    read_on(0, 50)


def test_the_own_client_takes_these_arguments_as_they_are(broker_url: str, name: Namer) -> None:
    queue = name("stream")
    arguments = {"x-stream-automatic-offset-tracking": True, "x-stream-filter": ["a"]}
    for begin in (0, 10):
        with client.connect(broker_url) as connection, connection.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments=STREAM)
            for number in range(begin, begin + 10):
                headers = {"x-stream-filter-value": "a" if number % 2 else "b"}
                channel.publish("", queue, b"%d" % number, client.Properties(headers=headers))
            channel.qos(prefetch_count=2)
            consumer = channel.consume(queue, consumer_tag="own", arguments=arguments)
            received = []
            for delivery in consumer:
                received.append(int(delivery.body))
                delivery.ack()
                if len(received) == 5:
                    break
            assert received == [number for number in range(begin, begin + 10) if number % 2]
