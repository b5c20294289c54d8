"""warrenmq.client, the face that blocks."""

from __future__ import annotations

import threading
from collections import deque

from program import BODY, CALL_LIMIT, IN_FLIGHT, PREFETCH, Countdown, Job, run

from warrenmq import client


def publish(job: Job) -> None:
    with client.connect(job.url()) as connection:
        channel = connection.channel()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            channel.publish("", job.queue, BODY)
        channel.queue_declare(job.queue, passive=True)
        job.end()


def confirm(job: Job) -> None:
    with client.connect(job.url()) as connection:
        channel = connection.channel()
        channel.confirm_select()
        waiting: deque[client.Confirmation] = deque()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            if len(waiting) == IN_FLIGHT:
                waiting.popleft().result()
            waiting.append(channel.publish("", job.queue, BODY))
        for confirmation in waiting:
            confirmation.result()
        job.end()


def confirm_each(job: Job) -> None:
    with client.connect(job.url()) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            channel.publish("", job.queue, BODY).result()
        job.end()


def consume(job: Job) -> None:
    countdown = Countdown(job)
    ended = threading.Event()

    def on_message(delivery: client.Delivery) -> None:
        delivery.ack()
        if countdown.is_last():
            ended.set()

    with client.connect(job.url()) as connection:
        channel = connection.channel()
        channel.qos(PREFETCH)
        channel.consume(job.queue, on_message)
        if not ended.wait(CALL_LIMIT):
            raise SystemExit("deliveries stayed out")
        channel.queue_declare(job.queue, passive=True)
        job.end()


if __name__ == "__main__":
    run({"publish": publish, "confirm": confirm, "confirm-1": confirm_each, "consume": consume})
