"""Answers on their way to a real broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

import warrenmq
from warrenmq import client
from warrenmq.pipeline.jobs.answers import Answer
from warrenmq.pipeline.publish.results import STREAM_NAME, ResultWriter, Run, document_of
from warrenmq.pipeline.times import TimeRange

NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)


def document(batch: int) -> dict[str, Any]:
    answer = Answer("flow", "Flow", "flow", ("source",), [{"source": "shop"}])
    return document_of(answer, Run("run-1", "batch", NOW), batch, TimeRange(NOW, NOW), NOW)


def read(url: str, count: int) -> list[client.Delivery]:
    with client.connect(url) as connection, connection.channel() as channel:
        channel.qos(prefetch_count=10)
        found = []
        for delivery in channel.consume(STREAM_NAME, arguments={"x-stream-offset": "first"}, timeout=10):
            found.append(delivery)
            delivery.ack()
            if len(found) == count:
                break
        return found


def test_documents_lie_on_the_stream_with_their_job_in_a_header(warren: warrenmq.Broker) -> None:
    with ResultWriter(warren.url) as writer:
        assert writer.write(document(0)) == 1
        writer.write(document(1))
    first, second = read(warren.url, 2)
    assert first.properties.content_type == "application/json"
    assert first.headers["x-warren-analysis-job"] == "flow"
    assert first.headers["x-warren-analysis-version"] == 1
    assert first.headers["x-deduplication-header"] == "run-1/0/flow/0"
    assert [json.loads(found.body)["batch"] for found in (first, second)] == [0, 1]
    with client.connect(warren.url) as connection, connection.channel() as channel:
        limits = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1024**3}
        channel.queue_declare(STREAM_NAME, durable=True, arguments=limits)  # refused if it were not the same


def test_documents_that_are_written_together_lie_there_in_their_order(warren: warrenmq.Broker) -> None:
    with ResultWriter(warren.url) as writer:
        assert writer.write(*(document(number) for number in range(20))) == 20
    assert [json.loads(found.body)["batch"] for found in read(warren.url, 20)] == list(range(20))


def test_a_stream_with_other_limits_is_used_as_it_is(warren: warrenmq.Broker) -> None:
    with client.connect(warren.url) as connection, connection.channel() as channel:
        channel.queue_declare(STREAM_NAME, durable=True, arguments={"x-queue-type": "stream", "x-max-age": "1h"})
    with ResultWriter(warren.url) as writer:
        writer.write(document(0))
    assert len(read(warren.url, 1)) == 1


def test_a_deleted_stream_is_created_again(warren: warrenmq.Broker) -> None:
    with ResultWriter(warren.url) as writer:
        writer.write(document(0))
        with client.connect(warren.url) as connection, connection.channel() as channel:
            channel.queue_delete(STREAM_NAME)
        with pytest.raises(client.Unroutable):
            writer.write(document(1))
        writer.write(document(2))
    assert [json.loads(found.body)["batch"] for found in read(warren.url, 1)] == [2]


def test_a_broker_that_is_not_there_is_an_error_of_the_client() -> None:
    with ResultWriter("amqp://127.0.0.1:1/") as writer, pytest.raises(client.ClientError):
        writer.write(document(0))
