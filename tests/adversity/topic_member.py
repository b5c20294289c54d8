"""A member of a consumer group as a process of its own, until SIGTERM.

    python -m tests.adversity.topic_member URL TOPIC FACE LOG

It writes a line to the log when it begins with a message and when it ends, before the ack: `begin KEY NUMBER PROCESS`.
Several processes append to the same log.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from typing import Any

from tests.support.waiting import let_loop_run, let_time_pass
from warrenmq import client
from warrenmq.client import aio

RECOVERY = client.Recovery(initial=0.01, longest=0.1)


def pause() -> float:
    """Most messages take a moment, a few take longer than a handover."""
    return 0.05 if random.random() < 0.05 else random.random() * 0.002


class Log:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, delivery: Any) -> None:
        os.write(self._file, f"{kind} {delivery.body.decode()} {os.getpid()}\n".encode())


def serve(url: str, topic_name: str, log: Log) -> None:
    with client.connect(url, recovery=RECOVERY) as connection:
        topic = connection.channel().declare_topic(topic_name, 4)
        with topic.consume(group="g", prefetch=5, check_interval=0.1) as deliveries:
            signal.signal(signal.SIGTERM, lambda *_: deliveries.stop())
            for delivery in deliveries:
                log.write("begin", delivery)
                let_time_pass(pause())
                log.write("end", delivery)
                delivery.ack()


async def serve_on_asyncio(url: str, topic_name: str, log: Log) -> None:
    async def handle(delivery: Any) -> None:
        log.write("begin", delivery)
        await let_loop_run(pause())
        log.write("end", delivery)
        delivery.ack()

    stopped = asyncio.Event()
    async with aio.connect(url, recovery=RECOVERY) as connection:
        topic = await (await connection.channel()).declare_topic(topic_name, 4)
        async with topic.consume(handle, group="g", prefetch=5, check_interval=0.1):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
            await stopped.wait()


if __name__ == "__main__":
    _, where, name, face, path = sys.argv
    if face == "aio":
        asyncio.run(serve_on_asyncio(where, name, Log(path)))
    else:
        serve(where, name, Log(path))
