"""A queue: order, requeue, purge, delete, and exclusive consumers."""

from __future__ import annotations

import pytest

from tests.support.client import Client, ClientChannel, assert_nothing_is_held, waiting
from warrenmq.core.broker import Broker
from warrenmq.core.errors import AccessRefused, NotAllowed, NotFound, PreconditionFailed, ResourceLocked
from warrenmq.core.queue import Queue


def heard(channel: ClientChannel) -> list[tuple[int, str, bool]]:
    return [(delivered.tag, delivered.body.decode(), delivered.redelivered) for delivered in channel.deliveries()]


# -- in and out


def test_messages_come_out_in_the_order_they_came_in(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("12345", "q")
    channel.consume(queue)
    assert heard(channel) == [(1, "1", False), (2, "2", False), (3, "3", False), (4, "4", False), (5, "5", False)]


def test_a_message_that_meets_a_waiting_consumer_never_stands_in_line(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, no_ack=True)
    channel.publish_all("1", "q")
    assert channel.bodies() == "1"
    assert waiting(queue) == ""
    assert_nothing_is_held(broker)


def test_a_new_message_does_not_overtake_those_that_wait(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, prefetch=1)
    channel.publish_all("123", "q")
    assert channel.bodies() == "1"
    channel.ack(1)
    channel.publish_all("4", "q")
    assert channel.bodies() == "2"
    channel.ack(2)
    assert channel.bodies() == "3"
    channel.ack(3)
    assert channel.bodies() == "4"


def test_get_takes_the_first_and_says_how_many_are_left(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("12", "q")
    first, second = channel.get(queue), channel.get(queue)
    assert first is not None
    assert second is not None
    assert (first.body, first.remaining, second.body, second.remaining) == (b"1", 1, b"2", 0)
    assert channel.get(queue) is None


# -- back to the old place


def test_what_is_requeued_returns_to_its_place_marked_as_redelivered(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("12345", "q")
    for _ in range(3):
        channel.get(queue, no_ack=False)
    channel.reject(2)
    assert waiting(queue) == "245"
    channel.reject(3)
    channel.reject(1)
    assert waiting(queue) == "12345"
    assert [entry.redelivered for entry in queue.backlog] == [True, True, True, False, False]


def test_what_is_requeued_in_any_order_stands_in_the_old_order(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("123456", "q")
    for _ in range(6):
        channel.get(queue, no_ack=False)
    for tag in (4, 1, 6, 3, 5, 2):
        channel.reject(tag)
    assert waiting(queue) == "123456"


def test_what_is_requeued_stands_between_what_others_requeued(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.publish_all("123456", "q")
    for _ in range(3):
        channel.get(queue, no_ack=False)
        other.get(queue, no_ack=False)
    other.close()
    assert waiting(queue) == "246"
    channel.reject(3, multiple=True)
    assert waiting(queue) == "123456"


def test_what_is_requeued_stands_before_what_came_later(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("12", "q")
    channel.get(queue, no_ack=False)
    channel.get(queue, no_ack=False)
    channel.publish_all("34", "q")
    channel.get(queue, no_ack=False)
    channel.core.recover()
    assert waiting(queue) == "1234"


def test_delivered_messages_return_to_their_place_too(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, prefetch=2)
    channel.publish_all("1234", "q")
    channel.core.cancel("consumer")
    channel.reject(2, multiple=True)
    assert waiting(queue) == "1234"


@pytest.mark.parametrize("prefetch", [1, 2, 3, 0])
def test_a_consumer_that_requeues_gets_the_same_messages_again_before_the_next(
    channel: ClientChannel, queue: Queue, prefetch: int
) -> None:
    consumer = channel.consume(queue, prefetch=prefetch)
    channel.publish_all("123", "q")
    out = prefetch or 3
    first = heard(channel)
    assert first == [(tag, str(tag), False) for tag in range(1, out + 1)]
    channel.reject(out, multiple=True)
    assert heard(channel) == [(out + tag, str(tag), True) for tag in range(1, out + 1)]
    assert consumer.unacked == out
    assert channel.core.ledger.outstanding == out
    channel.ack(2 * out, multiple=True)
    assert channel.bodies() == "123"[out:][:out]


@pytest.mark.parametrize("tag", [1, 2, 3])
def test_one_message_requeued_by_a_full_consumer_comes_back_to_it_and_can_be_settled(
    broker: Broker, channel: ClientChannel, queue: Queue, tag: int
) -> None:
    consumer = channel.consume(queue, prefetch=3)
    channel.publish_all("1234", "q")
    heard(channel)
    channel.reject(tag)
    assert heard(channel) == [(4, str(tag), True)]
    channel.ack(4)
    assert heard(channel) == [(5, "4", False)]
    channel.ack(0, multiple=True)
    assert consumer.unacked == 0
    assert_nothing_is_held(broker)


def test_recovered_messages_can_be_settled_when_they_come_again(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, prefetch=2)
    channel.publish_all("123", "q")
    heard(channel)
    channel.core.recover()
    assert heard(channel) == [(3, "1", True), (4, "2", True)]
    channel.ack(3)
    assert heard(channel) == [(5, "3", False)]
    channel.ack(5, multiple=True)
    assert_nothing_is_held(broker)


def test_what_a_full_consumer_requeues_another_one_can_take_and_settle(
    broker: Broker, channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    mine = channel.consume(queue, "mine", prefetch=2)
    channel.publish_all("12", "q")
    theirs = other.consume(queue, "theirs", prefetch=1, priority=1)
    channel.reject(2, multiple=True)
    assert heard(other) == [(1, "1", True)]
    assert heard(channel)[2:] == [(3, "2", True)]
    assert (mine.unacked, theirs.unacked) == (1, 1)
    channel.ack(3)
    other.ack(1)
    assert_nothing_is_held(broker)


def test_what_a_closed_channel_held_goes_to_the_others_in_order(
    broker: Broker, channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, prefetch=3)
    channel.publish_all("12345", "q")
    channel.ack(2)
    other.consume(queue, prefetch=2)
    assert other.bodies() == "5"
    channel.close()
    assert heard(other) == [(2, "1", True)]
    other.ack(2, multiple=True)
    assert [(body, again) for _, body, again in heard(other)] == [("3", True), ("4", True)]
    other.ack(0, multiple=True)
    assert_nothing_is_held(broker)


def test_several_queues_get_back_what_is_theirs(channel: ClientChannel, queue: Queue) -> None:
    second = channel.declare("second")
    channel.publish_all("ace", "q")
    channel.publish_all("bdf", "second")
    for _ in range(3):
        channel.get(queue, no_ack=False)
        channel.get(second, no_ack=False)
    channel.reject(0, multiple=True)
    assert (waiting(queue), waiting(second)) == ("ace", "bdf")


def test_a_message_keeps_being_redelivered(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("1", "q")
    channel.consume(queue, prefetch=1)
    for tag in range(1, 6):
        assert heard(channel) == [(tag, "1", tag > 1)]
        channel.reject(tag)


# -- purge and delete


def test_purge_drops_what_waits_and_leaves_what_is_unacked(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("1234", "q")
    channel.get(queue, no_ack=False)
    assert queue.purge() == 3
    assert queue.purge() == 0
    channel.reject(1)
    assert waiting(queue) == "1"


def test_delete_returns_the_number_of_messages_and_frees_the_name(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.publish_all("123", "q")
    channel.get(queue, no_ack=False)
    assert channel.delete(queue) == 2
    assert channel.declare("q") is not queue
    channel.ack(1)
    assert_nothing_is_held(broker)


def test_what_returns_to_a_deleted_queue_is_gone(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("12", "q")
    channel.get(queue, no_ack=False)
    channel.get(queue, no_ack=False)
    channel.delete(queue)
    fresh = channel.declare("q")
    channel.reject(1)
    channel.close()
    assert waiting(fresh) == ""
    assert_nothing_is_held(broker)


def test_deleting_what_does_not_exist_is_fine(channel: ClientChannel, queue: Queue) -> None:
    channel.delete(queue)
    assert channel.delete(queue) == 0


def test_a_queue_in_use_is_not_deleted_if_unused_was_asked(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue)
    with pytest.raises(PreconditionFailed, match="queue 'q' in vhost '/' in use"):
        channel.delete(queue, if_unused=True)
    channel.core.cancel("consumer")
    channel.delete(queue, if_unused=True)
    assert queue.is_deleted


def test_a_queue_with_messages_is_not_deleted_if_empty_was_asked(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("1", "q")
    with pytest.raises(PreconditionFailed, match="queue 'q' in vhost '/' not empty"):
        channel.delete(queue, if_empty=True)
    queue.purge()
    channel.delete(queue, if_empty=True)
    assert queue.is_deleted


def test_consumers_are_notified_when_their_queue_is_deleted(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "a")
    other.consume(queue, "b")
    other.delete(queue)
    assert (channel.cancels(), other.cancels()) == (["a"], ["b"])
    assert channel.core.consumers == {}


def test_a_lost_consumer_can_still_settle_what_it_holds_and_its_tag_is_free(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, prefetch=1)
    channel.publish_all("12", "q")
    channel.delete(queue)
    assert channel.cancels() == ["consumer"]
    channel.ack(1)
    channel.consume(channel.declare("q"))
    channel.publish_all("3", "q")
    assert channel.bodies() == "13"
    channel.ack(2)
    assert_nothing_is_held(broker)


# -- who may consume


def test_an_exclusive_consumer_is_alone(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "alone", exclusive=True)
    with pytest.raises(AccessRefused, match="queue 'q' in vhost '/' in exclusive use"):
        other.consume(queue)
    with pytest.raises(AccessRefused):
        channel.consume(queue, "second")
    channel.core.cancel("alone")
    other.consume(queue)


def test_an_exclusive_consumer_does_not_come_to_others(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "first")
    with pytest.raises(AccessRefused):
        channel.consume(queue, "alone", exclusive=True)


def test_a_channel_that_closes_ends_its_exclusive_consumer(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, exclusive=True)
    channel.close()
    other.consume(queue, exclusive=True)


def test_a_consumer_tag_is_used_once_per_channel(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "tag")
    with pytest.raises(NotAllowed, match="attempt to reuse consumer tag 'tag'"):
        channel.consume(queue, "tag")
    other.consume(queue, "tag")


# -- lifetimes


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: ClientChannel, other: ClientChannel) -> None:
    queue = channel.declare("q", auto_delete=True)
    channel.consume(queue)
    other.consume(queue)
    channel.core.cancel("consumer")
    assert not queue.is_deleted
    other.close()
    assert queue.is_deleted
    assert "q" not in channel.vhost.queues


def test_an_auto_delete_queue_without_a_consumer_stays(channel: ClientChannel) -> None:
    queue = channel.declare("q", auto_delete=True)
    channel.publish_all("1", "q")
    channel.get(queue)
    channel.close()
    assert not queue.is_deleted


def test_what_an_auto_delete_queue_held_goes_with_it(broker: Broker, channel: ClientChannel) -> None:
    queue = channel.declare("q", auto_delete=True)
    channel.consume(queue, prefetch=1)
    channel.publish_all("123", "q")
    channel.close()
    assert queue.is_deleted
    assert_nothing_is_held(broker)


def test_an_exclusive_queue_is_locked_to_other_connections(channel: ClientChannel, other: ClientChannel) -> None:
    queue = channel.declare("mine", exclusive=True)
    for attempt in (
        lambda: other.vhost.queue("mine", other.client.connection),
        lambda: other.declare("mine", exclusive=True),
        lambda: other.delete(queue),
    ):
        with pytest.raises(ResourceLocked, match="cannot obtain exclusive access to locked queue 'mine' in vhost '/'"):
            attempt()
    assert channel.vhost.queue("mine", channel.client.connection) is queue


def test_an_exclusive_queue_goes_with_its_connection(broker: Broker, client: Client, channel: ClientChannel) -> None:
    queue = channel.declare("mine", exclusive=True)
    channel.publish_all("12", "mine")
    channel.close()
    assert not queue.is_deleted
    client.close()
    assert queue.is_deleted
    with pytest.raises(NotFound):
        client.vhost.queue("mine", client.connection)
    assert_nothing_is_held(broker)


def test_a_deleted_exclusive_queue_is_forgotten_by_its_connection(client: Client, channel: ClientChannel) -> None:
    channel.delete(channel.declare("mine", exclusive=True))
    shared = channel.declare("mine")
    client.close()
    assert not shared.is_deleted
