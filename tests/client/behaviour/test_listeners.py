"""Listeners can be removed: what is removed is not called again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .faces import Inbox


@pytest.mark.parametrize("kind", ["close", "recovery", "queue_renamed", "blocked"])
def test_listener_of_a_connection_is_removed(connection: Any, kind: str) -> None:
    listener = Inbox()
    getattr(connection, f"add_{kind}_listener")(listener)
    assert getattr(connection, f"remove_{kind}_listener")(listener) is True
    assert getattr(connection, f"remove_{kind}_listener")(listener) is False


@pytest.mark.parametrize("kind", ["return", "confirm", "close"])
def test_listener_of_a_channel_is_removed(channel: Any, kind: str) -> None:
    listener = Inbox()
    getattr(channel, f"add_{kind}_listener")(listener)
    assert getattr(channel, f"remove_{kind}_listener")(listener) is True
    assert getattr(channel, f"remove_{kind}_listener")(listener) is False


def test_blocked_listener_is_removed_with_its_unblocked_one(connection: Any) -> None:
    blocked, unblocked = Inbox(), Inbox()
    connection.add_blocked_listener(blocked, unblocked)
    assert not connection.remove_blocked_listener(blocked)
    assert connection.remove_blocked_listener(blocked, unblocked)


def test_removed_listeners_are_not_called_and_the_others_are(channel: Any) -> None:
    removed, kept = Inbox(), Inbox()
    channel.confirm_select()
    for listener in (removed, kept):
        channel.add_return_listener(listener)
        channel.add_confirm_listener(lambda *word, listener=listener: listener("confirm"))
    channel.remove_return_listener(removed)
    with pytest.raises(client.Unroutable):
        channel.publish("", "no such queue", b"x", mandatory=True).result(30)
    assert {str(kept.next())[:8] for _ in range(2)} == {"<Returne", "confirm"}
    assert removed.next() == "confirm"
    assert removed.count == 0


def test_no_confirm_notifications_without_listeners(channel: Any) -> None:
    heard = Inbox()
    channel.confirm_select()
    channel.add_confirm_listener(heard)
    channel.publish("amq.fanout", "", b"x").result(30)
    assert heard.next() == (1, False, True)
    channel.remove_confirm_listener(heard)
    channel.publish("amq.fanout", "", b"x").result(30)
    assert heard.count == 0


def test_listener_removed_in_a_listener_is_not_called_again(connect: Connect, breaker: Breaker) -> None:
    connection = connect(breaker.url, recovery=client.Recovery(initial=0.01, longest=0.1))
    heard, recovered = Inbox(), Inbox()
    real = getattr(connection, "_real", connection)

    def once(reason: Any) -> None:
        real.remove_close_listener(once)
        heard(reason)

    real.add_close_listener(once)
    real.add_recovery_listener(lambda event: recovered(event.kind))
    for number in (2, 3):
        breaker.reset()
        breaker.wait_for_connections(number)
        recovered.until(lambda kind: kind == "recovered")
    assert heard.next().is_final is False
    assert heard.count == 0
    wait_until(lambda: connection.is_open)
