"""Queues with priorities: the highest first, in order among equals."""

from __future__ import annotations

import pytest

from tests.support.client import ClientChannel, advance, assert_nothing_is_held, waiting
from warrenmq.core.broker import Broker
from warrenmq.core.queue import Queue

PRIORITIES = {"a": 0, "b": 5, "c": 9, "d": 5, "e": 200, "f": None, "g": 1}


@pytest.fixture
def levels(channel: ClientChannel) -> Queue:
    queue = channel.declare("p", arguments={"x-max-priority": 9})
    for letter, priority in PRIORITIES.items():
        channel.publish(letter.encode(), "p", priority=priority)
    return queue


def test_the_highest_priority_comes_first(channel: ClientChannel, levels: Queue, broker: Broker) -> None:
    assert (waiting(levels), len(levels.backlog), levels.backlog.body_bytes) == ("cebdgaf", 7, 7)
    channel.consume(levels, prefetch=3)
    assert channel.bodies() == "ceb"
    channel.publish(b"X", "p", priority=9)
    channel.ack(1)
    assert channel.bodies() == "X"
    channel.ack(0, multiple=True)
    assert channel.bodies() == "dga"
    channel.ack(0, multiple=True)
    assert channel.bodies() == "f"
    channel.ack(0, multiple=True)
    assert_nothing_is_held(broker)


def test_what_comes_back_goes_to_its_old_place(channel: ClientChannel, levels: Queue) -> None:
    tags = [channel.get(levels, no_ack=False).tag for _ in range(4)]  # type: ignore[union-attr]
    assert waiting(levels) == "gaf"
    for tag in tags:
        channel.reject(tag)
    assert (waiting(levels), len(levels.backlog)) == ("cebdgaf", 7)


def test_purging_and_deleting(channel: ClientChannel, levels: Queue, broker: Broker) -> None:
    got = channel.get(levels, no_ack=False)
    assert levels.purge() == 6
    assert (len(levels.backlog), levels.backlog.body_bytes) == (0, 0)
    channel.publish(b"x", "p", priority=3)
    assert channel.delete(levels) == 1
    assert got is not None
    channel.ack(got.tag)
    assert_nothing_is_held(broker)


def test_each_priority_expires_by_itself(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("p", arguments={"x-max-priority": 3, "x-message-ttl": 100})
    channel.publish(b"a", "p", priority=1)
    advance(broker, 50)
    channel.publish(b"b", "p", priority=2)
    channel.publish(b"c", "p", priority=1, expiration="20")
    channel.publish(b"d", "p", priority=1)
    advance(broker, 32)
    assert (waiting(queue), len(queue.backlog)) == ("bad", 3)
    advance(broker, 40)
    assert (waiting(queue), len(queue.backlog), queue.backlog.body_bytes) == ("bd", 2, 2)
    advance(broker, 100)
    assert len(queue.backlog) == 0
    assert_nothing_is_held(broker)


def test_a_full_queue_drops_its_head_which_has_the_highest_priority(channel: ClientChannel) -> None:
    queue = channel.declare("p", arguments={"x-max-priority": 3, "x-max-length": 2})
    for letter, priority in (("a", 1), ("b", 2), ("c", 0)):
        channel.publish(letter.encode(), "p", priority=priority)
    assert waiting(queue) == "ac"


def test_no_priorities_without_a_highest_one(channel: ClientChannel) -> None:
    queue = channel.declare("p", arguments={"x-max-priority": 0})
    channel.publish(b"a", "p", priority=1)
    channel.publish(b"b", "p", priority=2)
    assert waiting(queue) == "ab"
