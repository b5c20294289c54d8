"""A publisher that floods the server lets the others in: it is not read for long without a look at them."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from tests.support.dialogue import Dialogue
from tests.support.loops import on_a_loop
from tests.support.socketless import SocketlessServer
from tests.support.waiting import let_time_pass
from tests.support.wire import PATIENCE, Address, WireConnection
from tests.support.wire_format import pack_publish
from warrenmq.core.broker import Broker
from warrenmq.core.users import EVERYTHING
from warrenmq.server.clock import system_time_ms
from warrenmq.server.connection import READ_SIZE
from warrenmq.server.listener import AmqpServer
from warrenmq.server.options import ServerOptions
from warrenmq.storage.memory_store import MemoryStorage

# 32 messages are exactly what is read at once.
PUBLISH = pack_publish(
    1, bytes(READ_SIZE // 32 - len(pack_publish(1, b"x", None, routing_key="q")) + 1), None, routing_key="q"
)
PIECE = PUBLISH * 32
SECONDS = 0.002  # for each piece: the fourth is more than 5 ms behind the first


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer()


@pytest.fixture
def flooder(server: SocketlessServer) -> Dialogue:
    return make_flooder(server)


def make_flooder(server: SocketlessServer) -> Dialogue:
    client = Dialogue(server).open()
    client.say("queue.declare", 1, queue="q")
    client.hear()
    client.line.read_takes = SECONDS
    return client


def pieces_in(server: SocketlessServer) -> float:
    return len(server.broker.vhosts["/"].queues["q"].backlog) / 32


def test_full_read_is_a_turn_of_its_own() -> None:
    assert len(PIECE) == READ_SIZE


def test_it_is_not_read_for_longer_than_a_moment_at_a_time(server: SocketlessServer, flooder: Dialogue) -> None:
    flooder.line.send(PIECE * 10, ends_turn=False)
    assert (pieces_in(server), flooder.line.is_reading) == (4, False)
    server.loop.run()
    assert (pieces_in(server), flooder.line.is_reading) == (10, True)


def test_other_clients_are_served_in_between(server: SocketlessServer, flooder: Dialogue) -> None:
    other = Dialogue(server).open()
    flooder.line.send(PIECE * 10, ends_turn=False)
    other.say("queue.declare", 1, queue="q", passive=True)
    assert [answer["message_count"] for answer in other.methods()] == [4 * 32]


def test_quick_pieces_are_read_in_one_go(server: SocketlessServer, flooder: Dialogue) -> None:
    flooder.line.read_takes = SECONDS / 10
    flooder.line.send(PIECE * 20, ends_turn=False)
    assert (pieces_in(server), flooder.line.is_reading) == (20, True)


def test_what_was_read_before_the_last_look_does_not_count(server: SocketlessServer, flooder: Dialogue) -> None:
    for number in range(1, 10):
        flooder.line.send(PIECE, ends_turn=False)
        assert (pieces_in(server), flooder.line.is_reading) == (number, True)
        server.loop.run()


def test_two_of_them_have_no_more_than_one_together(server: SocketlessServer, flooder: Dialogue) -> None:
    second = make_flooder(server)
    flooder.line.send(PIECE * 10, ends_turn=False)
    second.line.send(PIECE * 10, ends_turn=False)
    assert pieces_in(server) == 4 + 1
    server.loop.run()
    assert pieces_in(server) == 20


def test_it_stays_unread_if_an_alarm_was_raised_meanwhile(server: SocketlessServer, flooder: Dialogue) -> None:
    flooder.line.send(PIECE * 10, ends_turn=False)
    flooder.line.connection.block_publisher()
    server.loop.run()
    assert (pieces_in(server), flooder.line.is_reading) == (4, False)
    flooder.line.connection.unblock_publisher()
    server.loop.run()
    assert (pieces_in(server), flooder.line.is_reading) == (10, True)


def test_it_may_be_gone_meanwhile(server: SocketlessServer, flooder: Dialogue) -> None:
    flooder.line.send(PIECE * 10, ends_turn=False)
    flooder.line.hang_up()
    server.loop.run()
    assert pieces_in(server) == 4
    assert server.broker.connection_count == 0


@on_a_loop
async def test_another_is_answered_before_the_flood_is_over() -> None:
    """On real sockets. uvloop would read all of this flood, 32 pieces at most, before it looks at another socket."""
    broker = Broker(MemoryStorage())
    broker.users.add("guest", "guest")
    broker.users.grant("guest", None, EVERYTHING, EVERYTHING, EVERYTHING)
    server = AmqpServer(broker, ServerOptions(), system_time_ms)
    listener = await server.listen("127.0.0.1", 0)
    assert listener.server is not None
    for listening in listener.server.sockets:  # connections have the same: room for more than is read at once
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * READ_SIZE)
    address = Address("127.0.0.1", server.port)
    pieces = 28
    has_begun, has_asked = threading.Event(), threading.Event()
    read_at_answer: list[int] = []

    def after_turn() -> None:
        if broker.stats.bytes_in < READ_SIZE:
            return
        has_begun.set()
        assert has_asked.wait(PATIENCE)
        if "other" not in broker.vhosts["/"].queues:
            let_time_pass(0.006)  # what fanning out a piece may take; the client fills the socket again meanwhile
        elif not read_at_answer:
            read_at_answer.append(broker.stats.bytes_in)

    def flood() -> None:
        with WireConnection(address).open() as connection:
            channel = connection.channel(1)
            channel.call("queue.declare", queue="q")
            connection.send_bytes(PIECE * pieces)
            while channel.call("queue.declare", queue="q", passive=True)["message_count"] < 32 * pieces:
                pass

    def ask() -> None:
        with WireConnection(address).open() as connection:
            channel = connection.channel(1)
            is_ready.set()
            assert has_begun.wait(PATIENCE)
            connection.send("queue.declare", 1, queue="other")
            has_asked.set()
            channel.expect("queue.declare-ok")

    is_ready = threading.Event()
    asking = asyncio.create_task(asyncio.to_thread(ask))
    assert await asyncio.to_thread(is_ready.wait, PATIENCE)
    server.ticker.after_turn = after_turn
    await asyncio.gather(asking, asyncio.to_thread(flood))
    await server.stop(PATIENCE)
    assert read_at_answer[0] < READ_SIZE * pieces / 2
