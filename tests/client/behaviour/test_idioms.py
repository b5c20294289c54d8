"""What is written differently on the two faces: with and async with, for and async for, threads and tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

from tests.support.loops import on_a_loop
from tests.support.waiting import let_loop_run, until
from warrenmq import client
from warrenmq.client import aio

from .faces import PATIENCE


def fill(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# -- asyncio


@on_a_loop
async def test_the_async_way_from_end_to_end(broker_url: str) -> None:
    async with await aio.connect(broker_url) as connection, await connection.channel() as channel:
        await channel.confirm_select()
        queue = (await channel.queue_declare("", exclusive=True)).queue
        confirmations = [await channel.publish("", queue, body) for body in fill(20)]
        await asyncio.wait_for(asyncio.gather(*confirmations), PATIENCE)
        seen = []
        async for delivery in channel.consume(queue, timeout=PATIENCE):
            seen.append(delivery.body)
            assert delivery.ack() is True
            if len(seen) == 20:
                break
        assert seen == fill(20)
        assert (await channel.queue_declare(queue, passive=True)).message_count == 0


@on_a_loop
async def test_connect_may_be_awaited(broker_url: str) -> None:
    connection = await aio.connect(broker_url)
    assert connection.is_open
    await connection.close()
    other = await client.ConnectionFactory(broker_url).connect_async()
    assert other.is_open
    await other.close()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_callbacks_may_be_plain_or_coroutines(broker_url: str, kind: str) -> None:
    async def work() -> None:
        seen: list[bytes] = []
        done = asyncio.Event()

        def plain(delivery: Any) -> None:
            seen.append(delivery.body)
            delivery.ack()
            if len(seen) == 10:
                done.set()

        async def coroutine(delivery: Any) -> None:
            await asyncio.sleep(0)
            plain(delivery)

        async with await aio.connect(broker_url) as connection:
            channel = await connection.channel()
            queue = (await channel.queue_declare("", exclusive=True)).queue
            consumer = await channel.consume(queue, plain if kind == "plain" else coroutine)
            for body in fill(10):
                await channel.publish("", queue, body)
            await asyncio.wait_for(done.wait(), PATIENCE)
            assert seen == fill(10)
            await consumer.cancel()

    asyncio.run(work())


@on_a_loop
async def test_many_tasks_share_a_channel(broker_url: str) -> None:
    async with await aio.connect(broker_url) as connection:
        channel = await connection.channel()
        await channel.confirm_select()
        queue = (await channel.queue_declare("", exclusive=True)).queue

        async def publish(number: int) -> None:
            for each in range(20):
                await (await channel.publish("", queue, b"%d %d" % (number, each)))

        await asyncio.wait_for(asyncio.gather(*(publish(number) for number in range(50))), PATIENCE)
        assert (await channel.queue_declare(queue, passive=True)).message_count == 1000


@on_a_loop
async def test_cancelled_task_leaves_the_channel_usable(broker_url: str) -> None:
    async with await aio.connect(broker_url) as connection:
        channel = await connection.channel()
        queue = (await channel.queue_declare("", exclusive=True)).queue
        for _ in range(20):
            task = asyncio.create_task(channel.queue_declare(queue, passive=True))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert (await channel.queue_declare(queue, passive=True)).queue == queue
        waiting = asyncio.create_task(anext(aiter(channel.consume(queue))))
        await let_loop_run(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert channel.is_open


@on_a_loop
async def test_cancelled_connect_leaves_nothing(broker_url: str) -> None:
    async def connect() -> None:
        connection = await aio.connect(broker_url)
        await connection.close()

    for delay in (0, 0, 0.001, 0.002, 0.004):
        task = asyncio.create_task(connect())
        await let_loop_run(delay)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.done()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


@on_a_loop
async def test_wait_for_of_asyncio_and_our_own_timeouts_go_together(broker_url: str) -> None:
    async with await aio.connect(broker_url) as connection:
        channel = await connection.channel()
        queue = (await channel.queue_declare("", exclusive=True)).queue
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                async for _delivery in channel.consume(queue):
                    pass
        assert (await channel.queue_declare(queue, passive=True)).queue == queue


@on_a_loop
async def test_callback_that_takes_long_does_not_stop_other_channels(broker_url: str) -> None:
    gate, quick_done = asyncio.Event(), asyncio.Event()

    async def slow(delivery: Any) -> None:
        await gate.wait()

    def quick(delivery: Any) -> None:
        quick_done.set()

    async with await aio.connect(broker_url) as connection:
        for callback in (slow, quick):
            channel = await connection.channel()
            queue = (await channel.queue_declare("", exclusive=True)).queue
            await channel.consume(queue, callback, auto_ack=True)
            await channel.publish("", queue, b"x")
        await asyncio.wait_for(quick_done.wait(), PATIENCE)
        gate.set()


@pytest.mark.parametrize("closes", ["connection", "channel", "consumer"])
def test_callback_closes_without_waiting_for_itself(broker_url: str, closes: str) -> None:
    async def work() -> None:
        ended = asyncio.Event()

        async def callback(delivery: Any) -> None:
            delivery.ack()
            if closes == "consumer":
                await delivery.channel.cancel(delivery.consumer_tag)
            else:
                await (connection if closes == "connection" else delivery.channel).close()
            ended.set()

        connection = await aio.connect(broker_url, close_timeout=60)
        channel = await connection.channel()
        queue = (await channel.queue_declare("", exclusive=True)).queue
        await channel.consume(queue, callback)
        await channel.publish("", queue, b"x")
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
            await connection.close()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(work())


# -- blocking


def test_the_blocking_way_from_end_to_end(broker_url: str) -> None:
    with client.connect(broker_url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        queue = channel.queue_declare("", exclusive=True).queue
        confirmations = [channel.publish("", queue, body) for body in fill(20)]
        for each in confirmations:
            each.result(PATIENCE)
        seen = []
        for delivery in channel.consume(queue, timeout=PATIENCE):
            seen.append(delivery.body)
            delivery.ack()
            if len(seen) == 20:
                break
        assert seen == fill(20)


def test_confirmations_of_the_blocking_face_in_a_pool(broker_url: str) -> None:
    with client.connect(broker_url) as connection, concurrent.futures.ThreadPoolExecutor(8) as pool:
        channel = connection.channel()
        channel.confirm_select()
        queue = channel.queue_declare("", exclusive=True).queue
        outcomes = pool.map(lambda body: channel.publish("", queue, body).result(PATIENCE), fill(500))
        assert list(outcomes) == [None] * 500
        assert channel.queue_declare(queue, passive=True).message_count == 500


@pytest.mark.parametrize("closes", ["connection", "channel", "consumer"])
def test_callback_of_the_worker_closes_without_waiting_for_itself(broker_url: str, closes: str) -> None:
    ended = threading.Event()
    connection = client.connect(broker_url, close_timeout=60)

    def callback(delivery: Any) -> None:
        delivery.ack()
        if closes == "consumer":
            delivery.channel.cancel(delivery.consumer_tag)
        else:
            (connection if closes == "connection" else delivery.channel).close()
        ended.set()

    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.consume(queue, callback)
    channel.publish("", queue, b"x")
    assert ended.wait(PATIENCE)
    connection.close()


def run_program(text: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *args], capture_output=True, text=True, timeout=60, check=False
    )


def test_forgotten_connection_does_not_keep_the_program(broker_url: str) -> None:
    ended = run_program(
        """
        import sys
        from warrenmq import client
        connection = client.connect(sys.argv[1])
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).queue
        channel.consume(queue, print)
        print("end")
        """,
        broker_url,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def test_interrupted_program_ends(broker_url: str) -> None:
    ended = run_program(
        """
        import os, signal, sys, threading
        from warrenmq import client
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background jobs
        with client.connect(sys.argv[1]) as connection:
            channel = connection.channel()
            queue = channel.queue_declare("", exclusive=True).queue
            try:
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                for delivery in channel.consume(queue):
                    pass
            except KeyboardInterrupt:
                print("interrupted")
        """,
        broker_url,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")


def test_connection_in_a_forked_child_is_misuse(broker_url: str) -> None:
    ended = run_program(
        """
        import os, sys
        from warrenmq import client
        with client.connect(sys.argv[1]) as connection:
            channel = connection.channel()
            queue = channel.queue_declare("", exclusive=True).queue
            child = os.fork()
            if child == 0:
                code = 0
                for attempt in (connection.channel, lambda: channel.publish("", queue, b"x"),
                                lambda: channel.queue_declare(queue, passive=True)):
                    try:
                        attempt()
                        code = 1
                    except client.Misuse:
                        pass
                os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            channel.confirm_select()
            channel.publish("", queue, b"parent").result(30)
            assert channel.queue_declare(queue, passive=True).message_count == 1
            print("fine")
        """,
        broker_url,
    )
    assert (ended.stdout, ended.returncode) == ("fine\n", 0), ended.stderr
