"""The head of the raw form of rows: how many there are, and the names and contexts that they speak of by numbers.

docs/formats/events.md draws it. Written once for many rows, and read at a start.
"""

import struct
from typing import TypeAlias

from warrenmq.events.errors import BadEvents
from warrenmq.events.schema import COLUMNS_OF_VERSION, VERSION

EventContext: TypeAlias = tuple[int, ...]  # numbers of six names (0: null) in column order, and the channel
RowHeader: TypeAlias = tuple[int, int, bytes]  # how many names and contexts, and both as they stand in the raw form

_HEAD = struct.Struct("<BIII")  # version, rows, names, contexts
_NAMES = 6
_PARTS = _NAMES + 1
_HIGHEST = 1 << 31  # of a channel, plus 1


def make_row_header(names: list[bytes], contexts: list[EventContext], told: list[int]) -> RowHeader:
    """Of all names and contexts by number, these contexts and the names in them."""
    used = dict.fromkeys([name for context in told for name in contexts[context][:_NAMES] if name])
    pieces: list[bytes] = []
    for number in used:
        name = names[number]
        pieces += (_varint(number), _varint(len(name)), name)
    for number in told:
        pieces.append(_varint(number))
        pieces += [_varint(part) for part in contexts[number]]
    return len(used), len(told), b"".join(pieces)


def encode_header(count: int, row_header: RowHeader) -> bytes:
    """What stands in front of so many rows."""
    named, staged, octets = row_header
    return _HEAD.pack(VERSION, count, named, staged) + octets


def read_header(raw: bytes) -> tuple[int, dict[int, str | None], dict[int, EventContext], int]:
    """The number of rows, names and contexts by number, and where the rows begin."""
    try:
        version, count, named, staged = _HEAD.unpack_from(raw)
        if version not in COLUMNS_OF_VERSION:  # in version 1 a message has no priority: that byte is 0 there
            raise BadEvents(f"a raw form of events has version {version}, which is not known here")
        at = _HEAD.size
        names: dict[int, str | None] = {0: None}
        for _ in range(named):
            number, at = _read_varint(raw, at)
            size, at = _read_varint(raw, at)
            if at + size > len(raw):
                raise BadEvents("a raw form of events ends within its names")
            names[number] = raw[at : at + size].decode()
            at += size
        contexts: dict[int, EventContext] = {}
        for _ in range(staged):
            number, at = _read_varint(raw, at)
            contexts[number], at = _read_context(raw, at, names)
    except (struct.error, IndexError, UnicodeDecodeError) as problem:
        raise BadEvents(f"the head of a raw form of events is damaged: {problem}") from problem
    return count, names, contexts, at


def _read_context(raw: bytes, at: int, names: dict[int, str | None]) -> tuple[EventContext, int]:
    parts = []
    for _ in range(_PARTS):
        part, at = _read_varint(raw, at)
        parts.append(part)
    if any(number not in names for number in parts[:_NAMES]) or parts[_NAMES] >= _HIGHEST:
        raise BadEvents(f"a raw form of events has a name without a text before byte {at}")
    return tuple(parts), at


def _varint(value: int) -> bytes:
    """Seven bits per byte, the low ones first."""
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    shift = 0
    while raw[at] >= 0x80:
        value |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | raw[at] << shift, at + 1
