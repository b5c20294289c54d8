"""kombu as Celery uses it: persistent JSON tasks, published one by one, and a worker that prefetches four."""

from __future__ import annotations

from typing import Any

import kombu
from program import Countdown, Job, run

TASK = [[1, 2], {"debug": False}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def publish(job: Job) -> None:
    with kombu.Connection(job.url()) as connection:
        producer = connection.Producer()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            producer.publish(
                TASK,
                routing_key=job.queue,
                serializer="json",
                headers={"task": "add", "id": str(number), "retries": 0},
                correlation_id=str(number),
                delivery_mode="persistent",
            )
        connection.default_channel.queue_declare(job.queue, passive=True)  # the broker has them all
        job.end()


def consume(job: Job) -> None:
    countdown = Countdown(job)
    is_over = False

    def on_message(message: Any) -> None:
        nonlocal is_over
        message.ack()
        is_over = countdown.is_last()

    with kombu.Connection(job.url()) as connection:
        channel = connection.default_channel
        queue = kombu.Queue(job.queue, no_declare=True)
        with connection.Consumer(queue, on_message=on_message, prefetch_count=4):
            while not is_over:
                connection.drain_events()
        channel.queue_declare(job.queue, passive=True)
        job.end()


if __name__ == "__main__":
    run({"publish": publish, "consume-4": consume})
