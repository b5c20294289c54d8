"""The pace of a consumer: `x-rate`, in messages per second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.client import Client, ClientChannel, make_broker
from tests.support.streams import declare_stream, read_stream
from warrenmq.core.broker import Broker
from warrenmq.core.pace import TOLERANCE_NS
from warrenmq.core.queue import Queue
from warrenmq.core.timers import RESOLUTION_MS

FROM_FIRST: dict[str, Any] = {"x-stream-offset": "first"}


def let_pass(broker: Broker, ms: int, each: Callable[[int], None] = lambda now_ms: None) -> None:
    """So much time, in which the timers run when they are due; `each` is called at every such time."""
    end = broker.turn.now_ms + ms
    while (due_ms := broker.timers.next_due_ms()) is not None and due_ms <= end:
        broker.turn.now_ms = max(due_ms, broker.turn.now_ms)
        broker.timers.advance(broker.turn.now_ms)
        broker.end_turn()
        each(broker.turn.now_ms)
    broker.turn.now_ms = end


def received(broker: Broker, channel: ClientChannel, ms: int) -> list[int]:
    """The times at which the channel receives messages within the next milliseconds, from now on."""
    times = [broker.turn.now_ms for _ in channel.deliveries()]
    let_pass(broker, ms, lambda now_ms: times.extend(now_ms for _ in channel.deliveries()))
    return times


def publish(channel: ClientChannel, queue: Queue, count: int) -> None:
    for _ in range(count):
        channel.publish(b"m", queue.name)


def at_rate(rate: float | Fraction) -> dict[str, Any]:
    return {"x-rate": rate}


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_are_spaced(broker: Broker, channel: ClientChannel, no_ack: bool, kind: str) -> None:
    queue = channel.declare("q", durable=True, arguments={"x-queue-type": kind})
    publish(channel, queue, 10)
    channel.consume(queue, no_ack=no_ack, arguments=at_rate(2))
    times = received(broker, channel, 10_000)
    assert times[0] == 0
    assert all(0 <= time - 500 * number < RESOLUTION_MS for number, time in enumerate(times))
    assert len(times) == 10
    assert len(broker.timers) == 0


@pytest.mark.parametrize("rate", [0.25, 1, 9.5, 61, 1000, 4321, 25_000])
def test_the_rate_is_met_on_average(broker: Broker, channel: ClientChannel, queue: Queue, rate: float) -> None:
    seconds = 40 if rate < 100 else 2
    publish(channel, queue, int(rate * seconds) + 100)
    channel.consume(queue, no_ack=True, arguments=at_rate(rate))
    count = len(received(broker, channel, seconds * 1000))
    assert rate * (seconds - RESOLUTION_MS / 1000) <= count <= rate * seconds + 1


def test_a_message_that_finds_its_consumer_idle_is_delivered_at_once(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, arguments=at_rate(10))
    assert len(broker.timers) == 0
    for _ in range(3):
        let_pass(broker, 200)
        publish(channel, queue, 1)
        assert len(channel.deliveries()) == 1
    publish(channel, queue, 1)
    assert received(broker, channel, 1000) == [656]  # 50 ms early, after a break: see TOLERANCE_NS


def test_others_get_what_it_may_not_take(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "paced", arguments=at_rate(1))
    channel.consume(queue, "free")
    publish(channel, queue, 20)
    assert Counter(each.consumer for each in channel.deliveries()) == {"paced": 1, "free": 19}
    let_pass(broker, 1000 + RESOLUTION_MS)
    publish(channel, queue, 2)
    assert Counter(each.consumer for each in channel.deliveries()) == {"paced": 1, "free": 1}


def test_its_priority_holds_while_it_may_take(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "paced", priority=1, arguments=at_rate(1))
    channel.consume(queue, "free")
    publish(channel, queue, 2)
    assert [each.consumer for each in channel.deliveries()] == ["paced", "free"]


def test_prefetch_and_pace_hold_together(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    publish(channel, queue, 5)
    channel.consume(queue, prefetch=2, arguments=at_rate(10))
    assert received(broker, channel, 1000) == [0, 104]
    channel.ack(2, multiple=True)
    assert received(broker, channel, 1000) == [1000, 1056]
    channel.core.ack(3, False)
    assert received(broker, channel, 0) == [2000]


def test_the_prefetch_of_the_channel_and_pace_hold_together(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    publish(channel, queue, 6)
    channel.core.limit_prefetch(3, True)
    channel.consume(queue, "paced", arguments=at_rate(1))
    channel.consume(queue, "free")
    assert [each.consumer for each in channel.deliveries()] == ["paced", "free", "free"]
    let_pass(broker, 2000)
    assert channel.deliveries() == []
    channel.ack(0, multiple=True)
    assert Counter(each.consumer for each in channel.deliveries()) == {"paced": 1, "free": 2}


def test_a_requeued_message_waits_for_the_pace_again(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    publish(channel, queue, 1)
    channel.consume(queue, arguments=at_rate(10))
    assert received(broker, channel, 10) == [0]
    channel.reject(1)
    assert received(broker, channel, 1000) == [104]


def test_the_active_consumer_is_not_replaced_while_it_waits(broker: Broker, channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-single-active-consumer": True})
    channel.consume(queue, "first", arguments=at_rate(4))
    channel.consume(queue, "second", arguments=at_rate(100))
    publish(channel, queue, 5)
    assert [each.consumer for each in channel.deliveries()] == ["first"]
    let_pass(broker, 600)
    assert [each.consumer for each in channel.deliveries()] == ["first", "first"]
    channel.core.cancel("first")
    let_pass(broker, 100)
    assert [each.consumer for each in channel.deliveries()] == ["second", "second"]


@pytest.mark.parametrize("end", ["cancel", "close", "delete", "disconnect"])
def test_its_timer_ends_with_it(
    broker: Broker, client: Client, channel: ClientChannel, other: ClientChannel, end: str
) -> None:
    queue = other.declare("q")
    publish(other, queue, 3)
    channel.consume(queue, arguments=at_rate(1))
    broker.end_turn()
    assert len(broker.timers) == 1
    match end:
        case "cancel":
            channel.core.cancel("consumer")
        case "close":
            channel.close()
        case "delete":
            other.delete(queue)
        case "disconnect":
            client.close()
    broker.end_turn()
    assert len(broker.timers) == 0


def test_readers_of_a_stream_have_their_own_pace(broker: Broker, channel: ClientChannel, other: ClientChannel) -> None:
    stream = declare_stream(channel)
    publish(channel, stream, 100)
    channel.consume(stream, prefetch=50, arguments=at_rate(100) | FROM_FIRST)
    read_stream(other, stream, prefetch=1000)
    times = received(broker, channel, 300)
    assert len(other.deliveries()) == 100
    assert 29 <= len(times) <= 31
    assert times[:2] == [0, 16]
    assert len(received(broker, channel, 2000)) == 50 - len(times)
    channel.ack(0, multiple=True)
    assert len(received(broker, channel, 2000)) == 50
    assert len(broker.timers) == 0


RATES = st.one_of(st.integers(1, 3000), st.floats(0.1, 3000), st.fractions(Fraction(1, 10), 3000))
WAITS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), min_size=1, max_size=20)


@given(RATES, WAITS, st.booleans())
def test_it_is_never_faster_and_loses_nothing(
    rate: float | Fraction, waits: list[tuple[int, int]], is_stream: bool
) -> None:
    broker = make_broker(now_ms=1_700_000_000_000)
    channel = Client(broker).channel()
    queue = declare_stream(channel) if is_stream else channel.declare("s")
    if is_stream:
        channel.consume(queue, prefetch=60_000, arguments=at_rate(rate) | FROM_FIRST)
    else:
        channel.consume(queue, arguments=at_rate(rate))
    times: list[int] = []
    count = 0
    for wait_ms, published in waits:  # the timers run when the loop gets to it
        broker.turn.now_ms += wait_ms
        broker.timers.advance(broker.turn.now_ms)
        publish(channel, queue, published)
        count += published
        times += [broker.turn.now_ms for _ in channel.deliveries()]
    times += received(broker, channel, int(count / rate * 1000) + 1000)
    assert len(times) == count
    # Messages ahead of the rate at each time, and how many more since any earlier time.
    ahead = [number - Fraction(rate) * time / 1000 for number, time in enumerate(times)]
    least = ahead[0]
    for each in ahead:
        least = min(least, each)
        assert each - least <= Fraction(rate) * TOLERANCE_NS / 10**9
    assert len(broker.timers) == 0
