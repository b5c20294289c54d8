"""What a connection or channel held is released when it ends, without the help of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import warrenmq
from tests.server.test_paged_get import PagedStorage
from tests.support.dialogue import Dialogue
from tests.support.socketless import InternalErrors, SocketlessServer
from tests.support.storage import ManualStorage
from tests.support.waiting import wait_until
from tests.support.wire import Address, WireConnection
from tests.support.wire_format import BODY, HEADER, METHOD, PROTOCOL_HEADER, pack_frame, pack_method, pack_publish
from warrenmq.core.channel import Channel
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.connection import Connection
from warrenmq.core.consumer import Consumer
from warrenmq.core.transaction import Transaction
from warrenmq.core.users import Users
from warrenmq.protocol.frames import FrameReader, PendingContent
from warrenmq.server.channel_methods import ChannelMethods
from warrenmq.server.connection import AmqpConnection
from warrenmq.server.message_path import MessagePath
from warrenmq.server.options import ServerOptions
from warrenmq.server.outbox import ConnectionOutbox
from warrenmq.server.sasl import Authenticator, LoginRefused, Peer
from warrenmq.server.session import Session

SIZE = 100_000
OF_CONNECTIONS = (AmqpConnection, Session, MessagePath, FrameReader, PendingContent, ConnectionOutbox, Connection)
OF_CHANNELS = (ChannelMethods, Channel, Consumer, Transaction)


Alive = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def alive() -> Iterator[Alive]:
    """Name the objects of these types that were made since the test began and are not released."""
    gc.collect()
    gc.disable()
    kinds = (*OF_CONNECTIONS, *OF_CHANNELS, ClassicQueue)
    before = {id(thing) for thing in gc.get_objects() if isinstance(thing, kinds)}
    yield lambda *kinds: sorted(
        type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds) and id(thing) not in before
    )
    gc.enable()


# -- what a client may be in the middle of; each returns the server and a connection


Situation = Callable[[], tuple[SocketlessServer, Dialogue]]


def begin_body(client: Dialogue, channel: int = 1) -> None:
    """All of a publish but the last of its body."""
    header = b"\x00\x3c\x00\x00" + (2 * SIZE).to_bytes(8, "big") + b"\x00\x00"
    client.line.send(
        pack_frame(METHOD, channel, pack_method("basic.publish", routing_key="q"))
        + pack_frame(HEADER, channel, header)
        + pack_frame(BODY, channel, b"x" * SIZE)
    )


def opened(server: SocketlessServer | None = None) -> tuple[SocketlessServer, Dialogue]:
    server = server or SocketlessServer()
    return server, Dialogue(server).open(heartbeat=10)


def in_a_body() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened()
    begin_body(client)
    assert server.broker.stats.transit_bytes > SIZE
    return server, client


def in_a_frame() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened()
    client.line.send(pack_frame(BODY, 1, b"x" * SIZE)[:-1])
    return server, client


def in_a_transaction() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened()
    client.say("queue.declare", 1, queue="q")
    client.publish(b"first", "q")
    client.say("tx.select", 1)
    client.say("basic.get", 1, queue="q")
    client.say("basic.ack", 1, delivery_tag=1)
    client.publish(b"x" * SIZE, "q")
    assert server.broker.stats.uncommitted_bytes > SIZE
    return server, client


def with_unacked() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened()
    client.say("queue.declare", 1, queue="q")
    client.say("basic.qos", 1, prefetch_count=5, **{"global": True})
    client.say("basic.consume", 1, queue="q", consumer_tag="a")
    client.say("basic.consume", 1, queue="q", consumer_tag="b")
    for _ in range(10):
        client.publish(b"x" * 1000, "q")
    assert server.broker.stats.unacked > 0
    return server, client


def with_an_exclusive_queue() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened()
    client.say("queue.declare", 1, queue="q", exclusive=True)
    client.say("queue.bind", 1, queue="q", exchange="amq.topic", routing_key="#")
    client.publish(b"x" * 1000, "q")
    return server, client


def waiting_for_replies() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened()
    client.say("basic.consume", 1, queue="amq.rabbitmq.reply-to", no_ack=True)
    return server, client


def with_a_held_answer() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened(SocketlessServer(storage=ManualStorage()))
    client.line.send(
        pack_frame(METHOD, 1, pack_method("queue.declare", queue="q", durable=True)) + pack_publish(1, b"x" * SIZE)
    )
    return server, client


def waiting_for_a_page() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened(SocketlessServer(storage=PagedStorage()))
    client.say("queue.declare", 1, queue="q")
    for _ in range(5):
        client.publish(b"x" * 1000, "q")
    client.say("basic.get", 1, queue="q", no_ack=True)
    client.say("basic.get", 1, queue="q", no_ack=True)
    return server, client


def blocked() -> tuple[SocketlessServer, Dialogue]:
    server, client = opened()
    server.alarms.set("disk", True)
    client.publish(b"x" * SIZE, "q")
    assert not client.line.is_reading
    return server, client


def in_the_handshake() -> tuple[SocketlessServer, Dialogue]:
    server = SocketlessServer()
    client = Dialogue(server)
    client.start()
    return server, client


SITUATIONS = [
    in_a_body,
    in_a_frame,
    in_a_transaction,
    with_unacked,
    with_an_exclusive_queue,
    waiting_for_replies,
    with_a_held_answer,
    blocked,
    in_the_handshake,
]


# -- how it may end


def says_goodbye(server: SocketlessServer, client: Dialogue) -> None:
    client.say("connection.close", reply_code=200, reply_text="goodbye")
    client.line.hang_up()


def hangs_up(server: SocketlessServer, client: Dialogue) -> None:
    client.line.hang_up()


def breaks_the_protocol(server: SocketlessServer, client: Dialogue) -> None:
    client.line.send(pack_frame(METHOD, 0, b"\xff\xff\xff\xff"))
    client.say("connection.close-ok")
    client.line.pass_time(6.0)


def breaks_the_framing(server: SocketlessServer, client: Dialogue) -> None:
    client.line.send(b"\xff" * 20)
    client.line.pass_time(6.0)


def falls_silent(server: SocketlessServer, client: Dialogue) -> None:
    server.alarms.set("disk", False)  # a client that is not read is not expected to send anything
    if isinstance(server.broker.storage, ManualStorage):
        server.ticker.schedule()
        server.loop.run()
        log = server.broker.storage.log
        log.advance(log.epoch, log.epoch)
        server.loop.run()
    client.line.pass_time(1.0)
    client.line.pass_time(60.0)
    assert client.line.is_closed


def server_stops(server: SocketlessServer, client: Dialogue) -> None:
    client.line.connection.shut_down()
    server.loop.run()
    client.line.pass_time(6.0)


ENDS = [says_goodbye, hangs_up, breaks_the_protocol, breaks_the_framing, falls_silent, server_stops]


def end_all(server: SocketlessServer, client: Dialogue, end: Callable[[SocketlessServer, Dialogue], None]) -> None:
    end(server, client)
    client.line.hang_up()
    server._to_sweep.clear()  # as the next sweep does


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_nothing_of_a_connection_outlives_it(
    alive: Alive, situation: Situation, end: Callable[[SocketlessServer, Dialogue], None]
) -> None:
    server, client = situation()
    end_all(server, client, end)
    del client
    assert alive(*OF_CONNECTIONS, *OF_CHANNELS) == []
    stats = server.broker.stats
    assert (stats.transit_bytes, stats.uncommitted_bytes, stats.output_bytes) == (0, 0, 0)


def test_a_queue_that_is_deleted_is_gone(alive: Alive) -> None:
    server, client = with_an_exclusive_queue()
    end_all(server, client, says_goodbye)
    assert alive(ClassicQueue) == []


def test_a_connection_that_waited_for_a_page_is_released_when_the_page_is_here(alive: Alive) -> None:
    server, client = waiting_for_a_page()
    storage = server.broker.storage
    assert isinstance(storage, PagedStorage)
    end_all(server, client, hangs_up)
    del client
    with InternalErrors() as errors:
        for _, queue in storage.stores.items():
            queue.give(5)
        server.loop.run()
    assert errors.found == []
    assert alive(*OF_CONNECTIONS, *OF_CHANNELS) == []


# -- the close is said, and not answered yet


@pytest.mark.parametrize("situation", [in_a_body, in_a_transaction, with_unacked])
@pytest.mark.parametrize("end", ["goodbye", "protocol error", "stop"])
def test_connection_releases_its_messages_when_the_close_is_sent(alive: Alive, situation: Situation, end: str) -> None:
    server, client = situation()
    if end == "goodbye":
        client.say("connection.close", reply_code=200, reply_text="goodbye")
    elif end == "stop":
        client.line.connection.shut_down()
    else:
        client.line.send(pack_frame(METHOD, 0, b"\xff\xff\xff\xff"))
    assert not client.line.is_closed
    assert alive(*OF_CHANNELS, PendingContent) == []
    assert (server.broker.stats.transit_bytes, server.broker.stats.uncommitted_bytes) == (0, 0)


@pytest.mark.parametrize("end", ["close", "error"])
@pytest.mark.parametrize("situation", [opened, in_a_transaction, with_unacked, waiting_for_replies])
def test_what_a_channel_held_is_released_with_it(alive: Alive, situation: Situation, end: str) -> None:
    server, client = situation()
    if end == "close":
        client.say("channel.close", 1, reply_code=200, reply_text="goodbye")
    else:
        client.say("queue.declare", 1, queue="no such queue", passive=True)
    assert client.hear()[-1] == ("channel.close-ok" if end == "close" else "channel.close")
    assert alive(*OF_CHANNELS) == []
    assert server.broker.stats.uncommitted_bytes == 0


def test_a_body_is_released_with_a_channel_that_fails_in_the_middle_of_it(alive: Alive) -> None:
    server = SocketlessServer(ServerOptions(max_message_size=SIZE))
    _, client = opened(server)
    begin_body(client)  # larger than a message may be
    assert client.hear() == ["channel.close"]
    assert alive(*OF_CHANNELS, PendingContent) == []
    assert server.broker.stats.transit_bytes == 0


# -- logins


class LateRefusal(Authenticator):
    """Refuses, after a while."""

    def __init__(self) -> None:
        super().__init__(Users(), frozenset())
        self.loop = asyncio.new_event_loop()

    def login(self, mechanism: str, response: bytes, peer: Peer) -> Awaitable[str]:
        return asyncio.ensure_future(self._refuse(), loop=self.loop)

    async def _refuse(self) -> str:
        raise LoginRefused("PLAIN", "no")


@pytest.mark.parametrize("capabilities", [{}, {"authentication_failure_close": True}])
@pytest.mark.parametrize("is_late", [False, True])
def test_nothing_of_a_connection_outlives_a_refused_login(
    alive: Alive, capabilities: dict[str, Any], is_late: bool
) -> None:
    server = SocketlessServer()
    late = LateRefusal()
    if is_late:
        server.authenticator = late
    client = Dialogue(server)
    client.line.send(PROTOCOL_HEADER)
    client.say(
        "connection.start-ok",
        client_properties={"capabilities": capabilities},
        mechanism="PLAIN",
        response="\0guest\0wrong",
        locale="en_US",
    )
    for _ in range(3):
        late.loop.run_until_complete(asyncio.sleep(0))
    server.loop.run()
    assert client.line.is_closed == (not capabilities)
    end_all(server, client, hangs_up)
    del client
    late.loop.close()
    assert alive(*OF_CONNECTIONS) == []


# -- on a real socket


def test_bodies_that_are_never_finished_are_released_with_their_connections(alive: Alive) -> None:
    with warrenmq.Broker() as broker:
        assert broker._node is not None
        stats = broker._node.broker.stats
        clients = []
        for _ in range(5):
            client = WireConnection(Address.of_url(broker.url)).open()
            client.channel()
            header = b"\x00\x3c\x00\x00" + (1 << 25).to_bytes(8, "big") + b"\x00\x00"
            client.send_bytes(
                pack_frame(METHOD, 1, pack_method("basic.publish", routing_key="q"))
                + pack_frame(HEADER, 1, header)
                + pack_frame(BODY, 1, b"x" * SIZE) * 10
            )
            clients.append(client)
        wait_until(lambda: stats.transit_bytes >= 5 * 10 * SIZE)
        for client in clients:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.socket.close()
        wait_until(lambda: stats.transit_bytes == 0)
        wait_until(lambda: alive(AmqpConnection, Session, FrameReader, PendingContent) == [])
