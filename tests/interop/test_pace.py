"""`x-rate` through pika: a consumer receives at most N messages per second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pika
import pytest

pytestmark = pytest.mark.skipif("WARREN_TEST_URL" in os.environ, reason="RabbitMQ has no x-rate")


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_consumer_is_sent_messages_at_its_pace(broker_url: str, name: Callable[[str], str], kind: str) -> None:
    queue = name(f"paced {kind}")
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        for _ in range(6):
            channel.basic_publish("", queue, b"")
        channel.basic_qos(prefetch_count=100)
        arguments = {"x-rate": 20} | ({"x-stream-offset": "first"} if kind == "stream" else {})
        received: list[float] = []
        begin = time.monotonic()
        channel.basic_consume(queue, lambda *_: received.append(time.monotonic() - begin), arguments=arguments)
        while len(received) < 6:
            connection.process_data_events(10)
        assert received[-1] >= 0.249  # five intervals of 50 ms
        channel.queue_delete(queue)
