"""Message records: what was written is read, and nothing else is ever taken for one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.journal.errors import BadRecord
from warrenmq.journal.record import (
    HEAD,
    HEAD_SIZE,
    PERSISTENT,
    RELOGGED,
    TRACE,
    TRACED,
    Record,
    decode_all,
    decode_at,
    encode,
)

messages = st.tuples(
    st.integers(0, 2**64 - 1),
    st.sampled_from((0, PERSISTENT, RELOGGED, 0x60 | PERSISTENT)),
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.binary(max_size=1000),
)


@given(messages, st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_is_read_as_it_was_written(
    message: tuple[int, int, bytes, bytes, bytes], before: bytes, behind: bytes
) -> None:
    data = before + encode(*message) + behind
    assert decode_at(data, len(before)) == (*message, len(data) - len(behind), b"")
    assert decode_at(memoryview(data), len(before)) == (*message, len(data) - len(behind), b"")


@given(st.lists(messages, max_size=10))
def test_records_follow_each_other(written: list[tuple[int, int, bytes, bytes, bytes]]) -> None:
    data = b"".join(encode(*message) for message in written)
    assert [record[:5] for record in decode_all(data)] == written


def test_the_bytes_are_those_of_the_document() -> None:
    head = "0500000000000000 01 0200 00000000 03000000"
    assert encode(5, PERSISTENT, b"ab", b"", b"xyz") == bytes.fromhex(head) + b"abxyz"
    assert HEAD_SIZE == 19


@given(messages, st.data())
def test_a_truncated_definition_record_is_refused(
    message: tuple[int, int, bytes, bytes, bytes], data: st.DataObject
) -> None:
    raw = encode(*message)
    size = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(BadRecord):
        decode_at(raw[:size], 0)


@given(st.binary(max_size=60), st.integers(-5, 70))
def test_any_bytes_are_a_record_or_refused(raw: bytes, offset: int) -> None:
    try:
        record = decode_at(raw, offset)
    except BadRecord as error:
        assert error.offset == offset  # noqa: PT017
    else:
        assert isinstance(record, Record)
        assert encode(*record[:5], record.fields) == raw[offset : record.end]


def test_the_trace_of_a_message_follows_its_head() -> None:
    trace = TRACE.pack(7, 8, 9)
    data = encode(1, PERSISTENT | TRACED, b"a", b"header", b"body", trace)
    assert data == HEAD.pack(1, PERSISTENT | TRACED, 1, 6, 4) + trace + b"aheaderbody"
    assert decode_at(data, 0) == (1, PERSISTENT | TRACED, b"a", b"header", b"body", len(data), trace)
    for cut in range(1, len(data)):
        with pytest.raises(BadRecord):
            decode_at(data[:-cut], 0)


@pytest.mark.parametrize(
    ("address", "flags", "position"), [(bytes(2**16), 0, 0), (b"", 256, 0), (b"", 0, 2**64), (b"", 0, -1)]
)
def test_mismatched_definitions_are_not_written(address: bytes, flags: int, position: int) -> None:
    with pytest.raises((struct.error, IndexError)):
        encode(position, flags, address, b"", b"")
