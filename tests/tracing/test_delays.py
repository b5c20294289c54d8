"""Scheduled and retried messages in biographies: what they wait for, until when, and where they are meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import ClientChannel, advance
from tests.support.tracing import TracedBroker, story
from tests.tracing.test_queue_features import biography_of, spans_of
from warrenmq.core.queue import Queue
from warrenmq.events import schema
from warrenmq.events.schema import Event, reason_name
from warrenmq.tracing.biography import Biography, Leg

SECOND_US = 1_000_000


@pytest.fixture
def traced() -> TracedBroker:
    return TracedBroker()


@pytest.fixture
def channel(traced: TracedBroker) -> ClientChannel:
    return traced.client().channel()


def retrying(channel: ClientChannel, name: str = "q", **arguments: Any) -> Queue:
    found = {f"x-retry-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return channel.declare(name, arguments=found or {"x-retry-max": 2})


def fail(channel: ClientChannel, queue: Queue) -> None:
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag, requeue=False)


def told(traced: TracedBroker) -> Biography:
    return biography_of(traced.events())


def drawn(leg: Leg) -> list[tuple[str, str | None]]:
    return [(span.kind, span.outcome) for span in leg.spans]


def only(events: list[Event], kind: int) -> Event:
    (found,) = [event for event in events if event.kind == kind]
    return found


# -- scheduled


def test_a_scheduled_message_waits_in_the_schedule_until_its_time(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("q")
    now_ms = traced.broker.turn.now_ms
    channel.publish(b"later", "q", headers={"x-delay": 5_000})
    scheduled = only(traced.events(), schema.SCHEDULED)
    assert (scheduled.queue, scheduled.connection) == ("warren.scheduled", channel.core.connection_name)
    assert scheduled.due_time == (now_ms + 5_000) * 1000
    (leg,) = told(traced).legs
    (span,) = leg.spans
    assert (leg.queue, leg.outcome, leg.is_over) == ("warren.scheduled", "delayed", False)
    assert (span.kind, span.begin, span.end, span.due) == ("delayed", scheduled.time, None, scheduled.due_time)


def test_a_released_message_has_left_the_schedule(traced: TracedBroker, channel: ClientChannel) -> None:
    for name in "qr":
        channel.bind("amq.fanout", channel.declare(name))
    channel.publish(b"later", "", "amq.fanout", headers={"x-delay": 5_000})
    advance(traced.broker, 6_000)
    for name in "qr":
        channel.get(channel.vhost.queues[name])
    biography = told(traced)
    schedule, *queues = biography.legs
    assert drawn(schedule) == [("delayed", "routed")]
    assert (schedule.delayed_us, schedule.waiting_us) == (schedule.spans[0].length, None)
    assert sorted(leg.queue for leg in queues) == ["q", "r"]
    assert {leg.outcome for leg in queues} == {"delivered"}
    assert biography.is_complete


@pytest.mark.parametrize("end", ["unroutable", "dropped"])
def test_a_message_that_leaves_the_schedule_for_no_queue(
    traced: TracedBroker, channel: ClientChannel, end: str
) -> None:
    queue = channel.declare("q")
    channel.publish(b"later", "q", headers={"x-delay": 5_000})
    if end == "unroutable":
        channel.delete(queue)
        advance(traced.broker, 6_000)
    else:
        channel.vhost.schedule.cancel(0, lambda _: None)
    biography = told(traced)
    (leg,) = biography.legs
    assert (drawn(leg), leg.outcome, biography.is_complete) == ([("delayed", end)], end, True)


def test_a_schedule_is_a_span(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("q")
    channel.publish(b"later", "q", headers={"x-delay": 5_000})
    advance(traced.broker, 6_000)
    events = traced.events()
    spans = {span.name: span for span in spans_of(events)}
    delay = spans["delay warren.scheduled"]
    assert (delay.begin, delay.end) == (only(events, schema.SCHEDULED).time, only(events, schema.ENQUEUED).time)
    assert (delay.failure, delay.parent_id) == (None, spans["publish amq.default"].span_id)


# -- retried


def test_a_retried_message_says_when_and_how_often_it_returns(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = retrying(channel, max=16, delay=4_000)
    channel.publish(b"a", "q")
    fail(channel, queue)
    retried = only(traced.events(), schema.RETRIED)
    assert (retried.queue, retried.attempt, retried.retry_max) == ("q", 1, 16)
    assert retried.due_time == (traced.broker.turn.now_ms + 4_000) * 1000
    assert reason_name(retried.reason or 0) == "rejected"
    (leg,) = told(traced).legs
    assert drawn(leg) == [("waiting", "delivered"), ("processing", "rejected"), ("delayed", None)]
    assert (leg.outcome, leg.is_over) == ("delayed", False)
    assert (leg.spans[-1].due, leg.spans[-1].attempt, leg.spans[-1].retry_max) == (retried.due_time, 1, 16)


def test_all_attempts_in_a_queue_are_one_leg(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = retrying(channel, max=2, delay=1_000)
    channel.publish(b"a", "q")
    for _ in range(2):
        fail(channel, queue)
        advance(traced.broker, 10_000)
    channel.get(queue)
    biography = told(traced)
    (leg,) = biography.legs
    attempt = ["waiting", "processing", "delayed"]
    assert [span.kind for span in leg.spans] == [*attempt, *attempt, "waiting"]
    assert (leg.deliveries, leg.outcome, biography.is_complete) == (3, "delivered", True)
    assert [event.attempt for event in biography.events if event.kind == schema.DELIVERED] == [1, 2, 3]


def test_the_headers_of_a_message_say_how_often_it_is_retried(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = retrying(channel, max=2)
    channel.publish(b"a", "q", headers={"x-retry-max": 7})
    fail(channel, queue)
    assert only(traced.events(), schema.RETRIED).retry_max == 7


def test_a_message_without_attempts_left_is_in_the_dead_letter_queue(
    traced: TracedBroker, channel: ClientChannel
) -> None:
    queue = retrying(channel, max=1, delay=1_000)
    channel.publish(b"a", "q")
    fail(channel, queue)
    advance(traced.broker, 2_000)
    fail(channel, queue)
    assert [(leg.queue, leg.outcome) for leg in told(traced).legs] == [("q", "dead_lettered"), ("q.dead", "waiting")]


def test_an_ordered_queue_tells_the_same(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = retrying(channel, max=2, delay=1_000, ordered=True)
    channel.publish(b"a", "q")
    fail(channel, queue)
    assert story(traced.events())[-2:] == ["rejected q", "retried q"]
    advance(traced.broker, 2_000)
    channel.get(queue)
    (leg,) = told(traced).legs
    assert drawn(leg)[2:] == [("delayed", "delivered")]


def test_a_message_that_is_purged_before_its_retry_is_gone(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = retrying(channel, max=2, delay=1_000)
    channel.publish(b"a", "q")
    fail(channel, queue)
    queue.purge()
    (leg,) = biography_of(traced.events(resources=True)).legs
    assert (drawn(leg)[-1], leg.is_over) == (("delayed", "dropped"), True)


def test_a_delay_before_a_retry_is_a_span(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = retrying(channel, max=2, delay=1_000)
    channel.publish(b"a", "q")
    fail(channel, queue)
    advance(traced.broker, 2_000)
    channel.get(queue)
    events = traced.events()
    names = [span.name for span in spans_of(events)]
    assert names == ["wait q", "deliver q", "delay q", "wait q", "deliver q", "publish amq.default"]
