"""The ring of consumers of a queue: round-robin, priorities, credit, and waking."""

from __future__ import annotations

from collections import Counter

from tests.support.client import Client, ClientChannel
from warrenmq.core.queue import Queue


def takers(channel: ClientChannel) -> str:
    return "".join(delivered.consumer for delivered in channel.deliveries())


def test_consumers_take_turns(channel: ClientChannel, queue: Queue) -> None:
    for tag in "abc":
        channel.consume(queue, tag)
    channel.publish_all("1234567", "q")
    assert takers(channel) == "abcabca"


def test_consumers_of_several_connections_take_turns(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "mine")
    other.consume(queue, "theirs")
    channel.publish_all("1234", "q")
    assert (channel.bodies(), other.bodies()) == ("13", "24")


def test_a_backlog_is_delivered_in_turns_too(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("123456", "q")
    channel.consume(queue, "a", prefetch=3)
    channel.consume(queue, "b", prefetch=3)
    assert Counter(takers(channel)) == {"a": 3, "b": 3}


def test_a_cancelled_consumer_leaves_the_turn_to_the_others(channel: ClientChannel, queue: Queue) -> None:
    for tag in "abc":
        channel.consume(queue, tag)
    channel.publish_all("1", "q")
    channel.core.cancel("b")
    channel.publish_all("2345", "q")
    assert takers(channel) == "acaca"


def test_the_highest_priority_takes_all_it_can(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "low", priority=-1)
    channel.consume(queue, "high", priority=10)
    channel.consume(queue, "default")
    channel.publish_all("123", "q")
    assert takers(channel) == "high" * 3


def test_equal_priorities_take_turns(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "c", priority=1)
    channel.consume(queue, "a", priority=5)
    channel.consume(queue, "b", priority=5)
    channel.publish_all("1234", "q")
    assert takers(channel) == "abab"


def test_lower_priorities_take_what_the_higher_have_no_credit_for(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "h", priority=2, prefetch=1)
    channel.consume(queue, "m", priority=1, prefetch=2)
    channel.consume(queue, "l", priority=0, prefetch=0)
    channel.publish_all("12345", "q")
    assert takers(channel) == "hmmll"
    channel.ack(1)
    channel.publish_all("67", "q")
    assert takers(channel) == "hl"


def test_priorities_come_and_go_with_their_consumers(channel: ClientChannel, queue: Queue) -> None:
    for priority in (3, 1, 2, 0):
        channel.consume(queue, str(priority), priority=priority)
    seen = ""
    for priority in (3, 2, 1, 0):
        channel.publish_all("x", "q")
        seen += takers(channel)
        channel.core.cancel(str(priority))
    assert seen == "3210"
    assert queue.ring.priorities == []


def test_a_consumer_without_credit_leaves_the_ring_and_an_ack_brings_it_back(
    channel: ClientChannel, queue: Queue
) -> None:
    consumer = channel.consume(queue, prefetch=1)
    channel.publish_all("123", "q")
    assert channel.bodies() == "1"
    assert not consumer.is_waiting
    channel.ack(1)
    assert channel.bodies() == "2"
    channel.ack(2)
    assert channel.bodies() == "3"
    channel.ack(3)
    assert consumer.unacked == 0


def test_a_consumer_that_needs_no_acks_has_credit_whatever_the_prefetch(channel: ClientChannel, queue: Queue) -> None:
    channel.core.limit_prefetch(1, True)
    consumer = channel.consume(queue, no_ack=True, prefetch=1)
    channel.publish_all("123", "q")
    assert channel.bodies() == "123"
    assert consumer.unacked == 0


def test_a_congested_outbox_parks_its_consumers_until_it_has_drained(
    client: Client, channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "a", no_ack=True)
    channel.consume(queue, "b")
    client.outbox.is_congested = True
    channel.publish_all("123", "q")
    assert channel.bodies() == ""
    other.consume(queue, "elsewhere", no_ack=True)
    assert other.bodies() == "123"
    other.core.cancel("elsewhere")
    channel.publish_all("45", "q")
    client.outbox.drain()
    assert channel.bodies() == "45"


def test_congestion_in_the_middle_of_a_backlog_stops_it_there(
    client: Client, channel: ClientChannel, queue: Queue
) -> None:
    channel.publish_all("12345", "q")

    def congest_after_two() -> None:
        client.outbox.is_congested = len(client.outbox.said) >= 2

    client.outbox.on_deliver = congest_after_two
    channel.consume(queue, no_ack=True)
    assert channel.bodies() == "12"
    client.outbox.drain()
    assert channel.bodies() == "34"
    client.outbox.drain()
    assert channel.bodies() == "5"


def test_a_cancelled_consumer_is_not_revived(client: Client, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue)
    client.outbox.is_congested = True
    channel.publish_all("1", "q")
    channel.core.cancel("consumer")
    assert not client.outbox.parked
    client.outbox.drain()
    assert channel.bodies() == ""
    assert len(queue.backlog) == 1


def test_a_closed_channel_leaves_nothing_parked(client: Client, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue)
    client.outbox.is_congested = True
    channel.publish_all("1", "q")
    channel.close()
    assert not client.outbox.parked
    assert queue.ring.levels == []
