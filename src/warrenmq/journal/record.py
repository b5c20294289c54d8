"""A message record: one message of one queue, as it lies in the log and in the pages of segments.

docs/formats/README.md draws it. This is the plain form, which checks every bound; the hot path has its own codec in
`storage`, and tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from warrenmq.journal.errors import BadRecord
from warrenmq.journal.files import Data

PERSISTENT = 0x01
TRACED = 0x80  # the trace stands behind the head; since version 2 of log and segments

# position, flags, lengths of address, header and body
HEAD = Struct("<QBHII")
HEAD_SIZE = HEAD.size
TRACE = Struct("<QQQ")  # uid, publish time and enqueue time in us
TRACE_SIZE = TRACE.size
ADDRESS_MAX = 2**16 - 1
PART_MAX = 2**32 - 1


class Record(NamedTuple):
    position: int
    flags: int
    address: bytes
    header: bytes
    body: bytes
    end: int  # where the next record begins
    trace: bytes = b""  # of a message whose events are kept


def encode(position: int, flags: int, address: bytes, header: bytes, body: bytes, trace: bytes = b"") -> bytes:
    """The octets of a message."""
    if trace:
        flags |= TRACED
    return HEAD.pack(position, flags, len(address), len(header), len(body)) + trace + address + header + body


def decode_at(data: Data, offset: int) -> Record:
    """The record that begins at `offset`, as position, flags, address, header, body and the next offset."""
    start = offset + HEAD_SIZE
    if offset < 0 or start > len(data):
        raise BadRecord(offset, "its head passes the end")
    position, flags, address_size, header_size, body_size = HEAD.unpack_from(data, offset)
    trace = b""
    if flags & TRACED:
        trace = bytes(data[start : start + TRACE_SIZE])
        start += TRACE_SIZE
    header_start = start + address_size
    body_start = header_start + header_size
    end = body_start + body_size
    if end > len(data):
        raise BadRecord(offset, f"it passes the end by {end - len(data)} octets")
    return Record(
        position,
        flags,
        bytes(data[start:header_start]),
        bytes(data[header_start:body_start]),
        bytes(data[body_start:end]),
        end,
        trace,
    )


def decode_all(data: Data) -> Iterator[Record]:
    """Records one behind the other, to the last octet."""
    offset = 0
    while offset < len(data):
        record = decode_at(data, offset)
        yield record
        offset = record.end
