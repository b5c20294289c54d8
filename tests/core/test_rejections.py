"""A rejected publish is nacked, in order with the confirms."""

from __future__ import annotations

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker, waiting
from tests.support.rejecting import RejectingQueue, add_rejecting_queue, take_answers
from tests.support.storage import ManualStorage
from warrenmq.core.broker import Broker
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.outcome import DELIVERED, QUEUED, REJECTED, WAITS_FOR
from warrenmq.core.ports import NOTHING, SYNCED, WRITTEN
from warrenmq.core.publishing import pop_runs
from warrenmq.core.queue import Queue

DURABLE_EPOCH = 1  # that of the declaration


@pytest.fixture
def broker() -> Broker:
    broker = make_broker(ManualStorage())
    channel = Client(broker).channel()
    channel.declare("durable", durable=True)
    broker.end_turn()
    broker.storage.log.advance(DURABLE_EPOCH, DURABLE_EPOCH)
    return broker


@pytest.fixture
def confirming(channel: ClientChannel) -> ClientChannel:
    channel.core.select_confirms()
    return channel


@pytest.fixture
def full(channel: ClientChannel) -> RejectingQueue:
    return add_rejecting_queue(channel.vhost)


def publish(channel: ClientChannel, queues: str) -> None:
    """One message for each letter: d to the durable queue, f to the full one, q to another."""
    for letter in queues:
        key = {"d": "durable", "f": "full", "q": "q"}[letter]
        channel.publish(letter.encode(), key, delivery_mode=PERSISTENT)


def test_a_rejected_publish_is_nacked(broker: Broker, confirming: ClientChannel, full: Queue) -> None:
    publish(confirming, "f")
    assert take_answers(confirming.client.outbox) == []
    broker.end_turn()
    assert take_answers(confirming.client.outbox) == [("nack", 1, False)]
    assert broker.stats.confirmed == 0


def test_nacks_stand_in_the_middle_of_confirmed_ranges(
    broker: Broker, confirming: ClientChannel, queue: Queue, full: Queue
) -> None:
    publish(confirming, "qqfqqqffq")
    broker.end_turn()
    assert take_answers(confirming.client.outbox) == [
        ("ack", 2, True),
        ("nack", 3, False),
        ("ack", 6, True),
        ("nack", 8, True),
        ("ack", 9, False),
    ]
    assert broker.stats.confirmed == 6


def test_a_nack_waits_for_the_epoch_of_its_turn(broker: Broker, confirming: ClientChannel, full: Queue) -> None:
    publish(confirming, "dfd")
    broker.end_turn()
    assert take_answers(confirming.client.outbox) == []
    broker.storage.log.advance(2, 2)
    assert take_answers(confirming.client.outbox) == [("ack", 1, False), ("nack", 2, False), ("ack", 3, False)]


def test_a_nack_does_not_overtake_confirms_of_earlier_turns(
    broker: Broker, confirming: ClientChannel, full: Queue
) -> None:
    publish(confirming, "dd")
    broker.end_turn()
    publish(confirming, "f")
    broker.end_turn()
    publish(confirming, "d")
    broker.end_turn()
    assert take_answers(confirming.client.outbox) == []
    broker.storage.log.advance(2, 2)
    assert take_answers(confirming.client.outbox) == [("ack", 2, True), ("nack", 3, False)]
    broker.storage.log.advance(3, 3)
    assert take_answers(confirming.client.outbox) == [("ack", 4, False)]


def test_one_queue_that_rejects_is_enough(broker: Broker, confirming: ClientChannel, queue: Queue, full: Queue) -> None:
    for target in (queue, full):
        confirming.bind("amq.fanout", target)
    confirming.publish(b"1", "", "amq.fanout")
    broker.end_turn()
    assert waiting(queue) == "1"
    assert take_answers(confirming.client.outbox) == [("nack", 1, False)]


def test_nothing_is_answered_without_confirms(broker: Broker, channel: ClientChannel, full: Queue) -> None:
    publish(channel, "ff")
    broker.end_turn()
    channel.core.select_confirms()
    publish(channel, "f")
    broker.end_turn()
    assert take_answers(channel.client.outbox) == [("nack", 1, False)]


def test_a_queue_that_has_room_again_confirms(broker: Broker, confirming: ClientChannel, full: RejectingQueue) -> None:
    publish(confirming, "f")
    full.is_full = False
    publish(confirming, "f")
    broker.end_turn()
    assert take_answers(confirming.client.outbox) == [("nack", 1, False), ("ack", 2, False)]
    assert waiting(full) == "f"


def test_a_commit_with_a_rejected_publish_fails_and_keeps_the_rest(
    broker: Broker, channel: ClientChannel, queue: Queue, full: RejectingQueue
) -> None:
    channel.core.select_transactions()
    publish(channel, "qfq")
    with pytest.raises(PreconditionFailed, match="partial tx completion"):
        channel.core.commit()
    assert waiting(queue) == "qq"
    full.is_full = False
    publish(channel, "f")
    channel.core.commit()
    assert waiting(full) == "f"


def test_an_exchange_does_not_remember_what_a_queue_rejected(
    broker: Broker, confirming: ClientChannel, full: RejectingQueue
) -> None:
    vhost = confirming.vhost
    vhost.declare_exchange("once", "fanout", False, False, False, {"x-message-deduplication": True})
    vhost.bind("once", full, "", {})
    for body in (b"1", b"2", b"3"):
        confirming.publish(body, "", "once", headers={"x-deduplication-header": "a"})
        full.is_full = False
    broker.end_turn()
    assert take_answers(confirming.client.outbox) == [("nack", 1, False), ("ack", 3, True)]
    assert waiting(full) == "2"
    assert broker.stats.deduplicated == 1


def test_runs_are_taken_up_to_a_tag() -> None:
    tags = [1, 2, 3, 5, 8, 9]
    assert pop_runs(tags, 8) == [(1, 3), (5, 5), (8, 8)]
    assert tags == [9]
    assert pop_runs(tags, 8) == []


def test_combined_outcome_waits_for_the_highest_durability_level() -> None:
    for combined in (QUEUED | WRITTEN | DELIVERED | SYNCED, REJECTED | SYNCED | QUEUED | NOTHING):
        assert combined & WAITS_FOR == SYNCED
    assert (QUEUED | NOTHING | DELIVERED | WRITTEN) & WAITS_FOR == WRITTEN
