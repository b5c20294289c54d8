"""Rows as the event loop collects them, and in encoded form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events import samples
from tests.events.row_format import events_of
from tests.events.samples import (
    ADDRESS,
    BEGIN,
    FIXTURE_EVENTS,
    TRACE,
    UID,
    TracedMessage,
    events,
    fixture_rows,
    rows_from,
    rows_of,
)
from warrenmq.events import schema
from warrenmq.events.codec import decode, encode
from warrenmq.events.errors import BadEvents
from warrenmq.events.message_ids import clean_name, pack_message_ids
from warrenmq.events.records import DELIVERED_FOLLOWS, IS_PUBLISHED
from warrenmq.events.rows import Rows
from warrenmq.events.schema import Event


def add(
    rows: Rows, trace: TracedMessage | None, time: int = BEGIN, queue: str | None = "q", address: bytes = ADDRESS
) -> None:
    samples.add(rows, schema.ENQUEUED, time, rows.context_of(address, "/", queue, None, None, 0), trace)


def traced(uid: int, message_id: bytes, correlation_id: bytes | None = None) -> TracedMessage:
    return TracedMessage(uid, BEGIN, pack_message_ids(0, message_id, correlation_id, None, None))


@given(st.lists(events(), max_size=30))
@settings(deadline=None)
def test_events_are_those_added(added: list[Event]) -> None:
    rows = rows_of(added)
    assert events_of(rows) == added
    assert rows.count == len(added)
    assert (rows.first_time, rows.last_time) == (
        (min(event.time for event in added), max(event.time for event in added)) if added else (0, 0)
    )


@given(st.lists(events(), max_size=30))
@settings(deadline=None)
def test_encoded_rows_are_read_back(added: list[Event]) -> None:
    assert events_of(rows_from(rows_of(added).to_bytes())) == added


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30))
@settings(deadline=None)
def test_rows_logged_in_parts_are_all_rows(steps: list[tuple[int, bool]]) -> None:
    traces = [traced(number + 1, b"id-%d" % number) for number in range(2)]
    rows, logged = Rows(), Rows()
    for number, is_end_of_turn in steps:
        add(rows, traces[number] if number < 2 else None, queue=f"q{number}")
        if is_end_of_turn:
            assert logged.extend(rows.take_unlogged() or b"") > 0
            assert rows.take_unlogged() is None
    rest = rows.take_unlogged()
    if rest is not None:
        logged.extend(rest)
    assert events_of(logged) == events_of(rows)


def test_address_is_exchange_and_key() -> None:
    rows = Rows()
    context = rows.context_of(ADDRESS, "/", "q", "c1", "a -> b", 3)
    ids = TRACE.message_ids
    rows.put(schema.DELIVERED, schema.R_RECOVERED, False, context, BEGIN + 7, UID, BEGIN, ids, BEGIN + 2, 12, 5, 2, 7)
    assert events_of(rows) == [
        Event(
            time=BEGIN + 7,
            kind=schema.DELIVERED,
            uid=UID,
            message_id="order-17",
            publish_time=BEGIN,
            enqueue_time=BEGIN + 2,
            vhost="/",
            exchange="logs",
            routing_key="info",
            queue="q",
            consumer="c1",
            connection="a -> b",
            channel=3,
            size=12,
            attempt=2,
            reason=schema.R_RECOVERED,
            correlation_id="basket-4",
            trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
            span_id="00f067aa0ba902b7",
            depth=5,
            priority=7,
        )
    ]


def test_default_exchange_is_not_null() -> None:
    rows = Rows()
    add(rows, None, address=b"\0\1q")
    rows.add_event(schema.QUEUE_DECLARED, BEGIN, queue="q")
    assert [event.exchange for event in events_of(rows)] == ["", None]


def test_equal_names_are_stored_once() -> None:
    rows = Rows()
    for _ in range(3):
        add(rows, TRACE, queue="".join(["que", "ue"]), address=bytes(bytearray(ADDRESS)))
    assert rows.names == [b"", b"logs", b"info", b"/", b"queue"]


def test_thousands_of_names() -> None:
    rows = Rows()
    queues = [f"queue-{number}" for number in range(2000)]
    for queue in queues * 2:
        add(rows, TRACE, queue=queue)
    assert [event.queue for event in events_of(rows)] == queues * 2
    assert len(rows.names) == 4 + len(queues)


def test_names_and_ids_that_are_not_utf8_have_replacement_characters() -> None:
    rows = Rows()
    no_text = b"\xff\xfe".decode("utf-8", "surrogateescape")
    add(rows, traced(1, b"a\xff", "ü".encode()), queue=no_text, address=b"\0\2\xff\xfe")
    (event,) = events_of(rows)
    assert (event.queue, event.routing_key, event.message_id, event.correlation_id) == ("��",) * 2 + ("a�", "ü")
    assert clean_name(no_text) == event.queue
    assert rows.names.count("��".encode()) == 1


def test_numbers_are_clamped_to_their_columns() -> None:
    rows = Rows()
    context = rows.context_of(None, None, None, None, None, -1)
    samples.add(rows, schema.PUBLISHED, BEGIN, context, TRACE, 0, 1 << 40, -5, 1 << 40)
    (event,) = events_of(rows)
    assert (event.channel, event.attempt, event.size, event.depth) == (None, None, (1 << 31) - 1, (1 << 31) - 1)
    rows.add_event(schema.PUBLISHED, BEGIN, priority=1000)
    assert events_of(rows)[1].priority == 255


@pytest.mark.parametrize("number", [-(1 << 63), -1, (1 << 63) - 1])
def test_times_and_uids_have_64_bits(number: int) -> None:
    added = [Event(number, 1, number, publish_time=number, enqueue_time=number, source_uid=number)]
    assert events_of(rows_from(rows_of(added).to_bytes())) == added
    assert decode(encode(rows_of(added))).events() == added


def test_a_successor_begins_empty() -> None:
    taken = fixture_rows()
    rows = taken.successor()
    assert (rows.count, rows.size, events_of(rows), rows.names, rows.take_unlogged()) == (0, 0, [], [b""], None)
    add(rows, TRACE, BEGIN + 9)
    assert events_of(taken) == FIXTURE_EVENTS
    assert [event.time for event in events_of(rows)] == [BEGIN + 9]


def test_rows_with_a_successor_can_still_be_logged() -> None:
    rows = fixture_rows()
    raw = rows.take_unlogged()
    assert raw is not None
    add(rows, TRACE)
    rows.successor()
    piece = rows.take_unlogged()
    assert piece is not None
    assert rows_from(piece).count == 1


def test_rows_grow_beyond_their_first_buffer() -> None:
    rows = Rows()
    trace = traced(1, b"x" * 5000)
    for number in range(300):
        add(rows, traced(number, b"x" * 5000), BEGIN + number)
        add(rows, trace, BEGIN + number)
    assert rows.size > 3_000_000
    assert [event.time for event in events_of(rows)] == [BEGIN + number for number in range(300) for _ in range(2)]


def test_consecutive_rows_of_a_message_store_its_ids_once() -> None:
    rows = Rows()
    for number in range(100):
        add(rows, TRACE, BEGIN + number)
    assert rows.to_bytes().count(b"order-17") == 1
    assert {event.message_id for event in events_of(rows)} == {"order-17"}


@pytest.mark.parametrize(("before", "is_named"), [(1, True), (50, False)])
def test_only_used_contexts_are_encoded_if_there_are_many(before: int, is_named: bool) -> None:
    rows = Rows()
    for number in range(before):
        add(rows, TRACE, queue=f"first{number}")
    rows.take_unlogged()
    add(rows, TRACE, queue="second")
    raw = rows.take_unlogged()
    assert raw is not None
    assert b"second" in raw
    assert b"order-17" in raw
    assert (b"first" in raw) is is_named
    assert [event.queue for event in events_of(rows_from(raw))] == ["second"]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_rows_are_refused_or_still_rows(data: st.DataObject) -> None:
    raw = bytearray(fixture_rows().to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    rows = Rows()
    try:
        rows.extend(bytes(raw))
    except BadEvents:
        assert rows.count == 0
    assert len(events_of(rows)) == rows.count


def test_rows_that_are_cut_short_are_refused() -> None:
    raw = fixture_rows().to_bytes()
    for size in range(len(raw)):
        with pytest.raises(BadEvents):
            rows_from(raw[:size])


def test_bytes_after_the_rows_are_refused() -> None:
    for more in (b"\0", b"\1" * 40):
        with pytest.raises(BadEvents, match="more bytes follow"):
            rows_from(fixture_rows().to_bytes() + more)


def test_rows_of_an_unknown_version_are_refused() -> None:
    with pytest.raises(BadEvents, match="version 4"):
        rows_from(b"\4" + fixture_rows().to_bytes()[1:])


def test_a_short_row_shares_message_and_time_with_the_previous_row() -> None:
    rows = Rows()
    sent = rows.context_of(b"\0\1q", "/", None, None, "publisher", 1)
    handed = rows.context_of(b"\0\1q", "/", "q", "tag", "consumer", 2)
    rows.put(schema.PUBLISHED, 0, True, sent, 1000, 7, 1000, None, 0, 200, -1, 0, 5)
    rows.put_short(schema.ENQUEUED, 0, handed, 3, 0)
    rows.put_short(schema.DELIVERED, schema.R_AUTO_ACK, handed, 0, 255)
    *_, enqueued, delivered = events_of(rows_from(rows.to_bytes()))
    assert events_of(rows)[2:] == [enqueued, delivered]
    for event in (enqueued, delivered):
        assert event.priority == 5
        assert (event.time, event.uid, event.publish_time, event.enqueue_time, event.size) == (1000, 7, 1000, 1000, 200)
    assert (enqueued.kind, enqueued.reason, enqueued.attempt, enqueued.depth) == (schema.ENQUEUED, None, None, 3)
    assert (delivered.kind, delivered.reason, delivered.attempt) == (schema.DELIVERED, schema.R_AUTO_ACK, 255)
    assert (delivered.consumer, delivered.depth) == ("tag", 0)


def direct_deliveries(texts: bytes | None = None) -> Rows:
    """Two messages, each published, routed, enqueued and delivered at once."""
    rows = Rows()
    sent = rows.context_of(b"\0\1q", "/", None, None, "publisher", 1)
    came = rows.context_of(b"\0\1q", "/", "q", None, None, 0)
    handed = rows.context_of(b"\0\1q", "/", "q", "tag", "consumer", 2)
    for uid in (7, 8):
        rows.put_published(True, sent, 1000 * uid, uid, texts, 200, uid - 7)
        rows.put_direct_delivery(came, handed, 1)
    return rows


@pytest.mark.parametrize("texts", [None, pack_message_ids(3, b"one", None, None, None)])
def test_a_direct_delivery_is_two_records_and_four_rows(texts: bytes | None) -> None:
    rows = direct_deliveries(texts)
    added = events_of(rows)
    assert events_of(rows_from(rows.to_bytes())) == added
    assert rows.count == len(added) == 8
    assert rows.size == 2 * (28 + 16 + len(texts or b""))
    assert (rows.first_time, rows.last_time, rows.time) == (7000, 8000, 8000)
    published, routed, enqueued, delivered = added[4:]
    assert [event.kind for event in added] == 2 * [
        schema.PUBLISHED,
        schema.ROUTED,
        schema.ENQUEUED,
        schema.DELIVERED,
    ]
    assert [event.priority for event in added] == [None] * 4 + [1] * 4
    for event in added[4:]:
        assert (event.time, event.uid, event.publish_time, event.size) == (8000, 8, 8000, 200)
        assert (event.message_id, event.source_uid) == (("one", 3) if texts else (None, None))
    for event in (published, routed):
        assert (event.enqueue_time, event.depth, event.attempt, event.reason) == (None, None, None, None)
        assert (event.connection, event.channel, event.queue) == ("publisher", 1, None)
    assert (enqueued.enqueue_time, enqueued.depth, enqueued.attempt, enqueued.reason) == (8000, 1, None, None)
    assert (enqueued.queue, enqueued.consumer, enqueued.connection) == ("q", None, None)
    assert (delivered.enqueue_time, delivered.depth, delivered.attempt) == (8000, 0, 1)
    assert (delivered.queue, delivered.consumer, delivered.connection) == ("q", "tag", "consumer")
    assert delivered.reason == schema.R_AUTO_ACK


def test_short_records_are_as_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "formats" / "events.md"
    drawing = page.read_text().split("is two of the smaller records and four rows:")[1].split("```")[1]
    lines = re.findall(r"^ +\d+  ((?:[0-9a-f]{2} )+) ", drawing, re.MULTILINE)
    rows = Rows()
    sent, came, handed = (rows.context_of(ADDRESS, "/", queue, None, None, 0) for queue in (None, "q", "r"))
    rows.put_published(True, sent, BEGIN, UID, None, 200, 7)
    rows.put_direct_delivery(came, handed, 1)
    assert rows.to_bytes().endswith(bytes.fromhex("".join(lines)))
    assert len(bytes.fromhex("".join(lines))) == rows.size


def test_short_records_that_are_cut_or_misplaced_are_refused() -> None:
    raw = direct_deliveries().to_bytes()
    for size in range(len(raw)):
        with pytest.raises(BadEvents):
            rows_from(raw[:size])
    last = len(raw) - 16  # the flags are its third byte
    for flags in (DELIVERED_FOLLOWS, DELIVERED_FOLLOWS | IS_PUBLISHED, IS_PUBLISHED, 0):
        with pytest.raises(BadEvents):
            rows_from(raw[: last + 2] + bytes((flags,)) + raw[last + 3 :])
    with pytest.raises(BadEvents, match="undefined context"):
        rows_from(raw[:-4] + b"\x09\0\0\0")


def test_a_recycled_buffer_shows_no_old_rows() -> None:
    rows = Rows()
    rounds = []
    for number in range(8):
        for at in range(50 - number):
            rows.add_event(schema.QUEUE_DECLARED, 1_000 * number + at, vhost="/", queue=f"q{number}")
        taken, rows = rows, rows.successor()
        rounds.append([(event.time, event.queue) for event in events_of(taken)])
        rows.recycle(taken)
    assert rounds == [[(1_000 * n + at, f"q{n}") for at in range(50 - n)] for n in range(8)]
