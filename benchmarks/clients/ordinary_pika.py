"""pika as its tutorials use it: a BlockingConnection, a publish in a loop, a callback that acks each message."""

from __future__ import annotations

from typing import Any

import pika
from program import BODY, Countdown, Job, run


def connect(job: Job) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", job.port))


def publish(job: Job, confirms: bool = False) -> None:
    with connect(job) as connection:
        channel = connection.channel()
        if confirms:
            channel.confirm_delivery()
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            channel.basic_publish(exchange="", routing_key=job.queue, body=BODY)
        if not confirms:
            channel.queue_declare(job.queue, passive=True)  # the broker has them all
        job.end()


def consume(job: Job, prefetch: int | None = None) -> None:
    countdown = Countdown(job)

    def on_message(channel: Any, method: Any, properties: object, body: bytes) -> None:
        channel.basic_ack(delivery_tag=method.delivery_tag)
        if countdown.is_last():
            channel.stop_consuming()

    with connect(job) as connection:
        channel = connection.channel()
        if prefetch is not None:
            channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(queue=job.queue, on_message_callback=on_message)
        channel.start_consuming()
        channel.queue_declare(job.queue, passive=True)
        job.end()


if __name__ == "__main__":
    run(
        {
            "publish": publish,
            "confirm": lambda job: publish(job, confirms=True),
            "consume": consume,
            "consume-100": lambda job: consume(job, prefetch=100),
        }
    )
