"""`Broker.when_durable`: callbacks run once the log is durable, in order, once, and never after the log failed."""

from __future__ import annotations

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker
from tests.support.storage import ManualStorage
from warrenmq.core.broker import Broker
from warrenmq.core.ports import NOTHING, SYNCED, WRITTEN


@pytest.fixture
def storage() -> ManualStorage:
    return ManualStorage()


@pytest.fixture
def broker(storage: ManualStorage) -> Broker:
    """A broker whose first epoch, with the virtual host, is durable."""
    broker = make_broker(storage)
    broker.end_turn()
    broker.storage.log.advance(1, 1)
    return broker


@pytest.fixture
def called() -> list[str]:
    return []


def reply(broker: Broker, called: list[str], name: str, level: int = SYNCED) -> None:
    broker.when_durable(name, level, lambda: called.append(name))


def declare(channel: ClientChannel, name: str) -> None:
    channel.declare(name, durable=True)


def test_without_durable_work_the_callback_runs_at_the_end_of_the_turn(broker: Broker, called: list[str]) -> None:
    reply(broker, called, "a")
    assert called == []
    broker.end_turn()
    broker.end_turn()
    assert called == ["a"]


def test_with_durable_work_it_waits_for_the_epoch(broker: Broker, channel: ClientChannel, called: list[str]) -> None:
    declare(channel, "q")
    reply(broker, called, "a")
    broker.end_turn()
    broker.storage.log.advance(2, 0)
    broker.end_turn()
    assert called == []
    broker.storage.log.advance(2, 2)
    assert called == ["a"]
    assert not broker.pending_replies


def test_it_waits_for_work_of_earlier_turns_too(broker: Broker, channel: ClientChannel, called: list[str]) -> None:
    declare(channel, "q")
    broker.end_turn()
    reply(broker, called, "a")
    broker.end_turn()
    assert called == []
    broker.storage.log.advance(2, 2)
    assert called == ["a"]


def test_each_waits_for_its_own_epoch(broker: Broker, channel: ClientChannel, called: list[str]) -> None:
    for name in "abc":
        declare(channel, name)
        reply(broker, called, name)
        broker.end_turn()
    broker.storage.log.advance(3, 3)
    assert called == ["a", "b"]
    broker.storage.log.advance(4, 4)
    assert called == ["a", "b", "c"]


def test_level_written_waits_only_for_the_write(broker: Broker, channel: ClientChannel, called: list[str]) -> None:
    declare(channel, "q")
    reply(broker, called, "synced")
    reply(broker, called, "written", WRITTEN)
    reply(broker, called, "at once", NOTHING)
    broker.end_turn()
    assert called == ["at once"]
    broker.storage.log.advance(2, 0)
    assert called == ["at once", "written"]
    broker.storage.log.advance(2, 2)
    assert called == ["at once", "written", "synced"]


def test_one_that_is_withdrawn_is_not_kept(broker: Broker, channel: ClientChannel, called: list[str]) -> None:
    declare(channel, "q")
    reply(broker, called, "early")
    reply(broker, called, "late")
    broker.withdraw("early")
    broker.end_turn()
    broker.withdraw("late")
    broker.withdraw("never made")
    broker.storage.log.advance(2, 2)
    assert called == []


def test_keeping_one_may_withdraw_another_and_make_new_ones(
    broker: Broker, channel: ClientChannel, called: list[str]
) -> None:
    def keep() -> None:
        called.append("first")
        broker.withdraw("second")
        reply(broker, called, "first")

    declare(channel, "q")
    broker.when_durable("first", SYNCED, keep)
    reply(broker, called, "second")
    broker.end_turn()
    broker.storage.log.advance(2, 2)
    assert called == ["first"]
    broker.end_turn()
    assert called == ["first", "first"]


def test_the_broker_knows_whether_its_definitions_are_safe(broker: Broker, channel: ClientChannel) -> None:
    assert broker.are_definitions_durable()
    channel.declare("transient")
    assert broker.are_definitions_durable()
    declare(channel, "q")
    assert not broker.are_definitions_durable()
    broker.end_turn()
    assert not broker.are_definitions_durable()
    broker.storage.log.advance(2, 0)
    assert not broker.are_definitions_durable()
    broker.storage.log.advance(2, 2)
    assert broker.are_definitions_durable()
    channel.publish(b"1", "q", delivery_mode=PERSISTENT)
    broker.end_turn()
    assert broker.are_definitions_durable()


def test_in_a_broker_that_does_not_sync_each_epoch_what_is_written_is_safe(
    broker: Broker, storage: ManualStorage, channel: ClientChannel
) -> None:
    storage.log.reply_level = WRITTEN
    declare(channel, "q")
    broker.end_turn()
    assert not broker.are_definitions_durable()
    broker.storage.log.advance(2, 0)
    assert broker.are_definitions_durable()


@pytest.mark.parametrize(("level", "flushes"), [(SYNCED, 1), (WRITTEN, 0)])
def test_level_synced_requests_a_flush(
    broker: Broker, storage: ManualStorage, called: list[str], level: int, flushes: int
) -> None:
    reply(broker, called, "a", level)
    broker.end_turn()
    broker.end_turn()
    assert storage.log.flushes == flushes


def test_a_cancelled_consumer_is_notified_after_the_pending_reply(
    broker: Broker, client: Client, channel: ClientChannel, other: ClientChannel, called: list[str]
) -> None:
    queue = channel.declare("q", durable=True)
    channel.consume(queue, "mine")
    other.consume(queue, "other")
    channel.delete(queue)
    broker.when_durable(client.connection, SYNCED, lambda: called.append("answered"))
    assert (channel.cancels(), other.cancels()) == ([], ["other"])
    broker.storage.log.advance(2, 2)
    assert called == ["answered"]
    assert channel.cancels() == ["mine"]


# -- failure


def test_after_a_failure_nothing_is_confirmed_or_kept(
    broker: Broker, channel: ClientChannel, other: ClientChannel, called: list[str]
) -> None:
    reasons: list[str] = []
    broker.on_failure = reasons.append
    channel.core.select_confirms()
    other.core.select_confirms()
    declare(channel, "q")
    channel.publish(b"1", "q", delivery_mode=PERSISTENT)
    reply(broker, called, "before")
    broker.end_turn()
    broker.log_failed("disk on fire")
    broker.log_failed("again")
    broker.storage.log.advance(2, 0)
    broker.storage.log.advance(2, 2)
    other.publish(b"2", "nowhere")
    reply(broker, called, "after", NOTHING)
    broker.end_turn()
    assert (channel.confirms(), other.confirms(), called) == ([], [], [])
    assert (broker.failure, reasons) == ("disk on fire", ["disk on fire"])
