"""The memory limit holds for everything that clients make the broker hold, and its alarm can always end."""

from __future__ import annotations

import socket

import pytest

import warrenmq
from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer
from tests.support.waiting import wait_until
from tests.support.wire import Address, WireConnection
from tests.support.wire_format import BODY, HEADER, METHOD, pack_frame, pack_method, pack_publish
from warrenmq.server.connection import CLOSE_TIMEOUT
from warrenmq.server.options import ServerOptions

LIMIT = 2_000_000
PIECE = 100_000
SHARE = LIMIT // 2 + 65_536  # of what is unfinished: one message of the largest size and its header
CAN_HEAR = {"connection.blocked": True}


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer(ServerOptions(memory_limit=LIMIT, max_message_size=LIMIT // 2))


@pytest.fixture
def client(server: SocketlessServer) -> Dialogue:
    client = Dialogue(server).open(CAN_HEAR)
    client.say("queue.declare", 1, queue="q")
    client.hear()
    return client


def begin_body(size: int, sent: int, channel: int = 1) -> bytes:
    """A message of which only so much has been sent."""
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00"
    return (
        pack_frame(METHOD, channel, pack_method("basic.publish", routing_key="q"))
        + pack_frame(HEADER, channel, header)
        + pack_frame(BODY, channel, b"x" * PIECE) * (sent // PIECE)
    )


def unfinished(server: SocketlessServer) -> int:
    return int(server.broker.stats.transit_bytes + server.broker.stats.uncommitted_bytes)


# -- what is unfinished


def test_bodies_in_transit_are_refused_beyond_their_share(server: SocketlessServer) -> None:
    clients = [Dialogue(server).open() for _ in range(12)]
    most = 0
    for client in clients:
        client.line.send(begin_body(LIMIT // 2, LIMIT // 2 - PIECE))
        most = max(most, unfinished(server))
    assert most <= SHARE
    assert clients[0].hear() == []
    for client in clients[1:]:
        (close,) = client.methods()
        assert (close.name, close["reply_code"]) == ("channel.close", 311)
        assert close["reply_text"].startswith("CONTENT_TOO_LARGE - no memory for this message at present: ")
        assert (close["class_id"], close["method_id"]) == (60, 40)


def test_a_client_that_was_refused_goes_on_on_another_channel(server: SocketlessServer, client: Dialogue) -> None:
    other = Dialogue(server).open()
    other.line.send(begin_body(LIMIT // 2, LIMIT // 2 - PIECE))
    client.line.send(begin_body(LIMIT // 2, LIMIT // 2))  # its last frames come when it is refused already
    assert client.hear() == ["channel.close"]
    client.say("channel.close-ok", 1)
    client.say("channel.open", 2)
    client.publish(b"small", "q", channel=2)
    client.say("basic.get", 2, queue="q", no_ack=True)
    assert client.hear() == ["channel.open-ok", "basic.get-ok"]
    other.line.hang_up()
    client.line.send(begin_body(LIMIT // 2, LIMIT // 2, channel=2))
    client.say("basic.get", 2, queue="q", no_ack=True)
    assert client.hear()[0] == "basic.get-ok"
    assert server.broker.stats.transit_bytes == 0


def test_contents_without_a_body_are_counted_too(server: SocketlessServer, client: Dialogue) -> None:
    """Thousands of channels, each with the header of a message that never comes."""
    table = b"\x04textS" + PIECE.to_bytes(4, "big") + b"x" * PIECE
    header = b"\x00\x3c\x00\x00" + (1000).to_bytes(8, "big") + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    for channel in range(2, 40):
        client.say("channel.open", channel)
        client.line.send(
            pack_frame(METHOD, channel, pack_method("basic.publish", routing_key="q"))
            + pack_frame(HEADER, channel, header)
        )
    assert 0.8 * SHARE < unfinished(server) <= SHARE
    assert "channel.close" in client.hear()


def test_transactions_are_refused_beyond_their_share(server: SocketlessServer, client: Dialogue) -> None:
    client.say("tx.select", 1)
    for _ in range(2 * LIMIT // PIECE):
        client.publish(b"x" * PIECE, "q")
        assert unfinished(server) <= SHARE
    selected, close = client.methods()
    assert (selected.name, close.name, close["reply_code"]) == ("tx.select-ok", "channel.close", 311)
    assert unfinished(server) == 0
    assert server.broker.stats.ready == 0


def test_one_message_of_the_largest_size_can_always_be_published() -> None:
    server = SocketlessServer(ServerOptions(memory_limit=LIMIT, max_message_size=LIMIT * 3 // 4))
    client = Dialogue(server).open()
    client.say("queue.declare", 1, queue="q")
    client.line.send(begin_body(LIMIT * 3 // 4, LIMIT * 3 // 4))
    assert client.hear() == ["queue.declare-ok"]
    assert server.broker.stats.ready == 1


def test_without_a_limit_nothing_is_refused() -> None:
    server = SocketlessServer()
    clients = [Dialogue(server).open() for _ in range(5)]
    for client in clients:
        client.line.send(begin_body(LIMIT, LIMIT - PIECE))
    assert [client.hear() for client in clients] == [[]] * 5
    assert server.broker.stats.transit_bytes > 4 * LIMIT


# -- the alarm


def test_what_is_unfinished_and_what_waits_raise_the_alarm_together(server: SocketlessServer, client: Dialogue) -> None:
    Dialogue(server).open().line.send(begin_body(LIMIT // 2, LIMIT // 2 - PIECE))
    while not server.alarms.is_raised:
        assert server.broker.stats.memory() < LIMIT
        client.publish(b"x" * PIECE, "q")
    assert server.broker.stats.held_bytes < LIMIT * 0.7


def test_a_body_is_not_read_on_while_the_alarm_is_raised(server: SocketlessServer, client: Dialogue) -> None:
    """Or every new connection could bring a whole message, and as many connections as there may be."""
    size = 5 * PIECE
    client.line.send(begin_body(size, PIECE))
    server.alarms.set("memory", True)
    newcomer = Dialogue(server).open(CAN_HEAR)
    client.line.send(pack_frame(BODY, 1, b"x" * PIECE) * 4)
    newcomer.line.send(begin_body(size, size))
    for dialogue in (client, newcomer):
        assert dialogue.hear() == ["connection.blocked"]
        assert not dialogue.line.is_reading
    assert server.broker.stats.ready == 0
    server.alarms.set("memory", False)
    server.loop.run()
    assert [dialogue.hear() for dialogue in (client, newcomer)] == [["connection.unblocked"]] * 2
    assert server.broker.stats.ready == 2


def test_the_alarm_ends_when_consumers_drain_whatever_is_unfinished(server: SocketlessServer, client: Dialogue) -> None:
    """Blocked clients can finish nothing, so what they have begun must leave room enough."""
    transactional = Dialogue(server).open()
    transactional.say("tx.select", 1)
    while unfinished(server) < LIMIT // 4:
        transactional.publish(b"x" * PIECE, "q")
    sender = Dialogue(server).open()
    sender.line.send(begin_body(LIMIT // 2, LIMIT // 4 - 2 * PIECE))
    while not server.alarms.is_raised:
        client.publish(b"x" * PIECE, "q")
    more = {
        client: pack_publish(1, b""),
        transactional: pack_publish(1, b""),
        sender: pack_frame(BODY, 1, b"x" * PIECE),
    }
    for dialogue, data in more.items():
        dialogue.line.send(data)
        assert not dialogue.line.is_reading
    consumer = Dialogue(server).open()
    consumer.say("basic.consume", 1, queue="q", consumer_tag="c", no_ack=True)
    assert not server.alarms.is_raised
    assert all(dialogue.line.is_reading for dialogue in more)
    transactional.say("tx.commit", 1)
    assert transactional.hear()[-1] == "tx.commit-ok"


def test_definitions_raise_the_alarm(server: SocketlessServer, client: Dialogue) -> None:
    arguments = {f"x-{number}": f"a value {number}" for number in range(1000)}
    for number in range(20):
        client.say("queue.declare", 1, queue=f"q{number}", arguments=arguments)
    assert server.alarms.is_raised
    assert client.line.is_reading  # it does not publish
    for number in range(20):
        client.say("queue.delete", 1, queue=f"q{number}")
    assert not server.alarms.is_raised


# -- on real sockets: what waits for a peer, and a peer that is gone


def test_what_a_slow_reader_leaves_unread_raises_the_alarm_until_it_is_read() -> None:
    options = ServerOptions(memory_limit=12_000_000)
    with warrenmq.Broker(server=options) as broker, WireConnection(Address.of_url(broker.url)).open() as client:
        assert broker._node is not None
        node = broker._node
        client.channel().call("queue.declare", queue="q")
        for _ in range(5):
            # Published and taken at once, so that no queue holds much.
            client.send_bytes(pack_publish(1, b"x" * 4_000_000, None, routing_key="q"))
            client.send("basic.get", 1, queue="q", no_ack=True)
        wait_until(lambda: node.alarms() == ["memory"], "the alarm")
        assert node.broker.stats.output_bytes > 8_000_000
        for _ in range(4):
            client.read_content(client.expect("basic.get-ok", 1))
        wait_until(lambda: node.alarms() == [], "the end of the alarm")


@pytest.mark.parametrize("how", ["closes", "closes behind unread input", "resets", "half closes"])
@pytest.mark.parametrize("is_in", ["a transaction", "a body"])
def test_disconnect_of_a_blocked_client_is_noticed(how: str, is_in: str) -> None:
    """Nothing is read from it, and without heartbeats nothing is written to it either."""
    options = ServerOptions(memory_limit=LIMIT, disk_free_limit=0)
    with warrenmq.Broker(server=options) as broker, WireConnection(Address.of_url(broker.url)).open() as other:
        assert broker._node is not None
        stats = broker._node.broker.stats
        client = WireConnection(Address.of_url(broker.url)).open(CAN_HEAR, heartbeat=0)
        channel = client.channel()
        other.channel().call("queue.declare", queue="q")
        if is_in == "a transaction":
            channel.call("tx.select")
            channel.publish(b"x" * PIECE, routing_key="q")
        else:
            client.send_bytes(begin_body(LIMIT // 2, PIECE))
        wait_until(lambda: stats.transit_bytes + stats.uncommitted_bytes >= PIECE)
        # No more than raises the alarm: the broker stops reading, and a send past the socket's buffer would block.
        other.send_bytes(pack_publish(1, b"x" * PIECE, None, routing_key="q") * (LIMIT // PIECE))
        wait_until(lambda: broker._node is not None and broker._node.alarms() == ["memory"], "the alarm")
        client.send_bytes(
            pack_publish(1, b"1", None, routing_key="q")
            if is_in == "a transaction"
            else pack_frame(BODY, 1, b"x" * PIECE)
        )
        client.expect("connection.blocked")
        if how == "closes behind unread input":
            client.send_bytes(pack_frame(BODY, 1, b"x" * PIECE))
        if how == "resets":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if how == "half closes":
            client.socket.shutdown(socket.SHUT_WR)
        else:
            client.socket.close()
        wait_until(lambda: broker._node is not None and broker._node.broker.connection_count == 1, "the end")
        assert stats.uncommitted_bytes == 0
        client.socket.close()


def test_a_client_that_hangs_up_without_reading_is_left_after_a_while(server: SocketlessServer) -> None:
    """Its end is closed, but the transport waits for it to read what is left."""
    client = Dialogue(server).open(heartbeat=0)
    assert client.line.connection.eof_received() is False
    client.line.pass_time(CLOSE_TIMEOUT - 1)
    assert not client.line.is_closed
    client.line.pass_time(2)
    assert client.line.is_closed


def test_a_client_that_is_blocked_and_alive_stays(server: SocketlessServer, client: Dialogue) -> None:
    server.alarms.set("memory", True)
    client.publish(b"1", "q")
    client.line.pass_time(1000.0)
    assert not client.line.is_closed
