"""Consumers with filters: who gets what, what it costs, and what else a consumer has beside its filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.core.test_pace import received
from tests.storage.driver import KIB, Kept
from tests.support.client import Client, ClientChannel, advance, assert_nothing_is_held, make_broker, waiting
from tests.support.outbox import Delivered
from tests.support.streams import declare_stream, offsets
from warrenmq.core.broker import Broker
from warrenmq.core.consumer import Consumer
from warrenmq.core.filtered import SCAN_LIMIT
from warrenmq.core.queue import Queue


def filtered(text: Any) -> dict[str, Any]:
    return {"x-filter": text}


def publish(channel: ClientChannel, letters: str, key: str = "q", **properties: Any) -> None:
    """One message for each letter, which is its body, and the value of its header."""
    for letter in letters:
        channel.publish(letter.encode(), key, headers={"letter": letter}, **properties)


def only(letters: str) -> dict[str, Any]:
    return filtered("letter IN (" + ", ".join(f"'{letter}'" for letter in letters) + ")")


def evaluations(queue: Queue) -> int:
    """How often filters were asked."""
    return sum(consumer.filter.tested for consumer in queue.consumers if consumer.filter is not None)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_consumer_gets_what_it_wants_and_the_rest_waits(channel: ClientChannel, kind: str, is_first: bool) -> None:
    queue = channel.declare("q", durable=True, arguments={"x-queue-type": kind})
    if is_first:
        channel.consume(queue, arguments=only("bd"))
    publish(channel, "abcdab", delivery_mode=2)
    if not is_first:
        channel.consume(queue, arguments=only("bd"))
    assert channel.bodies() == "bdb"
    assert waiting(queue) == "aca"


def test_a_table_is_a_filter_too(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, arguments=filtered({"letter": "b"}))
    publish(channel, "abcb")
    assert channel.bodies() == "bb"


def test_what_one_does_not_want_another_gets(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, arguments=only("a"))
    publish(channel, "abcab")
    assert channel.bodies() == "aa"
    other.consume(queue, "b", arguments=only("b"))
    assert other.bodies() == "bb"
    other.consume(queue, "all")
    publish(channel, "c")
    assert other.bodies() == "cc"


def test_consumers_that_want_the_same_take_turns(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, arguments=only("ab"))
    other.consume(queue, arguments=only("ac"))
    publish(channel, "aaaabc")
    assert channel.bodies() == "aab"
    assert other.bodies() == "aac"
    publish(channel, "x")
    publish(channel, "aaaa")
    assert (channel.bodies(), other.bodies()) == ("aa", "aa")


def test_the_priority_of_consumers_holds(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "low", arguments=only("ab"))
    channel.consume(queue, "high", priority=1, prefetch=2, arguments=only("a"))
    publish(channel, "abaa")
    assert [each.consumer for each in channel.deliveries()] == ["high", "low", "high", "low"]


def test_a_queue_with_priorities_keeps_them(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-max-priority": 3})
    for letter, priority in zip("abababx", (0, 0, 1, 3, 3, 1, 2), strict=True):
        publish(channel, letter, priority=priority)
    channel.consume(queue, arguments=filtered("letter = 'a' OR priority = 1"))
    assert channel.bodies() == "aaba"
    assert waiting(queue) == "bxb"


@pytest.mark.parametrize("is_no_ack", [True, False])
def test_prefetch_and_acks_work_as_always(channel: ClientChannel, queue: Queue, is_no_ack: bool) -> None:
    publish(channel, "abababab")
    channel.consume(queue, prefetch=2, no_ack=is_no_ack, arguments=only("a"))
    assert channel.bodies() == ("aaaa" if is_no_ack else "aa")
    if not is_no_ack:
        channel.ack(1)
        assert channel.bodies() == "a"
        channel.ack(0, multiple=True)
        assert channel.bodies() == "a"
    assert waiting(queue) == "bbbb"


def test_a_requeued_message_returns_to_its_place(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    publish(channel, "aXbXc")
    channel.consume(queue, prefetch=3, arguments=filtered("letter <> 'X'"))
    assert channel.bodies() == "abc"
    channel.core.cancel("consumer")
    channel.reject(2)
    channel.reject(1)
    channel.deliveries()
    assert waiting(queue) == "aXbX"
    other.consume(queue, arguments=only("ab"))
    delivered = other.deliveries()
    assert [(each.body, each.redelivered) for each in delivered] == [(b"a", True), (b"b", True)]


def test_a_consumer_gets_back_what_it_rejected(channel: ClientChannel, queue: Queue) -> None:
    publish(channel, "XXaXa")
    channel.consume(queue, prefetch=1, arguments=only("a"))
    for _ in range(5):
        (delivered,) = channel.deliveries()
        channel.reject(delivered.tag)
    assert channel.bodies() == "a"


def test_the_messages_of_a_closed_channel_go_to_others(channel: ClientChannel, other: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.consume(queue, arguments=only("ab"))
    other.consume(queue, arguments=only("bc"))
    publish(other, "aabb")
    assert len(channel.deliveries()) == 3
    assert other.bodies() == "b"
    channel.close()
    assert other.bodies() == "b"
    assert waiting(queue) == "aa"


def test_the_active_consumer_decides_alone(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-single-active-consumer": True})
    channel.consume(queue, "first", arguments=only("a"))
    channel.consume(queue, "second", arguments=only("b"))
    publish(channel, "abab")
    assert [each.consumer for each in channel.deliveries()] == ["first", "first"]
    channel.core.cancel("first")
    assert [each.consumer for each in channel.deliveries()] == ["second", "second"]


def test_a_paced_consumer_keeps_its_pace(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    publish(channel, "XaXaXaX")
    channel.consume(queue, arguments=only("a") | {"x-rate": 10})
    assert received(broker, channel, 1000) == [0, 104, 200]
    publish(channel, "Xa")
    assert received(broker, channel, 1000) == [1000]


def test_get_ignores_filters(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, arguments=only("b"))
    publish(channel, "acb")
    assert [channel.get(queue).body, channel.get(queue).body, channel.get(queue)] == [b"a", b"c", None]  # type: ignore[union-attr]
    assert channel.bodies() == "b"


def test_purge_and_delete(channel: ClientChannel, broker: Broker, queue: Queue) -> None:
    channel.consume(queue, prefetch=1, arguments=only("a"))
    publish(channel, "baba")
    assert channel.bodies() == "a"
    assert queue.purge() == 3
    channel.ack(0, multiple=True)
    publish(channel, "ba")
    assert channel.bodies() == "a"
    channel.ack(0, multiple=True)
    channel.delete(queue)
    assert channel.cancels() == ["consumer"]
    assert_nothing_is_held(broker)


def test_expired_messages_are_not_delivered(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-message-ttl": 1000})
    publish(channel, "aba")
    advance(broker, 500)
    publish(channel, "ab")
    channel.client.broker.turn.now_ms += 600  # the timer has not run
    channel.consume(queue, arguments=only("a"))
    assert channel.bodies() == "a"
    advance(broker, 1000)
    assert queue.message_count() == 0


def test_a_message_that_may_not_wait_is_dropped_unless_somebody_wants_it(channel: ClientChannel, queue: Queue) -> None:
    channel.client.broker.turn.now_ms = 1000
    channel.consume(queue, arguments=only("a"))
    publish(channel, "aba", expiration="0")
    assert channel.bodies() == "aa"
    assert queue.message_count() == 0


def test_a_length_limit_drops_what_nobody_wants(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-max-length": 3})
    channel.consume(queue, arguments=only("a"))
    publish(channel, "bcdeaf")
    assert channel.bodies() == "a"
    assert waiting(queue) == "def"


def test_a_retry_in_order_holds_everybody(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q", arguments={"x-retry-max": 3, "x-retry-delay": 1000, "x-retry-ordered": True})
    publish(channel, "aba")
    channel.consume(queue, prefetch=1, arguments=only("a"))
    (delivered,) = channel.deliveries()
    channel.reject(delivered.tag)
    publish(channel, "a")
    assert channel.bodies() == ""
    advance(broker, 2000)
    assert channel.bodies() == "a"


def test_a_transaction_delivers_at_its_end(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, arguments=only("a"))
    other.core.select_transactions()
    publish(other, "aba")
    assert channel.bodies() == ""
    other.core.commit()
    assert channel.bodies() == "aa"


def test_a_cancelled_filter_leaves_the_queue_as_it_was(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    other.consume(queue, prefetch=1)
    channel.consume(queue, arguments=only("b"))
    publish(channel, "aaba")
    assert (other.bodies(), channel.bodies()) == ("a", "b")
    channel.core.cancel("consumer")
    assert queue.filters is None
    other.ack(0, multiple=True)
    assert other.bodies() == "a"


def test_a_message_is_tested_once(channel: ClientChannel, queue: Queue) -> None:
    publish(channel, "b" * 1000)
    channel.consume(queue, arguments=only("a"))
    assert channel.bodies() == ""
    assert evaluations(queue) == 1000
    for _ in range(100):
        publish(channel, "a")
        assert channel.bodies() == "a"
        channel.ack(0, multiple=True)
    assert evaluations(queue) == 1100


def test_a_requeue_tests_one_message(channel: ClientChannel, queue: Queue) -> None:
    publish(channel, "b" * 1000 + "a")
    channel.consume(queue, prefetch=1, arguments=only("a"))
    for _ in range(100):
        (delivered,) = channel.deliveries()
        channel.reject(delivered.tag)
    assert evaluations(queue) == 1100


def test_a_turn_makes_so_many_tests(channel: ClientChannel, queue: Queue) -> None:
    publish(channel, "b" * (2 * SCAN_LIMIT) + "a")
    channel.consume(queue, arguments=only("a"))
    for turn in (1, 2):
        assert channel.bodies() == ""
        assert evaluations(queue) == turn * SCAN_LIMIT
    assert channel.bodies() == "a"


# -- on disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path, window=64 * KIB, memory_budget=192 * KIB)


def publish_numbers(kept: Kept, count: int, key: str = "q", **properties: Any) -> None:
    for number in range(count):
        kept.channel.publish(b"%d" % number, key, headers={"n": number % 100}, delivery_mode=2, **properties)
        if number % 100 == 0:
            kept.settle()
    kept.settle()


def numbers(channel: ClientChannel) -> list[int]:
    return [int(each.body) for each in channel.client.outbox.take(Delivered, channel.number)]


def consume(kept: Kept, text: str, **options: Any) -> tuple[ClientChannel, Consumer]:
    channel = Client(kept.broker).channel()
    consumer = channel.consume(kept.queue(), arguments=filtered(text), **options)
    return channel, consumer


def rest(kept: Kept) -> None:
    for _ in range(1000):
        kept.settle()
        turn = kept.broker.turn
        if not (turn.due or turn.deferred or (kept.queue().filters is not None and kept.queue().filters.reading)):
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 2}])
def test_messages_on_disk_are_delivered_from_there(kept: Kept, arguments: dict[str, Any]) -> None:
    queue = kept.declare("q", **arguments)
    publish_numbers(kept, 5000)
    paged = queue.backlog.paged
    assert paged > 4000
    channel, _ = consume(kept, "n = 77")
    rest(kept)
    expected = list(range(77, 5000, 100))
    assert numbers(channel) == expected
    assert evaluations(queue) == 5000
    assert paged - len(expected) - 100 < queue.backlog.paged < paged
    assert kept.broker.stats.held_bytes < 96 * KIB
    kept.restart(clean=False)  # what is unacked was never removed from the disk
    channel, _ = consume(kept, "n = 77")
    rest(kept)
    assert numbers(channel) == expected
    channel.ack(0, multiple=True)
    kept.settle()
    kept.restart(clean=False)
    assert [int(entry.message.body) for entry in kept.take_all()] == [n for n in range(5000) if n % 100 != 77]


def test_a_filter_that_matches_nothing_costs_one_pass(kept: Kept) -> None:
    queue = kept.declare()
    publish_numbers(kept, 3000)
    channel, _ = consume(kept, "n = 1000")
    rest(kept)
    assert evaluations(queue) == 3000
    matching, _ = consume(kept, "n = 2000 OR n = 77", prefetch=1)
    for _ in range(10):
        rest(kept)
        (delivered,) = matching.client.outbox.take(Delivered, matching.number)
        matching.ack(delivered.tag)
    kept.channel.publish(b"3000", "q", headers={"n": 1000})
    rest(kept)
    assert numbers(channel) == [3000]
    assert evaluations(queue) <= 6002


def test_a_nack_does_not_read_the_disk_again(kept: Kept) -> None:
    queue = kept.declare()
    publish_numbers(kept, 3000)
    channel, _ = consume(kept, "n = 77", prefetch=1)
    rest(kept)
    (delivered,) = channel.deliveries()
    tested = evaluations(queue)
    for _ in range(50):
        channel.reject(delivered.tag)
        (delivered,) = channel.deliveries()
        assert (delivered.body, delivered.redelivered) == (b"77", True)
    assert evaluations(queue) == tested + 50


def test_messages_that_return_leave_memory_again(kept: Kept) -> None:
    queue = kept.declare()
    publish_numbers(kept, 5000)
    channel, _ = consume(kept, "n > 49")
    rest(kept)
    assert kept.broker.stats.held_bytes > 500 * KIB
    channel.close()
    rest(kept)
    assert kept.broker.stats.held_bytes < 192 * KIB
    assert queue.message_count() == 5000
    assert [int(entry.message.body) for entry in kept.take_all()] == list(range(5000))


@pytest.mark.parametrize("arguments", [{}, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}])
def test_messages_between_delivered_ones_expire(kept: Kept, arguments: dict[str, Any]) -> None:
    queue = kept.declare("q", **arguments)
    kept.declare("dead")
    publish_numbers(kept, 3000, expiration="60000")
    channel, _ = consume(kept, "n = 77")
    rest(kept)
    assert len(numbers(channel)) == 30
    kept.advance(61_000)
    assert queue.message_count() == 0
    assert kept.queue("dead").message_count() == (2970 if arguments else 0)
    channel.reject(0, multiple=True)
    kept.advance(1000)
    assert queue.message_count() == 0
    assert kept.queue("dead").message_count() == (3000 if arguments else 0)


def test_a_length_limit_spares_what_is_unacked(kept: Kept) -> None:
    queue = kept.declare("q", **{"x-max-length": 3000})
    publish_numbers(kept, 3000)
    channel, _ = consume(kept, "n = 77")
    rest(kept)
    delivered = numbers(channel)
    publish_numbers(kept, 3000)
    kept.advance(1000)
    assert queue.message_count() == 3000
    channel.core.cancel("consumer")
    channel.reject(0, multiple=True)
    kept.advance(1000)
    assert queue.message_count() == 3000
    assert len(delivered) == 60 - len(numbers(channel)) or len(delivered) == 30


def test_a_purge_spares_what_is_unacked(kept: Kept) -> None:
    queue = kept.declare()
    publish_numbers(kept, 3000)
    channel, _ = consume(kept, "n = 77")
    rest(kept)
    channel.core.cancel("consumer")
    assert queue.purge() == 2970
    channel.reject(0, multiple=True)
    rest(kept)
    kept.restart(clean=False)
    assert [int(entry.message.body) for entry in kept.take_all()] == list(range(77, 3000, 100))


# -- streams ---------------------------------------------------------------------------------------------------------


def read(channel: ClientChannel, stream: Queue, text: Any, **arguments: Any) -> None:
    channel.consume(stream, prefetch=10_000, arguments=filtered(text) | {"x-stream-offset": "first"} | arguments)


def test_a_stream_is_filtered_before_sending(channel: ClientChannel, broker: Broker) -> None:
    stream = declare_stream(channel)
    publish(channel, "abcab", "s")
    read(channel, stream, {"letter": "b"})
    publish(channel, "cb", "s")
    assert offsets(channel) == [1, 4, 6]
    assert broker.stats.unacked == 3


def test_both_filters_of_a_stream_hold(channel: ClientChannel) -> None:
    stream = declare_stream(channel)
    for value, letter in ("xa", "ya", "xb", "xa"):
        channel.publish(b"", "s", headers={"letter": letter, "x-stream-filter-value": value})
    read(channel, stream, "letter = 'a'", **{"x-stream-filter": "x"})
    assert offsets(channel) == [0, 3]


def test_a_reader_without_a_filter_gets_everything(channel: ClientChannel, other: ClientChannel) -> None:
    stream = declare_stream(channel)
    read(channel, stream, "letter = 'a'")
    other.consume(stream, prefetch=100, arguments={"x-stream-offset": "first"})
    publish(channel, "abc", "s")
    assert (channel.bodies(), other.bodies()) == ("a", "abc")


def test_a_turn_skips_so_many_messages_of_a_stream() -> None:
    broker = make_broker()
    channel = Client(broker).channel()
    stream = declare_stream(channel)
    publish(channel, "b" * 20_000 + "a", "s")
    read(channel, stream, "letter = 'a'")
    turns = 1
    while not channel.deliveries():
        turns += 1
    assert turns >= 3


def test_an_ordered_queue_that_waits_delivers_nothing_past_its_head(channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-retry-delay": 100, "x-retry-ordered": True})
    channel.consume(queue, arguments={"x-filter": "TRUE"}, prefetch=2)
    channel.publish(b"a", "q")
    (first,) = channel.deliveries()
    channel.reject(first.tag)
    channel.publish(b"b", "q")
    assert channel.bodies() == ""
