"""pika's SelectConnection: callbacks instead of calls, so that many publishes may wait for their confirms at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from program import BODY, IN_FLIGHT, PREFETCH, Countdown, Job, run


def drive(job: Job, on_channel: Callable[[Any, Any], None]) -> None:
    """Open a connection with one channel, give both to the function, and serve until the connection is closed."""
    connection = pika.SelectConnection(
        pika.URLParameters(job.url()),
        on_open_callback=lambda opened: opened.channel(on_open_callback=lambda channel: on_channel(opened, channel)),
        on_close_callback=lambda closed, reason: closed.ioloop.stop(),
    )
    connection.ioloop.start()


def publish(job: Job) -> None:
    def on_channel(connection: Any, channel: Any) -> None:
        for number in range(job.total):
            if number == job.warmup:
                job.begin()
            channel.basic_publish("", job.queue, BODY)
        channel.queue_declare(job.queue, passive=True, callback=lambda declared: end(connection))

    def end(connection: Any) -> None:
        job.end()
        connection.close()

    drive(job, on_channel)


def confirm(job: Job) -> None:
    published = confirmed = 0

    def on_channel(connection: Any, channel: Any) -> None:
        def on_confirm(frame: Any) -> None:
            nonlocal confirmed
            method = frame.method
            if method.NAME != "Basic.Ack":
                raise SystemExit("a publish was not confirmed")
            confirmed = method.delivery_tag if method.multiple else confirmed + 1
            if confirmed >= job.total:
                job.end()
                connection.close()
            else:
                fill()

        def fill() -> None:
            nonlocal published
            while published < job.total and published - confirmed < IN_FLIGHT:
                if published == job.warmup:
                    job.begin()
                channel.basic_publish("", job.queue, BODY)
                published += 1

        channel.confirm_delivery(on_confirm, callback=lambda selected: fill())

    drive(job, on_channel)


def consume(job: Job) -> None:
    countdown = Countdown(job)

    def on_channel(connection: Any, channel: Any) -> None:
        def on_message(channel: Any, method: Any, properties: object, body: bytes) -> None:
            channel.basic_ack(method.delivery_tag)
            if countdown.is_last():
                channel.queue_declare(job.queue, passive=True, callback=end)

        def end(declared: object) -> None:
            job.end()
            connection.close()

        channel.basic_qos(
            prefetch_count=PREFETCH, callback=lambda settled: channel.basic_consume(job.queue, on_message)
        )

    drive(job, on_channel)


if __name__ == "__main__":
    run({"publish": publish, "confirm": confirm, "consume": consume})
