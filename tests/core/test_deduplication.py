"""Deduplication: what counts as a duplicate, where, for how long, and what its publisher and the event sink hear."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker, waiting
from tests.support.storage import ManualStorage
from tests.support.tracing import TracedBroker, story
from warrenmq.core.arguments import find_ignored_arguments
from warrenmq.core.broker import Broker
from warrenmq.core.digest import digest_of
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.exchange import Exchange
from warrenmq.core.queue import Queue
from warrenmq.core.turn import Turn
from warrenmq.events import schema
from warrenmq.protocol.values import Timestamp
from warrenmq.storage.memory_store import MemoryStorage

ON = {"x-message-deduplication": True}


@pytest.fixture
def turn(broker: Broker) -> Turn:
    return broker.turn


@pytest.fixture
def broker() -> Broker:
    broker = make_broker(MemoryStorage())
    broker.turn.now_ms = 1_700_000_000_000
    return broker


def publish(channel: ClientChannel, id: Any, key: str = "q", exchange: str = "", **properties: Any) -> None:
    """A message whose body is its id, unless that is None."""
    headers = dict(properties.pop("headers", {}))
    if id is not None:
        headers["x-deduplication-header"] = id
    channel.publish(str(id).encode(), key, exchange, headers=headers, **properties)


def publish_all(channel: ClientChannel, ids: str, key: str = "q", exchange: str = "", **properties: Any) -> None:
    for id in ids:
        publish(channel, id, key, exchange, **properties)


def make_exchange(channel: ClientChannel, name: str = "x", type: str = "fanout", **arguments: Any) -> Exchange:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return channel.vhost.declare_exchange(name, type, True, False, False, {**ON, **given})


# -- queues


def test_a_queue_drops_an_id_while_its_message_is_there(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments=ON)
    publish_all(channel, "abab")
    assert waiting(queue) == "ab"
    assert queue.stats.deduplicated == 2


def test_an_id_is_forgotten_with_its_message(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments=ON)
    publish_all(channel, "ab")
    got = channel.get(queue, no_ack=False)
    assert got is not None
    publish(channel, "a")  # unacked: still there
    assert waiting(queue) == "b"
    channel.ack(got.tag)
    publish_all(channel, "ab")
    assert waiting(queue) == "ba"


def test_a_requeued_message_keeps_its_id(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments=ON)
    publish(channel, "a")
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag, requeue=True)
    publish(channel, "a")
    assert waiting(queue) == "a"


def test_a_purge_forgets_the_ids_of_what_it_drops(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments=ON)
    publish_all(channel, "abc")
    channel.get(queue, no_ack=False)
    queue.purge()
    publish_all(channel, "abc")
    assert waiting(queue) == "bc"  # a is out, and unacked


def test_what_passes_to_a_consumer_without_acks_was_never_there(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments=ON)
    channel.consume(queue, no_ack=True)
    publish_all(channel, "aa")
    assert channel.bodies() == "aa"


def test_messages_without_the_header_are_never_duplicates(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments=ON)
    channel.publish(b"1", "q")
    channel.publish(b"2", "q", headers={"other": "x-deduplication-header"})
    channel.publish(b"3", "q", headers={"nested": {"x-deduplication-header": "a"}})
    channel.publish(b"4", "q", headers={"nested": {"x-deduplication-header": "a"}})
    channel.publish(b"5", "q", headers={"x-deduplication-header": None})
    channel.publish(b"6", "q", headers={"x-deduplication-header": None})
    assert waiting(queue) == "123456"


def test_a_queue_without_the_argument_lets_everything_in(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-message-deduplication": False, "x-cache-size": 10})
    publish_all(channel, "aa")
    assert waiting(queue) == "aa"


def test_the_argument_names_the_header(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={**ON, "x-deduplication-header": "order"})
    for body, header in ((b"1", "order"), (b"2", "x-deduplication-header"), (b"3", "order"), (b"4", "orders")):
        channel.publish(body, "q", headers={header: "7"})
    assert waiting(queue) == "124"


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("1", "1", True),
        ("1", 1, False),
        (1, 2**40 - 2**40 + 1, True),
        (True, 1, False),
        (b"1", "1", False),
        (1.5, 1.5, True),
        (Timestamp(5), Timestamp(5), True),
        ("", "", True),
        ({"a": [1]}, {"a": [1]}, True),
    ],
)
def test_ids_are_equal_by_type_and_value(first: Any, second: Any, is_same: bool) -> None:
    assert (digest_of(first) == digest_of(second)) is is_same


# -- the window


def test_a_window_remembers_what_was_consumed(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={**ON, "x-cache-size": 10})
    publish(channel, "a")
    assert channel.get(queue) is not None
    publish(channel, "a")
    queue.purge()
    publish(channel, "a")
    assert waiting(queue) == ""


def test_a_window_remembers_what_passed_to_a_consumer_without_acks(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={**ON, "x-cache-size": 10})
    channel.consume(queue, no_ack=True)
    publish_all(channel, "aab")
    assert channel.bodies() == "ab"


def test_a_window_has_the_last_ids_only(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={**ON, "x-cache-size": 2})
    publish_all(channel, "abcbca")
    assert waiting(queue) == "abca"


def test_numbers_may_be_given_as_text(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={**ON, "x-cache-size": "1", "x-cache-ttl": "5000"})
    publish_all(channel, "aaba")
    assert waiting(queue) == "aba"


def test_a_window_forgets_after_its_time(channel: ClientChannel, turn: Turn) -> None:
    queue = channel.declare("q", arguments={**ON, "x-cache-ttl": 1000})
    publish(channel, "a")
    turn.now_ms += 999
    publish(channel, "a")
    turn.now_ms += 1
    publish(channel, "a")
    turn.now_ms += 999
    publish(channel, "a")
    assert waiting(queue) == "aa"


@pytest.mark.parametrize(
    ("ttl", "is_own"), [(10, True), (2**62, False), (0, False), (-5, False), ("10", False), (True, False)]
)
def test_a_message_may_say_how_long_it_is_remembered(
    channel: ClientChannel, turn: Turn, ttl: Any, is_own: bool
) -> None:
    queue = channel.declare("q", arguments={**ON, "x-cache-ttl": 1000})
    publish(channel, "a", headers={"x-cache-ttl": ttl})
    turn.now_ms += 10
    publish(channel, "a")
    assert waiting(queue) == ("aa" if is_own else "a")


def test_a_stream_drops_what_it_has_seen(channel: ClientChannel) -> None:
    stream = channel.declare("s", durable=True, arguments={**ON, "x-queue-type": "stream"})
    publish_all(channel, "abab", "s")
    publish(channel, None, "s")
    assert stream.message_count() == 3


# -- exchanges


@pytest.mark.parametrize("type", ["fanout", "topic", "direct", "headers", "x-message-deduplication"])
def test_an_exchange_of_any_type_drops_what_it_has_routed(channel: ClientChannel, type: str) -> None:
    queue = channel.declare("q")
    make_exchange(channel, type=type)
    channel.bind("x", queue, "k")
    publish_all(channel, "abba", "k", "x")
    assert waiting(queue) == "ab"
    assert channel.returns() == []


def test_the_type_alone_is_enough_and_routes_like_a_fanout(channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.vhost.declare_exchange("x", "x-message-deduplication", False, False, False, {"x-cache-size": 5})
    channel.bind("x", queue, "some key")
    publish_all(channel, "aab", "another", "x")
    assert waiting(queue) == "ab"


def test_a_duplicate_is_neither_returned_nor_unroutable(channel: ClientChannel) -> None:
    queue = channel.declare("q")
    make_exchange(channel)
    channel.bind("x", queue)
    channel.core.select_confirms()
    publish_all(channel, "aa", "", "x", mandatory=True)
    channel.client.broker.end_turn()
    assert channel.confirms() == [(2, True)]
    assert channel.returns() == []
    assert channel.core.stats.unroutable == 0


def test_what_no_queue_took_was_not_seen(channel: ClientChannel) -> None:
    make_exchange(channel)
    publish(channel, "a", "", "x", mandatory=True)
    assert len(channel.returns()) == 1
    queue = channel.declare("q")
    channel.bind("x", queue)
    publish_all(channel, "aa", "", "x", mandatory=True)
    assert waiting(queue) == "a"
    assert channel.returns() == []


def test_a_duplicate_does_not_take_the_way_of_the_unroutable(channel: ClientChannel) -> None:
    queue, lost = channel.declare("q"), channel.declare("lost")
    channel.bind(channel.declare_exchange("rest", "fanout").name, lost)
    make_exchange(channel, alternate_exchange="rest")
    channel.bind("x", queue)
    publish_all(channel, "aa", "", "x")
    assert (waiting(queue), waiting(lost)) == ("a", "")


def test_an_exchange_behind_another_drops_what_comes_by_it(channel: ClientChannel) -> None:
    both, behind = channel.declare("both"), channel.declare("behind")
    first = channel.declare_exchange("first", "fanout")
    second = make_exchange(channel, "second")
    channel.bind(first.name, both)
    channel.bind(first.name, second)
    channel.bind("second", behind)
    publish_all(channel, "aa", "", "first")
    assert (waiting(both), waiting(behind)) == ("aa", "a")
    assert channel.core.stats.deduplicated == 0  # it was taken


def test_copies_by_cc_pass_the_exchange_once(channel: ClientChannel) -> None:
    one, two = channel.declare("1"), channel.declare("2")
    make_exchange(channel, type="direct")
    channel.bind("x", one, "1")
    channel.bind("x", two, "2")
    for _ in range(2):
        publish(channel, "a", "1", "x", headers={"CC": ["2"]})
    assert (waiting(one), waiting(two)) == ("a", "a")


def test_an_exchange_that_is_declared_anew_has_seen_nothing(channel: ClientChannel) -> None:
    queue = channel.declare("q")
    for _ in range(2):
        make_exchange(channel)
        channel.bind("x", queue)
        publish_all(channel, "aa", "", "x")
        channel.vhost.delete_exchange("x", False)
    assert waiting(queue) == "aa"
    assert not channel.vhost.stateful_exchanges


# -- transactions


@pytest.mark.parametrize("place", ["queue", "exchange"])
def test_in_a_transaction_ids_count_when_it_is_committed(
    channel: ClientChannel, other: ClientChannel, place: str
) -> None:
    queue = channel.declare("q", arguments={**ON, "x-cache-size": 10} if place == "queue" else {})
    if place == "exchange":
        make_exchange(channel)
    else:
        channel.declare_exchange("x", "fanout")
    channel.bind("x", queue)
    channel.core.select_transactions()
    publish_all(channel, "aab", "", "x")
    publish(other, "b", "", "x")
    assert waiting(queue) == "b"
    channel.core.commit()
    assert waiting(queue) == "ba"
    publish_all(other, "ab", "", "x")
    assert waiting(queue) == "ba"


@pytest.mark.parametrize("place", ["queue", "exchange"])
def test_a_rollback_forgets_the_ids(channel: ClientChannel, other: ClientChannel, place: str) -> None:
    queue = channel.declare("q", arguments={**ON, "x-cache-size": 10} if place == "queue" else {})
    make_exchange(channel) if place == "exchange" else channel.declare_exchange("x", "fanout")
    channel.bind("x", queue)
    channel.core.select_transactions()
    publish(channel, "a", "", "x")
    channel.core.rollback()
    publish(other, "a", "", "x")
    assert waiting(queue) == "a"


def test_a_mandatory_message_of_a_transaction_is_returned_on_commit_only_if_it_is_new(channel: ClientChannel) -> None:
    make_exchange(channel)
    channel.core.select_transactions()
    publish_all(channel, "aa", "", "x", mandatory=True)
    channel.core.commit()
    assert len(channel.returns()) == 2  # no queue took the first, so the second was not seen either


# -- confirms


def test_the_confirm_of_a_duplicate_waits_for_the_first(channel: ClientChannel) -> None:
    broker = make_broker(ManualStorage())
    channel = Client(broker).channel()
    channel.declare("q", durable=True, arguments=ON)
    broker.end_turn()
    broker.storage.log.advance(1, 1)
    channel.core.select_confirms()
    publish_all(channel, "a", delivery_mode=PERSISTENT)
    broker.end_turn()
    publish_all(channel, "a", delivery_mode=PERSISTENT)
    broker.end_turn()
    assert channel.confirms() == []
    broker.storage.log.advance(2, 2)
    assert channel.confirms() == [(2, True)]


def test_a_transient_duplicate_waits_for_nothing(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments=ON)
    channel.core.select_confirms()
    publish_all(channel, "aa")
    channel.client.broker.end_turn()
    assert channel.confirms() == [(2, True)]
    assert waiting(queue) == "a"


# -- what lasts


def test_a_broker_on_the_same_storage_knows_what_was_seen() -> None:
    storage = MemoryStorage()
    first = Client(make_broker(storage)).channel()
    window = {**ON, "x-cache-size": 10}
    for name, arguments in (("q", ON), ("w", window), ("s", {**ON, "x-queue-type": "stream"})):
        first.declare(name, durable=True, arguments=arguments)
        publish_all(first, "ab", name, delivery_mode=PERSISTENT)
    publish(first, "t", "w")
    make_exchange(first)
    first.bind("x", first.vhost.queues["q"])
    publish(first, "c", "", "x", delivery_mode=PERSISTENT)
    assert first.get(first.vhost.queues["w"]) is not None
    again = Client(make_broker(storage)).channel()
    queues = again.vhost.queues
    for name in "qws":
        publish_all(again, "ab", name, delivery_mode=PERSISTENT)
    publish(again, "t", "w")  # was transient, and is gone
    publish(again, "c", "", "x", delivery_mode=PERSISTENT)
    assert waiting(queues["q"]) == "abc"
    assert waiting(queues["w"]) == "bt"
    assert queues["s"].message_count() == 2


def test_ids_with_memory_persistence_do_not_survive_a_restart() -> None:
    storage = MemoryStorage()
    first = Client(make_broker(storage)).channel()
    first.declare("w", durable=True, arguments={**ON, "x-cache-size": 10, "x-cache-persistence": "memory"})
    publish(first, "a", "w", delivery_mode=PERSISTENT)
    again = Client(make_broker(storage)).channel()
    publish_all(again, "aa", "w", delivery_mode=PERSISTENT)
    assert waiting(again.vhost.queues["w"]) == "aa"


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"x-message-deduplication": "true"}, "{unacceptable_type,longstr}"),
        ({**ON, "x-cache-size": 0}, "{value_zero,0}"),
        ({**ON, "x-cache-size": -1}, "{value_negative,-1}"),
        ({**ON, "x-cache-size": "many"}, '"expected integer, got longstr"'),
        ({**ON, "x-cache-size": True}, '"expected integer, got bool"'),
        ({**ON, "x-cache-size": 10_000_001}, '"at most 10000000 ids can be remembered"'),
        ({**ON, "x-cache-ttl": 0}, "{value_zero,0}"),
        ({**ON, "x-cache-ttl": "soon"}, '"expected integer, got longstr"'),
        ({**ON, "x-deduplication-header": 5}, "{unacceptable_type,signedint}"),
        ({**ON, "x-deduplication-header": ""}, '"expected the name of a header, of 1 to 255 bytes"'),
        ({**ON, "x-cache-persistence": "paper"}, "\"expected memory or disk, got 'paper'\""),
    ],
)
def test_bad_arguments_are_refused(channel: ClientChannel, arguments: dict[str, Any], fault: str) -> None:
    name = next(reversed(arguments))
    with pytest.raises(PreconditionFailed) as of_queue:
        channel.declare("q", arguments=arguments)
    with pytest.raises(PreconditionFailed) as of_exchange:
        channel.vhost.declare_exchange("x", "direct", False, False, False, arguments)
    assert f"invalid arg '{name}' for queue 'q' in vhost '/': {fault}" in str(of_queue.value)
    assert f"invalid arg '{name}' for exchange 'x' in vhost '/': {fault}" in str(of_exchange.value)


def test_a_redeclaration_must_ask_for_the_same(channel: ClientChannel) -> None:
    window = {**ON, "x-cache-size": 10}
    channel.declare("q", arguments=window)
    make_exchange(channel, x_cache_size=10)
    channel.declare("q", arguments=window)
    make_exchange(channel, x_cache_size=10)
    for different in ({**ON, "x-cache-size": 11}, ON, {**window, "x-cache-ttl": 5}):
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-cache-"):
            channel.declare("q", arguments=different)
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-cache-"):
            channel.vhost.declare_exchange("x", "fanout", True, False, False, different)


def test_arguments_without_effect_are_reported() -> None:
    assert find_ignored_arguments({"x-cache-size": 5, "x-deduplication-header": "id"}) == [
        "x-cache-size",
        "x-deduplication-header",
    ]
    assert find_ignored_arguments({**ON, "x-cache-size": 5}) == []


# -- events


def test_a_dropped_duplicate_is_an_event() -> None:
    broker = TracedBroker()
    channel = broker.client().channel()
    queue: Queue = channel.declare("q", arguments=ON)
    make_exchange(channel)
    channel.bind("x", queue)
    publish_all(channel, "aa")
    publish_all(channel, "bb", "", "x")
    events = broker.events()
    assert story(events) == [
        *("published", "routed", "enqueued q"),
        *("published", "routed", "dropped q"),
        *("published", "routed", "enqueued q"),
        *("published", "dropped"),
    ]
    assert [event.reason for event in events if event.kind == schema.DROPPED] == [schema.R_DUPLICATE] * 2
