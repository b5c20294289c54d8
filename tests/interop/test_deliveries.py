"""Every client receives: consume, get, ack, nack, reject, requeue, prefetch, cancel."""

from __future__ import annotations

from collections import Counter

import pytest

from .clients.contract import GLANCE, Channel, Client, Feature
from .conftest import Connect, Namer


@pytest.fixture
def queue(channel: Channel, name: Namer) -> str:
    made = name("queue")
    channel.declare_queue(made)
    return made


def fill(channel: Channel, queue: str, count: int) -> list[bytes]:
    """Put numbered messages into a queue; they are there when this returns."""
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        channel.publish("", queue, body)
    channel.declare_queue(queue, passive=True)  # answered after all that was published before it
    return bodies


def test_get_takes_one_message_and_returns_how_many_are_left(channel: Channel, queue: str) -> None:
    assert channel.get(queue) is None
    fill(channel, queue, 2)
    first = channel.get(queue)
    assert first is not None
    assert (first.body, first.redelivered, first.routing_key, first.remaining) == (b"0", False, queue, 1)
    second = channel.get(queue, no_ack=True)
    assert second is not None
    assert (second.body, second.remaining) == (b"1", 0)
    channel.ack(first.tag)
    assert channel.get(queue) is None


def test_consumer_gets_what_waits_and_what_comes(channel: Channel, queue: str) -> None:
    fill(channel, queue, 2)
    tag = channel.consume(queue)
    waiting = channel.take(2)
    channel.publish("", queue, b"later")
    later = channel.take(1)[0]
    assert [delivery.body for delivery in waiting] == [b"0", b"1"]
    assert [delivery.tag for delivery in [*waiting, later]] == [1, 2, 3]
    assert {delivery.consumer for delivery in [*waiting, later]} == {tag}


def test_consumer_tag_is_chosen_by_the_client_or_made(channel: Channel, queue: str) -> None:
    assert channel.consume(queue, tag="my consumer") == "my consumer"
    made = [channel.consume(queue), channel.consume(queue)]
    assert all(made)
    assert len(set(made)) == 2


def test_cancelled_consumer_gets_nothing_more(channel: Channel, queue: str) -> None:
    tag = channel.consume(queue)
    channel.cancel(tag)
    fill(channel, queue, 1)
    assert channel.next_delivery(GLANCE) is None
    assert channel.purge_queue(queue) == 1


def test_acknowledged_message_is_gone(client: Client, channel: Channel, queue: str) -> None:
    fill(channel, queue, 1)
    other = client.channel()
    other.consume(queue)
    other.ack(other.take(1)[0].tag)
    other.close()
    assert channel.purge_queue(queue) == 0


def test_multiple_ack_settles_all_up_to_the_tag(client: Client, channel: Channel, queue: str) -> None:
    fill(channel, queue, 5)
    other = client.channel()
    other.consume(queue)
    deliveries = other.take(5)
    other.ack(deliveries[2].tag, multiple=True)
    other.close()
    assert channel.purge_queue(queue) == 2


