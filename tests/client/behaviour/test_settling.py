"""ack, nack, reject and recover: one, several, requeued or dropped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.support.waiting import wait_until
from warrenmq import client

from .faces import Inbox


@pytest.fixture
def held(channel: Any, queue: str) -> list[Any]:
    """Five messages that were got and not settled."""
    for number in range(5):
        channel.publish("", queue, b"%d" % number)
    channel.queue_declare(queue, passive=True)
    return [channel.get(queue) for _ in range(5)]


def left(channel: Any, queue: str) -> list[tuple[int, bool]]:
    """What is in the queue once all that is unsettled has gone back."""
    channel.recover()
    found = []
    while (delivery := channel.get(queue, auto_ack=True)) is not None:
        found.append((int(delivery.body), delivery.redelivered))
    return found


def test_ack_by_delivery_and_by_tag(channel: Any, queue: str, held: list[Any]) -> None:
    assert held[0].ack() is True
    assert channel.ack(held[1]) is True
    assert channel.ack(held[2].delivery_tag) is True
    assert left(channel, queue) == [(3, True), (4, True)]


def test_ack_of_several(channel: Any, queue: str, held: list[Any]) -> None:
    held[2].ack(multiple=True)
    assert left(channel, queue) == [(3, True), (4, True)]


def test_ack_of_all(channel: Any, queue: str, held: list[Any]) -> None:
    channel.ack(0, multiple=True)
    assert left(channel, queue) == []


def test_nack_puts_back_or_drops(channel: Any, queue: str, held: list[Any]) -> None:
    assert held[0].nack() is True
    assert channel.nack(held[1], requeue=False) is True
    assert channel.get(queue).body == b"0"
    assert left(channel, queue) == [(0, True), (2, True), (3, True), (4, True)]


def test_nack_of_several(channel: Any, queue: str, held: list[Any]) -> None:
    channel.nack(held[3], multiple=True, requeue=False)
    assert left(channel, queue) == [(4, True)]


def test_reject_puts_back_or_drops(channel: Any, queue: str, held: list[Any]) -> None:
    assert held[0].reject() is True
    assert held[1].reject(requeue=False) is True
    assert channel.reject(held[2].delivery_tag, requeue=False) is True
    assert left(channel, queue) == [(0, True), (3, True), (4, True)]


def test_requeued_message_comes_again_marked(channel: Any, queue: str) -> None:
    inbox = Inbox()
    channel.consume(queue, inbox)
    channel.publish("", queue, b"x")
    first = inbox.next()
    assert not first.redelivered
    first.nack(requeue=True)
    again = inbox.next()
    assert (again.body, again.redelivered) == (b"x", True)
    assert again.delivery_tag > first.delivery_tag


def test_recover_brings_back_what_is_unacked(channel: Any, queue: str, held: list[Any]) -> None:
    held[0].ack()
    channel.recover(requeue=True)
    inbox = Inbox()
    channel.consume(queue, inbox, auto_ack=True)
    assert sorted((int(each.body), each.redelivered) for each in inbox.take(4)) == [
        (number, True) for number in range(1, 5)
    ]


def test_unacked_messages_go_back_when_the_channel_closes(connection: Any, channel: Any, queue: str) -> None:
    channel.publish("", queue, b"x")
    other = connection.channel()
    assert wait_until(lambda: other.get(queue)).body == b"x"
    other.close()
    again = wait_until(lambda: channel.get(queue, auto_ack=True))
    assert (again.body, again.redelivered) == (b"x", True)


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_settling_twice_is_the_channels_error(connection: Any, queue: str, how: str) -> None:
    channel = connection.channel()
    closed = Inbox()
    channel.add_close_listener(closed)
    channel.publish("", queue, b"x")
    channel.queue_declare(queue, passive=True)
    tag = channel.get(queue).delivery_tag
    getattr(channel, how)(tag)
    getattr(channel, how)(tag)
    reason = closed.next()
    assert (reason.by, reason.reply_code) == ("server", 406)
    assert "unknown delivery tag" in reason.reply_text
    with pytest.raises(client.PreconditionFailed):
        channel.ack(tag)
    assert connection.is_open


def test_settling_on_a_closed_channel_or_connection(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.publish("", queue, b"x")
    channel.queue_declare(queue, passive=True)
    delivery = channel.get(queue)
    channel.close()
    with pytest.raises(client.ChannelClosed):
        delivery.ack()
    connection.close()
    with pytest.raises((client.ChannelClosed, client.ConnectionClosed)):
        delivery.ack()


def test_ack_of_a_delivery_of_another_channel_goes_to_its_own(connection: Any, channel: Any, queue: str) -> None:
    """A delivery knows its channel; a foreign one given to `channel.ack` is the caller's mistake."""
    channel.publish("", queue, b"x")
    channel.queue_declare(queue, passive=True)
    delivery = channel.get(queue)
    other = connection.channel()
    with pytest.raises(client.Misuse):
        other.ack(delivery)
    assert other.is_open
    assert delivery.ack() is True


@pytest.mark.parametrize("tag", [-1, 2**64, "1", None])
def test_tags_that_are_none(channel: Any, tag: Any) -> None:
    with pytest.raises((client.Misuse, TypeError)):
        channel.ack(tag)
    assert channel.is_open
    assert channel.queue_declare("", exclusive=True).queue
