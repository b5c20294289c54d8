"""kill -9 of a broker that keeps events: every event whose cause was durable is there, once and in order.

A real process, killed at random moments and at the named points of docs/durability.md, started again on its folder.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.adversity.test_kill import SMALL, expect_death
from tests.support.crash import effort
from tests.support.process import BrokerProcess
from tests.support.traced import TracedProcess
from tests.support.tracing import story
from tests.support.wire import PATIENCE, EndOfStream, WireChannel
from warrenmq.events import schema
from warrenmq.events.codec import decode
from warrenmq.events.schema import Event

TRACED = {"WARREN_TRACE": "all"}
PERSISTENT = {"delivery_mode": 2}
MOMENT = 0.5  # to look for what must not come: the same event twice
WHOLE = [schema.PUBLISHED, schema.ROUTED, schema.ENQUEUED]


def declare(channel: WireChannel, *names: str) -> None:
    for name in names:
        channel.call("queue.declare", queue=name, durable=True)


def read_events(broker: BrokerProcess, is_all: Callable[[list[Event]], bool]) -> list[Event]:
    """What a client reads from the stream about messages: until all is there, and no more comes for a moment."""
    found: list[Event] = []
    with broker.connect() as connection:
        channel = connection.channel()
        channel.call("basic.qos", prefetch_count=1000)
        channel.call("basic.consume", queue=schema.STREAM_NAME, arguments={"x-stream-offset": "first"})
        while True:
            connection.socket.settimeout(MOMENT if is_all(found) else PATIENCE)
            try:
                data = next_batch(channel)
            except TimeoutError:
                return found
            found += [event for event in decode(data).events() if event.uid]


def next_batch(channel: WireChannel) -> bytes:
    content = channel.content()
    assert content.properties["content_type"] == schema.CONTENT_TYPE
    channel.send("basic.ack", delivery_tag=content.method["delivery_tag"])
    return content.body


def has_whole(names: Iterable[str]) -> Callable[[list[Event]], bool]:
    """Return whether the biographies of these messages are complete."""

    def is_all(events: list[Event]) -> bool:
        kinds = kinds_of(events)
        return all(len(kinds.get(name, ())) >= len(WHOLE) for name in names)

    return is_all


def confirmed(channel: WireChannel) -> None:
    channel.expect("basic.ack")


def test_the_story_of_the_issue_survives_kill_9(tmp_path: Path) -> None:
    """Fanout to three queues, a requeue, a second consumer, an ack and a republish, with kills between the steps."""
    folder = tmp_path / "data"
    environ = SMALL | TRACED
    with BrokerProcess(folder, environ).ready() as broker, broker.connect() as connection:
        channel = connection.channel()
        declare(channel, "a", "b", "c")
        for name in "abc":
            channel.call("queue.bind", queue=name, exchange="amq.fanout")
        channel.call("confirm.select")
        channel.publish(b"body", PERSISTENT | {"message_id": "m-1"}, exchange="amq.fanout")
        confirmed(channel)
        broker.kill()
    with BrokerProcess(folder, environ).ready() as broker, broker.connect() as connection:
        channel = connection.channel()
        got = channel.get("a", no_ack=False)
        assert got is not None
        channel.send("basic.reject", delivery_tag=1, requeue=True)
        second = connection.channel(2)
        second.call("basic.qos", prefetch_count=1)
        second.call("basic.consume", queue="a", consumer_tag="second")
        assert second.content().body == b"body"
        second.send("basic.ack", delivery_tag=1)
        second.call("confirm.select")
        second.publish(b"again", PERSISTENT | {"message_id": "m-1"}, routing_key="b")
        confirmed(second)  # the ack lies in the same epoch or one before
        broker.kill()
    with BrokerProcess(folder, environ).ready() as broker:
        events = read_events(broker, lambda found: len(without_confirms(found)) >= len(STORY))
        assert broker.stop() == 0, broker.log()
    kept = without_confirms(events)
    assert story(kept) == STORY
    assert {event.message_id for event in events} == {"m-1"}
    assert len({event.uid for event in kept[:10]}) == 1
    assert kept[-1].uid > kept[0].uid
    assert [event.time for event in kept] == sorted(event.time for event in kept)
    assert {event.publish_time for event in kept[:10]} == {kept[0].time}
    assert "->" in (kept[0].connection or "")
    acked = kept[9]
    assert (acked.consumer, acked.attempt) == ("second", 2)


STORY = [
    "published",
    "routed",
    "enqueued a",
    "enqueued b",
    "enqueued c",
    "delivered a",
    "rejected a",
    "requeued a",
    "delivered a",
    "acked a",
    "published",
    "routed",
    "enqueued b",
]


def without_confirms(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind != schema.CONFIRMED]


class Publisher:
    """Publishes with confirms until the broker is gone; knows what was confirmed."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.confirmed: list[str] = []
        self.sent = 0

    def run(self, size: int) -> None:
        try:
            with self._broker.connect() as connection:
                channel = connection.channel()
                channel.call("confirm.select")
                while True:
                    self.sent += 1
                    name = f"{self._broker.process.pid}-{self.sent}"
                    channel.publish(bytes(size), PERSISTENT | {"message_id": name}, routing_key="q")
                    confirmed(channel)
                    self.confirmed.append(name)
        except (OSError, EndOfStream):
            return  # the broker is gone


