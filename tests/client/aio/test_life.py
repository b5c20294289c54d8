"""Opening and closing on the user's own loop: nothing is left behind, whichever side closes, and when."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

import warrenmq
from tests.support.breaker import DOWN, Breaker
from tests.support.loops import on_a_loop
from tests.support.waiting import let_loop_run, until
from warrenmq.client import ChannelClosed, ConnectionClosed, ConnectionFailed, Recovery, aio

LIMIT = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with warrenmq.Broker() as broker:
        yield broker.url


def others() -> set[str]:
    """The names of the tasks beside the test's own."""
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


@on_a_loop
async def test_close_leaves_no_task(url: str) -> None:
    async with asyncio.timeout(LIMIT):
        async with aio.connect(url) as connection:
            connection.add_close_listener(lambda reason: None)
            channel = await connection.channel()
            queue = (await channel.queue_declare("", exclusive=True)).queue
            await channel.consume(queue, lambda delivery: None)
        assert others() == set()


@on_a_loop
async def test_connect_that_is_cancelled_leaves_no_task(url: str) -> None:
    with Breaker(url) as breaker:
        breaker.swallow()
        connecting = asyncio.ensure_future(aio.connect(breaker.url)._connect())
        await let_loop_run(0.05)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert others() == set()


@on_a_loop
async def test_failed_connect_leaves_no_task_and_names_the_address(url: str) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        await aio.connect("amqp://127.0.0.1:1", connect_timeout=2)
    assert "127.0.0.1:1" in str(failed.value)
    assert [where for where, _ in failed.value.failures] == ["127.0.0.1:1"]
    assert others() == set()


@on_a_loop
async def test_channel_closes_while_another_of_its_calls_is_under_way(url: str) -> None:
    with Breaker(url) as breaker:
        async with aio.connect(breaker.url, close_timeout=60) as connection:
            channel = await connection.channel()
            breaker.hold(DOWN)
            declaring = asyncio.ensure_future(channel.queue_declare("", exclusive=True))
            await let_loop_run(0.05)
            closing = asyncio.ensure_future(channel.close())
            with pytest.raises(ChannelClosed):
                await asyncio.wait_for(declaring, LIMIT)
            breaker.calm()
            await asyncio.wait_for(closing, LIMIT)
            assert (await connection.channel()).number == channel.number  # so the broker's close-ok was heard


@on_a_loop
async def test_close_from_a_callback_does_not_wait_for_itself(url: str) -> None:
    async with asyncio.timeout(LIMIT), aio.connect(url, close_timeout=5) as connection:
        channel = await connection.channel()
        queue = (await channel.queue_declare("", exclusive=True)).queue
        closed = asyncio.Event()

        async def close(delivery: aio.Delivery) -> None:
            await connection.close()
            closed.set()

        await channel.consume(queue, close)
        await channel.publish("", queue, b"x")
        await closed.wait()
        await connection.close()
        assert others() == set()


@on_a_loop
async def test_closing_in_a_close_listener_is_no_trouble(url: str) -> None:
    with Breaker(url) as breaker:
        async with asyncio.timeout(LIMIT):
            connection = await aio.connect(breaker.url, recovery=False, close_timeout=5)
            closed = asyncio.Event()

            async def close(reason: object) -> None:
                await connection.close()
                closed.set()

            connection.add_close_listener(close)
            breaker.reset()
            await closed.wait()
            await connection.close()
            assert connection.is_closed
            assert others() == set()


@on_a_loop
async def test_closes_at_once_from_several_tasks_all_end(url: str) -> None:
    async with asyncio.timeout(LIMIT):
        connection = await aio.connect(url)
        channel = await connection.channel()
        await asyncio.gather(*(connection.close() for _ in range(5)), channel.close())
        with pytest.raises(ConnectionClosed):
            await connection.channel()
        assert others() == set()


@on_a_loop
async def test_recovery_that_gives_up_ends_all_waits(url: str) -> None:
    with Breaker(url) as breaker:
        async with asyncio.timeout(LIMIT):
            recovery = Recovery(initial=0.01, longest=0.02, attempts=3)
            connection = await aio.connect(breaker.url, recovery=recovery)
            kinds: list[str] = []
            connection.add_recovery_listener(lambda event: kinds.append(event.kind))
            channel = await connection.channel()
            queue = (await channel.queue_declare("", exclusive=True)).queue
            consumer = await channel.consume(queue)
            breaker.refuse()
            breaker.reset()
            with pytest.raises(ConnectionClosed):
                await anext(consumer)
            with pytest.raises(ConnectionClosed):
                await channel.queue_declare("")
            await connection.close()
            assert kinds == ["lost", "trying", "trying", "trying", "gave_up"]
            assert others() == set()


@on_a_loop
async def test_forgotten_iteration_is_cancelled_and_requeues_its_messages(url: str) -> None:
    async with asyncio.timeout(LIMIT), aio.connect(url) as connection:
        channel, other = await connection.channel(), await connection.channel()
        queue = (await channel.queue_declare("", exclusive=True)).queue
        for number in range(10):
            await channel.publish("", queue, b"%d" % number)
        async for delivery in channel.consume(queue):
            delivery.ack()
            break
        del delivery
        gc.collect()

        async def all_is_back() -> bool:
            state = await other.queue_declare(queue, passive=True)
            return state.consumer_count == 0 and state.message_count == 9

        await until(all_is_back)


@on_a_loop
async def test_task_that_is_cancelled_in_a_call_does_not_disturb_the_next(url: str) -> None:
    async with asyncio.timeout(LIMIT), aio.connect(url) as connection:
        channel = await connection.channel()
        names = [(await channel.queue_declare("", exclusive=True)).queue for _ in range(2)]
        for _ in range(20):
            cancelled = asyncio.ensure_future(channel.queue_declare(names[0], passive=True))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert (await channel.queue_declare(names[1], passive=True)).queue == names[1]


@on_a_loop
async def test_channel_numbers_are_used_again(url: str) -> None:
    async with asyncio.timeout(LIMIT), aio.connect(url, channel_max=3) as connection:
        for _ in range(3):
            channels = [await connection.channel() for _ in range(3)]
            assert sorted(connection.channels) == [1, 2, 3]
            for channel in channels:
                await channel.close()
        assert connection.channels == {}
