"""aio-pika as its documentation uses it: asyncio's own loop, a new Message for each publish, `message.process()`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from program import BODY, Countdown, Job, run


async def publish(job: Job, confirms: bool = True) -> None:
    async with await aio_pika.connect_robust(job.url()) as connection:
        channel = await connection.channel(publisher_confirms=confirms)
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            await channel.default_exchange.publish(aio_pika.Message(BODY), routing_key=job.queue)
        if not confirms:
            await channel.declare_queue(job.queue, passive=True)  # the broker has them all
        job.end()


async def consume(job: Job) -> None:
    countdown = Countdown(job)
    ended = asyncio.Event()

    async def on_message(message: AbstractIncomingMessage) -> None:
        async with message.process():
            if countdown.is_last():
                ended.set()

    async with await aio_pika.connect_robust(job.url()) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=100)
        queue = await channel.get_queue(job.queue)
        await queue.consume(on_message)
        await ended.wait()
        await channel.declare_queue(job.queue, passive=True)
        job.end()


async def iterate(job: Job) -> None:
    countdown = Countdown(job)
    async with await aio_pika.connect_robust(job.url()) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=100)
        queue = await channel.get_queue(job.queue)
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    is_last = countdown.is_last()
                if is_last:
                    break
        await channel.declare_queue(job.queue, passive=True)
        job.end()


def on_loop(workload: Callable[[Job], Coroutine[object, object, None]]) -> Callable[[Job], None]:
    return lambda job: asyncio.run(workload(job))


if __name__ == "__main__":
    run(
        {
            "publish": on_loop(lambda job: publish(job, confirms=False)),
            "confirm": on_loop(publish),
            "consume-100": on_loop(consume),
            "iterate-100": on_loop(iterate),
        }
    )
