"""A message record: one message of one queue, in the log and in segment pages.

docs/formats/README.md draws it. This is the plain form, which checks every bound; the hot path has its own codec in
`storage`, and tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from warrenmq.journal.errors import BadRecord
from warrenmq.journal.files import Data

PERSISTENT = 0x01
RELOGGED = 0x02  # logged again because the log was about to be trimmed
# Optional fields after the head, in this order.
TRACED = 0x80  # uid, publish time and enqueue time in us; since version 2 of log and segments
PUBLISH_TIME = 0x04  # of an untraced message, in us; this and the next since version 4 of the log
EXPIRY = 0x08  # in ms
ATTEMPTS = 0x10  # deliveries so far; only in segments, the log has a record of its own
# Without a field:
HAS_DEATHS = 0x20  # the broker wrote its x-death header; since version 5 of log and segments

# position, flags, lengths of address, header and body
HEAD = Struct("<QBHII")
HEAD_SIZE = HEAD.size
TRACE = Struct("<QQQ")  # uid, publish time and enqueue time in us
TRACE_SIZE = TRACE.size
_FIELDS = ((TRACED, TRACE_SIZE), (PUBLISH_TIME, 8), (EXPIRY, 8), (ATTEMPTS, 4))
READ_FLAGS = TRACED | PUBLISH_TIME | EXPIRY | ATTEMPTS | HAS_DEATHS  # others need no decoding
FIELDS_SIZE = [sum(size for flag, size in _FIELDS if flags & flag) for flags in range(256)]  # by flags
ADDRESS_MAX = 2**16 - 1
PART_MAX = 2**32 - 1


class Record(NamedTuple):
    position: int
    flags: int
    address: bytes
    header: bytes
    body: bytes
    end: int  # where the next record begins
    fields: bytes = b""  # optional fields, encoded


def encode(position: int, flags: int, address: bytes, header: bytes, body: bytes, fields: bytes = b"") -> bytes:
    """Encode a message; `fields` are the optional fields that its flags name."""
    assert len(fields) == FIELDS_SIZE[flags]
    return HEAD.pack(position, flags, len(address), len(header), len(body)) + fields + address + header + body


def decode_at(data: Data, offset: int) -> Record:
    """Decode the record at `offset`."""
    start = offset + HEAD_SIZE
    if offset < 0 or start > len(data):
        raise BadRecord(offset, "its head exceeds the data")
    position, flags, address_size, header_size, body_size = HEAD.unpack_from(data, offset)
    fields = bytes(data[start : start + FIELDS_SIZE[flags]])
    start += FIELDS_SIZE[flags]
    header_start = start + address_size
    body_start = header_start + header_size
    end = body_start + body_size
    if end > len(data):
        raise BadRecord(offset, f"it exceeds the data by {end - len(data)} bytes")
    return Record(
        position,
        flags,
        bytes(data[start:header_start]),
        bytes(data[header_start:body_start]),
        bytes(data[body_start:end]),
        end,
        fields,
    )


def decode_all(data: Data) -> Iterator[Record]:
    """Decode adjacent records up to the last byte."""
    offset = 0
    while offset < len(data):
        record = decode_at(data, offset)
        yield record
        offset = record.end