def test_multiple_ack_of_tag_zero_settles_all(client: Client, channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    other = client.channel()
    other.consume(queue)
    other.take(3)
    other.ack(0, multiple=True)
    other.close()
    assert channel.purge_queue(queue) == 0


def test_unacknowledged_messages_come_back_when_the_channel_closes(
    client: Client, channel: Channel, queue: str
) -> None:
    bodies = fill(channel, queue, 3)
    other = client.channel()
    other.consume(queue)
    other.take(3)
    other.close()
    channel.consume(queue, no_ack=True)
    again = channel.take(3)
    assert [delivery.body for delivery in again] == bodies
    assert all(delivery.redelivered for delivery in again)


def test_unacknowledged_messages_come_back_when_the_connection_closes(connect: Connect, name: Namer) -> None:
    queue = name("queue")
    loser, keeper = connect(), connect()
    channel = loser.channel()
    channel.declare_queue(queue)
    bodies = fill(channel, queue, 3)
    channel.consume(queue)
    channel.take(3)
    other = keeper.channel()
    other.consume(queue)
    loser.close()
    again = other.take(3)
    assert [(delivery.body, delivery.redelivered) for delivery in again] == [(body, True) for body in bodies]


def test_rejected_message_is_dropped_or_comes_back(channel: Channel, queue: str) -> None:
    fill(channel, queue, 1)
    first = channel.get(queue)
    assert first is not None
    channel.reject(first.tag, requeue=True)
    second = channel.get(queue)
    assert second is not None
    assert (second.body, second.redelivered, second.tag) == (b"0", True, 2)
    channel.reject(second.tag, requeue=False)
    assert channel.get(queue) is None


@pytest.mark.needs(Feature.NACK)
def test_nacked_messages_go_back_to_their_places(channel: Channel, queue: str) -> None:
    bodies = fill(channel, queue, 5)
    channel.qos(3)
    tag = channel.consume(queue)
    deliveries = channel.take(3)
    channel.cancel(tag)
    channel.nack(deliveries[-1].tag, multiple=True, requeue=True)
    got = []
    for _ in bodies:
        delivery = channel.get(queue, no_ack=True)
        assert delivery is not None
        got.append((delivery.body, delivery.redelivered))
    assert got == [(b"0", True), (b"1", True), (b"2", True), (b"3", False), (b"4", False)]


@pytest.mark.needs(Feature.NACK)
def test_nack_without_requeue_drops(channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    channel.consume(queue)
    deliveries = channel.take(3)
    channel.nack(deliveries[1].tag, requeue=False)
    channel.nack(deliveries[2].tag, multiple=True, requeue=False)
    assert channel.next_delivery(GLANCE) is None
    assert channel.purge_queue(queue) == 0


def test_requeued_message_is_delivered_again_to_a_consumer(channel: Channel, queue: str) -> None:
    channel.consume(queue)
    fill(channel, queue, 1)
    first = channel.take(1)[0]
    channel.reject(first.tag, requeue=True)
    second = channel.take(1)[0]
    assert (first.redelivered, second.redelivered, second.body) == (False, True, b"0")
    channel.ack(second.tag)


@pytest.mark.needs(Feature.RECOVER)
def test_recover_delivers_the_unacknowledged_again(channel: Channel, queue: str) -> None:
    bodies = fill(channel, queue, 2)
    channel.consume(queue)
    channel.take(2)
    channel.recover()
    assert [(delivery.body, delivery.redelivered) for delivery in channel.take(2)] == [(body, True) for body in bodies]


def test_prefetch_bounds_each_consumer(channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(2)
    first, second = channel.consume(queue), channel.consume(queue)
    deliveries = channel.take(4)
    assert Counter(delivery.consumer for delivery in deliveries) == {first: 2, second: 2}
    assert channel.next_delivery(GLANCE) is None
    channel.ack(deliveries[0].tag)
    assert channel.take(1)[0].body == b"4"
    assert channel.next_delivery(GLANCE) is None


def test_prefetch_of_the_channel_bounds_all_its_consumers(channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(3, for_channel=True)
    channel.consume(queue)
    channel.consume(queue)
    deliveries = channel.take(3)
    assert channel.next_delivery(GLANCE) is None
    channel.ack(deliveries[-1].tag, multiple=True)
    channel.take(3)
    assert channel.next_delivery(GLANCE) is None


def test_channel_prefetch_starves_no_queue(channel: Channel, name: Namer) -> None:
    queues = [name(f"queue {number}") for number in range(3)]
    channel.qos(1, for_channel=True)
    for queue in queues:
        channel.declare_queue(queue)
        fill(channel, queue, 20)
        channel.consume(queue)
    served = []
    for _ in range(20):
        delivery = channel.take(1)[0]
        served.append(delivery.routing_key)
        channel.ack(delivery.tag)
    assert set(served) == set(queues)


def test_channel_prefetch_starves_no_consumer(channel: Channel, queue: str) -> None:
    channel.qos(1, for_channel=True)
    consumers = {channel.consume(queue), channel.consume(queue)}
    fill(channel, queue, 20)
    served = set()
    for _ in range(20):
        delivery = channel.take(1)[0]
        served.add(delivery.consumer)
        channel.ack(delivery.tag)
    assert served == consumers


def test_used_up_prefetch_of_the_channel_holds_back_all_its_consumers(
    channel: Channel, queue: str, name: Namer
) -> None:
    channel.qos(1, for_channel=True)
    channel.consume(queue)
    fill(channel, queue, 1)
    first = channel.take(1)[0]
    other = name("other")
    channel.declare_queue(other)
    channel.consume(other, no_ack=True)
    fill(channel, other, 1)
    assert channel.next_delivery(GLANCE) is None
    channel.ack(first.tag)
    assert channel.take(1)[0].routing_key == other


def test_prefetch_does_not_bound_those_who_do_not_acknowledge(channel: Channel, queue: str) -> None:
    bodies = fill(channel, queue, 20)
    channel.qos(1)
    channel.consume(queue, no_ack=True)
    assert [delivery.body for delivery in channel.take(20)] == bodies


def test_consumers_of_a_queue_take_turns(channel: Channel, queue: str) -> None:
    tags = [channel.consume(queue), channel.consume(queue), channel.consume(queue)]
    for _ in range(3):
        # One at a time: a consumer that is busy may be passed over.
        fill(channel, queue, 3)
        deliveries = channel.take(3)
        assert {delivery.consumer for delivery in deliveries} == set(tags)
        for delivery in deliveries:
            channel.ack(delivery.tag)


def test_consumer_of_higher_priority_is_served_first(channel: Channel, queue: str) -> None:
    channel.qos(2)
    channel.consume(queue, tag="low", arguments={"x-priority": -1})
    channel.consume(queue, tag="high", arguments={"x-priority": 10})
    fill(channel, queue, 3)
    assert [delivery.consumer for delivery in channel.take(3)] == ["high", "high", "low"]


def test_consumer_is_cancelled_when_its_queue_is_deleted(client: Client, channel: Channel, queue: str) -> None:
    tag = channel.consume(queue)
    client.channel().delete_queue(queue)
    assert channel.next_cancellation() == tag
    # The channel lives on.
    assert channel.declare_queue(queue).consumers == 0


def test_exclusive_consumer_leaves_room_when_cancelled(client: Client, channel: Channel, queue: str) -> None:
    tag = channel.consume(queue, exclusive=True)
    channel.cancel(tag)
    other = client.channel()
    other.consume(queue, exclusive=True)
    fill(channel, queue, 1)
    other.take(1)


def test_channels_of_a_connection_are_independent(client: Client, name: Namer) -> None:
    channels = [client.channel() for _ in range(5)]
    queues = [name(f"queue {number}") for number in range(5)]
    for channel, queue in zip(channels, queues, strict=True):
        channel.declare_queue(queue)
        channel.consume(queue)
    for number, queue in enumerate(queues):
        channels[-1 - number].publish("", queue, queue.encode())
    for channel, queue in zip(channels, queues, strict=True):
        delivery = channel.take(1)[0]
        assert (delivery.body, delivery.tag) == (queue.encode(), 1)
        channel.ack(delivery.tag)
