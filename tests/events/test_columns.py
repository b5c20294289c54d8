"""The column writer: layouts that change from batch to batch, blocks of rows, and what it reports of a batch."""

from __future__ import annotations

import struct

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events.row_format import events_of
from tests.events.samples import BEGIN, UID, events, fixture_rows, rows_from, rows_of
from warrenmq.events import schema
from warrenmq.events.codec import decode, encode
from warrenmq.events.columns import ColumnWriter
from warrenmq.events.records import BLOCK
from warrenmq.events.rows import Rows
from warrenmq.events.schema import Event


@given(st.lists(st.lists(events(), max_size=10), max_size=5))
@settings(deadline=None, max_examples=40)
def test_a_batch_does_not_depend_on_the_previous_one(batches: list[list[Event]]) -> None:
    writer = ColumnWriter()
    for added in batches:
        data = encode(rows_of(added), writer)
        assert data == encode(rows_of(added))
        assert decode(data).events() == added


def test_columns_gain_and_lose_their_nulls() -> None:
    full = decode(encode(fixture_rows())).event(3)
    bare = Event(BEGIN, schema.QUEUE_DECLARED, 0)
    writer = ColumnWriter()
    for added in ([full], [bare], [full, bare], [bare, full], [full, full], [], [bare, bare], [full]):
        assert decode(encode(rows_of(added), writer)).events() == added


@pytest.mark.parametrize("before", range(BLOCK - 3, BLOCK + 2))
def test_short_records_cross_block_boundaries(before: int) -> None:
    rows = Rows()
    sent = rows.context_of(b"\0\1q", "/", None, None, "one", 1)
    kept = rows.context_of(b"\0\1q", "/", "q", None, None, 0)
    for number in range(before):
        rows.put(schema.PUBLISHED, 0, False, sent, BEGIN + number, UID + number, BEGIN, None, 0, number - 1, -1, 0, 9)
    rows.put(schema.PUBLISHED, 0, True, sent, BEGIN + 1000, UID + 1000, BEGIN + 1000, None, 0, 16, -1, 0, 255)
    rows.put_short(schema.ENQUEUED, 0, kept, 3, 0)
    rows.put_short(schema.DELIVERED, schema.R_AUTO_ACK, kept, 0, 1)
    found = decode(encode(rows)).events()
    assert found == events_of(rows)
    assert [event.kind for event in found[before:]] == [1, 2, 5, 6]
    assert (found[-1].reason, found[-1].attempt, found[-2].attempt) == (schema.R_AUTO_ACK, 1, None)
    assert {(event.uid, event.size, event.priority) for event in found[before:]} == {(UID + 1000, 16, 255)}


