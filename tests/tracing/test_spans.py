"""Events become spans in the producer's trace: publish, wait, deliver."""

from __future__ import annotations

from tests.tracing.stories import BEGIN, SPAN_ID, TRACE_ID, EventBuilder, simple_life
from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.events.schema import Event
from warrenmq.tracing.spans import CONSUMER, INTERNAL, PRODUCER, OtelSpan, SpanMaker, publish_id, trace_id_of


def spans_of(events: list[Event]) -> list[OtelSpan]:
    maker = SpanMaker()
    return maker.add(events) + maker.end_publishes()


def times(span: OtelSpan) -> tuple[str, int, int]:
    return span.name, span.begin - BEGIN, span.end - BEGIN


def test_a_life_is_a_publish_a_wait_and_a_delivery() -> None:
    life = EventBuilder(0, "order-1", trace_id=TRACE_ID, span_id=SPAN_ID, correlation_id="basket-9", priority=7)
    life.add(schema.ROUTED, 1)
    life.enqueued(2, "work").add(schema.CONFIRMED, 90).delivered(102, "work", "worker").acked(152, "work", "worker")
    publish, wait, deliver = spans_of(life.events)
    assert [times(span) for span in (publish, wait, deliver)] == [
        ("publish orders", 0, 90),
        ("wait work", 2, 102),
        ("deliver work", 102, 152),
    ]
    assert [span.kind for span in (publish, wait, deliver)] == [PRODUCER, INTERNAL, CONSUMER]
    assert {span.trace_id.hex() for span in (publish, wait, deliver)} == {TRACE_ID}
    assert publish.parent_id.hex() == SPAN_ID
    assert wait.parent_id == deliver.parent_id == publish.span_id
    assert deliver.links == ((bytes.fromhex(TRACE_ID), bytes.fromhex(SPAN_ID)),)
    assert len({span.span_id for span in (publish, wait, deliver)}) == 3
    assert deliver.attributes == {
        "messaging.system": "warrenmq",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "process",
        "messaging.destination.name": "work",
        "messaging.rabbitmq.destination.routing_key": "order.created",
        "messaging.message.id": "order-1",
        "messaging.message.conversation_id": "basket-9",
        "warrenmq.uid": uid_text(life.uid),
        "warrenmq.vhost": "/",
        "warrenmq.consumer": "worker",
        "warrenmq.connection": "c-worker",
        "warrenmq.attempt": 1,
        "warrenmq.priority": 7,
        "warrenmq.outcome": "acked",
    }
    assert publish.attributes["messaging.message.body.size"] == 100
    assert publish.attributes["warrenmq.priority"] == wait.attributes["warrenmq.priority"] == 7
    assert all(span.failure is None for span in (publish, wait, deliver))


def test_a_message_without_a_trace_gets_one_of_its_own() -> None:
    first, second = simple_life(0), simple_life(1_000)
    found = spans_of(first + second)
    assert {span.trace_id for span in found} == {trace_id_of(first[0]), trace_id_of(second[0])}
    assert all(len(span.trace_id) == 16 and len(span.span_id) == 8 for span in found)
    assert not any("warrenmq.priority" in span.attributes for span in found)
    assert next(span for span in found if span.name.startswith("deliver")).links == ()


def test_the_same_events_are_the_same_spans() -> None:
    events = simple_life(0)
    assert spans_of(events) == spans_of(events)


def test_a_requeue_is_a_delivery_that_failed_and_a_second_wait() -> None:
    life = EventBuilder().enqueued(0, "work").delivered(10, "work", "one").settled(schema.REQUEUED, 30, "work", "one")
    life.delivered(70, "work", "two", 2).acked(75, "work", "two", 2)
    found = [span for span in spans_of(life.events) if not span.name.startswith("publish")]
    assert [(*times(span), span.failure) for span in found] == [
        ("wait work", 0, 10, None),
        ("deliver work", 10, 30, "requeued"),
        ("wait work", 30, 70, None),
        ("deliver work", 70, 75, None),
    ]


def test_a_nack_and_its_requeue_are_one_failure() -> None:
    life = EventBuilder().enqueued(0, "work").delivered(10, "work", "one").settled(schema.NACKED, 30, "work", "one")
    life.settled(schema.REQUEUED, 31, "work", "one")
    found = [span for span in spans_of(life.events) if span.name.startswith("deliver")]
    assert [(*times(span), span.failure) for span in found] == [("deliver work", 10, 30, "nacked")]


def test_a_delivery_with_automatic_ack_has_no_length() -> None:
    life = EventBuilder().enqueued(0, "work").delivered(10, "work", "one", reason=schema.R_AUTO_ACK)
    assert [times(span) for span in spans_of(life.events)][1:2] == [("deliver work", 10, 10)]


def test_what_expires_is_a_wait_that_failed() -> None:
    life = EventBuilder().enqueued(0, "work").add(schema.EXPIRED, 500, queue="work", reason=schema.R_EXPIRED)
    wait = spans_of(life.events)[0]
    assert (*times(wait), wait.failure, wait.attributes["warrenmq.reason"]) == (
        "wait work",
        0,
        500,
        "expired",
        "expired",
    )


def test_what_no_queue_takes_is_a_publish_that_failed() -> None:
    (publish,) = spans_of(EventBuilder(exchange="").add(schema.UNROUTABLE, 5, reason=schema.R_NO_ROUTE).events)
    assert (times(publish), publish.failure) == (("publish amq.default", 0, 5), "unroutable")


def test_a_publish_without_a_confirm_is_over_when_others_come_long_after() -> None:
    maker = SpanMaker()
    assert maker.add(EventBuilder(0).enqueued(7, "work").events) == []
    (publish,) = maker.add(EventBuilder(2_000_000).events)
    assert times(publish) == ("publish orders", 0, 7)
    assert len(maker.end_publishes()) == 1


def test_a_wait_that_began_before_anybody_listened_begins_with_the_enqueue_time() -> None:
    life = EventBuilder().delivered(100, "work", "one", enqueue_time=BEGIN + 3)
    assert times(SpanMaker().add(life.events[1:])[0]) == ("wait work", 3, 100)


def test_many_consumers_of_a_stream_have_a_delivery_each() -> None:
    life = EventBuilder(enqueue_time=BEGIN).enqueued(0, "log").delivered(10, "log", "one", depth=None)
    life.delivered(12, "log", "two", depth=None).acked(20, "log", "two").acked(30, "log", "one")
    found = [times(span) for span in spans_of(life.events) if not span.name.startswith("publish")]
    assert found == [("wait log", 0, 10), ("deliver log", 12, 20), ("deliver log", 10, 30)]


def test_what_is_open_is_bounded() -> None:
    maker = SpanMaker(max_open=10)
    for at in range(100):
        maker.add(EventBuilder(at).enqueued(at, "work").delivered(at, "work", "one").events)
    assert len(maker.end_publishes()) <= 10


def test_events_of_connections_are_no_spans() -> None:
    assert spans_of([Event(BEGIN, schema.CONNECTION_OPENED, 0, vhost="/")]) == []


def test_publish_ids_are_of_their_message() -> None:
    assert publish_id(1) != publish_id(2)
