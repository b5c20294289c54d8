"""Heartbeats, slow handshakes and slow goodbyes, by a clock that the test moves."""

from __future__ import annotations

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer
from tests.support.wire_format import PROTOCOL_HEADER
from warrenmq.server.options import ServerOptions

INTERVAL = 10


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer(ServerOptions(handshake_timeout=5.0, memory_limit=100_000))


def pass_time(client: Dialogue, seconds: float, step: float = 0.25) -> None:
    """Let time pass as the server's sweep does, until the server hangs up."""
    for _ in range(int(seconds / step)):
        if not client.line.is_closed:
            client.line.pass_time(step)


# -- heartbeats


def test_broker_sends_heartbeats_when_idle(server: SocketlessServer) -> None:
    """Twice per interval, less what the sweeps take: never later than a client expects it."""
    client = Dialogue(server).open(heartbeat=INTERVAL)
    for _ in range(6):
        client.beat()
        pass_time(client, INTERVAL * 0.6)
        assert client.hear() == ["heartbeat"]


def test_broker_sends_no_heartbeats_with_other_output(server: SocketlessServer) -> None:
    client = Dialogue(server).open(heartbeat=INTERVAL)
    for _ in range(10):
        client.say("basic.qos", 1, prefetch_count=1)
        pass_time(client, INTERVAL / 4)
    assert set(client.hear()) == {"basic.qos-ok"}


def test_silent_client_is_disconnected_after_two_intervals(server: SocketlessServer) -> None:
    client = Dialogue(server).open(heartbeat=INTERVAL)
    pass_time(client, 2 * INTERVAL - 1)
    assert not client.line.is_closed
    pass_time(client, 2)
    assert client.line.is_closed
    client.line.receive()
    assert server.broker.connection_count == 0


def test_any_input_counts_as_a_sign_of_life(server: SocketlessServer) -> None:
    beating, working, halting = (Dialogue(server).open(heartbeat=INTERVAL) for _ in range(3))
    for _ in range(5):
        beating.beat()
        working.say("basic.qos", 1, prefetch_count=1)
        halting.line.send(b"\x01")  # a part of a frame
        server.clock += 1.5 * INTERVAL
        for client in (beating, working, halting):
            client.line.pass_time(0)
    assert [client.line.is_closed for client in (beating, working, halting)] == [False, False, False]


def test_without_heartbeats_silence_is_unlimited(server: SocketlessServer) -> None:
    client = Dialogue(server).open(heartbeat=0)
    pass_time(client, 100_000, step=1_000)
    assert not client.line.is_closed
    assert client.hear() == []


def test_deliveries_of_a_silent_client_are_requeued(server: SocketlessServer) -> None:
    client = Dialogue(server).open(heartbeat=INTERVAL)
    client.say("queue.declare", 1, queue="q")
    client.publish(b"1", "q")
    client.say("basic.consume", 1, queue="q", consumer_tag="t")
    assert server.broker.stats.unacked == 1
    pass_time(client, 3 * INTERVAL)
    client.line.receive()
    assert (server.broker.stats.unacked, server.broker.stats.ready, server.broker.stats.consumers) == (0, 1, 0)


def test_paused_client_does_not_miss_heartbeats(server: SocketlessServer) -> None:
    client = Dialogue(server).open(heartbeat=INTERVAL)
    client.say("queue.declare", 1, queue="q")
    client.publish(b"x" * 100_000, "q")
    client.publish(b"x", "q")
    assert not client.line.is_reading
    pass_time(client, 10 * INTERVAL)
    assert not client.line.is_closed
    server.broker.vhosts["/"].queues["q"].purge()
    server.ticker.schedule()
    client.line.receive()
    assert client.line.is_reading
    pass_time(client, 1.5 * INTERVAL)
    assert not client.line.is_closed
    pass_time(client, INTERVAL)
    assert client.line.is_closed


# -- the handshake


@pytest.mark.parametrize("steps", ["connected", "a part of the header", "the header", "logged in", "tuned"])
def test_slow_handshake_is_aborted(server: SocketlessServer, steps: str) -> None:
    client = Dialogue(server)
    if steps == "a part of the header":
        client.line.send(PROTOCOL_HEADER[:5])
    elif steps == "the header":
        client.line.send(PROTOCOL_HEADER)
    elif steps != "connected":
        client.start()
    if steps == "tuned":
        client.say("connection.tune-ok", channel_max=2047, frame_max=131072, heartbeat=0)
    pass_time(client, 4.5)
    assert not client.line.is_closed
    pass_time(client, 1)
    assert client.line.is_closed


def test_single_bytes_do_not_extend_the_handshake(server: SocketlessServer) -> None:
    client = Dialogue(server)
    for byte in PROTOCOL_HEADER:
        if not client.line.is_closed:
            client.line.send(bytes((byte,)))
            client.line.pass_time(1.0)
    assert client.line.is_closed


def test_open_connection_has_no_handshake_timeout(server: SocketlessServer) -> None:
    client = Dialogue(server).open()
    pass_time(client, 60)
    assert not client.line.is_closed


# -- the goodbye


def test_client_without_close_ok_is_aborted(server: SocketlessServer) -> None:
    client = Dialogue(server).open()
    client.say("channel.open", 1)  # a second time: a connection error
    assert client.hear() == ["connection.close"]
    assert not client.line.is_closed
    pass_time(client, 60)
    assert client.line.is_closed


def test_client_that_does_not_disconnect_after_its_close_is_aborted(server: SocketlessServer) -> None:
    client = Dialogue(server).open()
    client.say("connection.close", reply_code=200, reply_text="goodbye")
    assert client.hear() == ["connection.close-ok"]
    pass_time(client, 60)
    assert client.line.is_closed
