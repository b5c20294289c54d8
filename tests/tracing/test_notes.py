"""Notes: a client adds a line of its own to the biography of a message; and `x-message-uid`, which names a message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import ClientChannel, advance, waiting
from tests.support.outbox import Confirmed, Returned
from tests.support.tracing import TracedBroker
from tests.tracing.test_queue_features import biography_of, spans_of
from tests.tracing.test_reader_of_broker import ask, biography_in
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.queue import Queue
from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.events.schema import Event
from warrenmq.protocol.properties import headers
from warrenmq.tracing.rules import TraceRule
from warrenmq.tracing.search import TraceQuery


@pytest.fixture
def traced() -> TracedBroker:
    return TracedBroker()


@pytest.fixture
def channel(traced: TracedBroker) -> ClientChannel:
    return traced.client().channel()


@pytest.fixture
def queue(channel: ClientChannel) -> Queue:
    return channel.declare("q")


def note(channel: ClientChannel, text: bytes, message_id: str | None = None, **named: Any) -> None:
    names = {f"x-{name.replace('_', '-')}": value for name, value in named.items()}
    channel.publish(text, "warren.notes", headers=names, message_id=message_id)


def notes(events: list[Event]) -> list[str | None]:
    return [event.note for event in events if event.kind == schema.NOTED]


def fetch(channel: ClientChannel, queue: Queue) -> int:
    got = channel.get(queue, no_ack=False)
    assert got is not None
    return got.tag


def kept_uid(traced: TracedBroker) -> str:
    return uid_text(traced.events()[0].uid)


# -- of a delivery


def test_a_note_on_a_delivery_says_where_it_was_written(
    traced: TracedBroker, channel: ClientChannel, queue: Queue
) -> None:
    channel.publish(b"body", "q", message_id="order-17")
    channel.consume(queue, "worker")
    (delivered,) = channel.deliveries()
    note(channel, "charged the card: 5 €".encode(), delivery_tag=delivered.tag)
    channel.ack(delivered.tag)
    *_, noted, acked = traced.events()
    assert (noted.kind, noted.note, acked.kind) == (schema.NOTED, "charged the card: 5 €", schema.ACKED)
    assert (noted.uid, noted.message_id, noted.queue, noted.consumer) == (acked.uid, "order-17", "q", "worker")
    assert (noted.attempt, noted.connection, noted.channel) == (1, acked.connection, acked.channel)


def test_notes_do_not_change_where_the_message_is(traced: TracedBroker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"body", "q", message_id="order-17")
    tag = fetch(channel, queue)
    note(channel, b"one", delivery_tag=tag)
    note(channel, b"two", delivery_tag=tag)
    (leg,) = biography_of(traced.events()).legs
    assert (leg.outcome, leg.deliveries, leg.is_over) == ("processing", 1, False)
    channel.ack(tag)
    told = biography_of(traced.events())
    assert (notes([*told.events]), told.legs[0].outcome, told.is_complete) == (["one", "two"], "acked", True)


def test_a_note_on_a_message_that_is_not_traced_is_not_kept() -> None:
    traced = TracedBroker([TraceRule("some", queue="^other$")])
    channel = traced.client().channel()
    queue = channel.declare("q")
    channel.publish(b"body", "q")
    note(channel, b"unheard", delivery_tag=fetch(channel, queue))
    assert traced.events() == []


@pytest.mark.parametrize("tag", [0, 2, -1])
def test_a_note_with_an_unknown_delivery_tag_is_refused(channel: ClientChannel, queue: Queue, tag: int) -> None:
    channel.publish(b"body", "q")
    fetch(channel, queue)
    with pytest.raises(PreconditionFailed, match=f"unknown delivery tag {tag}"):
        note(channel, b"text", delivery_tag=tag)


def test_the_delivery_tag_is_one_of_the_same_channel(channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"body", "q")
    tag = fetch(channel, queue)
    with pytest.raises(PreconditionFailed, match="unknown delivery tag"):
        note(channel.client.channel(), b"text", delivery_tag=tag)


@pytest.mark.parametrize(
    ("body", "named", "text"),
    [
        (b"", {"delivery_tag": 1}, "a note must have 1 to 1,000 bytes, this one has 0"),
        (b"x" * 1001, {"delivery_tag": 1}, "a note must have 1 to 1,000 bytes, this one has 1,001"),
        (b"\xff", {"delivery_tag": 1}, "a note must be UTF-8 text"),
        (b"x", {"delivery_tag": "1"}, "invalid header 'x-delivery-tag': expected a number, got longstr"),
        (b"x", {"delivery_tag": True}, "invalid header 'x-delivery-tag': expected a number, got bool"),
        (b"x", {}, "a note needs 'x-delivery-tag', 'x-message-uid' or the property message_id, to name its message"),
        (b"x", {"message_uid": 17}, "a note needs 'x-delivery-tag'"),
    ],
)
def test_an_invalid_note_is_refused(
    channel: ClientChannel, queue: Queue, body: bytes, named: dict[str, Any], text: str
) -> None:
    channel.publish(b"body", "q")
    fetch(channel, queue)
    with pytest.raises(PreconditionFailed, match=text):
        note(channel, body, **named)


def test_the_longest_note_is_kept(traced: TracedBroker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"body", "q")
    note(channel, b"x" * 1000, delivery_tag=fetch(channel, queue))
    assert notes(traced.events()) == ["x" * 1000]


# -- of a message by its id


def test_a_note_by_message_id_is_in_its_biography(traced: TracedBroker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"body", "q", message_id="order-17")
    channel.get(queue)
    note(channel, b"invoice sent", "order-17")
    told = biography_in(traced, "order-17")
    assert (notes([*told.events]), told.is_complete) == (["invoice sent"], True)
    assert told.uid == traced.events()[0].uid


def test_a_note_by_uid_is_in_its_biography(traced: TracedBroker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"body", "q")
    channel.get(queue)
    uid = kept_uid(traced)
    note(channel, b"seen", message_uid=uid)
    told = biography_in(traced, uid)
    assert (notes([*told.events]), told.is_complete) == (["seen"], True)


def test_a_note_on_a_message_without_events_stands_alone(traced: TracedBroker, channel: ClientChannel) -> None:
    note(channel, b"from elsewhere", "order-18")
    told = biography_in(traced, "order-18")
    assert (notes([*told.events]), told.uid, told.legs, told.message_id) == (["from elsewhere"], 0, [], "order-18")
    assert not told.is_complete
    assert ask(traced, lambda traces: traces.search(TraceQuery())).traces == []


def test_a_note_by_id_is_not_kept_if_no_rule_traces_its_virtual_host() -> None:
    traced = TracedBroker([TraceRule("elsewhere", vhost="other")])
    note(traced.client().channel(), b"unheard", "order-18")
    assert traced.events(resources=True) == []


# -- as a publish


def test_a_note_reaches_no_queue_and_is_confirmed(traced: TracedBroker, channel: ClientChannel, queue: Queue) -> None:
    channel.core.select_confirms()
    channel.publish(b"body", "q")
    tag = fetch(channel, queue)
    note(channel, b"text", delivery_tag=tag)
    traced.broker.end_turn()
    assert channel.client.outbox.take(Confirmed, channel.number)[-1].tag == 2
    assert channel.client.outbox.take(Returned, channel.number) == []
    assert (waiting(queue), channel.core.unroutable) == ("", 0)


def test_another_exchange_with_this_key_is_an_ordinary_publish(
    traced: TracedBroker, channel: ClientChannel, queue: Queue
) -> None:
    channel.bind("amq.direct", queue, "warren.notes")
    channel.publish(b"not a note", "warren.notes", "amq.direct")
    assert (waiting(queue), notes(traced.events())) == ("not a note", [])


def test_a_note_in_a_transaction_is_written_at_commit(
    traced: TracedBroker, channel: ClientChannel, queue: Queue
) -> None:
    channel.publish(b"body", "q", message_id="order-17")
    tag = fetch(channel, queue)
    channel.core.select_transactions()
    note(channel, b"undone", delivery_tag=tag)
    channel.core.rollback()
    note(channel, b"done", delivery_tag=tag)
    channel.ack(tag)
    assert notes(traced.events()) == []
    channel.core.commit()
    events = traced.events()
    assert notes(events) == ["done"]
    assert [event.kind for event in events][-2:] == [schema.NOTED, schema.ACKED]


def test_a_note_whose_delivery_is_requeued_before_the_commit_is_kept(
    traced: TracedBroker, channel: ClientChannel, queue: Queue
) -> None:
    channel.publish(b"body", "q", message_id="order-17")
    tag = fetch(channel, queue)
    channel.core.select_transactions()
    note(channel, b"before", delivery_tag=tag)
    channel.core.recover()
    channel.core.commit()
    assert notes(traced.events()) == ["before"]


def test_a_note_is_a_span(traced: TracedBroker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"body", "q", message_id="order-17")
    note(channel, b"charged the card", delivery_tag=fetch(channel, queue))
    spans = {span.name: span for span in spans_of(traced.events())}
    assert spans["note q"].attributes["warrenmq.note"] == "charged the card"
    assert spans["note q"].parent_id == spans["publish amq.default"].span_id


# -- x-message-uid


def test_the_broker_fills_in_its_id_on_request(traced: TracedBroker, channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"body", "q", headers={"x-message-uid": "", "other": 7}, expiration="60000")
    got = channel.get(queue)
    assert got is not None
    assert headers(got.message.header) == {"x-message-uid": kept_uid(traced), "other": 7}
    assert {event.message_id for event in traced.events()} == {None}


def test_the_publisher_gets_the_id_with_a_message_that_is_returned(
    traced: TracedBroker, channel: ClientChannel
) -> None:
    channel.publish(b"body", "nobody", headers={"x-message-uid": ""}, mandatory=True)
    (returned,) = channel.client.outbox.take(Returned, channel.number)
    assert headers(returned.message.header) == {"x-message-uid": kept_uid(traced)}


def test_a_scheduled_message_has_the_id_when_it_is_delivered(
    traced: TracedBroker, channel: ClientChannel, queue: Queue
) -> None:
    channel.publish(b"body", "q", headers={"x-message-uid": "", "x-delay": 1000})
    advance(traced.broker, 1100)
    got = channel.get(queue)
    assert got is not None
    assert headers(got.message.header) == {"x-message-uid": kept_uid(traced), "x-delay": -1000}


def test_the_header_stays_empty_if_the_message_is_not_traced() -> None:
    channel = TracedBroker([TraceRule("elsewhere", queue="^other$")]).client().channel()
    queue = channel.declare("q")
    channel.publish(b"body", "q", headers={"x-message-uid": ""})
    got = channel.get(queue)
    assert got is not None
    assert headers(got.message.header) == {"x-message-uid": ""}


def test_an_id_of_the_publisher_in_the_header_stands_in_for_a_missing_message_id(
    traced: TracedBroker, channel: ClientChannel, queue: Queue
) -> None:
    channel.publish(b"a", "q", headers={"x-message-uid": "my-17"})
    channel.publish(b"b", "q", headers={"x-message-uid": "my-18"}, message_id="order-18")
    assert {event.message_id for event in traced.events()} == {"my-17", "order-18"}
    assert next(event.kind for event in biography_in(traced, "my-17").events) == schema.PUBLISHED


def test_a_note_takes_the_header_as_the_consumer_got_it(
    traced: TracedBroker, channel: ClientChannel, queue: Queue
) -> None:
    for asked in ("", "my-17"):
        channel.publish(b"a", "q", headers={"x-message-uid": asked})
        got = channel.get(queue)
        assert got is not None
        name = (headers(got.message.header) or {})["x-message-uid"]
        note(channel, b"seen", message_uid=name)
        assert notes([*biography_in(traced, name).events]) == ["seen"]


# -- of the broker itself


def test_a_report_to_the_producer_is_a_note(traced: TracedBroker, channel: ClientChannel, queue: Queue) -> None:
    channel.declare("reports")
    channel.publish(b"body", "q", headers={"x-report-to": "reports"})
    channel.reject(fetch(channel, queue), requeue=False)
    (noted,) = [event for event in traced.events() if event.kind == schema.NOTED]
    assert (noted.queue, noted.note) == ("q", "reported as dropped to queue reports")
    assert noted.uid == traced.events()[0].uid
