"""AMQPStorm. Its confirms come one by one: each publish waits for the broker."""

from __future__ import annotations

import amqpstorm
from program import BODY, PREFETCH, Countdown, Job, run


def connect(job: Job) -> amqpstorm.Connection:
    return amqpstorm.Connection("127.0.0.1", "guest", "guest", port=job.port)


def publish(job: Job) -> None:
    with connect(job) as connection, connection.channel() as channel:
        send(job, channel)
        channel.queue.declare(job.queue, passive=True)
        job.end()


def confirm_each(job: Job) -> None:
    with connect(job) as connection, connection.channel() as channel:
        channel.confirm_deliveries()
        send(job, channel)
        job.end()


def send(job: Job, channel: amqpstorm.Channel) -> None:
    for number in range(job.total):
        if number == job.warmup:
            job.begin()
        channel.basic.publish(BODY, job.queue)


def consume(job: Job) -> None:
    countdown = Countdown(job)

    def on_message(message: amqpstorm.Message) -> None:
        message.ack()
        if countdown.is_last():
            channel.queue.declare(job.queue, passive=True)
            job.end()
            channel.stop_consuming()

    with connect(job) as connection, connection.channel() as channel:
        channel.basic.qos(PREFETCH)
        channel.basic.consume(on_message, job.queue)
        channel.start_consuming()


if __name__ == "__main__":
    run({"publish": publish, "confirm-1": confirm_each, "consume": consume})
