"""Transactions: published and acked together, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import Connect, Namer, own_broker_only
from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .faces import Inbox


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
    wait_until(lambda: count(other, queue) == 3)


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
    wait_until(lambda: count(other, queue) == 2)


def test_context_rolls_back_and_lets_the_exception_through(channel: Any, other: Any, queue: str) -> None:
    class OnPurpose(Exception):
        pass

    with pytest.raises(OnPurpose), channel.transaction():
        channel.publish("", queue, b"x")
        raise OnPurpose
    with channel.transaction():
        channel.publish("", queue, b"y")
    wait_until(lambda: count(other, queue) == 1)
    assert other.get(queue, auto_ack=True).body == b"y"


def test_transactions_do_not_nest(channel: Any, queue: str) -> None:
    with channel.transaction():
        with pytest.raises(client.Misuse), channel.transaction():
            pass
        channel.publish("", queue, b"x")
    wait_until(lambda: count(channel, queue) == 1)


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
    wait_until(lambda: count(channel, queue) == 1)


# -- redelivered after a rollback


def test_rollback_of_a_block_redelivers_what_it_acked(channel: Any, other: Any, queue: str) -> None:
    inbox = Inbox()
    channel.qos(prefetch_count=1)
    channel.consume(queue, inbox)
    other.publish("", queue, b"x")
    first = inbox.next()
    with pytest.raises(KeyError), channel.transaction():
        first.ack()
        raise KeyError("the processing failed")
    again = inbox.next()
    assert (again.body, again.redelivered) == (b"x", True)
    with channel.transaction():
        again.ack()
    channel.close()
    assert count(other, queue) == 0


def test_deliveries_given_to_a_block_are_acked_in_it(channel: Any, other: Any, queue: str) -> None:
    for body in (b"a", b"b", b"c"):
        other.publish("", queue, body)
    wait_until(lambda: count(other, queue) == 3)
    deliveries = [channel.get(queue) for _ in range(3)]
    deliveries[2].nack(requeue=True)
    with channel.transaction(*deliveries):
        pass
    assert all(each.is_settled for each in deliveries)
    channel.close()
    wait_until(lambda: count(other, queue) == 1)
    assert other.get(queue, auto_ack=True).body == b"c"


@pytest.mark.parametrize("settle", ["ack", "ack to here", "nack", "reject"])
def test_rollback_redelivers_whatever_the_block_settled(channel: Any, other: Any, queue: str, settle: str) -> None:
    for body in (b"a", b"b"):
        other.publish("", queue, body)
    wait_until(lambda: count(other, queue) == 2)
    deliveries = [channel.get(queue) for _ in range(2)]
    with pytest.raises(KeyError), channel.transaction():
        if settle == "ack to here":
            deliveries[1].ack(multiple=True)
        else:
            for each in deliveries:
                getattr(each, settle)(**({} if settle == "ack" else {"requeue": False}))
        raise KeyError
    wait_until(lambda: count(other, queue) == 2)
    assert [other.get(queue, auto_ack=True).body for _ in range(2)] == [b"a", b"b"]


def test_delivery_that_a_rollback_returned_is_not_settled_again(channel: Any, other: Any, queue: str) -> None:
    other.publish("", queue, b"x")
    wait_until(lambda: count(other, queue) == 1)
    delivery = channel.get(queue)
    with pytest.raises(KeyError), channel.transaction(delivery):
        raise KeyError
    assert delivery.is_settled
    assert not delivery.nack()
    with channel.transaction():
        assert not delivery.ack()
        channel.publish("", queue, b"y")
    wait_until(lambda: count(other, queue) == 2)


def test_rollback_by_hand_redelivers_if_asked_to(channel: Any, other: Any, queue: str) -> None:
    other.publish("", queue, b"x")
    wait_until(lambda: count(other, queue) == 1)
    channel.tx_select()
    channel.get(queue).ack()
    channel.publish("", queue, b"y")
    channel.tx_rollback(requeue=True)
    assert count(other, queue) == 1
    again = channel.get(queue)
    assert (again.body, again.redelivered) == (b"x", True)
    again.ack()
    channel.tx_commit()
    channel.close()
    assert count(other, queue) == 0


def test_rollback_warns_of_messages_that_auto_ack_has_removed(
    channel: Any, other: Any, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    channel.consume(queue, inbox, auto_ack=True)
    other.publish("", queue, b"x")
    inbox.next()
    with pytest.raises(KeyError), channel.transaction():
        raise KeyError
    assert "not redelivered: it has auto_ack" in caplog.text


def test_delivery_of_another_channel_cannot_be_acked_in_a_block(channel: Any, other: Any, queue: str) -> None:
    other.publish("", queue, b"x")
    wait_until(lambda: count(other, queue) == 1)
    delivery = other.get(queue)
    with pytest.raises(client.Misuse, match=r"delivery\.channel\.transaction"):
        channel.transaction(delivery)


@own_broker_only
def test_rollback_on_a_channel_that_reads_a_stream_requeues_nothing(channel: Any, name: Namer) -> None:
    inbox, stream = Inbox(), name("stream")
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    channel.qos(prefetch_count=1)
    channel.consume(stream, inbox, arguments={"x-stream-offset": "first"})
    channel.publish("", stream, b"x")
    delivery = inbox.next()
    with pytest.raises(KeyError), channel.transaction(delivery):
        raise KeyError
    with channel.transaction(delivery):
        pass
    assert channel.is_open


# -- between two blocks


def test_publish_outside_a_block_is_refused_and_other_channels_are_not(channel: Any, other: Any, queue: str) -> None:
    with channel.transaction():
        channel.publish("", queue, b"inside")
    with pytest.raises(client.Misuse, match=r"channel\.transaction\(\)"):
        channel.publish("", queue, b"outside")
    other.publish("", queue, b"elsewhere")
    with channel.transaction():
        channel.publish("", queue, b"inside again")
    wait_until(lambda: count(other, queue) == 3)
    assert [other.get(queue, auto_ack=True).body for _ in range(3)] == [b"inside", b"elsewhere", b"inside again"]


@pytest.mark.parametrize("call", ["ack", "nack", "reject"])
def test_settling_outside_a_block_is_refused_and_inside_holds(
    connect: Connect, channel: Any, other: Any, queue: str, call: str
) -> None:
    settling = other.connection.channel()
    with settling.transaction():
        settling.publish("", queue, b"x")
    wait_until(lambda: count(other, queue) == 1)
    delivery = settling.get(queue)
    for settle in (getattr(delivery, call), lambda: getattr(settling, call)(delivery)):
        with pytest.raises(client.Misuse, match="transactional"):
            settle()
    assert not delivery.is_settled
    assert settling.is_open
    with settling.transaction():
        assert getattr(delivery, call)(**({} if call == "ack" else {"requeue": False})) is True
    settling.close()
    assert count(other, queue) == 0


def test_block_that_was_rolled_back_leaves_the_channel_transactional(channel: Any, other: Any, queue: str) -> None:
    other.publish("", queue, b"x")
    wait_until(lambda: count(other, queue) == 1)
    delivery = channel.get(queue)
    with pytest.raises(KeyError), channel.transaction(redeliver=False):
        delivery.ack()
        assert delivery.is_settled
        raise KeyError
    assert not delivery.is_settled
    with pytest.raises(client.Misuse):
        channel.publish("", queue, b"y")
    with channel.transaction():
        assert delivery.ack()
    assert delivery.is_settled
    channel.close()
    assert count(other, queue) == 0


def test_rolled_back_ack_stays_undone_after_other_transactions(channel: Any, other: Any, queue: str) -> None:
    for body in (b"a", b"b"):
        other.publish("", queue, body)
    wait_until(lambda: count(other, queue) == 2)
    first, second = (channel.get(queue) for _ in range(2))
    for delivery in (first, second):
        with pytest.raises(KeyError), channel.transaction(redeliver=False):
            delivery.ack()
            raise KeyError
    with channel.transaction():
        second.ack()
    assert (first.is_settled, second.is_settled) == (False, True)
    with channel.transaction(first):
        pass
    channel.close()
    assert count(other, queue) == 0


def test_transactions_by_hand_are_the_users_own(channel: Any, other: Any, queue: str) -> None:
    channel.tx_select()
    with channel.transaction():
        channel.publish("", queue, b"in a block")
    channel.publish("", queue, b"by hand")
    channel.tx_commit()
    wait_until(lambda: count(other, queue) == 2)


def test_block_that_could_not_begin_leaves_the_channel_as_it_was(connection: Any, queue: str) -> None:
    channel = connection.channel()
    channel.confirm_select()
    with pytest.raises(client.Misuse), channel.transaction():
        pass
    channel.publish("", queue, b"x").result(30)


def test_deliveries_without_acks_and_calls_go_on_between_blocks(channel: Any, other: Any, queue: str) -> None:
    with channel.transaction():
        channel.publish("", queue, b"x")
    inbox = Inbox()
    channel.consume(queue, inbox, auto_ack=True)
    assert inbox.next().body == b"x"


def test_consumer_that_ends_between_blocks_requeues_unread_messages(channel: Any, other: Any, queue: str) -> None:
    with channel.transaction():
        for _ in range(5):
            channel.publish("", queue, b"x")
    with channel.consume(queue, timeout=30) as consumer:
        for delivery in consumer:
            with channel.transaction():
                delivery.ack()
            break
    wait_until(lambda: count(other, queue) == 4, "the others are in the queue again")
    assert channel.is_open


def test_consuming_block_by_block_over_a_lost_connection(
    connect: Connect, breaker: Breaker, channel: Any, name: Namer
) -> None:
    source, target = name("source"), name("target")
    for each in (source, target):
        channel.queue_declare(each)
    shaky = connect(breaker.url, recovery=client.Recovery(initial=0.01, longest=0.1))
    moving = shaky.channel()
    with moving.transaction():
        moving.publish("", source, b"x")
    breaker.reset()
    breaker.wait_for_connections(2)
    wait_until(lambda: shaky.is_open, "the connection is back")
    with pytest.raises(client.Misuse):
        moving.publish("", target, b"outside")
    delivery = moving.get(source)
    with pytest.raises(client.Misuse):
        delivery.ack()
    with moving.transaction():
        moving.publish("", target, delivery.body)
        assert delivery.ack()
    wait_until(lambda: (count(channel, source), count(channel, target)) == (0, 1))
    moving.close()
    assert count(channel, source) == 0
