"""Transactions: held until commit, applied together, undone by rollback and by the end of the channel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, assert_nothing_is_held, make_broker, waiting
from tests.support.storage import ManualStorage
from warrenmq.core.broker import Broker
from warrenmq.core.errors import NotImplementedHere, PreconditionFailed
from warrenmq.core.ports import NOTHING, SYNCED, WRITTEN
from warrenmq.core.queue import Queue


@pytest.fixture
def transaction(channel: ClientChannel) -> ClientChannel:
    channel.core.select_transactions()
    return channel


def hold(channel: ClientChannel, queue: Queue, bodies: str) -> None:
    """Publish (from elsewhere) and fetch these without acking; their tags count on from the channel's last."""
    elsewhere = Client(channel.client.broker).channel()
    elsewhere.publish_all(bodies, queue.name)
    for _ in bodies:
        channel.get(queue, no_ack=False)


# -- publishes


def test_publishes_are_held_until_commit(transaction: ClientChannel, queue: Queue) -> None:
    transaction.publish_all("12", "q")
    assert waiting(queue) == ""
    transaction.core.commit()
    assert waiting(queue) == "12"
    transaction.publish_all("3", "q")
    assert waiting(queue) == "12"


def test_publishes_to_several_queues_appear_together(transaction: ClientChannel, queue: Queue) -> None:
    second = transaction.declare("second")
    transaction.publish_all("1", "q")
    transaction.publish_all("2", "second")
    transaction.publish(b"3", "q", headers={"CC": ["second"]})
    assert (waiting(queue), waiting(second)) == ("", "")
    transaction.core.commit()
    assert (waiting(queue), waiting(second)) == ("13", "23")


def test_rollback_forgets_the_publishes(broker: Broker, transaction: ClientChannel, queue: Queue) -> None:
    transaction.publish_all("12", "q")
    transaction.core.rollback()
    transaction.core.commit()
    assert waiting(queue) == ""
    assert_nothing_is_held(broker)


def test_a_message_is_routed_when_it_is_published_not_when_it_is_committed(
    transaction: ClientChannel, queue: Queue
) -> None:
    transaction.bind("amq.direct", queue, "k")
    transaction.publish(b"1", "k", "amq.direct")
    transaction.unbind("amq.direct", queue, "k")
    transaction.core.commit()
    assert waiting(queue) == "1"


def test_returns_come_with_the_commit(transaction: ClientChannel) -> None:
    transaction.publish(b"1", "nowhere", mandatory=True)
    assert transaction.returns() == []
    transaction.core.commit()
    assert [returned.body for returned in transaction.returns()] == [b"1"]
    transaction.publish(b"2", "nowhere", mandatory=True)
    transaction.core.rollback()
    assert transaction.returns() == []


def test_a_queue_deleted_before_the_commit_gets_nothing(
    broker: Broker, transaction: ClientChannel, queue: Queue
) -> None:
    second = transaction.declare("second")
    transaction.publish(b"1", "q", headers={"CC": ["second"]}, mandatory=True)
    transaction.publish(b"2", "q", mandatory=True)
    transaction.delete(queue)
    fresh = transaction.declare("q")
    transaction.core.commit()
    assert (waiting(fresh), waiting(second)) == ("", "1")
    assert [returned.body for returned in transaction.returns()] == [b"2"]
    second.purge()
    assert_nothing_is_held(broker)


def test_a_refused_publish_leaves_the_transaction_as_it_was(transaction: ClientChannel, queue: Queue) -> None:
    transaction.publish_all("1", "q")
    with pytest.raises(PreconditionFailed):
        transaction.publish(b"2", "q", user_id="root")
    transaction.core.commit()
    assert waiting(queue) == "1"


# -- acks


def test_acks_are_held_until_commit(broker: Broker, transaction: ClientChannel, queue: Queue) -> None:
    hold(transaction, queue, "12")
    transaction.ack(2, multiple=True)
    assert broker.stats.unacked == 2
    transaction.core.commit()
    assert_nothing_is_held(broker)


