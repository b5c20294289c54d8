"""channel.flow of a server: publishes wait until it lets them go on, on this channel and on no other.

No broker sends it by itself. The breaker says it after a basic.qos-ok: of a prefetch of 1 stop, of 2 go on; and keeps
the client's channel.flow-ok to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.client.patterns.making import InThread
from tests.support.breaker import DOWN, UP, Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .faces import Inbox

STOP, GO_ON = 1, 2
QOS, QOS_OK = b"\x00\x3c\x00\x0a", b"\x00\x3c\x00\x0b"
FLOW, FLOW_OK = b"\x00\x14\x00\x14", b"\x00\x14\x00\x15"


class Valve:
    """Says channel.flow to the client, and notes what the client answers."""

    def __init__(self, breaker: Breaker) -> None:
        self.answers = Inbox()
        self._prefetch = 0
        breaker.rewrite(UP, self._up)
        breaker.rewrite(DOWN, self._down)

    def _up(self, frame: bytes) -> bytes:
        if frame[7:11] == QOS:
            self._prefetch = int.from_bytes(frame[15:17], "big")
        if frame[7:11] == FLOW_OK:
            self.answers(frame[11] == 1)
            return b""
        return frame

    def _down(self, frame: bytes) -> bytes:
        if frame[7:11] != QOS_OK:
            return frame
        return frame + frame[:3] + b"\x00\x00\x00\x05" + FLOW + bytes([self._prefetch == GO_ON]) + b"\xce"


@pytest.fixture
def valve(breaker: Breaker) -> Iterator[Valve]:
    yield Valve(breaker)
    breaker.calm()


@pytest.fixture
def publisher(connect: Connect, breaker: Breaker, valve: Valve) -> Any:
    """A connection whose channels can be stopped."""
    return connect(breaker.url, recovery=client.Recovery(initial=0.01, longest=0.1), close_timeout=2.0)


def stop(channel: Any, valve: Valve) -> None:
    channel.qos(STOP)
    assert valve.answers.next() is False
    assert channel.is_blocked


def test_publish_waits_until_the_server_lets_it_go_on(publisher: Any, valve: Valve, channel: Any, queue: str) -> None:
    stopped, other = publisher.channel(), publisher.channel()
    stop(stopped, valve)
    publishing = InThread(stopped.publish, "amq.fanout", "", b"x")
    other.confirm_select()
    other.publish("amq.fanout", "", b"another channel").result(30)
    assert publishing.is_running
    stopped.qos(GO_ON)
    assert valve.answers.next() is True
    publishing.result()
    assert not stopped.is_blocked
    stopped.publish("amq.fanout", "", b"y")


def test_publish_on_a_paused_channel_raises_connection_blocked(publisher: Any, valve: Valve) -> None:
    channel = publisher.channel()
    stop(channel, valve)
    with pytest.raises(client.ConnectionBlocked, match=r"channel\.flow"):
        channel.publish("amq.fanout", "", b"x", timeout=0.05)
    assert channel.is_open


def test_confirms_come_and_deliveries_are_settled_on_a_stopped_channel(
    publisher: Any, valve: Valve, channel: Any, name: Any
) -> None:
    channel.queue_declare(name("queue"))
    stopped = publisher.channel()
    stopped.confirm_select()
    for _ in range(2):
        stopped.publish("", name("queue"), b"x").result(30)
    stop(stopped, valve)
    assert stopped.get(name("queue")).ack()
    assert stopped.get(name("queue"), auto_ack=True).body == b"x"
    stopped.close()
    assert channel.queue_declare(name("queue"), passive=True).message_count == 0


def test_new_connection_begins_without_the_stop(publisher: Any, valve: Valve, breaker: Breaker) -> None:
    channel = publisher.channel()
    stop(channel, valve)
    breaker.reset()
    breaker.rewrite(DOWN, None)  # the recovery says basic.qos again
    breaker.wait_for_connections(2)
    wait_until(lambda: publisher.is_open, "the connection is back")
    assert not channel.is_blocked
    channel.confirm_select()
    channel.publish("amq.fanout", "", b"x").result(30)


def test_waiting_publish_ends_with_its_channel(publisher: Any, valve: Valve) -> None:
    channel = publisher.channel()
    stop(channel, valve)
    publishing = InThread(channel.publish, "amq.fanout", "", b"x")
    wait_until(lambda: engine_of(publisher).shared.writable_callbacks, "the publish waits")
    channel.close()
    with pytest.raises(client.ChannelClosed):
        publishing.result()


def engine_of(connection: Any) -> Any:
    return getattr(connection, "_real", connection)._engine
