"""What happens to a message is kept: every step once, in order, with its circumstances."""

from __future__ import annotations

import pytest

from tests.support.client import PERSISTENT, ClientChannel
from tests.support.tracing import ALL, TracedBroker, story
from warrenmq.events import schema
from warrenmq.events.codec import decode
from warrenmq.events.ids import EPOCH_MS
from warrenmq.events.schema import Event
from warrenmq.tracing.rules import TraceRule


@pytest.fixture
def traced() -> TracedBroker:
    return TracedBroker()


@pytest.fixture
def channel(traced: TracedBroker) -> ClientChannel:
    return traced.client().channel()


def test_the_story_of_a_message(traced: TracedBroker, channel: ClientChannel) -> None:
    """Fanout to three queues, a requeue, a second consumer, an ack and a republish."""
    for name in "abc":
        channel.bind("amq.fanout", channel.declare(name))
    first = channel.consume(channel.vhost.queues["a"], "first", prefetch=1)
    channel.publish(b"body", "key", "amq.fanout", message_id="m-1")
    channel.core.cancel(first.tag)
    channel.reject(1)
    second = traced.client().channel()
    second.consume(channel.vhost.queues["a"], "second", prefetch=1)
    assert [delivery.redelivered for delivery in second.deliveries()] == [True]
    second.ack(1)
    second.publish(b"again", "b", message_id="m-1")
    events = traced.events()
    assert story(events) == [
        "published",
        "routed",
        "enqueued a",
        "delivered a",
        "enqueued b",
        "enqueued c",
        "rejected a",
        "requeued a",
        "delivered a",
        "acked a",
        "published",
        "routed",
        "enqueued b",
    ]
    assert {event.message_id for event in events} == {"m-1"}
    assert [event.uid for event in events] == [events[0].uid] * 10 + [events[-1].uid] * 3
    assert events[-1].uid > events[0].uid
    deliveries = [event for event in events if event.kind == schema.DELIVERED]
    assert [(event.attempt, event.consumer) for event in deliveries] == [(1, "first"), (2, "second")]
    assert [(event.consumer, event.attempt) for event in events if event.kind == schema.ACKED] == [("second", 2)]


