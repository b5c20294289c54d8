"""The header of encoded rows: their number, and the names and event contexts that they refer to by number.

docs/formats/events.md draws it. Written once for many rows, and read when the broker starts.
"""

import struct
from typing import TypeAlias

from warrenmq.events.errors import BadEvents
from warrenmq.events.schema import COLUMNS_OF_VERSION, VERSION

EventContext: TypeAlias = tuple[int, ...]  # numbers of six names (0: null) in column order, and the channel
RowHeader: TypeAlias = tuple[int, int, bytes]  # number of names, of contexts, and both encoded

_START = struct.Struct("<BIII")  # version, rows, names, contexts
_NAMES = 6
_PARTS = _NAMES + 1
_CHANNEL_LIMIT = 1 << 31


def make_row_header(names: list[bytes], contexts: list[EventContext], used: list[int]) -> RowHeader:
    """Encode the used contexts, and the names in them."""
    used_names = dict.fromkeys([name for context in used for name in contexts[context][:_NAMES] if name])
    parts: list[bytes] = []
    for number in used_names:
        name = names[number]
        parts += (_varint(number), _varint(len(name)), name)
    for number in used:
        parts.append(_varint(number))
        parts += [_varint(part) for part in contexts[number]]
    return len(used_names), len(used), b"".join(parts)


def encode_header(count: int, row_header: RowHeader) -> bytes:
    """Return the header of `count` rows."""
    names, contexts, encoded = row_header
    return _START.pack(VERSION, count, names, contexts) + encoded


def read_header(raw: bytes) -> tuple[int, dict[int, str | None], dict[int, EventContext], int]:
    """Return the number of rows, names and contexts by number, and where the rows begin."""
    try:
        version, count, number_of_names, number_of_contexts = _START.unpack_from(raw)
        if version not in COLUMNS_OF_VERSION:  # in version 1 the byte of the priority is always 0
            raise BadEvents(f"rows have version {version}, which is unknown here")
        at = _START.size
        names: dict[int, str | None] = {0: None}
        for _ in range(number_of_names):
            number, at = _read_varint(raw, at)
            size, at = _read_varint(raw, at)
            if at + size > len(raw):
                raise BadEvents("rows end within their names")
            names[number] = raw[at : at + size].decode()
            at += size
        contexts: dict[int, EventContext] = {}
        for _ in range(number_of_contexts):
            number, at = _read_varint(raw, at)
            contexts[number], at = _read_context(raw, at, names)
    except (struct.error, IndexError, UnicodeDecodeError) as problem:
        raise BadEvents(f"the header of rows is damaged: {problem}") from problem
    return count, names, contexts, at


def _read_context(raw: bytes, at: int, names: dict[int, str | None]) -> tuple[EventContext, int]:
    parts = []
    for _ in range(_PARTS):
        part, at = _read_varint(raw, at)
        parts.append(part)
    if any(number not in names for number in parts[:_NAMES]) or parts[_NAMES] >= _CHANNEL_LIMIT:
        raise BadEvents(f"rows have an undefined name before byte {at}")
    return tuple(parts), at


def _varint(value: int) -> bytes:
    """Encode seven bits per byte, the low ones first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    shift = 0
    while raw[at] >= 0x80:
        value |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | raw[at] << shift, at + 1