def test_a_tag_cannot_be_settled_twice_in_a_transaction(transaction: ClientChannel, queue: Queue) -> None:
    hold(transaction, queue, "1")
    transaction.ack(1)
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 1"):
        transaction.ack(1)


def test_rejects_are_held_until_commit(broker: Broker, transaction: ClientChannel, queue: Queue) -> None:
    hold(transaction, queue, "123")
    transaction.reject(1)
    transaction.reject(2, requeue=False)
    assert waiting(queue) == ""
    transaction.core.commit()
    assert waiting(queue) == "1"
    assert broker.stats.unacked == 1


def test_rollback_makes_held_acks_unacked_again(broker: Broker, transaction: ClientChannel, queue: Queue) -> None:
    hold(transaction, queue, "12345")
    transaction.ack(2)
    transaction.reject(3, multiple=True)
    transaction.reject(5, requeue=False)
    transaction.core.rollback()
    assert broker.stats.unacked == 5
    assert waiting(queue) == ""
    transaction.ack(5, multiple=True)
    transaction.core.commit()
    assert_nothing_is_held(broker)


def test_a_commit_delivers_requeued_messages_to_the_consumers(transaction: ClientChannel, queue: Queue) -> None:
    transaction.consume(queue, prefetch=2)
    other = Client(transaction.client.broker).channel()
    other.publish_all("123", "q")
    assert transaction.bodies() == "12"
    transaction.reject(2, multiple=True)
    assert transaction.bodies() == ""
    transaction.core.commit()
    assert [(said.body, said.redelivered) for said in transaction.deliveries()] == [(b"1", True), (b"2", True)]


def test_a_held_ack_returns_no_credit_before_the_commit(transaction: ClientChannel, queue: Queue) -> None:
    transaction.consume(queue, prefetch=1)
    Client(transaction.client.broker).channel().publish_all("12", "q")
    assert transaction.bodies() == "1"
    transaction.ack(1)
    assert transaction.bodies() == ""
    transaction.core.rollback()
    assert transaction.bodies() == ""
    transaction.ack(1)
    transaction.core.commit()
    assert transaction.bodies() == "2"


def test_a_held_ack_returns_no_credit_to_the_channel_either(transaction: ClientChannel, queue: Queue) -> None:
    elsewhere = Client(transaction.client.broker).channel()
    transaction.core.limit_prefetch(1, True)
    transaction.consume(queue)
    elsewhere.publish_all("1", "q")
    assert transaction.bodies() == "1"
    transaction.ack(1)
    elsewhere.publish_all("2", "q")
    assert transaction.bodies() == ""
    transaction.core.rollback()
    assert transaction.bodies() == ""
    transaction.ack(1)
    transaction.core.commit()
    assert transaction.bodies() == "2"


def test_acks_of_a_deleted_queue_can_be_committed(broker: Broker, transaction: ClientChannel, queue: Queue) -> None:
    hold(transaction, queue, "123")
    transaction.ack(1)
    transaction.reject(2)
    transaction.delete(queue)
    transaction.core.commit()
    transaction.core.rollback()
    transaction.close()
    assert_nothing_is_held(broker)


def test_publishes_and_acks_are_applied_by_one_commit(transaction: ClientChannel, queue: Queue) -> None:
    """Move a message from one queue to another: it is in one of them at any time."""
    done = transaction.declare("done")
    hold(transaction, queue, "1")
    transaction.publish(b"1", "done")
    transaction.ack(1)
    assert (queue.unacked_count, waiting(done)) == (1, "")
    transaction.core.commit()
    assert (queue.unacked_count, waiting(done)) == (0, "1")


