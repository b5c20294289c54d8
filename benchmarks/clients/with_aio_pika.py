"""aio-pika, on uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import aio_pika
from loops import run_on_loop
from program import BODY, IN_FLIGHT, PREFETCH, Countdown, Job, run


async def publish(job: Job) -> None:
    async with await aio_pika.connect(job.url()) as connection:
        channel = await connection.channel(publisher_confirms=False)
        exchange, message = channel.default_exchange, aio_pika.Message(BODY)
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            await exchange.publish(message, job.queue)
        await channel.declare_queue(job.queue, passive=True)
        job.end()


async def confirm(job: Job) -> None:
    async with await aio_pika.connect(job.url()) as connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange, message = channel.default_exchange, aio_pika.Message(BODY)
        await asyncio.gather(*(exchange.publish(message, job.queue) for _ in range(job.warmup)))
        left = job.messages

        async def publish_in_turn() -> None:
            nonlocal left
            while left:
                left -= 1
                await exchange.publish(message, job.queue)

        job.begin()
        await asyncio.gather(*(publish_in_turn() for _ in range(IN_FLIGHT)))
        job.end()


async def confirm_each(job: Job) -> None:
    async with await aio_pika.connect(job.url()) as connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange, message = channel.default_exchange, aio_pika.Message(BODY)
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            await exchange.publish(message, job.queue)
        job.end()


async def consume(job: Job) -> None:
    countdown = Countdown(job)
    ended = asyncio.Event()

    async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        await message.ack()
        if countdown.is_last():
            ended.set()

    async with await aio_pika.connect(job.url()) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(job.queue, ensure=False)
        await queue.consume(on_message)
        await ended.wait()
        await channel.declare_queue(job.queue, passive=True)
        job.end()


def on_loop(workload: Callable[[Job], Coroutine[object, object, None]]) -> Callable[[Job], None]:
    return lambda job: run_on_loop(workload(job))


if __name__ == "__main__":
    run(
        {
            "publish": on_loop(publish),
            "confirm": on_loop(confirm),
            "confirm-1": on_loop(confirm_each),
            "consume": on_loop(consume),
        }
    )
