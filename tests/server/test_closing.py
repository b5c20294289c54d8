"""The end of a connection, from either side and at any moment, without sockets."""

from __future__ import annotations

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import InternalErrors, SocketlessServer
from warrenmq.core.snapshot import channels, connections


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer()


@pytest.fixture
def client(server: SocketlessServer) -> Dialogue:
    return Dialogue(server).open({"consumer_cancel_notify": True})


def test_close_is_answered_after_earlier_requests(client: Dialogue) -> None:
    client.say("queue.declare", 1, queue="q")
    client.say("connection.close", reply_code=200, reply_text="goodbye")
    assert client.hear() == ["queue.declare-ok", "connection.close-ok"]


def test_nothing_is_processed_after_a_close(server: SocketlessServer, client: Dialogue) -> None:
    client.say("connection.close", reply_code=200, reply_text="goodbye")
    client.say("queue.declare", 1, queue="late")
    client.publish(b"late", "q")
    assert client.hear() == ["connection.close-ok"]
    assert "late" not in server.broker.vhosts["/"].queues


def test_close_of_the_broker_has_the_reason_and_ends_with_close_ok(server: SocketlessServer, client: Dialogue) -> None:
    client.say("queue.declare", 7, queue="no such channel")
    client.publish(b"ignored", "q")  # it was under way
    (close,) = client.methods()
    assert (close.name, close["reply_code"]) == ("connection.close", 504)
    client.say("connection.close-ok")
    client.line.receive()
    assert client.line.is_closed
    assert server.broker.connection_count == 0


def test_crossing_closes_are_both_answered(client: Dialogue) -> None:
    client.say("channel.open", 1)
    client.say("connection.close", reply_code=200, reply_text="goodbye")
    client.say("connection.close-ok")
    assert client.hear() == ["connection.close", "connection.close-ok"]
    assert client.line.is_closed


@pytest.mark.parametrize("end", ["goodbye", "hang up", "protocol error"])
def test_everything_a_connection_had_ends_with_it(server: SocketlessServer, client: Dialogue, end: str) -> None:
    broker, vhost = server.broker, server.broker.vhosts["/"]
    client.say("queue.declare", 1, queue="mine", exclusive=True)
    client.say("queue.declare", 1, queue="automatic", auto_delete=True)
    client.say("queue.declare", 1, queue="shared")
    client.say("basic.consume", 1, queue="automatic", consumer_tag="a")
    client.say("basic.consume", 1, queue="shared", consumer_tag="s")
    client.say("basic.consume", 1, queue="amq.rabbitmq.reply-to", no_ack=True)
    for queue in ("mine", "automatic", "shared"):
        client.publish(b"1", queue)
    if end == "goodbye":
        client.say("connection.close", reply_code=200, reply_text="goodbye")
    elif end == "hang up":
        client.line.hang_up()
    else:
        client.line.send(b"\xff" * 20)
    client.line.receive()
    assert list(vhost.queues) == ["shared"]
    assert (broker.stats.ready, broker.stats.unacked, broker.stats.consumers) == (1, 0, 0)
    assert broker.channel_count == 0
    assert not broker.reply_queues


@pytest.mark.parametrize("size", range(0, 60, 7))
def test_client_may_disconnect_at_any_byte(server: SocketlessServer, client: Dialogue, size: int) -> None:
    with InternalErrors() as errors:
        client.say("queue.declare", 1, queue="q")
        client.line.send(
            b"\x01\x00\x01\x00\x00\x00\x0b\x00\x3c\x00\x28\x00\x00\x00\x01q\x00\x00"[:size]
            + b"\x02\x00\x01\x00\x00\x00\x0e"[: max(0, size - 18)]
        )
        client.line.hang_up()
    assert errors.found == []
    assert server.broker.connection_count == 0
    assert len(server.broker.vhosts["/"].queues["q"].backlog) == 0


def test_shutdown_closes_connections_with_320(client: Dialogue) -> None:
    client.line.connection.shut_down()
    (close,) = client.methods()
    assert (close["reply_code"], close["reply_text"]) == (
        320,
        "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
    )
    client.say("connection.close-ok")
    client.line.receive()
    assert client.line.is_closed


def test_shutdown_aborts_clients_in_the_handshake(server: SocketlessServer) -> None:
    client = Dialogue(server)
    client.start()
    client.hear()
    client.line.connection.shut_down()
    assert client.hear() == []
    assert client.line.is_closed


def test_internal_error_closes_only_its_connection(server: SocketlessServer, client: Dialogue) -> None:
    bystander = Dialogue(server).open()
    server.broker.users = object()  # type: ignore[assignment]
    with InternalErrors() as errors:
        client.say("queue.declare", 1, queue="q")
    assert len(errors.found) == 1
    assert "Traceback" in errors.found[0]
    (close,) = client.methods()
    assert (close.name, close["reply_code"], close["reply_text"]) == ("connection.close", 541, "INTERNAL_ERROR")
    bystander.say("basic.qos", 1, prefetch_count=1)
    assert bystander.hear() == ["basic.qos-ok"]


def test_broker_lists_connections_from_open_to_close(server: SocketlessServer) -> None:
    line = server.connect()
    assert connections(server.broker) == []
    assert server.broker.connection_count == 1, "a socket, which has not opened a virtual host"
    client = Dialogue(server).open()
    client.say("channel.open", 2)
    (view,) = connections(server.broker)
    assert (view.name, view.user, view.vhost) == ("127.0.0.1:50000", "guest", "/")
    assert (view.peer_host, view.peer_port, view.host) == ("127.0.0.1", 50000, "memory")
    assert view.frame_max == client.line.connection.session.handshake.tuning.frame_max > 0
    assert [channel.number for channel in channels(server.broker)] == [1, 2]
    client.publish(b"x" * 1000, "nowhere")
    (after,) = connections(server.broker)
    assert 1000 < after.bytes_in - view.bytes_in < 1200
    assert (after.bytes_in, after.bytes_out) == (server.broker.stats.bytes_in, server.broker.stats.bytes_out)
    client.say("channel.close", 2, reply_code=200, reply_text="")
    assert [channel.number for channel in channels(server.broker)] == [1]
    client.say("connection.close", reply_code=200, reply_text="goodbye")
    assert connections(server.broker) == []
    line.hang_up()
