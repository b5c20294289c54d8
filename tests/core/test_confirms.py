"""Publisher confirms: each publish once, in order, combined, when its epoch has the queue's durability level."""

from __future__ import annotations

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker
from tests.support.storage import ManualStorage
from warrenmq.core.broker import Broker
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.queue import Queue


@pytest.fixture
def storage() -> ManualStorage:
    return ManualStorage()


@pytest.fixture
def broker(storage: ManualStorage) -> Broker:
    return make_broker(storage)


@pytest.fixture
def confirming(channel: ClientChannel) -> ClientChannel:
    channel.core.select_confirms()
    return channel


@pytest.fixture
def durable(channel: ClientChannel) -> Queue:
    return channel.declare("durable", durable=True)


@pytest.fixture
def relaxed(channel: ClientChannel) -> Queue:
    """A durable queue whose messages need not be on the disk."""
    return channel.declare("relaxed", durable=True, arguments={"x-durability": "os"})


def publish_persistent(channel: ClientChannel, bodies: str, queue: str = "durable") -> None:
    channel.publish_all(bodies, queue, delivery_mode=PERSISTENT)


# -- transient work is confirmed with its turn


def test_nothing_is_confirmed_on_an_ordinary_channel(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("123", "q")
    broker.end_turn()
    assert channel.confirms() == []


def test_a_publish_is_confirmed_when_its_turn_ends(broker: Broker, confirming: ClientChannel, queue: Queue) -> None:
    confirming.publish(b"1", "q")
    assert confirming.confirms() == []
    broker.end_turn()
    assert confirming.confirms() == [(1, False)]


def test_the_publishes_of_a_turn_are_confirmed_together(
    broker: Broker, confirming: ClientChannel, queue: Queue
) -> None:
    confirming.publish_all("123", "q")
    broker.end_turn()
    confirming.publish_all("4", "q")
    broker.end_turn()
    confirming.publish_all("56", "q")
    broker.end_turn()
    assert confirming.confirms() == [(3, True), (4, False), (6, True)]
    assert broker.stats.confirmed == 6


def test_a_turn_without_publishes_confirms_nothing(broker: Broker, confirming: ClientChannel, queue: Queue) -> None:
    confirming.publish(b"1", "q")
    broker.end_turn()
    broker.end_turn()
    assert confirming.confirms() == [(1, False)]


def test_what_reached_no_queue_is_confirmed_too(broker: Broker, confirming: ClientChannel) -> None:
    confirming.publish(b"1", "nowhere")
    broker.end_turn()
    assert confirming.confirms() == [(1, False)]


def test_numbers_begin_when_confirms_are_selected(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("12", "q")
    channel.core.select_confirms()
    channel.core.select_confirms()
    channel.publish_all("3", "q")
    broker.end_turn()
    assert channel.confirms() == [(1, False)]


def test_each_channel_counts_for_itself(broker: Broker, client: Client, queue: Queue) -> None:
    first, second = client.channel(), client.channel()
    first.core.select_confirms()
    second.core.select_confirms()
    first.publish_all("12", "q")
    second.publish_all("3", "q")
    broker.end_turn()
    assert (first.confirms(), second.confirms()) == ([(2, True)], [(1, False)])


def test_a_closed_channel_is_not_confirmed(broker: Broker, confirming: ClientChannel, queue: Queue) -> None:
    confirming.publish(b"1", "q")
    confirming.close()
    broker.end_turn()
    assert confirming.confirms() == []


def test_confirms_and_transactions_exclude_each_other(channel: ClientChannel, other: ClientChannel) -> None:
    channel.core.select_confirms()
    with pytest.raises(PreconditionFailed, match="cannot switch from confirm to tx mode"):
        channel.core.select_transactions()
    other.core.select_transactions()
    with pytest.raises(PreconditionFailed, match="cannot switch from tx to confirm mode"):
        other.core.select_confirms()


# -- durable work waits for its epoch


def test_a_persistent_publish_is_confirmed_when_its_epoch_is_durable(
    broker: Broker, confirming: ClientChannel, durable: Queue
) -> None:
    publish_persistent(confirming, "12")
    broker.end_turn()
    assert confirming.confirms() == []
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == [(2, True)]
    broker.storage.log.advance(2, 2)
    assert confirming.confirms() == []


def test_a_durable_epoch_covers_all_before_it(broker: Broker, confirming: ClientChannel, durable: Queue) -> None:
    for letter in "123":
        publish_persistent(confirming, letter)
        broker.end_turn()
    broker.storage.log.advance(2, 2)
    assert confirming.confirms() == [(2, True)]
    broker.storage.log.advance(3, 3)
    assert confirming.confirms() == [(3, False)]


def test_a_transient_turn_waits_behind_a_durable_one(
    broker: Broker, confirming: ClientChannel, durable: Queue, queue: Queue
) -> None:
    publish_persistent(confirming, "1")
    broker.end_turn()
    confirming.publish_all("23", "q")
    broker.end_turn()
    assert confirming.confirms() == []
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == [(3, True)]


def test_a_transient_turn_between_durable_ones_waits_only_for_the_first(
    broker: Broker, confirming: ClientChannel, durable: Queue, queue: Queue
) -> None:
    publish_persistent(confirming, "1")
    broker.end_turn()
    confirming.publish_all("2", "q")
    broker.end_turn()
    publish_persistent(confirming, "3")
    broker.end_turn()
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == [(2, True)]
    broker.storage.log.advance(2, 2)
    assert confirming.confirms() == [(3, False)]


def test_once_nothing_is_pending_transient_turns_do_not_wait(
    broker: Broker, confirming: ClientChannel, durable: Queue, queue: Queue
) -> None:
    publish_persistent(confirming, "1")
    broker.end_turn()
    broker.storage.log.advance(1, 1)
    confirming.publish_all("2", "q")
    broker.end_turn()
    assert confirming.confirms() == [(1, False), (2, False)]


def test_a_transient_publish_in_a_durable_turn_waits_with_it(
    broker: Broker, confirming: ClientChannel, durable: Queue, queue: Queue
) -> None:
    confirming.publish_all("1", "q")
    publish_persistent(confirming, "2")
    broker.end_turn()
    assert confirming.confirms() == []
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == [(2, True)]


def test_delivery_does_not_wait_for_the_epoch(broker: Broker, confirming: ClientChannel, durable: Queue) -> None:
    confirming.consume(durable)
    publish_persistent(confirming, "1")
    assert confirming.bodies() == "1"
    assert confirming.confirms() == []


def test_what_is_settled_by_being_delivered_is_confirmed_at_once(
    broker: Broker, confirming: ClientChannel, durable: Queue
) -> None:
    confirming.consume(durable, no_ack=True)
    publish_persistent(confirming, "1")
    assert confirming.bodies() == "1"
    assert confirming.confirms() == [(1, False)]


def test_a_channel_that_closed_while_waiting_is_forgotten(
    broker: Broker, confirming: ClientChannel, durable: Queue
) -> None:
    publish_persistent(confirming, "1")
    broker.end_turn()
    confirming.close()
    assert not broker.awaiting_epoch
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == []


def test_several_channels_wait_for_the_same_epoch(broker: Broker, client: Client, durable: Queue) -> None:
    channels = [client.channel() for _ in range(3)]
    for channel in channels:
        channel.core.select_confirms()
        publish_persistent(channel, "12")
    broker.end_turn()
    broker.storage.log.advance(1, 1)
    assert [channel.confirms() for channel in channels] == [[(2, True)]] * 3
    assert not broker.awaiting_epoch


def test_transient_publishes_of_one_channel_do_not_wait_for_the_durable_ones_of_another(
    broker: Broker, client: Client, durable: Queue, queue: Queue
) -> None:
    transient, persistent = client.channel(), client.channel()
    transient.core.select_confirms()
    persistent.core.select_confirms()
    publish_persistent(persistent, "1")
    transient.publish_all("2", "q")
    broker.end_turn()
    assert (persistent.confirms(), transient.confirms()) == ([], [(1, False)])


def test_a_turn_waits_for_what_its_publishes_kept_and_not_for_the_acks_of_others(
    broker: Broker, confirming: ClientChannel, other: ClientChannel, durable: Queue, queue: Queue
) -> None:
    publish_persistent(other, "1")
    other.get(durable, no_ack=False)
    broker.end_turn()
    other.ack(1)
    confirming.publish_all("2", "q")
    broker.end_turn()
    assert confirming.confirms() == [(1, False)]


def test_what_was_published_before_confirms_were_selected_holds_nothing_up(
    broker: Broker, channel: ClientChannel, durable: Queue, queue: Queue
) -> None:
    publish_persistent(channel, "1")
    channel.core.select_confirms()
    channel.publish_all("2", "q")
    broker.end_turn()
    assert channel.confirms() == [(1, False)]


def test_a_long_wait_costs_no_memory_per_turn(
    broker: Broker, storage: ManualStorage, confirming: ClientChannel, durable: Queue, queue: Queue
) -> None:
    for _ in range(100):
        publish_persistent(confirming, "1")
        broker.end_turn()
        storage.log.epoch = 0  # the log is busy: the same epoch goes on gathering
        confirming.publish_all("2", "q")
        broker.end_turn()
    assert len(confirming.core.awaiting_epoch) == 1
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == [(200, True)]


# -- queues that ask for less than the disk


def test_a_queue_with_durability_os_is_confirmed_when_the_epoch_is_written(
    broker: Broker, confirming: ClientChannel, relaxed: Queue
) -> None:
    publish_persistent(confirming, "1", "relaxed")
    broker.end_turn()
    assert confirming.confirms() == []
    broker.storage.log.advance(1, 0)
    assert confirming.confirms() == [(1, False)]
    assert not broker.awaiting_epoch


def test_a_written_epoch_is_not_enough_for_other_queues(
    broker: Broker, confirming: ClientChannel, other: ClientChannel, durable: Queue, relaxed: Queue
) -> None:
    other.core.select_confirms()
    publish_persistent(other, "1", "relaxed")
    publish_persistent(confirming, "2")
    broker.end_turn()
    broker.storage.log.advance(1, 0)
    assert (confirming.confirms(), other.confirms()) == ([], [(1, False)])
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == [(1, False)]


def test_a_durable_epoch_is_a_written_one(broker: Broker, confirming: ClientChannel, relaxed: Queue) -> None:
    publish_persistent(confirming, "1", "relaxed")
    broker.end_turn()
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == [(1, False)]


def test_the_publishes_of_a_turn_wait_for_the_highest_durability_among_them(
    broker: Broker, confirming: ClientChannel, durable: Queue, relaxed: Queue
) -> None:
    publish_persistent(confirming, "1", "relaxed")
    publish_persistent(confirming, "2")
    publish_persistent(confirming, "3", "relaxed")
    broker.end_turn()
    broker.storage.log.advance(1, 0)
    assert confirming.confirms() == []
    broker.storage.log.advance(1, 1)
    assert confirming.confirms() == [(3, True)]


def test_one_message_waits_for_the_highest_durability_of_its_queues(
    broker: Broker, confirming: ClientChannel, durable: Queue, relaxed: Queue
) -> None:
    for queue in (durable, relaxed):
        confirming.bind("amq.fanout", queue)
    confirming.publish(b"1", "", "amq.fanout", delivery_mode=PERSISTENT)
    broker.end_turn()
    broker.storage.log.advance(1, 0)
    assert confirming.confirms() == []


def test_confirms_of_both_kinds_do_not_overtake_each_other(
    broker: Broker, confirming: ClientChannel, durable: Queue, relaxed: Queue
) -> None:
    for queue in ("relaxed", "durable", "relaxed", "relaxed"):
        publish_persistent(confirming, "1", queue)
        broker.end_turn()
    broker.storage.log.advance(4, 0)
    assert confirming.confirms() == [(1, False)]
    broker.storage.log.advance(2, 2)
    assert confirming.confirms() == [(4, True)]


# -- calls of the store


def test_the_store_keeps_persistent_messages_of_durable_queues_only(
    storage: ManualStorage, channel: ClientChannel, durable: Queue, queue: Queue
) -> None:
    publish_persistent(channel, "1")
    channel.publish_all("2", "durable")
    channel.publish_all("3", "q", delivery_mode=PERSISTENT)
    assert (storage.kept("durable"), storage.kept("q")) == ("1", "")


def test_the_store_keeps_a_message_until_it_is_settled(
    storage: ManualStorage, channel: ClientChannel, durable: Queue
) -> None:
    publish_persistent(channel, "123456")
    channel.get(durable)
    assert storage.kept("durable") == "23456"
    for _ in range(3):
        channel.get(durable, no_ack=False)
    assert storage.kept("durable") == "23456"
    channel.ack(2)
    channel.reject(3, requeue=True)
    channel.reject(4, requeue=False)
    assert storage.kept("durable") == "356"
    durable.purge()
    assert storage.kept("durable") == ""


def test_the_store_forgets_a_deleted_queue(storage: ManualStorage, channel: ClientChannel, durable: Queue) -> None:
    publish_persistent(channel, "12")
    channel.get(durable, no_ack=False)
    channel.delete(durable)
    assert storage.kept("durable") == ""
    channel.declare("durable", durable=True)
    publish_persistent(channel, "3")
    channel.ack(1)
    assert storage.kept("durable") == "3"
