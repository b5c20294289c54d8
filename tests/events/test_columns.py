"""Columns: written to where the batch before had them, in blocks of rows; and what the writer knows of them then."""

from __future__ import annotations

import struct

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events.samples import BEGIN, UID, events, fixture_rows, rows_of
from warrenmq.events import schema
from warrenmq.events.codec import decode, encode
from warrenmq.events.columns import ColumnWriter
from warrenmq.events.row_reader import BLOCK
from warrenmq.events.rows import Rows
from warrenmq.events.schema import Event


@given(st.lists(st.lists(events(), max_size=10), max_size=5))
@settings(deadline=None, max_examples=40)
def test_a_batch_does_not_depend_on_the_one_before(batches: list[list[Event]]) -> None:
    writer = ColumnWriter()
    for told in batches:
        octets = encode(rows_of(told), writer)
        assert octets == encode(rows_of(told))
        assert decode(octets).events() == told


def test_columns_gain_and_lose_their_nulls() -> None:
    full = decode(encode(fixture_rows())).event(3)
    bare = Event(BEGIN, schema.QUEUE_DECLARED, 0)
    writer = ColumnWriter()
    for told in ([full], [bare], [full, bare], [bare, full], [full, full], [], [bare, bare], [full]):
        assert decode(encode(rows_of(told), writer)).events() == told


@pytest.mark.parametrize("before", range(BLOCK - 3, BLOCK + 2))
def test_what_follows_from_the_row_before_may_be_in_the_next_block(before: int) -> None:
    rows = Rows()
    sent = rows.context_of(b"\0\1q", "/", None, None, "one", 1)
    kept = rows.context_of(b"\0\1q", "/", "q", None, None, 0)
    for number in range(before):
        rows.put(schema.PUBLISHED, 0, False, sent, BEGIN + number, UID + number, BEGIN, None, 0, number - 1, -1, 0, 9)
    rows.put(schema.PUBLISHED, 0, True, sent, BEGIN + 1000, UID + 1000, BEGIN + 1000, None, 0, 16, -1, 0, 255)
    rows.put_short(schema.ENQUEUED, 0, kept, 3, 0)
    rows.put_short(schema.DELIVERED, schema.R_AUTO_ACK, kept, 0, 1)
    found = decode(encode(rows)).events()
    assert found == rows.events()
    assert [event.kind for event in found[before:]] == [1, 2, 5, 6]
    assert (found[-1].reason, found[-1].attempt, found[-2].attempt) == (schema.R_AUTO_ACK, 1, None)
    assert {(event.uid, event.size, event.priority) for event in found[before:]} == {(UID + 1000, 16, 255)}


