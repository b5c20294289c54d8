"""Back-pressure both ways, and that it can never lock up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import warrenmq
from tests.support.breaker import UP, Breaker
from tests.support.loops import on_a_loop
from tests.support.waiting import let_loop_run, until
from warrenmq.client import CallTimedOut, ConnectionClosed, Misuse, aio

LIMIT = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with warrenmq.Broker() as broker:
        yield broker.url


async def fill(connection: aio.Connection, count: int) -> str:
    """A queue with N messages."""
    channel = await connection.channel()
    queue = (await channel.queue_declare("", exclusive=True)).queue
    await channel.confirm_select()
    for number in range(count):
        await channel.publish("", queue, b"%d" % number)
    await channel.wait_for_confirms()
    return queue


def is_paused(connection: aio.Connection) -> bool:
    link = connection._engine._link
    return link is not None and link._is_reading_paused


@on_a_loop
async def test_reading_pauses_while_the_worker_is_behind_and_goes_on_after(url: str) -> None:
    async with asyncio.timeout(LIMIT), aio.connect(url, work_limit=10) as connection:
        queue = await fill(connection, 3000)
        gate, seen, most = asyncio.Event(), [], 0
        channel = await connection.channel()

        async def slow(delivery: aio.Delivery) -> None:
            await gate.wait()
            seen.append(int(delivery.body))

        await channel.consume(queue, slow, auto_ack=True)
        await until(lambda: is_paused(connection))
        sink = channel._engine_channel.work_queue
        assert sink is not None
        most = sink.pending()
        for _ in range(20):
            await let_loop_run(0.001)
            assert sink.pending() == most
        gate.set()
        await until(lambda: len(seen) == 3000)
        assert seen == list(range(3000))
        await until(lambda: not is_paused(connection))


@on_a_loop
async def test_calls_and_confirms_come_through_while_the_worker_is_behind(url: str) -> None:
    async with asyncio.timeout(LIMIT), aio.connect(url, work_limit=10) as connection:
        queue = await fill(connection, 3000)
        gate = asyncio.Event()
        channel = await connection.channel()
        await channel.confirm_select()

        async def wait(delivery: aio.Delivery) -> None:
            await gate.wait()

        await channel.consume(queue, wait, auto_ack=True)
        await until(lambda: is_paused(connection))
        assert (await channel.queue_declare("", exclusive=True)).queue
        await (await channel.publish("", "nowhere", b"x"))
        await channel.publish("", "nowhere", b"x")
        await channel.wait_for_confirms()
        gate.set()


@on_a_loop
async def test_server_that_is_not_read_is_not_taken_for_dead(url: str) -> None:
    async with asyncio.timeout(LIMIT), aio.connect(url, work_limit=10, heartbeat=2) as connection:
        queue = await fill(connection, 3000)
        gate, lost = asyncio.Event(), []
        connection.add_close_listener(lost.append)
        channel = await connection.channel()

        async def wait(delivery: aio.Delivery) -> None:
            await gate.wait()

        await channel.consume(queue, wait, auto_ack=True)
        await until(lambda: is_paused(connection))
        await let_loop_run(5.0)  # more than two heartbeats
        assert lost == []
        gate.set()
        assert (await channel.queue_declare("", exclusive=True)).queue
        assert lost == []


@on_a_loop
async def test_publish_waits_for_room_until_its_timeout(url: str) -> None:
    with Breaker(url) as breaker:
        async with asyncio.timeout(LIMIT), aio.connect(breaker.url, output_limit=100_000) as connection:
            channel = await connection.channel()
            breaker.hold(UP)
            with pytest.raises(CallTimedOut):
                for _ in range(10_000):
                    await channel.publish("", "nowhere", b"x" * 50_000, timeout=0.1)
            assert connection._engine.shared.protocol is not None
            assert connection._engine.shared.protocol.output_size < 300_000
            with pytest.raises(CallTimedOut):
                await channel.publish("", "nowhere", b"x", timeout=0)
            breaker.calm()
            await channel.publish("", "nowhere", b"x")
            assert (await channel.queue_declare("", exclusive=True)).queue


@on_a_loop
async def test_publish_that_waits_for_room_raises_at_the_end(url: str) -> None:
    with Breaker(url) as breaker:
        async with asyncio.timeout(LIMIT), aio.connect(breaker.url, output_limit=100_000) as connection:
            channel = await connection.channel()
            breaker.hold(UP)

            async def publish() -> None:
                while True:
                    await channel.publish("", "nowhere", b"x" * 50_000)

            publisher = asyncio.ensure_future(publish())
            await until(lambda: bool(connection._engine.shared.writable_callbacks))
            await connection.close(timeout=0.1)
            with pytest.raises(ConnectionClosed):
                await publisher


@on_a_loop
async def test_waiting_for_a_confirm_without_await_is_misuse(url: str) -> None:
    async with asyncio.timeout(LIMIT), aio.connect(url) as connection:
        channel = await connection.channel()
        await channel.confirm_select()
        confirmation = await channel.publish("", "nowhere", b"x")
        with pytest.raises(Misuse):
            confirmation.result()
        await confirmation
        confirmation.result()
