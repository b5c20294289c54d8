"""Message expiry, at any position in a queue."""

from __future__ import annotations

import pytest

from tests.support.client import Client, ClientChannel, advance, assert_nothing_is_held, make_broker, waiting
from warrenmq.core import expiry
from warrenmq.core.broker import Broker
from warrenmq.core.options import QueueOptions
from warrenmq.events import schema

NOW = 1_000_000


@pytest.fixture
def broker() -> Broker:
    return make_broker(now_ms=NOW)


def expired(broker: Broker) -> int:
    return int(broker.stats.dropped[schema.R_EXPIRED])


def test_messages_of_a_queue_with_a_ttl_expire_in_order(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-message-ttl": 100})
    channel.publish(b"a", "q")
    advance(broker, 50)
    channel.publish(b"b", "q")
    advance(broker, 40)
    assert waiting(queue) == "ab"
    advance(broker, 26)
    assert waiting(queue) == "b"
    advance(broker, 50)
    assert (waiting(queue), expired(broker)) == ("", 2)
    assert_nothing_is_held(broker)


def test_a_fixed_ttl_needs_no_index(channel: ClientChannel, broker: Broker) -> None:
    channel.declare("q", arguments={"x-message-ttl": 100})
    channel.publish_all("abc", "q")
    assert (broker.stats.expiry_bytes, len(broker.timers)) == (0, 1)


def test_a_message_expires_behind_one_that_does_not(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.publish(b"a", "q")
    channel.publish(b"b", "q", expiration="100")
    channel.publish(b"c", "q", expiration="50")
    channel.publish(b"d", "q")
    advance(broker, 66)
    assert waiting(queue) == "abd"
    advance(broker, 50)
    assert waiting(queue) == "ad"
    assert broker.stats.expiry_bytes == 0
    assert (len(queue.backlog), queue.backlog.body_bytes) == (2, 2)


def test_the_lower_of_both_counts(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-message-ttl": 100})
    channel.publish(b"a", "q", expiration="1000")
    channel.publish(b"b", "q", expiration="10")
    advance(broker, 32)
    assert waiting(queue) == "a"
    advance(broker, 100)
    assert waiting(queue) == ""


def test_what_expired_is_not_delivered_before_the_timer_runs(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-message-ttl": 5})
    channel.publish_all("ab", "q")
    broker.turn.now_ms += 6
    channel.publish(b"c", "q")
    got = channel.get(queue)
    assert got is not None
    assert got.body == b"c"
    channel.publish(b"d", "q")
    broker.turn.now_ms += 6
    channel.publish(b"e", "q")
    channel.consume(queue)
    assert channel.bodies() == "e"
    assert expired(broker) == 3


def test_a_ttl_of_zero_is_for_consumers_that_wait(channel: ClientChannel, other: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-message-ttl": 0})
    channel.publish(b"a", "q")
    assert (waiting(queue), expired(broker)) == ("", 1)
    other.consume(queue)
    channel.publish(b"b", "q")
    channel.publish(b"c", "q", expiration="0")
    assert other.bodies() == "bc"
    assert expired(broker) == 1


def test_an_unacked_message_does_not_expire_but_one_that_comes_back_does(
    channel: ClientChannel, broker: Broker
) -> None:
    queue = channel.declare("q", arguments={"x-message-ttl": 100})
    channel.publish(b"a", "q")
    got = channel.get(queue, no_ack=False)
    advance(broker, 200)
    assert (queue.unacked_count, expired(broker)) == (1, 0)
    assert got is not None
    channel.reject(got.tag)
    advance(broker, 16)
    assert (waiting(queue), expired(broker)) == ("", 1)
    assert_nothing_is_held(broker)


def test_a_message_that_comes_back_keeps_its_time(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.publish(b"a", "q", expiration="100")
    advance(broker, 60)
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag)
    advance(broker, 20)
    assert waiting(queue) == "a"
    advance(broker, 36)
    assert waiting(queue) == ""


def test_a_ttl_that_is_set_later_counts_for_new_messages(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.publish_all("ab", "q")
    channel.vhost.apply(queue, QueueOptions(message_ttl_ms=100))
    channel.publish_all("cd", "q")
    advance(broker, 50)
    channel.publish(b"e", "q")
    advance(broker, 66)
    assert waiting(queue) == "abe"
    got = channel.get(queue, no_ack=False)
    channel.get(queue)
    channel.publish(b"f", "q")  # from here on only the first one is looked at
    assert got is not None
    channel.reject(got.tag)  # in front of it stands one that never expires
    advance(broker, 120)
    assert waiting(queue) == "a"
    channel.vhost.apply(queue, QueueOptions())
    channel.publish(b"g", "q")
    advance(broker, 1000)
    assert waiting(queue) == "ag"


def test_a_shorter_ttl_expires_new_messages_before_older_ones(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-message-ttl": 1000})
    channel.publish(b"a", "q")
    channel.vhost.apply(queue, QueueOptions(message_ttl_ms=100))
    channel.publish(b"b", "q")
    advance(broker, 116)
    assert waiting(queue) == "a"
    advance(broker, 900)
    assert waiting(queue) == ""


def test_a_purge_and_a_deletion_leave_no_index(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.publish_all("abc", "q", expiration="100")
    assert broker.stats.expiry_bytes == 3 * expiry.INDEX_ENTRY
    channel.delete(queue)
    assert (broker.stats.expiry_bytes, len(broker.timers)) == (0, 0)
    queue = channel.declare("q")
    channel.publish_all("abc", "q", expiration="100")
    queue.purge()
    advance(broker, 200)
    assert (broker.stats.expiry_bytes, expired(broker)) == (0, 0)


def test_consumed_messages_leave_the_index_before_their_time(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.publish(b"first", "q", expiration="1000000")
    for _ in range(20_000):
        channel.publish(b"x", "q", expiration="1000000")
        channel.get(queue)
    assert len(queue.backlog) == 1
    assert broker.stats.expiry_bytes < 6000 * expiry.INDEX_ENTRY


def test_many_that_expire_together_take_several_turns(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-message-ttl": 100})
    mixed = channel.declare("mixed")
    for _ in range(expiry.MAX_PER_TURN + 10):
        channel.publish(b"x", "q")
        channel.publish(b"x", "mixed", expiration="100")
    broker.turn.now_ms += 200
    broker.timers.advance(broker.turn.now_ms)
    assert (len(queue.backlog), len(mixed.backlog)) == (10, 10)
    advance(broker, 0)
    assert (len(queue.backlog), len(mixed.backlog)) == (0, 0)
    assert_nothing_is_held(broker)


def test_gaps_in_a_long_queue_do_not_change_its_order(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    for number in range(5000):
        if number % 3:
            channel.publish(b"%d" % number, "q", expiration=str(100 + number % 7))
        else:
            channel.publish(b"%d" % number, "q")
    advance(broker, 200)
    expected = [b"%d" % number for number in range(0, 5000, 3)]
    assert [entry.message.body for entry in queue.backlog] == expected
    assert len(queue.backlog) == len(expected)
    got = []
    while (message := channel.get(queue)) is not None:
        got.append(message.body)
    assert got == expected
    assert_nothing_is_held(broker)


@pytest.mark.parametrize("arguments", [{}, {"x-message-ttl": 200}])
def test_messages_that_come_back_among_gaps(
    client: Client, channel: ClientChannel, broker: Broker, arguments: dict[str, int]
) -> None:
    queue = channel.declare("q", arguments=arguments)
    for letter in "abcdefgh":
        channel.publish(letter.encode(), "q", expiration="100" if letter in "bceg" else "150")
    tags = [channel.get(queue, no_ack=False) for _ in range(3)]
    advance(broker, 116)
    assert waiting(queue) == "dfh"
    for got in reversed(tags):
        assert got is not None
        channel.reject(got.tag)
    assert channel.get(queue).body == b"a"  # type: ignore[union-attr]
    advance(broker, 0)
    assert waiting(queue) == "dfh"
    advance(broker, 50)
    assert waiting(queue) == ""
    assert_nothing_is_held(broker)