def live(folder: Path, environ: dict[str, str], count: int) -> list[str]:
    """One life that ends with a kill: after N confirms, or at a crash point of the broker."""
    with BrokerProcess(folder, SMALL | TRACED | environ).ready() as broker:
        with broker.connect() as connection:
            declare(connection.channel(), "q")
        publisher = Publisher(broker)
        worker = threading.Thread(target=publisher.run, args=(200,))
        worker.start()
        try:
            if environ:
                expect_death(broker)
            else:
                pause = threading.Event()
                while len(publisher.confirmed) < count and not broker.is_dead:
                    pause.wait(0.002)
                broker.kill()
        finally:
            if not broker.is_dead:
                broker.kill()
            worker.join(60)
    return publisher.confirmed


def check(folder: Path, known: list[str]) -> None:
    """Every confirmed message has its three events once; so has every message that is in the queue."""
    with BrokerProcess(folder, SMALL | TRACED).ready() as broker:
        with broker.connect() as connection:
            channel = connection.channel()
            queued = []
            while (got := channel.get("q")) is not None:
                queued.append(got.properties["message_id"])
            assert set(known) <= set(queued)
        events = read_events(broker, has_whole(queued))
        assert broker.stop() == 0, broker.log()
    kinds = kinds_of(events)
    assert {name: kinds.get(name) for name in queued} == dict.fromkeys(queued, WHOLE)


def kinds_of(events: list[Event]) -> dict[str | None, list[int]]:
    """Return the biography of each message up to its confirm."""
    kinds: dict[str | None, list[int]] = {}
    for event in events:
        if event.kind in WHOLE:
            kinds.setdefault(event.message_id, []).append(event.kind)
    return kinds


