"""A client that does not read: what waits for it stays bounded, nobody else notices, and it gets everything later."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import warrenmq
from tests.support.dialogue import Dialogue
from tests.support.socketless import Line, SocketlessServer
from tests.support.wire import Address, WireChannel, WireConnection
from warrenmq.server.connection import UNREAD_OUTPUT_LIMIT, WRITE_HIGH_WATER
from warrenmq.server.outbox import TURN_LIMIT

BODY = 8 * 1024


class SlowLine(Line):
    """A transport that holds what it is given until the peer reads, and says so, as asyncio's do."""

    def __init__(self, server: SocketlessServer) -> None:
        self.waiting: list[bytes] = []
        self.waiting_size = 0
        self.is_peer_reading = True
        super().__init__(server)

    def write(self, data: bytes | memoryview) -> None:
        if self.is_peer_reading:
            super().write(data)
        else:
            was_full = self.get_write_buffer_size() > WRITE_HIGH_WATER
            self.waiting.append(bytes(data))
            self.waiting_size += len(data)
            if not was_full and self.get_write_buffer_size() > WRITE_HIGH_WATER:
                self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.waiting_size

    def read_again(self) -> None:
        """The peer reads everything."""
        self.is_peer_reading = True
        was_full = self.get_write_buffer_size() > WRITE_HIGH_WATER
        self._written += self.waiting
        self.waiting.clear()
        self.waiting_size = 0
        if was_full:
            self.connection.resume_writing()


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer()


@pytest.fixture
def publisher(server: SocketlessServer) -> Dialogue:
    client = Dialogue(server).open()
    client.say("queue.declare", 1, queue="q")
    client.hear()
    return client


@pytest.fixture
def slow(server: SocketlessServer) -> Dialogue:
    return Dialogue(server, SlowLine(server)).open()


def line_of(client: Dialogue) -> SlowLine:
    assert isinstance(client.line, SlowLine)
    return client.line


def body(number: int) -> bytes:
    return b"%08d" % number + b"x" * (BODY - 8)


def publish_many(publisher: Dialogue, count: int) -> None:
    for number in range(count):
        publisher.publish(body(number), "q")


def received(client: Dialogue) -> list[int]:
    return [int(each[:8]) for each in client.bodies()]


@pytest.mark.parametrize("no_ack", [True, False])
def test_what_waits_for_it_is_bounded_and_comes_in_order_when_it_reads(
    server: SocketlessServer, publisher: Dialogue, slow: Dialogue, no_ack: bool
) -> None:
    slow.say("basic.consume", 1, queue="q", consumer_tag="c", no_ack=no_ack)
    slow.hear()
    line_of(slow).is_peer_reading = False
    publish_many(publisher, 1000)
    bound = WRITE_HIGH_WATER + TURN_LIMIT + 2 * BODY
    assert line_of(slow).get_write_buffer_size() <= bound
    assert server.broker.stats.ready > 1000 - bound // BODY
    line_of(slow).read_again()
    assert received(slow) == list(range(1000))


def test_a_backlog_does_not_go_out_at_once_either(
    server: SocketlessServer, publisher: Dialogue, slow: Dialogue
) -> None:
    publish_many(publisher, 1000)
    line_of(slow).is_peer_reading = False
    slow.say("basic.consume", 1, queue="q", consumer_tag="c", no_ack=True)
    assert line_of(slow).get_write_buffer_size() <= WRITE_HIGH_WATER + TURN_LIMIT + 2 * BODY
    line_of(slow).read_again()
    assert received(slow) == list(range(1000))


def test_other_consumers_of_the_queue_go_on(publisher: Dialogue, slow: Dialogue, server: SocketlessServer) -> None:
    quick = Dialogue(server).open()
    for client in (slow, quick):
        client.say("basic.consume", 1, queue="q", consumer_tag="c", no_ack=True)
        client.hear()
    line_of(slow).is_peer_reading = False
    publish_many(publisher, 600)
    line_of(slow).read_again()
    first, second = received(slow), received(quick)
    assert sorted(first + second) == list(range(600))
    assert len(second) > 400
    assert (first, second) == (sorted(first), sorted(second))


def test_it_can_cancel_without_reading_what_it_did_not_take_goes_to_others(
    server: SocketlessServer, publisher: Dialogue, slow: Dialogue
) -> None:
    slow.say("basic.consume", 1, queue="q", consumer_tag="c", no_ack=True)
    line_of(slow).is_peer_reading = False
    publish_many(publisher, 300)
    slow.say("basic.cancel", 1, consumer_tag="c")
    quick = Dialogue(server).open()
    quick.say("basic.consume", 1, queue="q", consumer_tag="c", no_ack=True)
    rest = received(quick)
    line_of(slow).read_again()
    taken = received(slow)
    assert taken + rest == list(range(300))
    assert rest


def test_it_can_go_away_and_what_it_held_goes_back(
    server: SocketlessServer, publisher: Dialogue, slow: Dialogue
) -> None:
    slow.say("basic.consume", 1, queue="q", consumer_tag="c")
    line_of(slow).is_peer_reading = False
    publish_many(publisher, 300)
    slow.line.hang_up()
    assert (server.broker.stats.ready, server.broker.stats.unacked) == (300, 0)
    quick = Dialogue(server).open()
    quick.say("basic.consume", 1, queue="q", consumer_tag="c", no_ack=True)
    assert received(quick) == list(range(300))


def test_a_client_that_sends_requests_and_does_not_read_is_no_longer_read(
    server: SocketlessServer, publisher: Dialogue, slow: Dialogue
) -> None:
    publisher.publish(b"x" * 100_000, "q")
    line_of(slow).is_peer_reading = False
    asked = 0
    while slow.line.is_reading and asked < 1_000:
        slow.say("basic.get", 1, queue="q", no_ack=False)
        slow.say("basic.nack", 1, delivery_tag=0, multiple=True, requeue=True)
        asked += 1
    assert not slow.line.is_reading
    assert line_of(slow).get_write_buffer_size() < UNREAD_OUTPUT_LIMIT + TURN_LIMIT
    line_of(slow).read_again()
    assert slow.line.is_reading
    assert slow.hear().count("basic.get-ok") == asked
    slow.say("basic.qos", 1, prefetch_count=1)
    assert slow.hear() == ["basic.qos-ok"]


# -- over a real socket


@pytest.fixture
def address() -> Iterator[Address]:
    with warrenmq.Broker() as broker:
        yield Address.of_url(broker.url)


def ready_count(channel: WireChannel) -> int:
    return int(channel.call("queue.declare", queue="q", passive=True)["message_count"])


def test_a_real_client_that_stops_reading_gets_everything_when_it_reads_again(address: Address) -> None:
    count = 800
    large = b"x" * 32_768
    with WireConnection(address).open() as quick, WireConnection(address) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        reader = slow.open().channel()
        writer = quick.channel()
        writer.call("queue.declare", queue="q")
        reader.call("basic.consume", queue="q", consumer_tag="c", no_ack=True)
        for number in range(count):
            writer.publish(b"%08d" % number + large, routing_key="q")
        # All is published, hardly any of it was taken, and this client is served as if nothing were the matter.
        assert ready_count(writer) > count // 2
        writer.call("basic.qos", prefetch_count=1)
        bodies = [int(reader.content().body[:8]) for _ in range(count)]
        assert bodies == list(range(count))
        assert ready_count(writer) == 0
        slow.close()
