"""`x-filter` through pika: selectors and header conditions, on all queue types."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

pytestmark = pytest.mark.skipif("WARREN_TEST_URL" in os.environ, reason="RabbitMQ has no x-filter on queues")


@pytest.mark.parametrize("asked", ["priority > 3 AND region IN ('eu', 'us')", {"region": "eu", "level": 5}])
@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_consumer_gets_what_it_wants(broker_url: str, name: Callable[[str], str], kind: str, asked: Any) -> None:
    queue = name(f"filtered {kind}")
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        for level in range(10):
            for region in ("eu", "asia"):
                properties = pika.BasicProperties(priority=level, headers={"region": region, "level": level})
                channel.basic_publish("", queue, f"{region} {level}".encode(), properties)
        channel.basic_qos(prefetch_count=100)
        arguments = {"x-filter": asked} | ({"x-stream-offset": "first"} if kind == "stream" else {})
        received: list[bytes] = []

        def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            channel.basic_ack(method.delivery_tag)
            received.append(body)

        expected = [b"eu 5"] if isinstance(asked, dict) else [b"eu %d" % level for level in range(4, 10)]
        channel.basic_consume(queue, take, arguments=arguments)
        while len(received) < len(expected):
            connection.process_data_events(10)
        channel.cancel()
        assert received == expected
        if kind != "stream":
            waiting = channel.queue_declare(queue, passive=True).method.message_count
            assert waiting == 20 - len(expected)
        channel.queue_delete(queue)


def test_a_fault_is_reported_with_its_position(broker_url: str, name: Callable[[str], str]) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name("faulty"), exclusive=True)
        with pytest.raises(ChannelClosedByBroker) as closed:
            channel.basic_consume(name("faulty"), print, arguments={"x-filter": "priority >> 3"})
        assert closed.value.reply_code == 406
        assert "got '>' at position 11" in closed.value.reply_text
