"""Messages to bytes and back: the same bytes as the plain form in journal/record.py, compiled or not."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.core.message import QueuedMessage, address_of, enqueue_as, make_message
from warrenmq.journal import record
from warrenmq.journal.errors import BadRecord
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.codec import (
    AGAIN,
    APPEND,
    DEFINE,
    EVENTS,
    EVENTS_DISCARDED,
    FORGET,
    FORGET_RANGE,
    UNDEFINE,
    BadPage,
    EpochBuffer,
    decode_records,
    encode_records,
)
from warrenmq.storage.replay import LogReplay

parts = st.tuples(st.binary(max_size=20), st.binary(max_size=30), st.binary(max_size=300))
positions = st.integers(0, 2**63 - 1)
queues = st.integers(1, 2**32 - 1)


def entry_of(parts: tuple[bytes, bytes, bytes], position: int, epoch: int = 1) -> QueuedMessage:
    entry = enqueue_as(make_message(*parts), position)
    entry.epoch = epoch
    return entry


@given(st.lists(st.tuples(queues, positions, parts), max_size=20))
def test_appends_are_the_plain_records(messages: list[tuple[int, int, tuple[bytes, bytes, bytes]]]) -> None:
    buffer, expected = EpochBuffer(), b""
    for queue, position, content in messages:
        buffer.put_append(queue, entry_of(content, position), 1)
        expected += struct.pack("<BI", APPEND, queue) + record.encode(position, 1, *content)
    assert buffer.size == len(expected)
    assert bytes(buffer.take()) == expected
    assert buffer.size == 0


@given(queues, positions, positions, st.binary(max_size=50))
def test_everything_else_that_is_said(queue: int, first: int, last: int, encoded: bytes) -> None:
    buffer = EpochBuffer()
    buffer.put_forget(queue, first)
    buffer.put_forget_range(queue, first, last)
    buffer.put_definition(True, encoded)
    buffer.put_definition(False, encoded)
    expected = struct.pack("<BIQBIQQ", FORGET, queue, first, FORGET_RANGE, queue, first, last)
    expected += (
        struct.pack("<BI", DEFINE, len(encoded)) + encoded + struct.pack("<BI", UNDEFINE, len(encoded)) + encoded
    )
    assert bytes(buffer.take()) == expected


def test_a_fanout_logs_its_message_once_per_epoch() -> None:
    buffer = EpochBuffer()
    message = make_message(b"a", b"h", b"body")
    for queue in (1, 2):
        buffer.put_append(queue, enqueue_as(message, 7), 1)
    first = struct.pack("<BI", APPEND, 1) + record.encode(7, 1, b"a", b"h", b"body")
    assert bytes(buffer.take()) == first + struct.pack("<BIQB", AGAIN, 2, 7, 1)
    buffer.put_append(3, enqueue_as(message, 8), 1)
    assert bytes(buffer.take()) == struct.pack("<BI", APPEND, 3) + record.encode(8, 1, b"a", b"h", b"body")


def test_the_epoch_buffer_grows_and_is_reused() -> None:
    buffer = EpochBuffer()
    for size in (10, 3_000_000, 10, 300_000, 0):
        body = bytes(size)
        buffer.put_append(1, entry_of((b"", b"", body), 1), 1)
        buffer.put_append(1, entry_of((b"", b"", b"end"), 2), 1)
        taken = buffer.take()
        expected = struct.pack("<BI", APPEND, 1) + record.encode(1, 1, b"", b"", body)
        assert bytes(taken) == expected + struct.pack("<BI", APPEND, 1) + record.encode(2, 1, b"", b"", b"end")
        buffer.recycle(taken)


def test_data_being_written_does_not_change() -> None:
    buffer = EpochBuffer()
    buffer.put_forget(1, 1)
    first = buffer.take()
    buffer.put_forget(1, 2)
    second = buffer.take()
    assert bytes(first) == struct.pack("<BIQ", FORGET, 1, 1)
    buffer.recycle(first)
    buffer.put_forget(1, 3)
    assert bytes(second) == struct.pack("<BIQ", FORGET, 1, 2)


entries = st.lists(st.tuples(positions, parts, st.booleans()), max_size=20, unique_by=lambda each: each[0])


@given(entries)
def test_pages_are_the_plain_records_and_come_back(given: list[tuple[int, tuple[bytes, bytes, bytes], bool]]) -> None:
    given.sort()
    payload = bytes(
        encode_records([entry_of(content, position, 5 if kept else 0) for position, content, kept in given])
    )
    assert payload == b"".join(record.encode(position, int(kept), *content) for position, content, kept in given)
    found = decode_records(payload, -1, 0, None, 0)
    assert [(each.position, each.epoch, each.redelivered) for each in found] == [
        (position, 1 if kept else -1, False) for position, _, kept in given
    ]
    messages = [each.message for each in found]
    assert [(each.address + each.blind_keys, each.header, each.body) for each in messages] == [
        content for _, content, _ in given
    ]


def page_of(count: int, transient: int = -1) -> bytes:
    contents = [entry_of((b"a", b"h", b"%d" % n), n, 0 if n == transient else 1) for n in range(count)]
    return bytes(encode_records(contents))


def test_only_what_follows_a_position_and_is_not_dead_is_wanted() -> None:
    dead = bytearray(b"\x50")  # 4 and 6
    assert [each.position for each in decode_records(page_of(10), 2, 0, dead, 0)] == [3, 5, 7, 8, 9]


def test_persistent_messages_of_an_earlier_run_are_redelivered_and_transient_ones_dropped() -> None:
    found = decode_records(page_of(6, transient=2), -1, 0, None, 4)
    assert [(each.position, each.redelivered) for each in found] == [
        (0, True),
        (1, True),
        (3, True),
        (4, False),
        (5, False),
    ]


def test_neighbours_share_equal_addresses_and_headers() -> None:
    first, second = decode_records(page_of(2), -1, 0, None, 0)
    assert first.message.address is second.message.address
    assert first.message.header is second.message.header


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_page_that_ends_too_early_is_refused(cut: int) -> None:
    payload = page_of(2)
    with pytest.raises(BadPage):
        decode_records(payload[:-cut], -1, 0, None, 0) if len(payload[:-cut]) % (len(payload) // 2) else fail()


def fail() -> None:
    """The cut fell between two records."""
    raise BadPage


# -- traces ----------------------------------------------------------------------------------------------------------

times = st.integers(1, 2**62)


def traced_entry(content: tuple[bytes, bytes, bytes], position: int, trace: tuple[int, int, int]) -> QueuedMessage:
    entry = entry_of(content, position)
    entry.message.uid, entry.message.publish_time, entry.message.enqueue_time = trace
    return entry


HEADER = content_header(4, BasicProperties(message_id="m", correlation_id="c"))


@given(queues, positions, st.tuples(times, times, times))
def test_a_trace_goes_with_its_message(queue: int, position: int, trace: tuple[int, int, int]) -> None:
    content = (b"\x00\x01q", HEADER, b"body")
    entry = traced_entry(content, position, trace)
    data = record.TRACE.pack(*trace)
    expected = record.encode(position, 1 | record.TRACED, *content, data)
    buffer = EpochBuffer()
    buffer.put_append(queue, entry, 1)
    buffer.put_append(queue, entry, 1)
    again = struct.pack("<BIQB", AGAIN, queue, position, 1)
    assert bytes(buffer.take()) == struct.pack("<BI", APPEND, queue) + expected + again
    payload = bytes(encode_records([entry, entry_of(content, position), entry]))
    assert payload == expected + record.encode(position, 1, *content) + expected
    first, plain, last = decode_records(payload, -1, 0, None, 0)
    assert plain.message.uid == 0
    for found in (first, last):
        assert (found.message.uid, found.message.publish_time, found.message.enqueue_time) == trace
        assert (found.message.address, found.message.header, found.message.body) == content
    for cut in range(1, len(expected)):
        with pytest.raises(BadPage):
            decode_records(expected[:-cut], -1, 0, None, 0)


@pytest.mark.parametrize("has_deaths", [True, False])
def test_whether_the_broker_wrote_the_deaths_goes_with_the_message(has_deaths: bool) -> None:
    flags = 1 | record.HAS_DEATHS if has_deaths else 1
    content = (b"\x00\x01q", HEADER, b"body")
    entry = entry_of(content, 7)
    entry.message.has_deaths = has_deaths
    buffer = EpochBuffer()
    for queue in (1, 2):
        buffer.put_append(queue, entry, 1)
    payload = bytes(buffer.take())
    again = struct.pack("<BIQB", AGAIN, 2, 7, flags)
    assert payload == struct.pack("<BI", APPEND, 1) + record.encode(7, flags, *content) + again
    replay, stores = LogReplay(), {number: Taken() for number in (1, 2)}
    replay.check(payload)
    replay.scan(payload, 1)
    for number, store in stores.items():
        replay.queues[number].store = store
    replay.restore_messages(payload, 1)
    assert [[each.message.has_deaths for each in store.entries] for store in stores.values()] == [[has_deaths]] * 2
    page = bytes(encode_records([entry]))
    assert page == record.encode(7, flags, *content)
    (found,) = decode_records(page, -1, 0, None, 0)
    assert found.message.has_deaths is has_deaths


class Taken:
    """A store that takes what a log has."""

    last_position = -1

    def __init__(self) -> None:
        self.entries: list[QueuedMessage] = []

    def restore_message(self, entry: QueuedMessage) -> None:
        self.entries.append(entry)


def test_rows_of_events() -> None:
    buffer = EpochBuffer()
    buffer.put_events(5, 7, b"rows")
    buffer.put_events_discarded(7)
    assert bytes(buffer.take()) == struct.pack("<BQQI", EVENTS, 5, 7, 4) + b"rows" + struct.pack(
        "<BQ", EVENTS_DISCARDED, 7
    )


def test_rows_that_are_relogged_or_kept_elsewhere_do_not_come_back() -> None:
    buffer, replay = EpochBuffer(), LogReplay()
    for first, last in ((1, 2), (3, 3), (4, 9), (10, 11)):
        buffer.put_events(first, last, b"%d" % first)
    buffer.put_events_discarded(2)
    buffer.put_append(1, entry_of((b"a", HEADER, b""), 0), 1)
    buffer.put_events(4, 11, b"again")
    buffer.put_events(12, 12, b"12")
    payload = bytes(buffer.take())
    replay.scan(payload, 1)
    assert (replay.last_event, replay.events) == (12, [(3, 3, b"3"), (4, 11, b"again"), (12, 12, b"12")])
    replay.restore_messages(payload, 1)
    assert replay.queues[1].next_position == 1
    for cut in (1, 5, 20, 24):
        with pytest.raises(BadRecord):
            LogReplay().check(payload[: len(payload) - cut])


@pytest.mark.parametrize("keys", [b"", b"\x01a", b"\x01a\x00\xff" + b"b" * 255])
@pytest.mark.parametrize("address", [b"\0\0", address_of("", "k"), address_of("x", ""), address_of("exchange", "key")])
def test_keys_of_bcc_are_kept_after_the_address(address: bytes, keys: bytes) -> None:
    message = make_message(address, content_header(1, BasicProperties(delivery_mode=2)), b"x")
    message.blind_keys = keys
    (found,) = decode_records(bytes(encode_records([enqueue_as(message, 3)])), -1, 0, None, 0)
    assert (found.message.address, found.message.blind_keys) == (address, keys)
    assert (found.message.header, found.message.body) == (message.header, b"x")
