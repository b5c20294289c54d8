"""Queue expiry: what counts as use, and deletion of unused queues."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.driver import Kept
from tests.support.client import Client, ClientChannel, assert_nothing_is_held
from tests.support.tracing import TracedBroker
from warrenmq.core.broker import Broker
from warrenmq.core.queue import Queue
from warrenmq.events import schema

EXPIRES = {"x-expires": 1000}


def let_pass(broker: Broker, ms: int) -> None:
    """A turn of the timers, so much later."""
    broker.turn.now_ms += ms
    broker.timers.advance(broker.turn.now_ms)
    broker.end_turn()


@pytest.fixture
def queue(channel: ClientChannel) -> Queue:
    return channel.declare("q", arguments=EXPIRES)


@pytest.fixture
def traced() -> TracedBroker:
    return TracedBroker()


def exists(channel: ClientChannel) -> bool:
    return "q" in channel.vhost.queues


def test_an_unused_queue_is_deleted_with_its_messages(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.bind("amq.direct", queue, "key")
    channel.publish_all("abc", "q")
    let_pass(broker, 999)
    assert exists(channel)
    let_pass(broker, 20)
    assert not exists(channel)
    assert len(channel.vhost.bindings) == 0
    assert_nothing_is_held(broker)
    assert len(broker.timers) == 0


@pytest.mark.parametrize("use", ["declare", "passive", "get"])
def test_a_use_lets_the_time_begin_again(broker: Broker, channel: ClientChannel, queue: Queue, use: str) -> None:
    let_pass(broker, 900)
    if use == "declare":
        channel.declare("q", arguments=EXPIRES)
    elif use == "passive":
        queue.touch()  # as the server does
    else:
        assert channel.get(queue) is None
    let_pass(broker, 999)
    assert exists(channel)
    let_pass(broker, 20)
    assert not exists(channel)


def test_publishing_is_no_use(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    let_pass(broker, 900)
    channel.publish(b"a", "q")
    let_pass(broker, 120)
    assert not exists(channel)


def test_a_queue_with_a_consumer_does_not_expire(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "first")
    channel.consume(queue, "second")
    let_pass(broker, 5000)
    channel.core.cancel("first")
    let_pass(broker, 5000)
    assert exists(channel)
    channel.core.cancel("second")
    let_pass(broker, 999)
    assert exists(channel)
    let_pass(broker, 20)
    assert not exists(channel)


def test_a_consumer_that_came_and_went_before_the_timer_counts(
    broker: Broker, channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    let_pass(broker, 500)
    other.consume(queue)
    let_pass(broker, 100)
    other.client.close()
    let_pass(broker, 900)
    assert exists(channel)
    let_pass(broker, 120)
    assert not exists(channel)


def test_unacked_messages_do_not_keep_a_queue(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("ab", "q")
    got = channel.get(queue, no_ack=False)
    let_pass(broker, 1020)
    assert not exists(channel)
    assert got is not None
    channel.ack(got.tag)
    assert_nothing_is_held(broker)


def test_expiry_is_set_changed_and_withdrawn_at_run_time(broker: Broker, channel: ClientChannel) -> None:
    queue = channel.declare("q")
    plain = queue.options
    channel.vhost.apply(queue, replace(plain, unused_ms=1000))
    channel.vhost.apply(queue, plain)
    assert len(broker.timers) == 0
    channel.vhost.apply(queue, replace(plain, unused_ms=100))
    channel.vhost.apply(queue, replace(plain, unused_ms=1000))
    let_pass(broker, 900)
    channel.vhost.apply(queue, replace(plain, unused_ms=1000, max_length=5))  # another option: the time goes on
    assert exists(channel)
    let_pass(broker, 120)
    assert not exists(channel)


def test_a_queue_that_is_deleted_and_declared_again_has_its_own_time(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    let_pass(broker, 900)
    channel.delete(queue)
    channel.declare("q", arguments=EXPIRES)
    let_pass(broker, 200)
    assert exists(channel)
    assert len(broker.timers) == 1


def test_the_event_of_its_end_says_why(traced: TracedBroker) -> None:
    traced.client().channel().declare("q", arguments=EXPIRES)
    let_pass(traced.broker, 1020)
    (event,) = (event for event in traced.events(resources=True) if event.kind == schema.QUEUE_DELETED)
    assert (event.queue, event.reason) == ("q", schema.R_UNUSED)


def test_a_queue_without_expiry_has_no_timer(broker: Broker, channel: ClientChannel) -> None:
    channel.get(channel.declare("plain"))
    assert len(broker.timers) == 0


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_time_begins_again_when_the_broker_starts(tmp_path: Path, is_clean: bool) -> None:
    kept = Kept(tmp_path)
    kept.declare(**EXPIRES)
    kept.publish(range(5))
    kept.settle()
    kept.restart(is_clean)
    broker = kept.broker
    let_pass(broker, 999)
    assert kept.queue().message_count() == 5
    let_pass(broker, 20)
    assert broker.vhosts["/"].queues == {}
    kept.settle()
    kept.restart(is_clean)
    assert kept.broker.vhosts["/"].queues == {}, "it was deleted durably"


def test_a_paged_queue_expires_with_its_files(tmp_path: Path) -> None:
    kept = Kept(tmp_path, window=6000, page=1500)
    kept.declare(**EXPIRES)
    kept.publish(range(300))
    kept.settle()
    folder = Path(kept.store().folder)
    assert kept.queue().backlog.paged > 0
    let_pass(kept.broker, 1020)
    kept.settle()
    assert not list(folder.glob("*.seg"))
    assert_nothing_is_held(kept.broker)


def test_an_exclusive_queue_that_expired_leaves_its_connection_whole(broker: Broker) -> None:
    client = Client(broker)
    client.channel().declare("mine", exclusive=True, arguments=EXPIRES)
    let_pass(broker, 1020)
    client.close()
    assert client.vhost.queues == {}
