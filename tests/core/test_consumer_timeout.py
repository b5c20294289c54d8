"""Consumer timeout: which unacked deliveries close the channel, and when."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, assert_nothing_is_held, make_broker, waiting
from tests.support.crash import effort
from warrenmq.core.broker import Broker
from warrenmq.core.consumer_timeout import PRECISION_MS
from warrenmq.core.ledger import NEVER_MS
from warrenmq.core.limits import Limits
from warrenmq.core.queue import Queue
from warrenmq.core.timers import RESOLUTION_MS

TIMEOUT = 10_000
LATE = PRECISION_MS + 2 * RESOLUTION_MS
TEXT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 10000 ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)


def let_pass(broker: Broker, ms: int) -> None:
    """So much time, in which the timers run when they are due."""
    end = broker.turn.now_ms + ms
    while (due := broker.timers.next_due_ms()) is not None and due <= end:
        broker.turn.now_ms = max(due, broker.turn.now_ms)
        broker.timers.advance(broker.turn.now_ms)
        broker.end_turn()
    broker.turn.now_ms = end


def arguments(timeout_ms: int = TIMEOUT, **others: Any) -> dict[str, Any]:
    return {"x-consumer-timeout": timeout_ms, **others}


@pytest.fixture
def queue(channel: ClientChannel) -> Queue:
    return channel.declare("q", arguments=arguments())


def test_a_channel_is_closed_when_a_delivery_is_unacked_for_too_long(
    broker: Broker, channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "slow")
    other.publish_all("ab", "q")
    assert channel.bodies() == "ab"
    let_pass(broker, TIMEOUT)
    assert channel.closes() == []
    let_pass(broker, LATE)
    (closed,) = channel.closes()
    assert (closed.code, closed.text) == (406, TEXT)
    assert closed.cause == "delivery 1 of queue 'q' in vhost '/' to consumer 'slow' was not acked in time"
    assert waiting(queue) == "ab"
    assert broker.stats.consumer_timeouts == 1
    assert len(broker.timers) == 0


def test_other_channels_of_the_connection_go_on(broker: Broker, client: Client, queue: Queue) -> None:
    slow, quick = client.channel(), client.channel()
    slow.consume(queue, prefetch=1)
    slow.publish_all("ab", "q")
    assert slow.bodies() == "a"
    let_pass(broker, TIMEOUT // 2)
    quick.consume(queue)
    assert quick.bodies() == "b"
    quick.ack(1)
    let_pass(broker, TIMEOUT // 2 + LATE)
    assert (len(slow.closes()), quick.closes()) == (1, [])
    assert quick.bodies() == "a"


def test_acks_in_time_keep_the_channel_open(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue)
    for _ in range(40):
        channel.publish(b"a", "q")
        (delivered,) = channel.deliveries()
        let_pass(broker, TIMEOUT - PRECISION_MS)
        channel.ack(delivered.tag)
    assert channel.closes() == []


def test_a_busy_channel_is_closed_for_one_delivery_that_it_forgot(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue)
    channel.publish(b"forgotten", "q")
    channel.deliveries()
    for _ in range(2 * TIMEOUT // 100):
        let_pass(broker, 100)
        if channel.closes():
            break
        channel.publish(b"a", "q")
        (delivered,) = channel.deliveries()
        channel.ack(delivered.tag)
    assert TIMEOUT <= broker.turn.now_ms <= TIMEOUT + LATE + 100


def test_a_message_of_basic_get_times_out(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    channel.get(queue, no_ack=False)
    let_pass(broker, TIMEOUT + LATE)
    (closed,) = channel.closes()
    assert closed.cause == "delivery 1 of queue 'q' in vhost '/' to basic.get was not acked in time"


def test_deliveries_without_acks_do_not_time_out(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, no_ack=True)
    channel.publish_all("abc", "q")
    assert channel.bodies() == "abc"
    let_pass(broker, 3 * TIMEOUT)
    assert channel.closes() == []


def test_a_delivery_of_a_stream_times_out(broker: Broker, channel: ClientChannel) -> None:
    stream = channel.declare("s", durable=True, arguments=arguments(**{"x-queue-type": "stream"}))
    channel.consume(stream, prefetch=1, arguments={"x-stream-offset": "first"})
    channel.publish(b"a", "s")
    assert channel.bodies() == "a"
    let_pass(broker, TIMEOUT + LATE)
    assert len(channel.closes()) == 1


@pytest.mark.parametrize("end", ["hold", "rollback"])
def test_an_ack_in_a_transaction_counts_when_it_is_committed(
    broker: Broker, channel: ClientChannel, other: ClientChannel, queue: Queue, end: str
) -> None:
    channel.core.select_transactions()
    channel.consume(queue)
    other.publish_all("ab", "q")
    assert channel.bodies() == "ab"
    channel.ack(1)
    if end == "rollback":
        channel.core.rollback()
    channel.ack(2)
    let_pass(broker, TIMEOUT + LATE)
    (closed,) = channel.closes()
    assert closed.cause.startswith("delivery 1 ")
    assert waiting(queue) == "ab"


def test_a_commit_in_time_settles(broker: Broker, channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.core.select_transactions()
    channel.consume(queue)
    other.publish(b"a", "q")
    channel.deliveries()
    channel.ack(1)
    channel.core.commit()
    let_pass(broker, 3 * TIMEOUT)
    assert channel.closes() == []


def test_a_timeout_counts_for_the_delivery_limit(broker: Broker, channel: ClientChannel) -> None:
    quorum = arguments(**{"x-queue-type": "quorum", "x-delivery-limit": 1})
    queue = channel.declare("quorum", durable=True, arguments=quorum)
    channel.publish(b"a", "quorum")
    for _ in range(2):
        consumer = Client(broker).channel()
        consumer.consume(queue)
        assert consumer.bodies() == "a"
        let_pass(broker, TIMEOUT + LATE)
        assert len(consumer.closes()) == 1
    assert_nothing_is_held(broker)


def test_each_queue_has_its_own_timeout(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "long")
    channel.publish(b"a", "q")
    channel.deliveries()
    let_pass(broker, 3000)
    short = channel.declare("short", arguments=arguments(2000))
    never = channel.declare("never")
    channel.consume(never, "never")
    channel.consume(short, "short")
    channel.publish(b"b", "never")
    channel.publish(b"c", "short")
    assert channel.bodies() == "bc"
    let_pass(broker, 2000 - 1)
    assert channel.closes() == []
    let_pass(broker, LATE)
    (closed,) = channel.closes()
    assert "Timeout value used: 2000 ms" in closed.text


def test_a_short_timeout_is_found_after_a_look_that_found_only_long_ones(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    short = channel.declare("short", arguments=arguments(2000))
    channel.consume(queue, "long")
    channel.consume(short, "short")
    let_pass(broker, 1990)
    channel.publish(b"a", "q")
    channel.deliveries()
    let_pass(broker, 600)  # the timer that the consumer set runs here
    channel.publish(b"b", "short")
    channel.deliveries()
    let_pass(broker, 2000 + LATE)
    assert len(channel.closes()) == 1


@pytest.mark.parametrize(("own", "closes"), [(1000, True), (0, False)])
def test_a_consumer_may_have_its_own_timeout(
    broker: Broker, channel: ClientChannel, queue: Queue, own: int, closes: bool
) -> None:
    channel.consume(queue, arguments={"x-consumer-timeout": own})
    channel.publish(b"a", "q")
    channel.deliveries()
    let_pass(broker, 1000 + LATE)
    assert bool(channel.closes()) is closes
    let_pass(broker, 2 * TIMEOUT)
    assert channel.closes() == []


def limited(timeout_ms: int) -> tuple[Broker, ClientChannel]:
    broker = make_broker(limits=Limits(consumer_timeout=timeout_ms))
    return broker, Client(broker).channel()


def test_the_timeout_of_the_broker_is_that_of_all_queues_without_their_own() -> None:
    broker, channel = limited(5000)
    own = channel.declare("own", arguments=arguments(60_000))
    off = channel.declare("off", arguments=arguments(0))
    plain = channel.declare("plain")
    channels = {}
    for queue in (own, off, plain):
        channel.publish(b"a", queue.name)
        channels[queue.name] = Client(broker).channel()
        channels[queue.name].consume(queue)
        assert channels[queue.name].bodies() == "a"
    let_pass(broker, 5000 + LATE)
    assert [len(each.closes()) for each in channels.values()] == [0, 0, 1]
    let_pass(broker, 60_000)
    assert [len(each.closes()) for each in channels.values()] == [1, 0, 0]


def test_nothing_is_noted_where_nothing_times_out(broker: Broker, channel: ClientChannel) -> None:
    plain = channel.declare("plain")
    channel.consume(plain)
    channel.publish(b"a", "plain")
    channel.deliveries()
    assert (channel.core.ledger.watch, channel.core.ledger.note_from_ms) == (None, NEVER_MS)
    assert len(broker.timers) == 0


@pytest.mark.parametrize("by", ["consumer", "get", "cancelled consumer"])
def test_a_timeout_that_is_set_at_run_time_counts_from_then(broker: Broker, channel: ClientChannel, by: str) -> None:
    queue = channel.declare("plain")
    channel.publish(b"a", "plain")
    if by == "get":
        channel.get(queue, no_ack=False)
    else:
        channel.consume(queue, "tag")
        channel.deliveries()
        if by == "cancelled consumer":
            channel.core.cancel("tag")
    let_pass(broker, 100_000)
    channel.vhost.apply(queue, replace(queue.options, consumer_timeout_ms=TIMEOUT))
    let_pass(broker, TIMEOUT - 1)
    assert channel.closes() == []
    let_pass(broker, 1 + LATE)
    assert len(channel.closes()) == 1


@pytest.mark.parametrize("timeout_ms", [None, 0, 10 * TIMEOUT])
def test_a_timeout_can_be_withdrawn_or_extended(
    broker: Broker, channel: ClientChannel, queue: Queue, timeout_ms: int | None
) -> None:
    channel.publish(b"a", "q")
    channel.consume(queue)
    channel.deliveries()
    let_pass(broker, TIMEOUT - 100)
    channel.vhost.apply(queue, replace(queue.options, consumer_timeout_ms=timeout_ms))
    let_pass(broker, TIMEOUT)
    assert channel.closes() == []
    let_pass(broker, 10 * TIMEOUT)
    assert len(channel.closes()) == (1 if timeout_ms else 0)


def test_a_shorter_timeout_counts_for_what_is_out(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    channel.consume(queue)
    channel.deliveries()
    let_pass(broker, 5000)
    channel.vhost.apply(queue, replace(queue.options, consumer_timeout_ms=1000))
    let_pass(broker, 1000 + LATE)
    assert len(channel.closes()) == 1


def test_a_channel_that_closes_takes_its_timer_with_it(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    channel.consume(queue)
    channel.deliveries()
    channel.close()
    assert len(broker.timers) == 0


def test_an_idle_channel_has_no_timer(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    channel.consume(queue)
    channel.deliveries()
    channel.ack(1)
    let_pass(broker, 2 * TIMEOUT)
    assert len(broker.timers) == 0
    channel.publish(b"b", "q")
    channel.deliveries()
    let_pass(broker, TIMEOUT + LATE)
    assert len(channel.closes()) == 1


def test_a_delivery_right_after_a_look_that_found_nothing_times_out(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue)  # the timer is set for this
    let_pass(broker, TIMEOUT + PRECISION_MS - 100)
    channel.publish(b"a", "q")
    channel.deliveries()
    channel.ack(1)
    let_pass(broker, 200)
    channel.publish(b"b", "q")  # in the same half second
    channel.deliveries()
    let_pass(broker, TIMEOUT + LATE)
    assert len(channel.closes()) == 1


def test_a_long_timeout_needs_few_notes(broker: Broker, channel: ClientChannel) -> None:
    queue = channel.declare("day", arguments=arguments(86_400_000))
    channel.consume(queue)
    channel.publish(b"forgotten", "day")
    channel.deliveries()
    for _ in range(5000):
        let_pass(broker, 600)
        channel.publish(b"a", "day")
        (delivered,) = channel.deliveries()
        channel.ack(delivered.tag)
    watch = channel.core.ledger.watch
    assert watch is not None
    assert len(watch._notes) < 100
    let_pass(broker, 86_400_000 - 600 * 5000 - 1)
    assert channel.closes() == []
    let_pass(broker, LATE)
    assert len(channel.closes()) == 1


@pytest.mark.parametrize("seed", range(effort(20)))
def test_a_channel_is_closed_never_early_and_soon_after(seed: int) -> None:
    """Deliveries and acks at random, of queues with different timeouts, against a list of when each was sent."""
    choice = random.Random(seed)
    broker, channel = limited(choice.choice((0, 4000)))
    timeouts = {"a": 1500, "b": 6000, "c": 0, "d": broker.limits.consumer_timeout}
    for name, timeout_ms in timeouts.items():
        queue = channel.declare(name, arguments={} if name == "d" else arguments(timeout_ms))
        channel.consume(queue, name)
    out: dict[int, tuple[int, int]] = {}  # by tag: when it was sent, and its timeout
    for _ in range(400):
        let_pass(broker, choice.choice((0, 1, 10, 100, 400)))
        dues = [sent + timeout_ms for sent, timeout_ms in out.values() if timeout_ms]
        now = broker.turn.now_ms
        if channel.closes():
            assert min(dues) <= now
            return
        assert not dues or now <= min(dues) + LATE
        for name in choice.sample(list(timeouts), choice.randint(0, 2)):
            channel.publish(b"x", name)
        for delivered in channel.deliveries():
            out[delivered.tag] = (now, timeouts[delivered.consumer])
        for tag in list(out):
            if choice.random() < 0.3:
                channel.ack(tag)
                del out[tag]