def test_a_commit_is_one_epoch() -> None:
    storage = ManualStorage()
    broker = make_broker(storage)
    channel = Client(broker).channel()
    first, second = channel.declare("first", durable=True), channel.declare("second", durable=True)
    channel.publish_all("1", "first", delivery_mode=PERSISTENT)
    channel.get(first, no_ack=False)
    broker.end_turn()
    epoch = storage.log.epoch
    channel.core.select_transactions()
    for queue in (first, second):
        channel.publish_all("2", queue.name, delivery_mode=PERSISTENT)
        channel.ack(0, multiple=True)
        broker.end_turn()
    assert (storage.log.epoch, storage.kept("first"), storage.kept("second")) == (epoch, "1", "")
    channel.core.commit()
    broker.end_turn()
    assert (storage.log.epoch, storage.kept("first"), storage.kept("second")) == (epoch + 1, "2", "2")


@pytest.mark.parametrize(
    ("arguments", "settles", "delivery_mode", "level"),
    [
        ({}, False, PERSISTENT, SYNCED),
        ({}, True, PERSISTENT, SYNCED),
        ({"x-durability": "os"}, False, PERSISTENT, WRITTEN),
        ({"x-durability": "os"}, True, PERSISTENT, WRITTEN),
        ({}, False, 1, NOTHING),
        ({}, True, 1, NOTHING),
    ],
)
def test_a_commit_says_what_its_queues_wait_for(
    arguments: dict[str, Any], settles: bool, delivery_mode: int, level: int
) -> None:
    channel = Client(make_broker(ManualStorage())).channel()
    queue = channel.declare("q", durable=True, arguments=arguments)
    if settles:
        channel.publish_all("1", "q", delivery_mode=delivery_mode)
        channel.get(queue, no_ack=False)
    channel.core.select_transactions()
    if settles:
        channel.ack(1)
    else:
        channel.publish_all("1", "q", delivery_mode=delivery_mode)
    assert channel.core.commit() == level
    assert channel.core.commit() == NOTHING


def test_a_commit_that_is_refused_does_nothing_of_it(broker: Broker, transaction: ClientChannel, queue: Queue) -> None:
    stream = transaction.declare("stream", durable=True, arguments={"x-queue-type": "stream"})
    transaction.consume(stream, prefetch=10)
    Client(broker).channel().publish_all("12", "stream")
    assert transaction.bodies() == "12"
    hold(transaction, queue, "3")
    transaction.publish_all("4", "q")
    transaction.ack(3)
    transaction.reject(1)  # a stream takes nothing back, but says so only when it is asked to
    with pytest.raises(NotImplementedHere):
        transaction.core.commit()
    assert waiting(queue) == ""
    assert queue.unacked_count == 1
    assert broker.stats.acked == 0


# -- the end of it


def test_the_end_of_the_channel_drops_publishes_and_requeues_held_acks(
    transaction: ClientChannel, queue: Queue
) -> None:
    hold(transaction, queue, "1234")
    transaction.publish_all("5", "q")
    transaction.ack(1)
    transaction.reject(3, requeue=False)
    transaction.close()
    assert waiting(queue) == "1234"
    assert all(entry.redelivered for entry in queue.backlog)


def test_commit_and_rollback_need_a_transaction(channel: ClientChannel) -> None:
    for operation in (channel.core.commit, channel.core.rollback):
        with pytest.raises(PreconditionFailed, match="channel is not transactional"):
            operation()


def test_selecting_twice_keeps_what_is_held(transaction: ClientChannel, queue: Queue) -> None:
    transaction.publish_all("1", "q")
    transaction.core.select_transactions()
    transaction.core.commit()
    assert waiting(queue) == "1"


def test_transactions_of_two_channels_do_not_meet(broker: Broker, transaction: ClientChannel, queue: Queue) -> None:
    other = Client(broker).channel()
    other.core.select_transactions()
    transaction.publish_all("1", "q")
    other.publish_all("2", "q")
    other.core.commit()
    transaction.core.rollback()
    assert waiting(queue) == "2"
