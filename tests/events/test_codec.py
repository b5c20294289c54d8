"""Batches: encoded rows are read by `decode`, pyarrow and nanoarrow."""

from __future__ import annotations

import struct
import threading
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events.samples import (
    BEGIN,
    FIRST_VERSION,
    FIXTURE_EVENTS,
    SECOND_VERSION_EVENTS,
    UID,
    events,
    fixture_rows,
    rows_of,
)
from warrenmq.events import ids, schema
from warrenmq.events.arrow import schema_message
from warrenmq.events.batch import RowFilter
from warrenmq.events.codec import SCHEMA, decode, encode
from warrenmq.events.errors import BadEvents
from warrenmq.events.rows import Rows
from warrenmq.events.schema import COLUMNS, TIME, Event


def as_tuple(event: Event) -> tuple[Any, ...]:
    return tuple(getattr(event, column.name) for column in COLUMNS)


@given(st.lists(events(), max_size=30))
@settings(deadline=None)
def test_decode_returns_the_encoded_rows(added: list[Event]) -> None:
    assert decode(encode(rows_of(added))).events() == added


@given(st.lists(events(), max_size=30))
@settings(deadline=None)
def test_pyarrow_reads_a_batch(added: list[Event]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.ipc.open_stream(encode(rows_of(added))).read_all()
    table.validate(full=True)
    columns = []
    for column in COLUMNS:
        values = table[column.name].combine_chunks()
        if column.type == TIME:
            assert values.type == pyarrow.timestamp("us", "UTC")
            values = values.cast(pyarrow.int64())
        assert values.null_count == sum(getattr(event, column.name) is None for event in added)
        columns.append(values.to_pylist())
    assert list(zip(*columns, strict=True)) == [as_tuple(event) for event in added]


def test_pyarrow_reads_the_schema() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    found = pyarrow.ipc.open_stream(encode(Rows())).schema
    names = pyarrow.dictionary(pyarrow.int16(), pyarrow.string())
    types = {
        schema.TIME: pyarrow.timestamp("us", "UTC"),
        schema.INT8: pyarrow.int8(),
        schema.INT32: pyarrow.int32(),
        schema.INT64: pyarrow.int64(),
        schema.TEXT: pyarrow.string(),
        schema.NAME: names,
    }
    assert [(field.name, field.type, field.nullable) for field in found] == [
        (column.name, types[column.type], column.is_nullable) for column in COLUMNS
    ]
    assert found.metadata == {b"warrenmq.events.version": str(schema.VERSION).encode()}


@given(st.lists(events(), max_size=30))
@settings(deadline=None)
def test_nanoarrow_reads_a_batch(added: list[Event]) -> None:
    nanoarrow = pytest.importorskip("nanoarrow")
    (batch,) = nanoarrow.ArrayStream.from_readable(encode(rows_of(added)))
    columns = []
    for column, child in zip(COLUMNS, batch.iter_children(), strict=True):
        values = child.to_pylist()
        columns.append([microseconds(value) for value in values] if column.type == TIME else values)
    assert list(zip(*columns, strict=True)) == [as_tuple(event) for event in added]


def microseconds(time: datetime | None) -> int | None:
    return None if time is None else (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


SETS = ("kinds", "uids", "source_uids")


@given(st.lists(events(), max_size=20), st.data())
@settings(deadline=None)
def test_select_returns_matching_rows(added: list[Event], data: st.DataObject) -> None:
    fields = data.draw(st.sets(st.sampled_from([*RowFilter.__dataclass_fields__]), max_size=2))
    example = data.draw(st.sampled_from(added)) if added else Event(1, 1, 1)
    criteria: dict[str, Any] = {}
    for field in fields:
        if field in ("time_from", "time_to"):
            criteria[field] = example.time + data.draw(st.integers(0, 1))
        elif field in SETS:
            others = data.draw(st.sets(st.integers(0, 100), max_size=9))
            criteria[field] = frozenset({getattr(example, field[:-1]), *others} - {None})
        else:
            criteria[field] = getattr(example, field)
    batch = decode(encode(rows_of(added)))
    found = batch.select(RowFilter(**criteria))
    assert found == [row for row, event in enumerate(added) if agrees(event, criteria)]
    assert batch.select(RowFilter(**criteria), 2) == found[:2]
    assert batch.uids(found) == [added[row].uid for row in found]


def agrees(event: Event, criteria: dict[str, Any]) -> bool:
    for field, wanted in criteria.items():
        if wanted is None:
            continue
        if field == "time_from":
            is_right = event.time >= wanted
        elif field == "time_to":
            is_right = event.time < wanted
        elif field in SETS:
            is_right = getattr(event, field[:-1]) in wanted
        else:
            is_right = getattr(event, field) == wanted
        if not is_right:
            return False
    return True


@given(st.lists(events(), max_size=20))
@settings(deadline=None)
def test_key_hashes_cover_all_ids(added: list[Event]) -> None:
    expected = {ids.uid_key(event.uid) for event in added if event.uid}
    for field, space in (
        ("message_id", ids.MESSAGE_ID_KEY),
        ("correlation_id", ids.CORRELATION_ID_KEY),
        ("trace_id", ids.TRACE_ID_KEY),
    ):
        texts = [getattr(event, field) for event in added]
        expected |= {ids.key_hash(space, text.encode()) for text in texts if text is not None}
    assert list(decode(encode(rows_of(added))).key_hashes()) == sorted(expected)


def test_key_hashes_of_repeated_ids() -> None:
    added = [Event(1, 1, 1, message_id=text) for text in ("ab", "ab", "a", "a", "", "", "aa", "aa")]
    added += [Event(1, 1, 1, message_id=None), Event(1, 1, 1, message_id="")]
    assert len(decode(encode(rows_of(added))).key_hashes()) == 5


def test_events_without_a_message_are_not_found_by_their_uid() -> None:
    added = [Event(1, 1, 7), Event(2, schema.CHANNEL_OPENED, 0), Event(3, 1, 7)]
    assert list(decode(encode(rows_of(added))).key_hashes()) == [ids.uid_key(7)]


@given(st.lists(events(), max_size=20))
@settings(deadline=None)
def test_a_batch_knows_its_ranges_and_names(added: list[Event]) -> None:
    batch = decode(encode(rows_of(added)))
    times = [event.time for event in added] or [0]
    assert (batch.count, batch.time_range()) == (len(added), (min(times), max(times)))
    assert {*batch.used_names("queue")} == {event.queue for event in added if event.queue is not None}
    assert {*batch.used_names("exchange")} == {event.exchange for event in added if event.exchange is not None}
    assert {*batch.used_kinds()} == {event.kind for event in added}


def test_events_and_uids_of_selected_rows() -> None:
    batch = decode(encode(fixture_rows()))
    assert batch.events([4, 0]) == [FIXTURE_EVENTS[4], FIXTURE_EVENTS[0]]
    assert batch.select(RowFilter(queue="q", kinds=frozenset([schema.ACKED]), uids=frozenset([UID]))) == [5]
    assert batch.select(RowFilter(time_from=BEGIN, time_to=BEGIN + 1000)) == [0, 1, 2, 3]
    assert batch.select(RowFilter(time_from=BEGIN + 1, time_to=BEGIN + 901)) == [3]
    assert batch.select(RowFilter(time_to=BEGIN + 900)) == [0, 1, 2]
    assert batch.select(RowFilter(queue="nobody's")) == []
    for row in (-1, len(FIXTURE_EVENTS)):
        with pytest.raises(IndexError):
            batch.event(row)
        with pytest.raises(IndexError):
            batch.uids([0, row])


FIRST_SCHEMA = schema_message(1)
FIRST_BATCH = (FIRST_VERSION / "batch.arrow").read_bytes()


@pytest.mark.parametrize(
    ("encoded", "columns"),
    [(FIRST_BATCH, 21), (encode(rows_of(SECOND_VERSION_EVENTS)), len(schema.COLUMNS))],
    ids=["v1", "current"],
)
def test_batch_with_too_few_columns_is_refused(encoded: bytes, columns: int) -> None:
    count = struct.pack("<I", columns)
    lengths = struct.pack("<4q", 6, 0, 6, 0)  # the first two columns: six rows, no nulls
    at = encoded.index(count + lengths, len(FIRST_SCHEMA))
    for fewer in range(columns):
        with pytest.raises(BadEvents, match="not of its version"):
            decode(encoded[:at] + struct.pack("<I", fewer) + encoded[at + 4 :])


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_damaged_batch_is_refused_or_still_a_batch(data: st.DataObject) -> None:
    is_first_version = data.draw(st.booleans())
    encoded = bytearray(FIRST_BATCH if is_first_version else encode(fixture_rows()))
    first = 0 if data.draw(st.booleans()) else len(FIRST_SCHEMA if is_first_version else SCHEMA)
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(first, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decode(bytes(encoded))
    except BadEvents:
        return
    assert len(batch.events()) == batch.count
    batch.key_hashes()
    batch.select(RowFilter(message_id="order-17", queue="q"))
    batch.used_names("queue")


def test_batch_with_the_schema_of_another_version_is_refused() -> None:
    batch = encode(fixture_rows())
    for encoded in (FIRST_SCHEMA + batch[len(SCHEMA) :], SCHEMA + FIRST_BATCH[len(FIRST_SCHEMA) :]):
        with pytest.raises(BadEvents, match="not of its version"):
            decode(encoded)


@pytest.mark.parametrize("data", [FIRST_BATCH, encode(fixture_rows())], ids=["v1", "v2"])
def test_batch_that_is_cut_short_is_refused(data: bytes) -> None:
    for size in range(len(data) - 8):  # the 8 bytes at the end only say that it is the end
        with pytest.raises(BadEvents):
            decode(data[:size])


@pytest.mark.parametrize("change", [-1000, -1, 1000])
def test_overlapping_names_are_refused(change: int) -> None:
    names = fixture_rows().names[1:]
    ends = [*accumulate([len(name) for name in names], initial=0)]
    written = struct.pack("<8i", *ends)
    data = encode(fixture_rows())
    assert data.count(written) == 1
    with pytest.raises(BadEvents, match="names"):
        decode(data.replace(written, struct.pack("<8i", *ends[:-1], ends[-2] + change)))


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"hello", SCHEMA, FIRST_SCHEMA])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadEvents):
        decode(data)


def test_threads_encode_while_the_loop_adds_rows() -> None:
    rows = Rows()
    batches: list[bytes] = []
    threads = []
    for number in range(8):
        for step in range(500):
            rows.add_event(schema.PUBLISHED, BEGIN + step, uid=number + 1, queue=f"queue-{number}")
        taken, rows = rows, rows.successor()
        threads.append(threading.Thread(target=lambda taken=taken: batches.append(encode(taken))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    # Threads end in any order, and sets have none.
    assert {*map(tuple, [decode(batch).used_names("queue") for batch in batches])} == {
        (f"queue-{number}",) for number in range(8)
    }
    assert {decode(batch).count for batch in batches} == {500}
