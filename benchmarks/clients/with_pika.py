"""pika's BlockingConnection. Its confirms come one by one: each publish waits for the broker."""

from __future__ import annotations

from typing import Any

import pika
from program import BODY, PREFETCH, Countdown, Job, run


def connect(job: Job) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(job.url()))


def publish(job: Job) -> None:
    with connect(job) as connection:
        channel = connection.channel()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            channel.basic_publish("", job.queue, BODY)
        channel.queue_declare(job.queue, passive=True)
        job.end()


def confirm_each(job: Job) -> None:
    with connect(job) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            channel.basic_publish("", job.queue, BODY)
        job.end()


def consume(job: Job) -> None:
    countdown = Countdown(job)

    def on_message(channel: Any, method: Any, properties: object, body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        if countdown.is_last():
            channel.stop_consuming()

    with connect(job) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(job.queue, on_message)
        channel.start_consuming()
        channel.queue_declare(job.queue, passive=True)
        job.end()


if __name__ == "__main__":
    run({"publish": publish, "confirm-1": confirm_each, "consume": consume})
