"""The alarms of memory and disk: publishers wait, consumers drain, and clients with the capability are notified."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx
import pika
import pytest

import warrenmq
from tests.support.dialogue import Dialogue
from tests.support.loops import on_a_loop
from tests.support.socketless import SocketlessServer
from tests.support.wire import Address, WireConnection
from warrenmq.core.stats import Stats
from warrenmq.server import disk_alarm
from warrenmq.server.disk_alarm import DiskAlarm
from warrenmq.server.flow import DISK, MEMORY, Alarms
from warrenmq.server.options import ServerOptions

LIMIT = 100_000
CAN_HEAR = {"connection.blocked": True}


# -- when it is raised


def raised_at(alarm: Alarms, stats: Stats, held: int) -> bool:
    stats.held_bytes = held
    alarm.check_memory()
    return bool(alarm.is_raised)


def test_it_is_raised_at_the_limit_and_ends_well_below_it() -> None:
    stats = Stats()
    alarm = Alarms(stats, 1000)
    assert [raised_at(alarm, stats, held) for held in (0, 999, 1000, 999, 901, 900, 999, 1000, 0)] == [
        False,
        False,
        True,
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_without_a_limit_it_is_never_raised() -> None:
    stats = Stats()
    assert not raised_at(Alarms(stats, 0), stats, 1 << 60)


def test_alarms_are_raised_until_none_is() -> None:
    alarms = Alarms(Stats(), 0)
    seen = []
    for resource, is_short in ((MEMORY, True), (DISK, True), (DISK, True), (MEMORY, False), (DISK, False)):
        alarms.set(resource, is_short)
        seen.append((alarms.is_raised, alarms.reason() if alarms.is_raised else ""))
    assert seen == [
        (True, "low on memory"),
        (True, "low on memory & disk"),
        (True, "low on memory & disk"),
        (True, "low on disk"),
        (False, ""),
    ]


# -- the disk


@pytest.fixture
def alarms() -> Alarms:
    return Alarms(Stats(), 0)


def test_the_disk_is_short_below_its_limit(alarms: Alarms) -> None:
    disk = DiskAlarm(alarms, 1000, lambda: 0)
    seen = []
    for free in (5000, 1000, 999, 0, 999, 1000):
        disk.update(free)
        seen.append(alarms.is_raised)
    assert seen == [False, False, True, True, True, False]
    assert disk.free_bytes == 1000


def test_disk_alarm_is_raised_while_a_writer_waits(alarms: Alarms) -> None:
    disk = DiskAlarm(alarms, 1000, lambda: 0)
    disk.set_writer_waiting(True)
    assert alarms.raised == {DISK}
    disk.update(10)
    disk.set_writer_waiting(False)
    assert alarms.raised == {DISK}
    disk.set_writer_waiting(True)
    disk.update(5000)
    assert alarms.raised == {DISK}
    disk.set_writer_waiting(False)
    assert not alarms.is_raised


def test_disk_alarm_is_raised_until_no_writer_waits(alarms: Alarms) -> None:
    disk = DiskAlarm(alarms, 1000, lambda: 0)
    seen = []
    for is_full in (True, True, False, False):
        disk.set_writer_waiting(is_full)
        seen.append(alarms.is_raised)
    assert seen == [True, True, True, False]


def test_without_a_limit_only_a_full_disk_is_short(alarms: Alarms) -> None:
    disk = DiskAlarm(alarms, 0, lambda: 0)
    disk.update(0)
    assert not alarms.is_raised
    disk.set_writer_waiting(True)
    assert alarms.is_raised


@on_a_loop
async def test_the_disk_is_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_alarm, "CHECK_INTERVAL", 0.0)
    alarms = Alarms(Stats(), 0)
    found: list[int | OSError] = [5000, 10, OSError("gone"), OSError("gone"), 20, 5000]
    seen: list[tuple[bool, int | None]] = []
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def measure() -> int:
        loop.call_soon_threadsafe(lambda: seen.append((alarms.is_raised, disk.free_bytes)))
        if not found:
            loop.call_soon_threadsafe(is_over.set)
            return 5000
        result = found.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    disk = DiskAlarm(alarms, 1000, measure)
    watching = asyncio.create_task(disk.watch())
    await is_over.wait()
    watching.cancel()
    await asyncio.wait([watching])
    assert seen[:7] == [
        (False, None),
        (False, 5000),
        (True, 10),
        (True, None),
        (True, None),
        (True, 20),
        (False, 5000),
    ]


# -- what it does, without sockets


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer(ServerOptions(memory_limit=LIMIT))


@pytest.fixture
def publisher(server: SocketlessServer) -> Dialogue:
    """A client that has published as much as may be held."""
    client = Dialogue(server).open(CAN_HEAR)
    client.say("queue.declare", 1, queue="q")
    client.publish(b"x" * LIMIT, "q")
    assert client.hear() == ["queue.declare-ok"]
    return client


def drain(server: SocketlessServer) -> Dialogue:
    """A consumer that takes everything."""
    consumer = Dialogue(server).open()
    consumer.say("basic.consume", 1, queue="q", consumer_tag="c", no_ack=True)
    return consumer


def test_publisher_is_paused_and_notified_at_its_next_publish(publisher: Dialogue) -> None:
    assert publisher.line.is_reading
    publisher.publish(b"one more", "q")
    assert not publisher.line.is_reading
    (blocked,) = publisher.methods()
    assert (blocked.name, blocked["reason"]) == ("connection.blocked", "low on memory")


def test_publisher_resumes_when_consumers_have_drained(server: SocketlessServer, publisher: Dialogue) -> None:
    publisher.publish(b"one more", "q")
    publisher.hear()
    consumer = drain(server)
    assert b"one more" in consumer.bodies()
    assert publisher.line.is_reading
    assert publisher.hear() == ["connection.unblocked"]
    publisher.publish(b"and another", "q")
    assert consumer.bodies() == [b"and another"]


def test_publishers_without_the_capability_are_paused_silently(server: SocketlessServer, publisher: Dialogue) -> None:
    other = Dialogue(server).open()
    other.publish(b"1", "q")
    assert not other.line.is_reading
    drain(server)
    assert other.line.is_reading
    assert other.hear() == []


def test_connections_that_do_not_publish_are_not_paused(server: SocketlessServer, publisher: Dialogue) -> None:
    other = Dialogue(server).open(CAN_HEAR)
    other.say("basic.get", 1, queue="q", no_ack=False)
    other.say("basic.qos", 1, prefetch_count=1)
    assert other.hear() == ["basic.get-ok", "basic.qos-ok"]
    assert other.line.is_reading


def test_unacked_messages_count_until_they_are_settled(server: SocketlessServer, publisher: Dialogue) -> None:
    other = Dialogue(server).open()
    other.say("basic.get", 1, queue="q", no_ack=False)
    publisher.publish(b"1", "q")
    assert not publisher.line.is_reading
    other.say("basic.ack", 1, delivery_tag=1)
    assert publisher.line.is_reading
    assert publisher.hear() == ["connection.blocked", "connection.unblocked"]


def test_every_publisher_is_blocked_and_unblocked_once(server: SocketlessServer, publisher: Dialogue) -> None:
    clients = [publisher, *(Dialogue(server).open(CAN_HEAR) for _ in range(3))]
    for client in clients:
        client.publish(b"1", "q")
    server.broker.vhosts["/"].queues["q"].purge()
    server.ticker.schedule()
    assert [client.hear() for client in clients] == [["connection.blocked", "connection.unblocked"]] * 4
    assert not server.alarms.blocked


def test_a_blocked_client_that_goes_away_is_forgotten(server: SocketlessServer, publisher: Dialogue) -> None:
    publisher.publish(b"1", "q")
    publisher.line.hang_up()
    assert not server.alarms.blocked
    drain(server)
    assert not server.alarms.is_raised


def test_confirms_of_accepted_publishes_are_still_sent(server: SocketlessServer, publisher: Dialogue) -> None:
    publisher.say("confirm.select", 1)
    publisher.publish(b"1", "q")
    assert publisher.hear() == ["confirm.select-ok", "connection.blocked", "basic.ack"]


def test_refused_publisher_can_still_close_during_an_alarm(publisher: Dialogue) -> None:
    publisher.publish(b"1", "q", channel=9)
    assert publisher.hear() == ["connection.close"]
    assert publisher.line.is_reading
    publisher.say("connection.close-ok")
    publisher.line.receive()
    assert publisher.line.is_closed


def test_both_alarms_must_clear_before_publishers_resume(server: SocketlessServer, publisher: Dialogue) -> None:
    server.alarms.set(DISK, True)
    publisher.publish(b"1", "q")
    (blocked,) = publisher.methods()
    assert blocked["reason"] == "low on memory & disk"
    drain(server)
    assert not publisher.line.is_reading
    server.alarms.set(DISK, False)
    assert publisher.line.is_reading
    assert publisher.hear() == ["connection.unblocked"]


# -- and with them


def test_a_broker_without_free_space_blocks_publishers_from_the_start(tmp_path: Path) -> None:
    options = ServerOptions(disk_free_limit=1 << 60)
    with warrenmq.Broker(server=options, data_dir=tmp_path, http=True) as broker:
        with WireConnection(Address.of_url(broker.url)).open(capabilities=CAN_HEAR) as connection:
            channel = connection.channel()
            channel.call("queue.declare", queue="q", durable=True)
            channel.publish(b"1", routing_key="q")
            assert connection.expect("connection.blocked")["reason"] == "low on disk"
            with WireConnection(Address.of_url(broker.url)).open() as other:
                consumer = other.channel()
                consumer.send("basic.get", queue="q", no_ack=True)
                consumer.expect("basic.get-ok")
        health = httpx.get(broker.http_url + "/healthz", timeout=30).json()
        assert (health["status"], health["alarms"]) == ("ready", ["disk"])
        assert health["storage"]["disk_free_bytes"] > 0
        assert 'warren_alarm{resource="disk"} 1\n' in httpx.get(broker.http_url + "/metrics", timeout=30).text


def test_pika_is_notified_and_everything_arrives() -> None:
    count, body = 100, b"x" * 10_000
    blocked, unblocked = threading.Event(), threading.Event()
    with warrenmq.Broker(server=ServerOptions(memory_limit=200_000)) as broker:
        publisher = pika.BlockingConnection(pika.URLParameters(broker.url))
        publisher.add_on_connection_blocked_callback(lambda *_: blocked.set())
        publisher.add_on_connection_unblocked_callback(lambda *_: unblocked.set())
        channel = publisher.channel()
        channel.queue_declare("q")
        for _ in range(count):
            channel.basic_publish("", "q", body)
        while not blocked.is_set():
            publisher.process_data_events(0.05)

        address = Address.of_url(broker.url)
        with WireConnection(address).open() as connection:
            consumer = connection.channel()
            held = consumer.call("queue.declare", queue="q", passive=True)["message_count"]
            assert held < count, "all was taken although the memory was full"
            consumer.send("basic.consume", queue="q", no_ack=True, consumer_tag="c")
            consumer.expect("basic.consume-ok")
            received = 0
            while received < count:
                assert consumer.content().body == body
                received += 1
                publisher.process_data_events(0)
        while not unblocked.is_set():
            publisher.process_data_events(0.05)
        channel.queue_delete("q")
        publisher.close()