@pytest.mark.parametrize("before", range(BLOCK - 4, BLOCK + 2))
def test_direct_deliveries_cross_block_boundaries(before: int) -> None:
    rows = Rows()
    sent, came, handed = (rows.context_of(b"\0\1q", "/", queue, None, "one", 1) for queue in (None, "came", "handed"))
    for number in range(before):
        rows.put_published(False, sent, BEGIN + number, UID + number, None, number, 0)
    for number in (1000, 2000):
        rows.put_published(True, sent, BEGIN + number, UID + number, None, 16, number // 1000)
        rows.put_direct_delivery(came, handed, 1)
    found = decode(encode(rows)).events()
    assert found == events_of(rows)
    assert [event.priority for event in found] == [None] * before + [1] * 4 + [2] * 4
    found_rows = [(event.uid - UID, event.kind, event.queue, event.attempt, event.depth) for event in found[before:]]
    assert found_rows == [
        (number, *rest)
        for number in (1000, 2000)
        for rest in ((1, None, None, None), (2, None, None, None), (5, "came", None, 1), (6, "handed", 1, 0))
    ]


def direct_deliveries(count: int, later: int = 0) -> Rows:
    """`count` messages delivered directly, and a delivery that was `later`."""
    rows = Rows()
    sent, came, handed = (rows.context_of(b"\0\1q", "/", queue, None, "one", 1) for queue in (None, "came", "handed"))
    for number in range(count):
        rows.put_published(True, sent, BEGIN + number, UID + number, None, 16, 0)
        rows.put_direct_delivery(came, handed, 1)
    if later:
        rows.put(schema.DELIVERED, 0, False, handed, BEGIN + later, UID, BEGIN, None, BEGIN, 16, 0, 1, 0)
    rows.add_event(schema.QUEUE_DECLARED, BEGIN, vhost="/", queue="q")
    return rows


def test_equal_times_share_their_values() -> None:
    writer = ColumnWriter()
    sizes = []
    for later in (0, 0, 7, 7, 0):
        rows = direct_deliveries(100, later)
        data = encode(rows, writer)
        assert decode(data).events() == events_of(rows)
        table = pyarrow.ipc.open_stream(data).read_all()
        table.validate(full=True)
        assert table["publish_time"].cast("int64").to_pylist() == [event.publish_time for event in events_of(rows)]
        assert table["enqueue_time"].cast("int64").to_pylist() == [event.enqueue_time for event in events_of(rows)]
        sizes.append(len(data))
    assert sizes[1] == sizes[0] == sizes[4]
    assert sizes[2] == sizes[3]
    assert sizes[2] - sizes[0] >= 2 * 8 * 401


def test_a_column_of_nulls_takes_no_space() -> None:
    plain = direct_deliveries(100)
    table = pyarrow.ipc.open_stream(encode(plain)).read_all()
    buffers = {name: table[name].chunk(0).buffers() for name in ("time", "source_uid", "priority")}
    shared, values = buffers["priority"]
    assert values.address == buffers["time"][1].address
    assert shared.address == buffers["source_uid"][0].address
    one = direct_deliveries(100)
    one.add_row(Event(BEGIN, schema.EXPIRED, UID, priority=4))
    plain.add_row(Event(BEGIN, schema.EXPIRED, UID))
    writer = ColumnWriter()
    sizes = [len(encode(rows, writer)) for rows in (plain, one, plain)]
    flags, numbers = 52 + 4, 4 * plain.count  # bits of 402 rows, and their padding
    assert sizes[1] - sizes[0] == flags + numbers
    assert sizes[2] == sizes[0]


def test_blocks_of_one_context_and_of_many() -> None:
    rows = Rows()
    contexts = [
        rows.context_of(b"\1x\1%c" % (65 + number % 26), "/", f"q{number}", None, "c", 9) for number in range(50)
    ]
    for number in range(5 * BLOCK):
        context = contexts[7] if number < 2 * BLOCK else contexts[number % 50]
        rows.put(schema.ACKED, 0, False, context, BEGIN + number, UID + number, BEGIN, None, BEGIN, 1, number, 1, 0)
    assert decode(encode(rows)).events() == events_of(rows)


@given(st.lists(events(), max_size=20))
@settings(deadline=None, max_examples=40)
def test_writer_knows_names_kinds_and_uids_of_the_batch(added: list[Event]) -> None:
    writer = ColumnWriter()
    rows = rows_of(added)
    rows.context_of(b"\5never\0", "/", "never", None, None, 0)  # of no row
    data = encode(rows, writer)
    batch = decode(data)
    assert writer.used_kinds() == batch.used_kinds()
    assert writer.used_names("queue") == batch.used_names("queue")
    assert writer.used_names("exchange") == batch.used_names("exchange")
    uids = struct.unpack_from(f"<{rows.count}q", data, writer.uids_offset())
    assert list(uids) == [event.uid for event in added]


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


@given(st.lists(events(), min_size=1, max_size=5), st.integers(BLOCK - 4, 2 * BLOCK + 4))
@settings(deadline=None, max_examples=60)
def test_ids_of_more_than_a_block_of_rows(some: list[Event], count: int) -> None:
    rows = Rows()
    for number in range(count):
        rows.add_row(some[number % len(some)])
        rows.put_short(schema.ACKED, 0, rows.context_of(None, "/", "q", None, None, 0), -1, 0)
    found = decode(encode(rows)).events()
    assert found == events_of(rows) == events_of(rows_from(rows.to_bytes()))
    assert found[::2] == [some[number % len(some)] for number in range(count)]
    ids = [(event.message_id, event.correlation_id, event.trace_id, event.span_id, event.source_uid) for event in found]
    assert ids[::2] == ids[1::2]
