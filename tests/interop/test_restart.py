"""The broker goes and comes back on the same port; every client is notified and reconnects.

These start brokers of their own, so they are not run against the broker at WARREN_TEST_URL.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import aio_pika
import pytest

from tests.support.ports import free_port

from .clients.contract import PATIENCE, Client, Scope

pytestmark = pytest.mark.skipif(
    "WARREN_TEST_URL" in os.environ, reason="the broker at WARREN_TEST_URL is not ours to restart"
)


class Restartable:
    """A broker that can be stopped, and started again at the same address."""

    def __init__(self) -> None:
        import warrenmq

        self._port = free_port()
        self._make = lambda: warrenmq.Broker(port=self._port)
        self._broker: warrenmq.Broker | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._port}/"

    def start(self) -> None:
        self._broker = self._make()
        self._broker.start()

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
            self._broker = None


@pytest.fixture
def restartable() -> Iterator[Restartable]:
    broker = Restartable()
    yield broker
    broker.stop()


def test_client_is_notified_of_a_shutdown_and_reconnects(client_class: type[Client], restartable: Restartable) -> None:
    client = client_class(restartable.url)
    channel = client.channel()
    channel.declare_queue("jobs")
    channel.consume("jobs")
    restartable.stop()
    refused = channel.wait_closed()
    assert (refused.scope, refused.code) == (Scope.CONNECTION, 320)
    assert refused.text.startswith("CONNECTION_FORCED")
    client.close()
    restartable.start()
    again = client_class(restartable.url)
    channel = again.channel()
    channel.declare_queue("jobs")
    channel.publish("", "jobs", b"after")
    channel.consume("jobs", no_ack=True)
    assert channel.take(1)[0].body == b"after"
    again.close()


def test_robust_connection_finds_the_broker_again(restartable: Restartable) -> None:
    async def work() -> None:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                await received.put(message.body)

        connection = await aio_pika.connect_robust(restartable.url, reconnect_interval=0.1)
        channel = await connection.channel()
        queue = await channel.declare_queue("jobs", auto_delete=True)
        await queue.consume(on_message)
        came_back = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: came_back.set())
        await asyncio.to_thread(restartable.stop)
        await asyncio.to_thread(restartable.start)
        await came_back.wait()
        await channel.default_exchange.publish(aio_pika.Message(b"after"), "jobs")
        assert await received.get() == b"after"
        await connection.close()

    async def bounded() -> None:
        async with asyncio.timeout(5 * PATIENCE):
            await work()

    asyncio.run(bounded())
