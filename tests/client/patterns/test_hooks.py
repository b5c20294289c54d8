"""What the engine tells collectors of metrics and traces, on both faces."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.behaviour.faces import Inbox
from tests.client.conftest import Connect
from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .making import FAST


def test_everything_is_counted(connect: Connect, breaker: Breaker) -> None:
    metrics = client.CountingMetrics()
    connection = connect(breaker.url, metrics=metrics, recovery=FAST, exception_handler=lambda *_: None)
    channel, other = connection.channel(), connection.channel()
    other.confirm_select()
    queue = channel.queue_declare("", exclusive=True).queue
    inbox = Inbox()
    channel.consume(queue, inbox)
    for _ in range(5):
        other.publish("", queue, b"12345").result()
    deliveries = inbox.take(5)
    deliveries[0].ack()
    deliveries[1].nack(requeue=False)
    deliveries[2].reject(requeue=False)
    with pytest.raises(client.Unroutable):
        other.publish("", "nowhere", b"1", mandatory=True).result()
    other.close()
    counts = wait_until(lambda: (now := metrics.counts()).returned and now, "the return was counted")
    assert (counts.connections_opened, counts.channels_opened, counts.channels_closed) == (1, 2, 1)
    assert (counts.published, counts.published_bytes) == (6, 26)
    assert (counts.delivered, counts.delivered_bytes) == (5, 25)
    assert (counts.confirmed + counts.returned, counts.returned, counts.nacked) in ((6, 1, 0), (7, 1, 0))
    assert (counts.acked, counts.rejected) == (1, 2)
    breaker.reset()
    wait_until(lambda: metrics.counts().connections_recovered == 1, "the recovery was counted")
    assert metrics.counts().connections_lost == 1
    connection.close()
    wait_until(lambda: metrics.counts().connections_closed == 1, "the end was counted")
    wait_until(lambda: metrics.counts().open_channels == 0, "no channel is open")


def test_failed_callbacks_are_counted(connect: Connect) -> None:
    metrics = client.CountingMetrics()
    channel = connect(metrics=metrics, exception_handler=lambda *_: None).channel()
    queue = channel.queue_declare("", exclusive=True).queue

    def fail(delivery: Any) -> None:
        raise ValueError("bad")

    channel.consume(queue, fail, auto_ack=True)
    channel.publish("", queue, b"1")
    wait_until(lambda: metrics.counts().callbacks_failed == 1, "the failure was counted")


def test_trace_goes_from_the_publisher_to_the_callback(connect: Connect) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    from warrenmq.client.telemetry import Tracing

    from .test_telemetry import Spans

    spans = Spans()
    channel = connect(tracing=Tracing(spans.provider)).channel()
    queue = channel.queue_declare("", exclusive=True).queue
    inbox = Inbox()
    channel.consume(queue, inbox, auto_ack=True)
    channel.publish("", queue, b"traced", client.Properties(headers={"mine": 1}))
    assert inbox.next().headers.keys() == {"mine", "traceparent"}
    wait_until(lambda: len(spans.ended) == 2, "both spans ended")
    producer, consumer = sorted(spans.ended, key=lambda span: span.start_time)
    assert (producer.kind.name, consumer.kind.name) == ("PRODUCER", "CONSUMER")
    assert consumer.parent.span_id == producer.context.span_id
