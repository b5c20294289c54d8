"""The priority of a message is in each of its events: whatever happens to it, after a restart, in its dead letter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.events.samples import FIRST_VERSION
from tests.support.client import PERSISTENT, ClientChannel, advance
from tests.support.disk import RecordingFiles
from tests.support.traced import TracedProcess
from tests.support.tracing import TracedBroker, story
from tests.support.waiting import wait_until
from tests.tracing.test_event_log import TracedLife, a_disk
from warrenmq.events import schema
from warrenmq.events.schema import Event

LEVELS = {"x-max-priority": 9}


@pytest.fixture
def traced() -> TracedBroker:
    return TracedBroker()


@pytest.fixture
def channel(traced: TracedBroker) -> ClientChannel:
    return traced.client().channel()


def priorities(events: list[Event]) -> set[int | None]:
    return {event.priority for event in events}


@pytest.mark.parametrize(
    ("properties", "priority"), [({"priority": 7}, 7), ({"priority": 255}, 255), ({"priority": 0}, None), ({}, None)]
)
def test_from_its_publish_to_its_ack(
    traced: TracedBroker, channel: ClientChannel, properties: dict[str, Any], priority: int | None
) -> None:
    queue = channel.declare("q", arguments=LEVELS)
    channel.publish(b"a", "q", content_type="text/plain", headers={"a": 1}, message_id="m", **properties)
    first = channel.get(queue, no_ack=False)
    assert first is not None
    channel.reject(first.tag, requeue=True)
    second = channel.get(queue, no_ack=False)
    assert second is not None
    channel.ack(second.tag)
    events = traced.events()
    assert {"published", "routed", "enqueued q", "delivered q", "requeued q", "acked q"} <= set(story(events))
    assert priorities(events) == {priority}


def test_of_messages_that_take_turns(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("q", arguments=LEVELS)
    channel.consume(channel.vhost.queues["q"], "c", no_ack=True)
    for number in range(200):  # also passed on at once, in records that say nothing of the message
        channel.publish(b"a", "q", message_id=str(number), **({"priority": number % 10} if number % 3 else {}))
    events = traced.events()
    assert story(events).count("delivered q") == 200
    for event in events:
        number = int(event.message_id or "")
        assert event.priority == ((number % 10 or None) if number % 3 else None)


def test_of_what_a_queue_removes(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("short", arguments=LEVELS | {"x-max-length": 1})
    channel.declare("brief", arguments=LEVELS | {"x-message-ttl": 1_000})
    for queue in ("short", "short", "brief"):
        channel.publish(b"a", queue, priority=4)
    advance(traced.broker, 2_000)
    channel.publish(b"a", "nowhere", priority=4, mandatory=True)
    events = traced.events()
    assert {"dropped short", "expired brief", "unroutable", "returned"} <= set(story(events))
    assert priorities(events) == {4}


def test_of_a_dead_letter(traced: TracedBroker, channel: ClientChannel) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue = channel.declare("q", arguments=LEVELS | dead)
    buried = channel.declare("dead", arguments=LEVELS)
    channel.publish(b"a", "q", priority=4)
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag, requeue=False)
    assert channel.get(buried) is not None
    events = traced.events()
    assert {"dead_lettered q", "enqueued dead", "delivered dead"} <= set(story(events))
    assert priorities(events) == {4}


def test_events_that_concern_no_message_have_none(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.publish(b"a", "q", priority=4)
    channel.declare("q", arguments=LEVELS)
    events = traced.events(resources=True)
    assert {event.priority for event in events if not event.uid} == {None}
    assert {event.priority for event in events if event.uid} == {4}


def test_after_a_restart() -> None:
    files = a_disk()
    life = TracedLife(files)
    life.publisher.declare("q", durable=True, arguments=LEVELS)
    life.publisher.publish(b"x", "q", delivery_mode=PERSISTENT, message_id="m", priority=3)
    life.settle()
    life = TracedLife(RecordingFiles(files.disk.after_kill()), 1)  # no batch was made: rows come from the commit log
    life.begin()
    assert life.get("q") is not None
    life.channel.ack(1)
    life.channel.core.commit()
    events = life.events()
    assert story(events) == ["published", "routed", "enqueued q", "delivered q", "acked q"]
    assert priorities(events) == {3}


# -- a real broker and a real client -----------------------------------------------------------------------------------


def open_channel(broker: TracedProcess) -> Any:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.address.host, broker.address.port))
    return connection.channel()


def events_of(broker: TracedProcess, message_id: str, last: str) -> list[dict[str, Any]]:
    """The biography, when it has come to that kind of event."""

    def ask() -> list[dict[str, Any]] | None:
        status, answer = broker.ask(f"/api/traces/{message_id}")
        events = answer["events"] if status == 200 else []
        return events if any(event["kind"] == last for event in events) else None

    return wait_until(ask)


def priorities_in(broker: TracedProcess, queue: str) -> dict[str, int | None]:
    """Of the messages that a search finds, on as many pages as a slow machine needs."""
    found: dict[str, int | None] = {}
    cursor = ""
    while True:
        status, page = broker.ask(f"/api/traces?queue={queue}{cursor}")
        assert status == 200, page
        found |= {each["message_id"]: each["priority"] for each in page["traces"]}
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


def warren_trace(broker: TracedProcess, *arguments: str) -> str:
    command = [sys.executable, "-m", "warrenmq", "trace", *arguments, "--url", broker.url]
    environ = {"PYTHONIOENCODING": "utf-8", "COLUMNS": "80"}
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environ, timeout=60, check=True).stdout


def test_a_client_sees_it_in_api_and_command_also_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    urgent = pika.BasicProperties(priority=7, delivery_mode=2, message_id="urgent")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with TracedProcess(folder).ready() as broker:
        channel = open_channel(broker)
        channel.queue_declare("jobs", durable=True, arguments=LEVELS | dead)
        channel.queue_declare("dead", durable=True, arguments=LEVELS)
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"now", urgent)
        channel.basic_publish("", "jobs", b"later", pika.BasicProperties(delivery_mode=2, message_id="plain"))
        assert {event["priority"] for event in events_of(broker, "urgent", "enqueued")} == {7}
        assert not any("priority" in event for event in events_of(broker, "plain", "enqueued"))
        assert "bytes, priority 7\n" in warren_trace(broker, "urgent")
        assert "priority" not in warren_trace(broker, "plain")
        assert priorities_in(broker, "jobs") == {"urgent": 7, "plain": None}
        broker.kill()
    with TracedProcess(folder).ready() as broker:
        channel = open_channel(broker)
        method, properties, _ = channel.basic_get("jobs")
        assert (properties.message_id, properties.priority) == ("urgent", 7)
        channel.basic_reject(method.delivery_tag, requeue=False)
        method, properties, _ = wait_until(lambda: [*filter(None, channel.basic_get("dead"))])
        assert properties.priority == 7
        channel.basic_ack(method.delivery_tag)
        events = events_of(broker, "urgent", "acked")
        assert {"published", "enqueued", "delivered", "dead_lettered", "acked"} <= {event["kind"] for event in events}
        assert {event["priority"] for event in events} == {7}
        assert {event["priority"] for event in json.loads(warren_trace(broker, "urgent", "--json"))["events"]} == {7}


def test_batches_of_both_versions_are_found(tmp_path: Path) -> None:
    old = (FIRST_VERSION / "batch.arrow").read_bytes()
    folder = tmp_path / "data"
    with TracedProcess(folder).ready() as broker:
        channel = open_channel(broker)
        channel.queue_declare("q", durable=True, arguments=LEVELS)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"1", pika.BasicProperties(priority=2, message_id="before", delivery_mode=2))
        events_of(broker, "before", "enqueued")
        imported = pika.BasicProperties(content_type=schema.CONTENT_TYPE, delivery_mode=2)
        channel.basic_publish("", schema.STREAM_NAME, old, imported)
        channel.basic_publish("", "q", b"2", pika.BasicProperties(priority=5, message_id="after", delivery_mode=2))
        events_of(broker, "after", "enqueued")
        check_both_versions(broker)  # by the notes in memory
        assert broker.stop() == 0
    index = list((folder / "tracing" / "index").iterdir())
    assert index
    for path in index:
        path.unlink()
    with TracedProcess(folder).ready() as broker:
        check_both_versions(broker)  # by an index that was made anew


def check_both_versions(broker: TracedProcess) -> None:
    assert not any("priority" in event for event in events_of(broker, "order-17", "acked"))
    assert "order-17" in warren_trace(broker, "--trace-id", "4bf92f3577b34da6a3ce929d0e0e4736")
    assert priorities_in(broker, "q") == {"before": 2, "order-17": None, "after": 5}
