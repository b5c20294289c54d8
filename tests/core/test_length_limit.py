"""A full queue drops its first messages, or rejects new ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, advance, assert_nothing_is_held, waiting
from tests.support.rejecting import take_answers
from warrenmq.core import expiry
from warrenmq.core.broker import Broker
from warrenmq.core.options import REJECT_PUBLISH, QueueOptions
from warrenmq.events import schema


def dropped(broker: Broker) -> int:
    return int(broker.stats.dropped[schema.R_MAXLEN])


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({"x-max-length": 2}, "de"),
        ({"x-max-length-bytes": 3}, "cde"),
        ({"x-max-length": 4, "x-max-length-bytes": 1}, "e"),
        ({"x-max-length": 0}, ""),
        ({"x-max-length-bytes": 0}, ""),
        ({"x-max-length": 5}, "abcde"),
        ({"x-max-length": 2, "x-overflow": "drop-head"}, "de"),
        ({"x-max-length": 2, "x-overflow": "reject-publish"}, "ab"),
        ({"x-max-length-bytes": 3, "x-overflow": "reject-publish-dlx"}, "abc"),
        ({"x-overflow": "reject-publish"}, "abcde"),
    ],
)
def test_what_is_left(channel: ClientChannel, broker: Broker, arguments: dict[str, Any], left: str) -> None:
    queue = channel.declare("q", arguments=arguments)
    channel.publish_all("abcde", "q")
    assert (waiting(queue), len(queue.backlog), queue.backlog.body_bytes) == (left, len(left), len(left))
    assert broker.stats.ready == len(left)


def test_unacked_messages_do_not_count(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-max-length": 2})
    channel.publish_all("ab", "q")
    tags = [channel.get(queue, no_ack=False) for _ in range(2)]
    channel.publish_all("cd", "q")
    assert waiting(queue) == "cd"
    for got in tags:
        assert got is not None
        channel.reject(got.tag)
    assert (waiting(queue), dropped(broker)) == ("cd", 2)  # they came back to the head, which is dropped


def test_a_message_for_a_waiting_consumer_is_never_too_much(channel: ClientChannel, other: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-max-length": 0})
    other.consume(queue)
    channel.publish_all("abc", "q")
    assert other.bodies() == "abc"


def test_a_rejected_publish_is_nacked_in_its_place(client: Client, channel: ClientChannel, broker: Broker) -> None:
    channel.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.declare("free")
    channel.core.select_confirms()
    for key in ("q", "q", "free", "q"):
        channel.publish(b"x", key)
    broker.end_turn()
    assert take_answers(client.outbox) == [("ack", 1, False), ("nack", 2, False), ("ack", 3, False), ("nack", 4, False)]
    assert broker.stats.rejected_publishes == 2


def test_a_limit_that_is_set_later_shortens_the_queue(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    for _ in range(2 * expiry.MAX_PER_TURN):
        channel.publish(b"x", "q")
    channel.vhost.apply(queue, QueueOptions(max_length=10))
    assert len(queue.backlog) == expiry.MAX_PER_TURN  # the rest in turns of its own
    advance(broker, 0)
    assert len(queue.backlog) == 10
    channel.vhost.apply(queue, QueueOptions(max_length=5, overflow=REJECT_PUBLISH))
    channel.publish(b"x", "q")
    assert len(queue.backlog) == 10  # it rejects publishes, and keeps what it has
    channel.vhost.apply(queue, QueueOptions())
    channel.publish_all("abcdef", "q")
    assert len(queue.backlog) == 16
    channel.delete(queue)
    assert_nothing_is_held(broker)