@pytest.mark.parametrize("seed", range(effort(2)))
def test_killed_at_random_moments(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    known = []
    for life in range(2):
        known += live(folder, {}, 1 + (seed * 7919 + life * 104729) % 400)
    check(folder, known)


@pytest.mark.parametrize(
    "point",
    [
        "log.after_write:30",
        "log.after_sync:30",
        "log.mid_roll:2",
        "segment.after_write:3",
        "checkpoint.after_sync:1",
        "checkpoint.before_trim:2",
    ],
)
def test_killed_at_a_named_point(point: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    check(folder, live(folder, {"WARREN_TEST_CRASH_AT": point}, 0))


# -- the moments in which the event log itself changes -----------------------------------------------------------------


def test_killed_while_it_stops(tmp_path: Path) -> None:
    """The rows of the last moment are on their way into a batch: they are there once, from the epochs or from it."""
    folder = tmp_path / "data"
    known = []
    for _ in range(2):
        environ = SMALL | TRACED | {"WARREN_TEST_CRASH_AT": "stop.mid"}
        with BrokerProcess(folder, environ).ready() as broker:
            with broker.connect() as connection:
                channel = connection.channel()
                declare(channel, "q")
                channel.call("confirm.select")
                for number in range(50):
                    known.append(f"{broker.process.pid}-{number}")
                    channel.publish(b"x", PERSISTENT | {"message_id": known[-1]}, routing_key="q")
                    confirmed(channel)
            assert broker.stop() == -signal.SIGKILL, broker.log()
    check(folder, known)


@pytest.mark.parametrize("seed", range(effort(1)))
def test_killed_while_rules_change(seed: int, tmp_path: Path) -> None:
    """A rule counts from the answer on, after a kill as well, and no message is kept in part."""
    folder = tmp_path / "data"
    choice = random.Random(seed)
    untraced: set[str] = set()
    traced: set[str] = set()
    for life in range(3):
        with TracedProcess(folder, SMALL | {"WARREN_TRACE": "off"}).ready() as broker, broker.connect() as connection:
            channel = connection.channel()
            declare(channel, "q")
            channel.call("confirm.select")
            assert [rule["name"] for rule in broker.ask("/api/trace-rules")[1]["rules"]] == ["mine"] * (life > 0)
            for number in range(choice.randrange(20, 60)):
                if life == 0 and number == 10:
                    assert broker.ask("/api/trace-rules/mine", "PUT", {"queue": "q"})[0] == 201
                elif number % 10 == 5 and life > 0:  # said again, and switched off for one message
                    assert broker.ask("/api/trace-rules/mine", "PUT", {"queue": "q", "enabled": False})[0] == 204
                    publish_one(channel, untraced, f"{life}-{number}-off")
                    assert broker.ask("/api/trace-rules/mine", "PUT", {"queue": "q"})[0] == 204
                publish_one(channel, untraced if life == 0 and number < 10 else traced, f"{life}-{number}")
            broker.kill()
    with BrokerProcess(folder, SMALL | TRACED).ready() as reader:
        kinds = kinds_of(read_events(reader, has_whole(traced)))
        assert reader.stop() == 0, reader.log()
    assert kinds == dict.fromkeys(traced, WHOLE)


def publish_one(channel: WireChannel, known: set[str], name: str) -> None:
    channel.publish(b"x", PERSISTENT | {"message_id": name}, routing_key="q")
    confirmed(channel)
    known.add(name)


@pytest.mark.parametrize("seed", range(effort(1)))
def test_killed_while_old_events_are_removed(seed: int, tmp_path: Path) -> None:
    """What is kept of the event log is its end, without a gap and without doubles, however often it was killed."""
    folder = tmp_path / "data"
    limits = {"x-queue-type": "stream", "x-max-length-bytes": 60_000, "x-stream-max-segment-size-bytes": 15_000}
    with BrokerProcess(folder, SMALL).ready() as broker:
        with broker.connect() as connection:
            channel = connection.channel()
            channel.call("queue.declare", queue=schema.STREAM_NAME, durable=True, arguments=limits)
        assert broker.stop() == 0, broker.log()
    known: list[str] = []
    for life in range(4):
        known += live(folder, {}, 200 + (seed * 7919 + life * 104729) % 300)
    with BrokerProcess(folder, SMALL | TRACED).ready() as broker:
        kinds = kinds_of(read_events(broker, has_whole(known[-1:])))
        assert broker.stop() == 0, broker.log()
    kept = [name for name in known if name in kinds]
    assert 0 < len(kept) < len(known), "nothing was removed, or everything"
    assert kept == known[-len(kept) :], "there is a gap"
    assert {name: kinds[name] for name in kept[1:]} == dict.fromkeys(kept[1:], WHOLE)  # the first may be cut through


def test_what_a_consumer_had_when_the_broker_was_killed_is_reported_as_lost_and_continues(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with TracedProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
        channel = connection.channel()
        declare(channel, "q", "other")
        channel.call("confirm.select")
        channel.publish(b"body", PERSISTENT | {"message_id": "m-1"}, routing_key="q")
        confirmed(channel)
        assert channel.get("q", no_ack=False) is not None
        channel.publish(b"later", PERSISTENT, routing_key="other")
        confirmed(channel)  # its epoch has the event of the delivery, too
        broker.kill()
    with TracedProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
        (leg,) = broker.ask("/api/traces/m-1")[1]["legs"]
        assert (leg["outcome"], leg["processing_us"]) == ("lost", None)
        channel = connection.channel()
        got = channel.get("q", no_ack=False)
        assert got is not None
        assert got.method["redelivered"]
        channel.send("basic.ack", delivery_tag=1)
        channel.barrier("q")
        told = broker.ask("/api/traces/m-1")[1]
        assert broker.stop() == 0, broker.log()
    assert [event["attempt"] for event in told["events"] if "attempt" in event] == [1, 2, 2]
    (leg,) = told["legs"]
    assert [(span["kind"], span["attempt"], span["outcome"]) for span in leg["spans"]] == [
        ("waiting", 1, "delivered"),
        ("processing", 1, "lost"),
        ("processing", 2, "acked"),
    ]
    assert (leg["outcome"], told["complete"]) == ("acked", True)
