"""py-amqp, the client under kombu and Celery."""

from __future__ import annotations

from typing import Any

import amqp
from program import BODY, CALL_LIMIT, IN_FLIGHT, PREFETCH, Countdown, Job, run


def connect(job: Job) -> amqp.Connection:
    return amqp.Connection(f"127.0.0.1:{job.port}")


def publish(job: Job) -> None:
    with connect(job) as connection:
        channel = connection.channel()
        message = amqp.Message(BODY)
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            channel.basic_publish(message, "", job.queue)
        channel.queue_declare(job.queue, passive=True)
        job.end()


def confirm(job: Job) -> None:
    published = confirmed = 0

    def on_ack(delivery_tag: int, multiple: bool) -> None:
        nonlocal confirmed
        confirmed = delivery_tag if multiple else confirmed + 1

    with connect(job) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(on_ack)
        message = amqp.Message(BODY)
        while confirmed < job.total:
            while published < job.total and published - confirmed < IN_FLIGHT:
                if published == job.warmup:
                    job.begin()
                channel.basic_publish(message, "", job.queue)
                published += 1
            connection.drain_events(timeout=CALL_LIMIT)
        job.end()


def confirm_each(job: Job) -> None:
    with connect(job) as connection:
        channel = connection.channel()
        message = amqp.Message(BODY)
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            channel.basic_publish_confirm(message, "", job.queue)
        job.end()


def consume(job: Job) -> None:
    countdown = Countdown(job)
    is_over = False

    def on_message(message: Any) -> None:
        nonlocal is_over
        channel.basic_ack(message.delivery_tag)
        is_over = countdown.is_last()

    with connect(job) as connection:
        channel = connection.channel()
        channel.basic_qos(0, PREFETCH, False)
        channel.basic_consume(job.queue, callback=on_message)
        while not is_over:
            connection.drain_events(timeout=CALL_LIMIT)
        channel.queue_declare(job.queue, passive=True)
        job.end()


if __name__ == "__main__":
    run({"publish": publish, "confirm": confirm, "confirm-1": confirm_each, "consume": consume})
