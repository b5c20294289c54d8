"""Transactions: published and acked together, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import Connect
from warrenmq import client

from .faces import eventually


@pytest.fixture
def other(connect: Connect, connection: Any) -> Any:
    """Another channel of the same connection, which sees what is committed."""
    return connection.channel()


def count(other: Any, queue: str) -> int:
    return int(other.queue_declare(queue, passive=True).message_count)


def test_commit_publishes(channel: Any, other: Any, queue: str) -> None:
    channel.tx_select()
    for _ in range(3):
        channel.publish("", queue, b"x")
    assert count(other, queue) == 0
    channel.tx_commit()
    eventually(lambda: count(other, queue) == 3)


def test_rollback_forgets(channel: Any, other: Any, queue: str) -> None:
    channel.tx_select()
    channel.publish("", queue, b"x")
    channel.tx_rollback()
    channel.tx_commit()
    assert count(other, queue) == 0


def test_acks_are_part_of_it(channel: Any, other: Any, queue: str) -> None:
    other.publish("", queue, b"x")
    count(other, queue)
    channel.tx_select()
    channel.get(queue).ack()
    channel.tx_rollback()
    channel.recover()
    channel.get(queue).ack()
    channel.tx_commit()
    channel.recover()
    assert count(other, queue) == 0


def test_context_commits(channel: Any, other: Any, queue: str) -> None:
    for _ in range(2):
        with channel.transaction():
            channel.publish("", queue, b"x")
    eventually(lambda: count(other, queue) == 2)


def test_context_rolls_back_and_lets_the_exception_through(channel: Any, other: Any, queue: str) -> None:
    class OnPurpose(Exception):
        pass

    with pytest.raises(OnPurpose), channel.transaction():
        channel.publish("", queue, b"x")
        raise OnPurpose
    with channel.transaction():
        channel.publish("", queue, b"y")
    eventually(lambda: count(other, queue) == 1)
    assert other.get(queue, auto_ack=True).body == b"y"


def test_transactions_do_not_nest(channel: Any, queue: str) -> None:
    with channel.transaction():
        with pytest.raises(client.Misuse), channel.transaction():
            pass
        channel.publish("", queue, b"x")
    eventually(lambda: count(channel, queue) == 1)


def test_commit_without_select_is_refused(channel: Any) -> None:
    with pytest.raises((client.PreconditionFailed, client.Misuse)):
        channel.tx_commit()


def test_transactions_and_confirms_exclude_each_other(connection: Any) -> None:
    for first, second in (("tx_select", "confirm_select"), ("confirm_select", "tx_select")):
        channel = connection.channel()
        getattr(channel, first)()
        with pytest.raises((client.PreconditionFailed, client.Misuse)):
            getattr(channel, second)()


def test_select_twice_is_once(channel: Any, queue: str) -> None:
    channel.tx_select()
    channel.tx_select()
    channel.publish("", queue, b"x")
    channel.tx_commit()
    eventually(lambda: count(channel, queue) == 1)
