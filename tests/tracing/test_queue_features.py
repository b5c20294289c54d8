"""What queues do to messages by themselves is in their biographies: expiry, length limits, dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import PERSISTENT, ClientChannel, advance
from tests.support.tracing import TracedBroker, story
from tests.tracing.test_event_log import TracedLife, a_disk
from tests.tracing.test_reader_of_broker import biography_in
from warrenmq.core.dead_letter import MAX_DEATHS, RETRY_MS
from warrenmq.core.queue import Queue
from warrenmq.events import schema
from warrenmq.events.schema import Event, reason_name
from warrenmq.tracing.biography import Biography, build_biography
from warrenmq.tracing.spans import OtelSpan, SpanMaker

TTL = 1_000
BEGINNING = ["published", "routed"]


@pytest.fixture
def traced() -> TracedBroker:
    return TracedBroker()


@pytest.fixture
def channel(traced: TracedBroker) -> ClientChannel:
    return traced.client().channel()


def declare(channel: ClientChannel, name: str, to: str | None = "dead", **arguments: Any) -> Queue:
    """A queue whose dead letters go to the queue `to`, if any."""
    found = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    if to is not None:
        found |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
    return channel.declare(name, durable=found.get("x-queue-type") == "quorum", arguments=found)


def get(channel: ClientChannel, queue: str) -> int:
    got = channel.get(channel.vhost.queues[queue], no_ack=False)
    assert got is not None
    return got.tag


def told(events: list[Event]) -> list[str]:
    """What happened after the publish: kind, queue and reason."""
    assert story(events)[:2] == BEGINNING
    return [
        " ".join(filter(None, (line, reason_name(event.reason) if event.reason else "")))
        for line, event in zip(story(events), events, strict=True)
    ][2:]


def biography_of(events: list[Event]) -> Biography:
    found = build_biography(events)
    assert found is not None
    return found


def spans_of(events: list[Event]) -> list[OtelSpan]:
    maker = SpanMaker()
    return maker.add(events) + maker.end_publishes()


def outcomes(biography: Biography) -> list[tuple[str, str]]:
    return [(leg.queue, leg.outcome) for leg in biography.legs]


# -- the ways out of a queue -------------------------------------------------------------------------------------------


def test_a_message_that_expires(traced: TracedBroker, channel: ClientChannel) -> None:
    declare(channel, "q", None, message_ttl=TTL)
    channel.publish(b"a", "q")
    advance(traced.broker, 2 * TTL)
    events = traced.events()
    assert told(events) == ["enqueued q", "expired q expired"]
    assert (events[-1].channel, events[-1].connection, events[-1].consumer, events[-1].depth) == (None, None, None, 0)
    assert biography_of(events).is_complete


def test_a_message_that_a_length_limit_drops(traced: TracedBroker, channel: ClientChannel) -> None:
    declare(channel, "q", None, max_length=1)
    channel.publish(b"a", "q", message_id="first")
    channel.publish(b"b", "q", message_id="second")
    first = [event for event in traced.events() if event.message_id == "first"]
    assert told(first) == ["enqueued q", "dropped q maxlen"]
    assert first[-1].depth == 1


def test_a_publish_that_a_full_queue_rejects_never_waited_there(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.bind("amq.fanout", declare(channel, "full", None, max_length=0, overflow="reject-publish"))
    channel.bind("amq.fanout", declare(channel, "other", None))
    channel.publish(b"a", "", "amq.fanout")
    events = traced.events()
    assert sorted(told(events)) == ["dropped full refused", "enqueued other"]
    legs = {leg.queue: leg for leg in biography_of(events).legs}
    assert (legs["full"].outcome, legs["full"].spans, legs["full"].is_over) == ("dropped", (), True)
    assert legs["other"].outcome == "waiting"
    (publish,) = spans_of(events)
    assert (publish.failure, publish.attributes["warrenmq.reason"]) == ("dropped", "refused")


def test_a_purge_records_the_remaining_depth(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = declare(channel, "q", None)
    channel.publish_all("ab", "q")
    queue.purge()
    assert [event.depth for event in traced.events() if event.kind == schema.DROPPED] == [0, 0]


# -- dead letters: each reason -----------------------------------------------------------------------------------------


def reject_it(channel: ClientChannel) -> list[str]:
    declare(channel, "q")
    channel.publish(b"a", "q")
    channel.reject(get(channel, "q"), requeue=False)
    return ["enqueued q", "delivered q", "rejected q", "dead_lettered q rejected"]


def expire_it(channel: ClientChannel) -> list[str]:
    declare(channel, "q", message_ttl=TTL)
    channel.publish(b"a", "q")
    advance(channel.client.broker, 2 * TTL)
    return ["enqueued q", "expired q expired", "dead_lettered q expired"]


def push_it_out(channel: ClientChannel) -> list[str]:
    queue = declare(channel, "q", max_length=1)
    channel.publish(b"a", "q")
    channel.client.broker.events.is_watching = False  # the other one is not traced
    channel.publish(b"b", "q")
    queue.purge()
    return ["enqueued q", "dead_lettered q maxlen"]


def refuse_it(channel: ClientChannel) -> list[str]:
    declare(channel, "q", max_length=0, overflow="reject-publish-dlx")
    channel.publish(b"a", "q")
    return ["dead_lettered q refused"]


def deliver_it_too_often(channel: ClientChannel) -> list[str]:
    declare(channel, "q", queue_type="quorum", delivery_limit=1)
    channel.publish(b"a", "q")
    for _ in range(2):
        channel.reject(get(channel, "q"), requeue=True)
    once = ["delivered q", "rejected q"]
    return ["enqueued q", *once, "requeued q client", *once, "dead_lettered q delivery_limit"]


@pytest.mark.parametrize("kill", [reject_it, expire_it, push_it_out, refuse_it, deliver_it_too_often])
def test_a_dead_letter_is_the_same_message_in_the_next_queue(
    traced: TracedBroker, channel: ClientChannel, kill: Any
) -> None:
    channel.declare("dead")
    before = kill(channel)
    channel.ack(get(channel, "dead"))
    events = traced.events()
    assert told(events) == [*before, "routed q", "enqueued dead", "delivered dead", "acked dead"]
    assert len({event.uid for event in events}) == 1
    biography = biography_of(events)
    assert outcomes(biography) == [("q", "dead_lettered"), ("dead", "acked")]
    assert biography.is_complete
    routed, enqueued, delivered, acked = events[-4:]
    assert (routed.exchange, routed.routing_key) == ("", "dead")
    assert enqueued.enqueue_time == enqueued.time == delivered.enqueue_time == acked.enqueue_time
    assert events[0].time <= routed.time <= enqueued.time <= delivered.time
    assert (delivered.attempt, acked.attempt) == (1, 1)
    assert {event.publish_time for event in events} == {events[0].time}
    names = [span.name for span in spans_of(events) if span.name.endswith(" dead")]
    assert names == ["wait dead", "deliver dead"]


def test_a_dead_letter_joins_its_queue_when_it_comes_there_and_not_when_it_was_published(
    traced: TracedBroker, channel: ClientChannel
) -> None:
    channel.declare("dead")
    declare(channel, "q", message_ttl=TTL)
    channel.publish(b"a", "q")
    first = traced.events()[-1]
    advance(traced.broker, 2 * TTL)
    *_, expired, dead_lettered, routed, enqueued = traced.events()
    assert first.time < expired.time <= dead_lettered.time <= routed.time <= enqueued.time
    waiting = [leg.waiting_us for leg in biography_of(traced.events()).legs]
    assert waiting == [expired.time - first.time, None]


def test_a_channel_that_ends_settles_what_comes_back_too_often(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("dead")
    queue = declare(channel, "q", queue_type="quorum", delivery_limit=0)
    other = traced.client().channel()
    other.consume(queue, "worker")
    channel.publish(b"a", "q")
    other.close()
    events = traced.events()
    assert told(events)[2:] == ["dead_lettered q delivery_limit", "routed q", "enqueued dead"]
    delivered, dead_lettered = events[3:5]
    assert (dead_lettered.consumer, dead_lettered.channel) == ("worker", delivered.channel)
    (span,) = [span for span in spans_of(events) if span.name == "deliver q"]
    assert (span.failure, span.attributes["warrenmq.reason"]) == ("dead_lettered", "delivery_limit")


# -- where dead letters go ---------------------------------------------------------------------------------------------


def test_a_retry_by_two_queues_is_a_leg_for_each_visit(traced: TracedBroker, channel: ClientChannel) -> None:
    declare(channel, "work", "wait")
    declare(channel, "wait", "work", message_ttl=TTL)
    channel.publish(b"a", "work")
    for _ in range(2):
        channel.reject(get(channel, "work"), requeue=False)
        advance(traced.broker, 2 * TTL)
    channel.ack(get(channel, "work"))
    events = traced.events()
    round_trip = ["delivered work", "rejected work", "dead_lettered work rejected", "routed work", "enqueued wait"]
    round_trip += ["expired wait expired", "dead_lettered wait expired", "routed wait", "enqueued work"]
    assert told(events) == ["enqueued work", *round_trip * 2, "delivered work", "acked work"]
    biography = biography_of(events)
    died = [("work", "dead_lettered"), ("wait", "dead_lettered")]
    assert outcomes(biography) == [*died * 2, ("work", "acked")]
    assert biography.is_complete
    arrivals = [event.time for event in events if event.kind == schema.ENQUEUED]
    assert arrivals == sorted(set(arrivals))
    ends = [event.time for event in events if event.kind in (schema.DELIVERED, schema.EXPIRED)]
    waits = [end - begin for begin, end in zip(arrivals, ends, strict=True)]
    assert [leg.waiting_us for leg in biography.legs] == waits
    assert [event.attempt for event in events if event.kind == schema.DELIVERED] == [1, 1, 1]
    assert [span.end - span.begin for span in spans_of(events) if span.name.startswith("wait ")] == waits


def test_two_copies_in_one_queue_are_distinguished(traced: TracedBroker, channel: ClientChannel) -> None:
    dead = channel.declare("dead")
    for name in ("a", "b"):
        channel.bind("amq.fanout", declare(channel, name, message_ttl=TTL))
    channel.publish(b"x", "", "amq.fanout")
    advance(traced.broker, 2 * TTL)
    first, second = channel.get(dead, no_ack=False), channel.get(dead, no_ack=False)
    assert first is not None
    assert second is not None
    channel.ack(second.tag)
    channel.reject(first.tag, requeue=False)
    events = traced.events()
    biography = biography_of(events)
    died = [("a", "dead_lettered"), ("b", "dead_lettered")]
    assert outcomes(biography) == [*died, ("dead", "dropped"), ("dead", "acked")]
    assert [leg.deliveries for leg in biography.legs] == [0, 0, 1, 1]
    assert biography.is_complete
    deliveries = [span for span in spans_of(events) if span.name == "deliver dead"]
    assert [span.failure for span in deliveries] == [None, "rejected"]


def test_of_a_fanout_one_branch_dies(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("dead")
    channel.bind("amq.fanout", declare(channel, "a", message_ttl=TTL))
    channel.bind("amq.fanout", channel.declare("b"))
    channel.publish(b"x", "", "amq.fanout", message_id="m")
    advance(traced.broker, 2 * TTL)
    biography = biography_in(traced, "m")
    assert outcomes(biography) == [("a", "dead_lettered"), ("b", "waiting"), ("dead", "waiting")]
    assert not biography.is_complete


def test_a_dead_letter_that_no_queue_is_bound_for_is_lost(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("q", arguments={"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "gone"})
    channel.publish(b"a", "q")
    channel.reject(get(channel, "q"), requeue=False)
    events = traced.events()
    assert told(events)[-2:] == ["dead_lettered q rejected", "unroutable q no_route"]
    assert (events[-1].exchange, events[-1].routing_key) == ("amq.topic", "gone")
    biography = biography_of(events)
    assert outcomes(biography) == [("q", "unroutable")]
    assert biography.is_complete
    (publish,) = [span for span in spans_of(events) if span.name.startswith("publish")]
    assert publish.failure is None
    assert sum(traced.broker.stats.dead_lettered) == 0


def test_so_is_one_whose_exchange_does_not_exist(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("q", arguments={"x-dead-letter-exchange": "nowhere"})
    channel.publish(b"a", "q")
    channel.reject(get(channel, "q"), requeue=False)
    events = traced.events()
    assert told(events)[-1] == "unroutable q no_route"
    assert (events[-1].exchange, events[-1].routing_key) == ("nowhere", "q")


def test_a_dead_letter_that_would_go_around_for_ever_is_dropped(traced: TracedBroker, channel: ClientChannel) -> None:
    declare(channel, "a", "b", message_ttl=TTL)
    declare(channel, "b", "a", message_ttl=TTL)
    channel.publish(b"x", "a")
    advance(traced.broker, 2 * TTL)
    advance(traced.broker, 2 * TTL)
    events = traced.events()
    assert told(events)[-2:] == ["routed b", "dropped a cycle"]
    biography = biography_of(events)
    assert outcomes(biography) == [("a", "dead_lettered"), ("b", "dead_lettered"), ("a", "dropped")]
    assert biography.is_complete
    stats = traced.broker.stats
    assert (stats.dead_lettered[schema.R_EXPIRED], stats.dropped[schema.R_EXPIRED]) == (1, 2)


def test_one_with_too_many_deaths_is_dropped(traced: TracedBroker, channel: ClientChannel) -> None:
    for number in range(MAX_DEATHS + 1):
        declare(channel, f"q{number}", f"q{number + 1}")
    channel.publish(b"x", "q0")
    for number in range(MAX_DEATHS + 1):
        channel.reject(get(channel, f"q{number}"), requeue=False)
    assert told(traced.events())[-1] == f"dropped q{MAX_DEATHS} cycle"
    assert traced.broker.stats.dead_lettered[schema.R_REJECTED] == MAX_DEATHS


def test_one_that_is_held_goes_on_when_a_queue_takes_it(traced: TracedBroker, channel: ClientChannel) -> None:
    arguments = {"queue_type": "quorum", "dead_letter_strategy": "at-least-once", "overflow": "reject-publish"}
    declare(channel, "q", **arguments)
    channel.publish(b"a", "q")
    channel.reject(get(channel, "q"), requeue=False)
    for _ in range(3):
        advance(traced.broker, RETRY_MS + 1_000)
    channel.declare("dead")
    advance(traced.broker, RETRY_MS + 1_000)
    after = ["dead_lettered q rejected", "unroutable q no_route", "routed q", "enqueued dead"]
    assert told(traced.events())[-4:] == after
    assert traced.broker.stats.dead_lettered[schema.R_REJECTED] == 1


@pytest.mark.parametrize("is_deleted", [False, True])
def test_one_that_is_held_is_dropped_with_its_queue_or_its_policy(
    traced: TracedBroker, channel: ClientChannel, is_deleted: bool
) -> None:
    policy = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "dead-letter-strategy": "at-least-once"}
    policies = channel.vhost.policies
    policies.set("p", "^q", policy | {"overflow": "reject-publish"})
    queue = declare(channel, "q", None, queue_type="quorum")
    channel.publish(b"a", "q")
    channel.reject(get(channel, "q"), requeue=False)
    if is_deleted:
        channel.delete(queue)
    else:
        policies.clear("p")
    reason = "queue_deleted" if is_deleted else "rejected"
    assert told(traced.events())[-2:] == ["unroutable q no_route", f"dropped q {reason}"]


def test_a_message_that_an_exchange_remembers_joins_a_queue_when_that_is_bound(
    traced: TracedBroker, channel: ClientChannel
) -> None:
    channel.declare_exchange("recent", "x-recent-history")
    channel.publish(b"a", "k", "recent", message_id="m")
    last = traced.events()[-1]
    channel.bind("recent", channel.declare("q"))
    enqueued = traced.events()[-1]
    assert (enqueued.kind, enqueued.queue) == (schema.ENQUEUED, "q")
    assert enqueued.enqueue_time == enqueued.time > last.time


# -- on disk -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "kind"), [(schema.R_EXPIRED, schema.EXPIRED), (schema.R_MAXLEN, schema.DROPPED)])
def test_removal_on_disk_is_one_event_that_may_concern_each_message(
    traced: TracedBroker, channel: ClientChannel, reason: int, kind: int
) -> None:
    queue = channel.declare("q")
    channel.publish(b"a", "q", message_id="m")
    queue.dropped_on_disk(40, reason)
    biography = biography_in(traced, "m")
    last = biography.events[-1]
    assert (last.uid, last.kind, last.reason, last.queue, last.depth) == (0, kind, reason, "q", 40)
    assert outcomes(biography) == [("q", "waiting")]  # nobody knows
    assert not biography.is_complete
    assert traced.broker.stats.dropped[reason] == 40
    channel.ack(get(channel, "q"))
    biography = biography_in(traced, "m")
    assert (outcomes(biography), biography.is_complete) == ([("q", "acked")], True)
    assert all(event.uid for event in biography.events)


def test_a_dead_letter_is_the_same_message_after_a_restart() -> None:
    files = a_disk()
    life = TracedLife(files)
    life.publisher.declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": TTL}
    life.publisher.declare("q", durable=True, arguments=arguments)
    life.publisher.publish(b"a", "q", delivery_mode=PERSISTENT, message_id="m")
    life.settle()
    advance(life.broker, 2 * TTL)
    life.settle()
    files = type(files)(files.disk.after_kill())
    life = TracedLife(files, 1)
    life.begin()
    queue = life.queue("dead")
    got = life.publisher.get(queue, no_ack=False)
    assert got is not None
    life.publisher.ack(got.tag)
    life.settle()
    events = life.events()
    expected = ["enqueued q", "expired q expired", "dead_lettered q expired", "routed q", "enqueued dead"]
    assert told(events) == [*expected, "delivered dead", "acked dead"]
    biography = biography_of(events)
    assert biography.is_complete
    (enqueued,) = [event for event in events if event.kind == schema.ENQUEUED and event.queue == "dead"]
    assert [event.enqueue_time for event in events if event.queue == "dead"] == [enqueued.time] * 3
