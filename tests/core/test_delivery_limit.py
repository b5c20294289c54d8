"""The delivery limit of quorum queues: what counts, what is dropped, and what consumers see of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept, body_of
from tests.support.client import PERSISTENT, Client, ClientChannel, assert_nothing_is_held
from tests.support.outbox import Delivered, GetOk
from tests.support.tracing import TracedBroker, story
from warrenmq.core.broker import Broker
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.queue import Queue
from warrenmq.core.snapshot import queue_view
from warrenmq.events import schema


def quorum(limit: int | None = None) -> dict[str, Any]:
    return {"x-queue-type": "quorum"} | ({} if limit is None else {"x-delivery-limit": limit})


@pytest.fixture
def queue(channel: ClientChannel) -> Queue:
    return channel.declare("q", durable=True, arguments=quorum(2))


def count_of(delivered: Delivered | GetOk) -> int | None:
    headers = delivered.message.properties.headers or {}
    count: int | None = headers.get("x-delivery-count")
    return count


def nack(channel: ClientChannel, tag: int) -> None:
    channel.reject(tag, multiple=True)


def reject(channel: ClientChannel, tag: int) -> None:
    channel.reject(tag)


def recover(channel: ClientChannel, tag: int) -> None:
    channel.core.recover()


@pytest.mark.parametrize("give_back", [nack, reject, recover])
def test_a_message_that_comes_back_too_often_is_dropped(
    channel: ClientChannel, queue: Queue, give_back: Callable[[ClientChannel, int], None]
) -> None:
    channel.publish(b"a", "q")
    channel.consume(queue, prefetch=1)
    counts = []
    while delivered := channel.deliveries():
        counts.append(count_of(delivered[0]))
        give_back(channel, delivered[0].tag)
    assert counts == [None, 1, 2]
    assert_nothing_is_held(channel.client.broker)


@pytest.mark.parametrize("ends_with", ["channel", "connection"])
def test_a_lost_channel_or_connection_counts(broker: Broker, queue: Queue, ends_with: str) -> None:
    Client(broker).channel().publish(b"a", "q")
    counts = []
    while queue.message_count():
        client = Client(broker)
        channel = client.channel()
        channel.consume(queue)
        counts += [count_of(delivered) for delivered in channel.deliveries()]
        if ends_with == "channel":
            channel.close()
        client.close()
    assert counts == [None, 1, 2]


def test_a_cancelled_consumer_counts_only_when_its_channel_ends(channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    channel.consume(queue, "first")
    (delivered,) = channel.deliveries()
    channel.core.cancel("first")
    channel.consume(queue, "second")
    assert channel.deliveries() == []
    channel.reject(delivered.tag)
    (again,) = channel.deliveries()
    assert count_of(again) == 1


def test_basic_get_counts_and_shows_the_count(channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    counts = []
    while (got := channel.get(queue, no_ack=False)) is not None:
        counts.append((got.redelivered, count_of(got)))
        channel.reject(got.tag)
    assert counts == [(False, None), (True, 1), (True, 2)]


def test_a_consumer_without_acks_sees_the_count(channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag)
    channel.consume(queue, no_ack=True)
    assert [count_of(delivered) for delivered in channel.deliveries()] == [1]


def test_headers_stay_as_they_were_published_but_for_the_count(channel: ClientChannel, queue: Queue) -> None:
    headers = {"x-delivery-count": "mine", "b": [1, "two"], "c": {"d": True}}
    channel.publish(b"a", "q", headers=headers, content_type="text/plain", delivery_mode=PERSISTENT)
    channel.consume(queue)
    (first,) = channel.deliveries()
    channel.reject(first.tag)
    (second,) = channel.deliveries()
    properties = second.message.properties
    assert properties.headers == {**headers, "x-delivery-count": 1}
    assert (properties.content_type, properties.delivery_mode) == ("text/plain", PERSISTENT)
    (entry,) = channel.core.ledger.unacked.values()
    assert entry.message.properties.headers == headers, "the stored message is not changed"


def test_a_limit_of_zero_drops_what_comes_back_once(channel: ClientChannel) -> None:
    queue = channel.declare("zero", durable=True, arguments=quorum(0))
    channel.publish(b"a", "zero")
    channel.consume(queue)
    (delivered,) = channel.deliveries()
    channel.reject(delivered.tag)
    assert channel.deliveries() == []


@pytest.mark.parametrize(("limit", "most"), [(None, 21), (-1, 100)])
def test_the_limit_is_20_unless_it_is_set_or_off(channel: ClientChannel, limit: int | None, most: int) -> None:
    queue = channel.declare("other", durable=True, arguments=quorum(limit))
    channel.publish(b"a", "other")
    channel.consume(queue)
    deliveries = 0
    while deliveries < 100 and (delivered := channel.deliveries()):
        deliveries += 1
        channel.reject(delivered[0].tag)
    assert deliveries == most


def test_a_classic_queue_neither_counts_nor_drops(channel: ClientChannel) -> None:
    queue = channel.declare("classic")
    channel.publish(b"a", "classic")
    channel.consume(queue)
    for _ in range(50):
        (delivered,) = channel.deliveries()
        assert count_of(delivered) is None
        channel.reject(delivered.tag)


def test_a_limit_is_changed_at_run_time(channel: ClientChannel, queue: Queue) -> None:
    channel.vhost.apply(queue, replace(queue.options, delivery_limit=0))
    channel.publish(b"a", "q")
    channel.consume(queue)
    (delivered,) = channel.deliveries()
    channel.reject(delivered.tag)
    assert channel.deliveries() == []


def test_only_messages_over_the_limit_are_dropped_and_the_rest_keeps_its_order(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.publish_all("ab", "q")
    for _ in range(2):  # twice each
        for _ in range(2):
            got = channel.get(queue, no_ack=False)
            assert got is not None
        channel.core.recover()
    channel.publish_all("cd", "q")
    for _ in range(3):
        channel.get(queue, no_ack=False)
    channel.core.recover()
    other.consume(queue)
    assert [(delivered.body, count_of(delivered)) for delivered in other.deliveries()] == [(b"c", 1), (b"d", None)]


def test_a_rollback_does_not_count_and_a_commit_does(channel: ClientChannel, queue: Queue) -> None:
    channel.core.select_transactions()
    channel.consume(queue)
    Client(channel.client.broker).channel().publish(b"a", "q")
    (delivered,) = channel.deliveries()
    channel.reject(delivered.tag)
    channel.core.rollback()
    assert channel.deliveries() == []
    channel.reject(delivered.tag)
    assert channel.deliveries() == []
    channel.core.commit()
    (again,) = channel.deliveries()
    assert count_of(again) == 1


def test_credit_of_a_dropped_message_comes_back(channel: ClientChannel) -> None:
    queue = channel.declare("zero", durable=True, arguments=quorum(0))
    channel.publish_all("abc", "zero")
    channel.consume(queue, prefetch=1)
    (delivered,) = channel.deliveries()
    channel.reject(delivered.tag)
    assert channel.bodies() == "b"


def test_a_dropped_message_is_counted_as_rejected(channel: ClientChannel) -> None:
    queue = channel.declare("zero", durable=True, arguments=quorum(0))
    channel.publish(b"a", "zero")
    channel.consume(queue)
    (delivered,) = channel.deliveries()
    channel.reject(delivered.tag)
    view = queue_view(queue)
    assert (view.rejected, view.requeued, view.acked, view.messages_unacked) == (1, 0, 0, 0)


def test_what_comes_back_to_a_deleted_queue_is_just_forgotten(channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    channel.consume(queue)
    (delivered,) = channel.deliveries()
    channel.delete(queue)
    channel.reject(delivered.tag)
    assert_nothing_is_held(channel.client.broker)


@pytest.mark.parametrize("limit", ["3", 1.5, True])
def test_a_limit_that_is_no_integer_is_refused(channel: ClientChannel, limit: Any) -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-delivery-limit'"):
        channel.declare("odd", durable=True, arguments=quorum(limit))


def test_the_event_of_its_end_says_why() -> None:
    traced = TracedBroker()
    channel = traced.client().channel()
    queue = channel.declare("zero", durable=True, arguments=quorum(0))
    channel.publish(b"a", "zero", message_id="m")
    channel.consume(queue)
    (delivered,) = channel.deliveries()
    channel.reject(delivered.tag)
    events = traced.events()
    assert story(events)[-2:] == ["rejected zero", "dropped zero"]
    assert events[-1].reason == schema.R_DELIVERY_LIMIT


# -- on disk ----------------------------------------------------------------------------------------------------------


def take_in_turn(kept: Kept, count: int) -> list[Delivered]:
    """What the next consumer gets; it leaves all of it unacked, and its connection ends."""
    client = Client(kept.broker)
    channel = client.channel()
    channel.consume(kept.queue(), prefetch=count)
    delivered: list[Delivered] = []
    for _ in range(200):
        kept.settle()
        delivered += channel.deliveries()
        if len(delivered) == count:
            break
    client.close()
    kept.settle()
    return delivered


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_count_survives_a_restart(tmp_path: Path, is_clean: bool) -> None:
    kept = Kept(tmp_path)
    kept.declare(**quorum(3))
    kept.publish([0])
    counts = []
    while kept.queue().message_count():
        counts += [count_of(delivered) for delivered in take_in_turn(kept, 1)]
        kept.restart(is_clean)
    assert counts == [None, 1, 2, 3]


@pytest.mark.parametrize("transient", [False, True])
def test_messages_of_a_paged_queue_are_counted_wherever_they_lie(tmp_path: Path, transient: bool) -> None:
    kept = Kept(tmp_path, window=6000, page=1500)
    kept.declare(**quorum(2))
    count = 200
    kept.publish(range(count), transient=transient)
    kept.settle()
    assert kept.queue().backlog.paged > 0
    for expected in (None, 1, 2):
        delivered = take_in_turn(kept, count)
        assert [each.body for each in delivered] == [body_of(number) for number in range(count)]
        assert {count_of(each) for each in delivered} == {expected}
    assert kept.queue().message_count() == 0
    assert_nothing_is_held(kept.broker)


def test_a_part_of_a_paged_queue_comes_back_across_restarts(tmp_path: Path) -> None:
    kept = Kept(tmp_path, window=6000, page=1500)
    kept.declare(**quorum(2))
    kept.publish(range(200))
    take_in_turn(kept, 150)
    kept.checkpoint()
    kept.restart(clean=False)
    take_in_turn(kept, 100)
    kept.restart(clean=False)
    counts = [count_of(each) for each in take_in_turn(kept, 200)]
    assert counts == [2] * 100 + [1] * 50 + [None] * 50
    assert [count_of(each) for each in take_in_turn(kept, 100)] == [2] * 50 + [1] * 50