def test_every_event_has_its_circumstances(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.publish(
        b"four",
        "q",
        message_id="m",
        correlation_id="c",
        headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    )
    channel.consume(queue, "tag", prefetch=1)
    channel.deliveries()
    channel.ack(1)
    published, _, enqueued, delivered, acked = traced.events()
    for event in (published, enqueued, delivered, acked):
        assert (event.vhost, event.exchange, event.routing_key, event.size) == ("/", "", "q", 4)
        assert (event.message_id, event.correlation_id) == ("m", "c")
        assert (event.trace_id, event.span_id) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
        assert event.publish_time == published.time
    assert published.enqueue_time is None
    assert enqueued.enqueue_time == delivered.enqueue_time == acked.enqueue_time == enqueued.time
    assert published.time <= enqueued.time <= delivered.time <= acked.time
    assert (published.uid >> 22) + EPOCH_MS == published.time // 1000
    assert (published.channel, delivered.channel, acked.channel) == (1, 1, 1)
    assert (enqueued.depth, delivered.depth, acked.depth) == (1, 0, 0)


def settled(traced: TracedBroker, kind: int) -> list[tuple[str, str | None]]:
    """What came after the delivery, and why."""
    events = traced.events()
    after = [event.kind for event in events].index(kind)
    return [
        (schema.kind_name(event.kind), schema.reason_name(event.reason) if event.reason else None)
        for event in events[after:]
    ]


def deliver_one(channel: ClientChannel) -> None:
    channel.consume(channel.declare("q"), "tag", prefetch=1)
    channel.publish(b"", "q")


def test_a_nack_without_requeue_drops(traced: TracedBroker, channel: ClientChannel) -> None:
    deliver_one(channel)
    channel.core.reject(1, False, False, schema.NACKED)
    assert settled(traced, schema.NACKED) == [("nacked", None), ("dropped", "rejected")]


def test_what_a_closed_channel_holds_comes_back(traced: TracedBroker, channel: ClientChannel) -> None:
    deliver_one(channel)
    channel.close()
    assert settled(traced, schema.REQUEUED) == [("requeued", "channel_closed")]


def test_recover_brings_back(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.publish(b"", channel.declare("q").name)
    channel.get(channel.vhost.queues["q"], no_ack=False)
    channel.core.recover()
    events = traced.events()
    assert story(events[3:]) == ["delivered q", "requeued q"]
    assert [event.reason for event in events[3:]] == [None, schema.R_RECOVERED]
    assert [event.consumer for event in events[3:]] == [None, None]


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_consumer_without_acks_settles_by_being_sent(
    traced: TracedBroker, channel: ClientChannel, is_waiting: bool
) -> None:
    queue = channel.declare("q")
    if is_waiting:
        channel.publish(b"", "q")
    channel.consume(queue, "tag", no_ack=True)
    if not is_waiting:
        channel.publish(b"", "q")
    events = traced.events()
    assert story(events[2:]) == ["enqueued q", "delivered q"]
    assert (events[-1].reason, events[-1].attempt, events[-1].consumer) == (schema.R_AUTO_ACK, 1, "tag")


def test_a_message_without_a_queue(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.publish(b"", "nowhere")
    channel.publish(b"", "nowhere", mandatory=True)
    events = traced.events()
    assert story(events) == ["published", "unroutable", "published", "unroutable", "returned"]
    assert {event.reason for event in events if event.kind != schema.PUBLISHED} == {schema.R_NO_ROUTE}


def test_confirms(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("q")
    channel.core.select_confirms()
    channel.publish_all("ab", "q")
    traced.broker.end_turn()
    events = traced.events()
    confirmed = [event for event in events if event.kind == schema.CONFIRMED]
    assert [event.uid for event in confirmed] == [event.uid for event in events if event.kind == schema.PUBLISHED]
    assert story(events)[-2:] == ["confirmed", "confirmed"]


def test_a_transaction(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.core.select_transactions()
    channel.publish(b"kept", "q")
    channel.core.commit()
    channel.get(queue, no_ack=False)
    channel.ack(1)
    channel.core.rollback()
    channel.ack(1)
    channel.publish(b"undone", "q")
    channel.core.rollback()
    channel.publish(b"lost", "q")
    channel.close()
    assert story(traced.events()) == [
        "published",
        "tx_committed",
        "routed",
        "enqueued q",
        "delivered q",
        "published",
        "tx_rolled_back",
        "published",
        "tx_rolled_back",
        "requeued q",
    ]


def test_a_purge_and_the_end_of_a_queue(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.publish(b"", "q")
    queue.purge()
    channel.publish(b"", "q")
    channel.delete(queue)
    dropped = [event.reason for event in traced.events() if event.kind == schema.DROPPED]
    assert dropped == [schema.R_PURGED, schema.R_QUEUE_DELETED]


def test_an_answer_by_direct_reply_to(traced: TracedBroker, channel: ClientChannel) -> None:
    address = channel.start_replies()
    channel.publish(b"", address)
    assert story(traced.events()) == ["published", "routed", f"enqueued {address}", f"delivered {address}"]


def test_who_dead_letters_or_names_its_source_is_published_again(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.publish(b"", "x", headers={"x-death": [{"queue": "q", "count": 1}]})
    channel.publish(b"", "x", headers={"x-warren-source-id": "00000000000ZZ"})
    channel.publish(b"", "x", headers={"other": "x-death"})
    events = traced.events()
    assert story(events) == ["published", "republished", "unroutable"] * 2 + ["published", "unroutable"]
    assert [event.source_uid for event in events[3:6]] == [1023, 1023, 1023]


def test_connections_and_what_is_declared(traced: TracedBroker, channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.declare_exchange("e")
    channel.consume(queue, "tag", prefetch=1)
    channel.vhost.delete_exchange("e", False)
    channel.delete(queue)
    channel.cancels()
    events = [event for event in traced.events(resources=True) if event.queue != schema.STREAM_NAME]
    assert [(schema.kind_name(event.kind), event.queue or event.exchange, event.consumer) for event in events] == [
        ("queue_declared", "q", None),
        ("exchange_declared", "e", None),
        ("consumer_opened", "q", "tag"),
        ("exchange_deleted", "e", None),
        ("queue_deleted", "q", None),
        ("consumer_closed", "q", "tag"),
    ]
    assert {(event.uid, event.vhost) for event in events} == {(0, "/")}


def test_a_stream_records_events_of_each_reader(traced: TracedBroker, channel: ClientChannel) -> None:
    stream = channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    for tag in ("one", "two"):
        channel.consume(stream, tag, prefetch=10, arguments={"x-stream-offset": "first"})
    channel.publish(b"", "s")
    late = traced.client().channel()
    late.consume(stream, "late", prefetch=10, arguments={"x-stream-offset": "first"})
    channel.deliveries()
    channel.ack(1)
    events = [event for event in traced.events() if event.queue == "s"]
    assert sorted((schema.kind_name(event.kind), event.consumer or "") for event in events) == [
        ("acked", "one"),
        ("delivered", "late"),
        ("delivered", "one"),
        ("delivered", "two"),
        ("enqueued", ""),
    ]
    assert len({(event.uid, event.publish_time, event.enqueue_time) for event in events}) == 1


def test_what_was_published_untraced_stays_so() -> None:
    traced = TracedBroker([])
    channel = traced.client().channel()
    queue = channel.declare("q")
    channel.publish(b"old", "q", message_id="old")
    traced.tracing.rules.set(ALL)
    channel.publish(b"new", "q", message_id="new")
    traced.tracing.rules.forget("all")
    channel.publish(b"after", "q", message_id="after")
    channel.consume(queue, no_ack=True)
    channel.deliveries()
    assert story(traced.events()) == ["published", "routed", "enqueued q", "delivered q"]
    assert {event.message_id for event in traced.events()} == {"new"}


def test_the_event_log_is_not_traced_itself(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.declare("q")
    channel.publish(b"", "q", delivery_mode=PERSISTENT)
    traced.make_batch()
    channel.publish_to_own(b"junk", schema.STREAM_NAME)
    reader = traced.client().channel()
    stream = traced.broker.vhosts["/"].queues[schema.STREAM_NAME]
    reader.consume(stream, "reader", prefetch=10, arguments={"x-stream-offset": "first"})
    assert len(reader.deliveries()) == 2
    traced.make_batch()
    kinds = [event.queue for data in traced.batches() if data != b"junk" for event in events_of(data)]
    assert schema.STREAM_NAME not in [queue for queue in kinds if queue]


def events_of(data: bytes) -> list[Event]:
    return [event for event in decode(data).events() if event.uid]


def test_where_no_rule_keeps_anything_nothing_is_declared() -> None:
    traced = TracedBroker([TraceRule("none", ratio=0.0), TraceRule("off", enabled=False)])
    channel = traced.client().channel()
    channel.publish(b"", channel.declare("q").name)
    assert not traced.broker.events.is_watching
    assert traced.events(resources=True) == []
    assert schema.STREAM_NAME not in traced.broker.vhosts["/"].queues
