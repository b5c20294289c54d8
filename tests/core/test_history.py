"""x-recent-history: replay on bind, persistence, and memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, assert_nothing_is_held, make_broker, waiting
from warrenmq.core import snapshot
from warrenmq.core.broker import Broker
from warrenmq.core.exchange import Exchange
from warrenmq.core.outcome import UNROUTED
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.memory_store import MemoryStorage


def declare(channel: ClientChannel, length: int | None = 3, name: str = "h", durable: bool = False) -> Exchange:
    arguments: dict[str, Any] = {} if length is None else {"x-recent-history-length": length}
    return channel.vhost.declare_exchange(name, "x-recent-history", durable, False, False, arguments)


def send(channel: ClientChannel, bodies: str, exchange: str = "h", **properties: Any) -> None:
    for letter in bodies:
        channel.publish(letter.encode(), "key", exchange, **properties)


def bound(channel: ClientChannel, name: str, exchange: str = "h") -> str:
    """What a new queue gets when it is bound."""
    queue = channel.declare(name)
    channel.bind(exchange, queue)
    return waiting(queue)


def test_a_queue_gets_the_last_messages_when_it_is_bound_and_all_others_afterwards(channel: ClientChannel) -> None:
    declare(channel)
    send(channel, "abcde")
    assert bound(channel, "first") == "cde"
    send(channel, "f")
    assert bound(channel, "second") == "def"
    assert waiting(channel.vhost.queues["first"]) == "cdef"


def test_the_default_length_is_twenty(channel: ClientChannel) -> None:
    declare(channel, None)
    send(channel, "abcdefghijklmnopqrstuvwxyz")
    assert bound(channel, "q") == "ghijklmnopqrstuvwxyz"


def test_they_come_as_they_were_published(channel: ClientChannel) -> None:
    declare(channel)
    channel.publish(b"m", "the key", "h", message_id="7", headers={"a": 1})
    queue = channel.declare("q")
    channel.bind("h", queue)
    got = channel.get(queue)
    assert got is not None
    assert (got.message.exchange, got.message.routing_key, got.redelivered) == ("h", "the key", False)
    assert got.message.properties == BasicProperties(message_id="7", headers={"a": 1})


def test_the_same_binding_again_delivers_nothing_and_another_one_delivers_again(channel: ClientChannel) -> None:
    declare(channel)
    send(channel, "a")
    queue = channel.declare("q")
    channel.bind("h", queue, "one")
    channel.bind("h", queue, "one")
    assert waiting(queue) == "a"
    channel.bind("h", queue, "two")
    assert waiting(queue) == "aa"
    send(channel, "b")
    assert waiting(queue) == "aab"


@pytest.mark.parametrize(("value", "kept"), [(True, ""), (False, "a"), ("true", "a"), (1, "a")])
def test_a_message_may_ask_not_to_be_kept(channel: ClientChannel, value: object, kept: str) -> None:
    declare(channel)
    assert bound(channel, "before") == ""
    send(channel, "a", headers={"x-recent-history-no-store": value})
    assert waiting(channel.vhost.queues["before"]) == "a"
    assert bound(channel, "after") == kept


def test_a_consumer_that_waits_gets_them_in_order_when_the_turn_ends(channel: ClientChannel) -> None:
    declare(channel)
    send(channel, "abc")
    queue = channel.declare("q")
    channel.consume(queue, no_ack=True)
    channel.bind("h", queue)
    assert waiting(queue) == "abc"
    assert channel.bodies() == "abc"


def test_messages_from_another_exchange_are_recorded_too(channel: ClientChannel) -> None:
    channel.declare_exchange("before", "fanout")
    channel.bind("before", declare(channel))
    send(channel, "ab", "before")
    assert bound(channel, "q") == "ab"


def test_an_exchange_that_is_bound_passes_them_on_oldest_first(channel: ClientChannel) -> None:
    declare(channel)
    send(channel, "ab")
    channel.publish(b"c", "other", "h")
    topic = channel.declare_exchange("topic", "topic")
    queue = channel.declare("q")
    channel.bind("topic", queue, "key")
    channel.bind("h", topic)
    assert waiting(queue) == "ab"  # and nothing is wrong with what reaches no queue
    later = declare(channel, name="later")
    channel.bind("h", later)
    assert bound(channel, "after", "later") == "abc"


def test_an_unroutable_message_is_recorded_and_returned(channel: ClientChannel) -> None:
    declare(channel)
    channel.publish(b"a", "key", "h", mandatory=True)
    assert len(channel.returns()) == 1
    assert bound(channel, "q") == "a"
    assert channel.vhost.publish("h", "key", content_header(1, BasicProperties()), b"b") != UNROUTED
    assert bound(channel, "r") == "ab"


def test_transactional_messages_are_recorded_on_commit(channel: ClientChannel) -> None:
    declare(channel)
    channel.core.select_transactions()
    send(channel, "a")
    channel.core.rollback()
    send(channel, "b")
    assert bound(channel, "during") == ""
    channel.core.commit()
    assert waiting(channel.vhost.queues["during"]) == "b"
    assert bound(channel, "after") == "b"


def test_duplicates_are_not_kept(channel: ClientChannel) -> None:
    channel.vhost.declare_exchange("h", "x-recent-history", False, False, False, {"x-message-deduplication": True})
    assert bound(channel, "first") == ""
    for id in "aab":
        channel.publish(id.encode(), "key", "h", headers={"x-deduplication-header": id})
    assert waiting(channel.vhost.queues["first"]) == "ab"
    assert bound(channel, "second") == "ab"


def test_confirms_come_whether_a_queue_is_bound_or_not(broker: Broker, channel: ClientChannel) -> None:
    declare(channel)
    channel.core.select_confirms()
    send(channel, "a")
    broker.end_turn()
    assert channel.confirms() == [(1, False)]
    bound(channel, "q")
    send(channel, "b")
    broker.end_turn()
    assert channel.confirms() == [(2, False)]


def test_its_memory_is_counted_once_with_that_of_queues_and_released(broker: Broker, channel: ClientChannel) -> None:
    declare(channel, 5)
    for _ in range(20):
        channel.publish(b"x" * 1000, "key", "h")
    held = broker.stats.held_bytes
    assert 5 * 1000 < held < 5 * 1500
    assert snapshot.memory(broker)["history"] == held
    before = broker.stats.memory()
    bound(channel, "q")
    queue = channel.vhost.queues["q"]
    assert snapshot.memory(broker)["messages"] > 0
    assert sum(snapshot.memory(broker).values()) == broker.stats.memory()
    assert broker.stats.memory() - before < 5000  # the bodies are there once
    queue.purge()
    assert broker.stats.held_bytes == held
    channel.vhost.delete_exchange("h", False)
    assert_nothing_is_held(broker)
    assert not channel.vhost.stateful_exchanges


def test_an_exchange_that_is_declared_anew_has_no_history(channel: ClientChannel) -> None:
    for durable in (False, True):
        declare(channel, durable=durable)
        send(channel, "a", delivery_mode=PERSISTENT)
        channel.vhost.delete_exchange("h", False)
        declare(channel, durable=durable)
        assert bound(channel, f"q {durable}") == ""
        channel.vhost.delete_exchange("h", False)


@pytest.mark.parametrize(("durable", "kept"), [(True, "bcd"), (False, None)])
def test_a_restart_keeps_the_persistent_messages_of_a_durable_exchange(durable: bool, kept: str | None) -> None:
    storage = MemoryStorage()
    channel = Client(make_broker(storage)).channel()
    declare(channel, 4, durable=durable)
    send(channel, "ab", delivery_mode=PERSISTENT)
    send(channel, "x")
    send(channel, "cd", delivery_mode=PERSISTENT)
    broker = make_broker(storage)
    channel = Client(broker).channel()
    assert list(channel.vhost.queues) == []
    if kept is None:
        assert "h" not in channel.vhost.exchanges
        return
    assert bound(channel, "q") == kept
    send(channel, "ef", delivery_mode=PERSISTENT)
    assert bound(channel, "r") == "cdef"
    channel = Client(make_broker(storage)).channel()
    assert bound(channel, "q") == "cdef"
