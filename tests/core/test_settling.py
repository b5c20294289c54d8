"""Acks, rejects, recover and prefetch of a channel."""

from __future__ import annotations

import pytest

from tests.support.client import Client, ClientChannel, assert_nothing_is_held, waiting
from warrenmq.core.broker import Broker
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.queue import Queue

# -- acks and rejects


def test_an_acked_message_is_gone(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue)
    channel.publish_all("12", "q")
    channel.ack(2)
    channel.ack(1)
    assert_nothing_is_held(broker)
    assert broker.stats.acked == 2


@pytest.mark.parametrize("tag", [2, 0])
def test_multiple_settles_all_up_to_the_tag_or_all_there_are(
    broker: Broker, channel: ClientChannel, queue: Queue, tag: int
) -> None:
    channel.consume(queue)
    channel.publish_all("12", "q")
    channel.ack(tag, multiple=True)
    assert_nothing_is_held(broker)


def test_multiple_with_zero_is_fine_when_nothing_is_out(channel: ClientChannel) -> None:
    channel.ack(0, multiple=True)
    channel.reject(0, multiple=True)


@pytest.mark.parametrize("multiple", [False, True])
def test_a_tag_that_is_not_out_is_refused(channel: ClientChannel, queue: Queue, multiple: bool) -> None:
    channel.publish_all("12", "q")
    channel.get(queue, no_ack=False)
    channel.get(queue, no_ack=True)
    for tag in (2, 3, 2**63):
        for settle in (channel.ack, channel.reject):
            with pytest.raises(PreconditionFailed, match=f"unknown delivery tag {tag}"):
                settle(tag, multiple=multiple)
    assert queue.unacked_count == 1


def test_zero_without_multiple_is_refused(channel: ClientChannel) -> None:
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 0"):
        channel.ack(0)


