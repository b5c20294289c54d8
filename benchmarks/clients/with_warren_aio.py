"""warrenmq.client.aio, on uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine

from loops import run_on_loop
from program import BODY, CALL_LIMIT, IN_FLIGHT, PREFETCH, Countdown, Job, run

from warrenmq.client import aio


async def publish(job: Job) -> None:
    async with await aio.connect(job.url()) as connection:
        channel = await connection.channel()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            await channel.publish("", job.queue, BODY)
        await channel.queue_declare(job.queue, passive=True)
        job.end()


async def confirm(job: Job) -> None:
    async with await aio.connect(job.url()) as connection:
        channel = await connection.channel()
        await channel.confirm_select()
        waiting: deque[aio.Confirmation] = deque()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            if len(waiting) == IN_FLIGHT:
                await waiting.popleft()
            waiting.append(await channel.publish("", job.queue, BODY))
        for confirmation in waiting:
            await confirmation
        job.end()


async def confirm_each(job: Job) -> None:
    async with await aio.connect(job.url()) as connection:
        channel = await connection.channel()
        await channel.confirm_select()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            await (await channel.publish("", job.queue, BODY))
        job.end()


async def consume(job: Job) -> None:
    countdown = Countdown(job)
    ended = asyncio.Event()

    def on_message(delivery: aio.Delivery) -> None:
        delivery.ack()
        if countdown.is_last():
            ended.set()

    async with await aio.connect(job.url()) as connection:
        channel = await connection.channel()
        await channel.qos(PREFETCH)
        await channel.consume(job.queue, on_message)
        await asyncio.wait_for(ended.wait(), CALL_LIMIT)
        await channel.queue_declare(job.queue, passive=True)
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