@pytest.mark.parametrize("before", range(BLOCK - 4, BLOCK + 2))
def test_what_is_passed_on_at_once_may_reach_into_the_next_block(before: int) -> None:
    rows = Rows()
    sent, came, handed = (rows.context_of(b"\0\1q", "/", queue, None, "one", 1) for queue in (None, "came", "handed"))
    for number in range(before):
        rows.put_published(False, sent, BEGIN + number, UID + number, None, number, 0)
    for number in (1000, 2000):
        rows.put_published(True, sent, BEGIN + number, UID + number, None, 16, number // 1000)
        rows.put_direct_delivery(came, handed, 1)
    found = decode(encode(rows)).events()
    assert found == rows.events()
    assert [event.priority for event in found] == [None] * before + [1] * 4 + [2] * 4
    told = [(event.uid - UID, event.kind, event.queue, event.attempt, event.depth) for event in found[before:]]
    assert told == [
        (number, *rest)
        for number in (1000, 2000)
        for rest in ((1, None, None, None), (2, None, None, None), (5, "came", None, 1), (6, "handed", 1, 0))
    ]


def passed_on(count: int, later: int = 0) -> Rows:
    """So many messages that were passed on at once, and a delivery that was `later`."""
    rows = Rows()
    sent, came, handed = (rows.context_of(b"\0\1q", "/", queue, None, "one", 1) for queue in (None, "came", "handed"))
    for number in range(count):
        rows.put_published(True, sent, BEGIN + number, UID + number, None, 16, 0)
        rows.put_direct_delivery(came, handed, 1)
    if later:
        rows.put(schema.DELIVERED, 0, False, handed, BEGIN + later, UID, BEGIN, None, BEGIN, 16, 0, 1, 0)
    rows.add_event(schema.QUEUE_DECLARED, BEGIN, vhost="/", queue="q")
    return rows


def test_times_that_are_one_are_written_once() -> None:
    writer = ColumnWriter()
    sizes = []
    for later in (0, 0, 7, 7, 0):
        rows = passed_on(100, later)
        octets = encode(rows, writer)
        assert decode(octets).events() == rows.events()
        table = pyarrow.ipc.open_stream(octets).read_all()
        table.validate(full=True)
        assert table["publish_time"].cast("int64").to_pylist() == [event.publish_time for event in rows.events()]
        assert table["enqueue_time"].cast("int64").to_pylist() == [event.enqueue_time for event in rows.events()]
        sizes.append(len(octets))
    assert sizes[1] == sizes[0] == sizes[4]
    assert sizes[2] == sizes[3]
    assert sizes[2] - sizes[0] >= 2 * 8 * 401


def test_priorities_that_nobody_has_take_no_room() -> None:
    plain = passed_on(100)
    table = pyarrow.ipc.open_stream(encode(plain)).read_all()
    buffers = {name: table[name].chunk(0).buffers() for name in ("time", "source_uid", "priority")}
    shared, values = buffers["priority"]
    assert values.address == buffers["time"][1].address
    assert shared.address == buffers["source_uid"][0].address
    one = passed_on(100)
    one.add_row(Event(BEGIN, schema.EXPIRED, UID, priority=4))
    plain.add_row(Event(BEGIN, schema.EXPIRED, UID))
    writer = ColumnWriter()
    sizes = [len(encode(rows, writer)) for rows in (plain, one, plain)]
    flags, numbers = 52 + 4, 4 * plain.count  # bits of 402 rows, and their padding
    assert sizes[1] - sizes[0] == flags + numbers
    assert sizes[2] == sizes[0]


def test_rows_of_one_scene_and_of_many_are_as_told() -> None:
    rows = Rows()
    contexts = [
        rows.context_of(b"\1x\1%c" % (65 + number % 26), "/", f"q{number}", None, "c", 9) for number in range(50)
    ]
    for number in range(5 * BLOCK):
        context = contexts[7] if number < 2 * BLOCK else contexts[number % 50]
        rows.put(schema.ACKED, 0, False, context, BEGIN + number, UID + number, BEGIN, None, BEGIN, 1, number, 1, 0)
    assert decode(encode(rows)).events() == rows.events()


@given(st.lists(events(), max_size=20))
@settings(deadline=None, max_examples=40)
def test_the_writer_knows_what_is_in_the_batch(told: list[Event]) -> None:
    writer = ColumnWriter()
    rows = rows_of(told)
    rows.context_of(b"\5never\0", "/", "never", None, None, 0)  # of no row
    octets = encode(rows, writer)
    batch = decode(octets)
    assert writer.used_kinds() == batch.used_kinds()
    assert writer.used_names("queue") == batch.used_names("queue")
    assert writer.used_names("exchange") == batch.used_names("exchange")
    uids = struct.unpack_from(f"<{rows.count}q", octets, writer.uids_offset())
    assert list(uids) == [event.uid for event in told]


def test_a_batch_is_finished_once() -> None:
    writer = ColumnWriter()
    with pytest.raises(ValueError, match="finished"):
        writer.finish(b"head", b"end")
    writer.write(fixture_rows(), 8, 8)
    with pytest.raises(ValueError, match="announced size"):
        writer.finish(b"too long a head", b"8 bytes!")
    assert writer.finish(b"8 bytes!", b"the end.").endswith(b"the end.")
    with pytest.raises(ValueError, match="finished"):
        writer.finish(b"8 bytes!", b"the end.")
