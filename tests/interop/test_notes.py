"""Notes and `x-message-uid` through pika, and the biography of a retried message across kill -9."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.support.traced import TracedProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("WARREN_TEST_URL" in os.environ, reason="RabbitMQ has no notes")

RETRIES = {"x-retry-max": 3, "x-retry-delay": 100, "x-retry-backoff": "fixed"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TracedProcess]:
    with TracedProcess(tmp_path / "data").ready() as process:
        yield process


def connect(broker: TracedProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.address.port))


def open_channel(connection: pika.BlockingConnection) -> BlockingChannel:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("work", durable=True, arguments=RETRIES)
    return channel


def publish(channel: BlockingChannel, body: bytes, key: str, message_id: str | None = None, **headers: Any) -> None:
    named = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}
    channel.basic_publish("", key, body, pika.BasicProperties(message_id=message_id, headers=named, delivery_mode=2))


def note(channel: BlockingChannel, text: bytes, message_id: str | None = None, **headers: Any) -> None:
    publish(channel, text, "warren.notes", message_id, **headers)


def fetch(channel: BlockingChannel) -> tuple[int, dict[str, Any]]:
    """Get the next message when there is one: its delivery tag and headers."""
    method, properties, _ = wait_until(lambda: found if (found := channel.basic_get("work"))[0] else None)
    return method.delivery_tag, properties.headers


def biography(broker: TracedProcess, key: str) -> dict[str, Any]:
    status, answer = broker.ask(f"/api/traces/{key}")
    assert status == 200
    return answer


def notes(traced: dict[str, Any]) -> list[str]:
    return [event["note"] for event in traced["events"] if event["kind"] == "noted"]


def test_the_broker_announces_notes(broker: TracedProcess) -> None:
    with connect(broker) as connection:
        assert connection._impl.server_properties["capabilities"]["warrenmq.notes"] is True


def test_notes_by_tag_by_uid_and_by_message_id_are_in_the_biography(broker: TracedProcess) -> None:
    with connect(broker) as connection:
        channel = open_channel(connection)
        publish(channel, b"body", "work", "order-17", message_uid="")
        tag, headers = fetch(channel)
        note(channel, "charged the card: 5 €".encode(), delivery_tag=tag)
        channel.basic_ack(tag)
        note(channel, b"mailed the invoice", message_uid=headers["x-message-uid"])
        note(channel, b"archived", "order-17")
        traced = biography(broker, "order-17")
        assert notes(traced) == ["charged the card: 5 €", "mailed the invoice", "archived"]
        assert (traced["uid"], traced["complete"]) == (headers["x-message-uid"], True)
        assert biography(broker, headers["x-message-uid"])["events"] == traced["events"]


def test_a_message_without_message_id_is_found_by_the_id_that_its_consumer_gets(broker: TracedProcess) -> None:
    with connect(broker) as connection:
        channel = open_channel(connection)
        publish(channel, b"body", "work", message_uid="")
        tag, headers = fetch(channel)
        channel.basic_ack(tag)
        traced = biography(broker, headers["x-message-uid"])
        assert [event["kind"] for event in traced["events"]][-2:] == ["delivered", "acked"]


@pytest.mark.parametrize(
    ("body", "headers", "text"),
    [
        (b"text", {"delivery_tag": 17}, "unknown delivery tag 17"),
        (b"x" * 1001, {"delivery_tag": 1}, "a note must have 1 to 1,000 bytes, this one has 1,001"),
        (b"text", {}, "a note needs"),
    ],
)
def test_an_invalid_note_closes_the_channel(
    broker: TracedProcess, body: bytes, headers: dict[str, Any], text: str
) -> None:
    with connect(broker) as connection:
        channel = open_channel(connection)
        with pytest.raises(ChannelClosedByBroker) as closed:
            note(channel, body, **headers)
        assert (closed.value.reply_code, text in closed.value.reply_text) == (406, True)


def test_a_retried_message_and_its_notes_are_traced_across_kill_9(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with TracedProcess(folder).ready() as broker:
        channel = open_channel(connect(broker))
        publish(channel, b"body", "work", "order-17", delay=50)
        tag, _ = fetch(channel)
        # A delivery changes nothing on disk: its event would be lost with a batch that is being made at the kill.
        assert "delivered" in [event["kind"] for event in biography(broker, "order-17")["events"]]
        note(channel, b"no such account", delivery_tag=tag)
        channel.basic_nack(tag, requeue=False)
        channel.queue_declare("other", durable=True)  # the answer comes when the nack is on disk
        broker.kill()
    with TracedProcess(folder).ready() as broker, connect(broker) as connection:
        channel = open_channel(connection)
        tag, headers = fetch(channel)
        assert headers["x-delivery-count"] == 1
        channel.basic_ack(tag)
        traced = biography(broker, "order-17")
        kinds = [event["kind"] for event in traced["events"] if event["kind"] != "confirmed"]
        attempt = ["enqueued", "delivered"]
        assert kinds == ["published", "scheduled", *attempt, "noted", "nacked", "retried", *attempt, "acked"]
        assert notes(traced) == ["no such account"]
        assert [(leg["queue"], leg["outcome"]) for leg in traced["legs"]] == [
            ("warren.scheduled", "routed"),
            ("work", "acked"),
        ]
        spans = [span["kind"] for span in traced["legs"][1]["spans"]]
        assert spans == ["waiting", "processing", "delayed", "waiting", "processing"]
        assert traced["complete"]