def test_a_tag_of_one_channel_means_nothing_to_another(client: Client, channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("1", "q")
    channel.get(queue, no_ack=False)
    with pytest.raises(PreconditionFailed):
        client.channel().ack(1)


def test_a_message_rejected_without_requeue_is_gone(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, prefetch=1)
    channel.publish_all("12", "q")
    channel.reject(1, requeue=False)
    assert channel.bodies() == "12"
    channel.reject(0, multiple=True, requeue=False)
    assert_nothing_is_held(broker)
    assert broker.stats.acked == 0


def test_multiple_spans_several_queues_and_consumers(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    second = channel.declare("second")
    channel.consume(queue, "a", prefetch=2)
    channel.consume(second, "b", prefetch=2)
    channel.publish_all("123", "q")
    channel.publish_all("456", "second")
    assert channel.bodies() == "1245"
    channel.ack(0, multiple=True)
    assert channel.bodies() == "36"
    channel.ack(6, multiple=True)
    assert_nothing_is_held(broker)


def test_what_a_cancelled_consumer_holds_can_still_be_settled(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue)
    channel.publish_all("12", "q")
    channel.core.cancel("consumer")
    channel.ack(1)
    channel.reject(2)
    assert waiting(queue) == "2"
    assert channel.bodies() == "12"
    queue.purge()
    assert_nothing_is_held(broker)


def test_cancelling_an_unknown_consumer_is_fine(channel: ClientChannel) -> None:
    channel.core.cancel("nobody")


def test_recover_requeues_everything(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("123", "q")
    for _ in range(3):
        channel.get(queue, no_ack=False)
    channel.ack(2)
    channel.core.recover()
    assert waiting(queue) == "13"
    assert broker.stats.unacked == 0
    channel.core.recover()


def test_closing_twice_is_closing_once(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("1", "q")
    channel.get(queue, no_ack=False)
    channel.close()
    channel.close()
    assert waiting(queue) == "1"
    assert broker.stats.unacked == 0


def test_acks_of_one_turn_are_answered_with_messages_at_its_end(
    client: Client, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, prefetch=2)
    channel.publish_all("123456", "q")
    assert channel.bodies() == "12"
    channel.ack(1)
    channel.ack(2)
    assert client.outbox.said == []
    assert channel.bodies() == "34"


# -- prefetch


def test_a_prefetch_holds_for_consumers_started_later_each_by_itself(channel: ClientChannel, queue: Queue) -> None:
    second = channel.declare("second")
    channel.consume(queue, "unlimited")
    channel.consume(second, "a", prefetch=1)
    channel.consume(second, "b", prefetch=2)
    channel.publish_all("12345", "q")
    channel.publish_all("67890", "second")
    assert sorted(channel.bodies()) == list("12345678")
    assert waiting(second) == "90"


def test_a_channel_prefetch_is_shared_by_its_consumers(channel: ClientChannel, queue: Queue) -> None:
    second = channel.declare("second")
    channel.core.limit_prefetch(3, True)
    channel.consume(queue, "a")
    channel.consume(second, "b")
    channel.publish_all("12", "q")
    channel.publish_all("34", "second")
    assert channel.bodies() == "123"
    channel.ack(1)
    assert channel.bodies() == "4"
    channel.publish_all("5", "q")
    channel.publish_all("6", "second")
    assert channel.bodies() == ""
    channel.ack(0, multiple=True)
    assert channel.bodies() == "56"


def test_both_prefetches_hold_together(channel: ClientChannel, queue: Queue) -> None:
    channel.core.limit_prefetch(3, True)
    channel.consume(queue, "a", prefetch=2)
    channel.publish_all("12345", "q")
    assert channel.bodies() == "12"
    channel.consume(queue, "b", prefetch=2)
    assert channel.bodies() == "3"
    channel.ack(3)
    assert channel.bodies() == "4"


@pytest.mark.parametrize("count", [5, 0])
def test_a_larger_channel_prefetch_wakes_those_that_wait(channel: ClientChannel, queue: Queue, count: int) -> None:
    channel.core.limit_prefetch(1, True)
    channel.consume(queue)
    channel.publish_all("1234", "q")
    assert channel.bodies() == "1"
    channel.core.limit_prefetch(count, True)
    assert channel.bodies() == "234"


def test_a_smaller_channel_prefetch_waits_until_enough_is_settled(channel: ClientChannel, queue: Queue) -> None:
    channel.core.limit_prefetch(3, True)
    channel.consume(queue)
    channel.publish_all("12345", "q")
    assert channel.bodies() == "123"
    channel.core.limit_prefetch(1, True)
    channel.ack(2, multiple=True)
    assert channel.bodies() == ""
    channel.ack(3)
    assert channel.bodies() == "4"


def test_a_channel_prefetch_is_of_one_channel(client: Client, channel: ClientChannel, queue: Queue) -> None:
    second = client.channel()
    channel.core.limit_prefetch(1, True)
    channel.consume(queue)
    second.consume(queue)
    channel.publish_all("1234", "q")
    assert (channel.bodies(), second.bodies()) == ("1", "234")


def test_fetching_is_not_limited_by_a_prefetch(channel: ClientChannel, queue: Queue) -> None:
    channel.core.limit_prefetch(1, True)
    channel.publish_all("123", "q")
    for _ in range(3):
        assert channel.get(queue, no_ack=False) is not None
    channel.consume(queue)
    channel.publish_all("45", "q")
    assert channel.bodies() == "4"


def test_a_dropped_or_requeued_message_returns_the_credit_of_the_channel(channel: ClientChannel, queue: Queue) -> None:
    channel.core.limit_prefetch(1, True)
    channel.consume(queue)
    channel.publish_all("12", "q")
    channel.reject(1, requeue=False)
    assert channel.bodies() == "12"
    channel.reject(2)
    assert [(said.body, said.redelivered) for said in channel.deliveries()] == [(b"2", True)]
    assert channel.core.ledger.outstanding == 1


def test_a_cancelled_consumer_is_not_woken_by_the_channels_credit(channel: ClientChannel, queue: Queue) -> None:
    channel.core.limit_prefetch(1, True)
    channel.consume(queue)
    channel.publish_all("12", "q")
    channel.core.cancel("consumer")
    channel.ack(1)
    assert channel.bodies() == "1"
    assert waiting(queue) == "2"
    assert not channel.core.ledger.parked
