"""The metadata of an Arrow IPC stream of events: the schema, one dictionary of names, one record batch, the end.

Implements only what this schema needs (Arrow columnar format 1.5, metadata version 5, little endian).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from warrenmq.events.errors import BadEvents
from warrenmq.events.flatbuffer import Builder
from warrenmq.events.schema import COLUMNS, COLUMNS_OF_VERSION, INT8, INT32, INT64, NAME, TEXT, TIME, VERSION, Column

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
NAMES_ID = 0  # of the dictionary

_METADATA_V5 = 4
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_INT, _UTF8, _TIMESTAMP = 2, 5, 10
_MICROSECOND = 2
_BITS = {INT8: 8, INT32: 32, INT64: 64}
_PREFIX = struct.Struct("<Ii")
_I64 = struct.Struct("<q")
_CONTINUATION = 0xFFFF_FFFF
_MARK = 0x6E75_6D62_6572_0000


class Buffer(NamedTuple):
    """A buffer within a body."""

    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a message: rows, null count of each column, buffers, and its range of bytes."""

    count: int
    nulls: tuple[int, ...]
    buffers: list[Buffer]
    start: int
    end: int


def padded(size: int) -> int:
    return size + 7 & ~7


def schema_message(version: int = VERSION) -> bytes:
    """Return the first message of every batch, which is the same for all batches of one version."""
    builder = Builder()
    fields = builder.refs([_field(builder, column) for column in COLUMNS[: COLUMNS_OF_VERSION[version]]])
    key, value = builder.string("warrenmq.events.version"), builder.string(str(version))
    metadata = builder.refs([builder.table((0, "ref", key), (1, "ref", value))])
    schema = builder.table((0, "h", 0), (1, "ref", fields), (2, "ref", metadata))
    return _message(builder, _SCHEMA, schema, 0)


def _field(builder: Builder, column: Column) -> int:
    name = builder.string(column.name)
    children = builder.refs([])
    fields = [(0, "ref", name), (1, "?", column.is_nullable), (5, "ref", children)]
    if column.type == NAME:
        index = builder.table((0, "i", 16), (1, "?", True))
        fields.append((4, "ref", builder.table((0, "q", NAMES_ID), (1, "ref", index))))
    if column.type in _BITS:
        fields += [(2, "B", _INT), (3, "ref", builder.table((0, "i", _BITS[column.type]), (1, "?", True)))]
    elif column.type == TIME:
        zone = builder.string("UTC")
        fields += [(2, "B", _TIMESTAMP), (3, "ref", builder.table((0, "h", _MICROSECOND), (1, "ref", zone)))]
    else:
        fields += [(2, "B", _UTF8), (3, "ref", builder.table())]
    return builder.table(*fields)


def _message(builder: Builder, kind: int, header: int, body_size: int) -> bytes:
    fields = ((0, "h", _METADATA_V5), (1, "B", kind), (2, "ref", header), (3, "q", body_size))
    metadata = builder.finish(builder.table(*fields))
    return _PREFIX.pack(_CONTINUATION, len(metadata)) + metadata


class MessageTemplate:
    """A message that differs only in numbers from batch to batch: built once, then filled in, or compared and read."""

    __slots__ = ("_buffers", "_message", "_nodes", "_offsets", "size")

    def __init__(self, kind: int, columns: int, buffers: int) -> None:
        # Unique numbers, to find the offset of each in the message.
        marks = [_I64.pack(_MARK + number) for number in range(2 + 2 * columns + 2 * buffers)]
        builder = Builder()
        nodes_ref = builder.structs(columns, b"".join(marks[2 : 2 + 2 * columns]))
        buffers_ref = builder.structs(buffers, b"".join(marks[2 + 2 * columns :]))
        header = builder.table((0, "q", _MARK), (1, "ref", nodes_ref), (2, "ref", buffers_ref))
        if kind == _DICTIONARY_BATCH:
            header = builder.table((0, "q", NAMES_ID), (1, "ref", header))
        self._message = _message(builder, kind, header, _MARK + 1)
        self.size = len(self._message)
        self._offsets = [self._message.index(marks[number]) for number in (0, 1, 2, 2 + 2 * columns)]
        self._nodes = struct.Struct(f"<{2 * columns}q")
        self._buffers = struct.Struct(f"<{2 * buffers}q")

    def fill(self, count: int, nulls: Sequence[int], buffers: Sequence[int], body_size: int) -> bytes:
        """Return the message before a body; `nulls`: of each column, `buffers`: offset and size of each."""
        message = bytearray(self._message)
        nodes = [count] * (2 * len(nulls))
        nodes[1::2] = nulls
        count_at, size_at, nodes_at, buffers_at = self._offsets
        _I64.pack_into(message, count_at, count)
        _I64.pack_into(message, size_at, body_size)
        self._nodes.pack_into(message, nodes_at, *nodes)
        self._buffers.pack_into(message, buffers_at, *buffers)
        return bytes(message)

    def read(self, data: bytes, at: int) -> Body:
        """Read the message at this offset. BadEvents: it has more than other numbers, or its body is cut off."""
        count_at, size_at, nodes_at, buffers_at = self._offsets
        start = at + self.size
        if start > len(data):
            raise BadEvents(f"a message of a batch is cut off at byte {len(data)}")
        (count,), (size,) = _I64.unpack_from(data, at + count_at), _I64.unpack_from(data, at + size_at)
        nulls = self._nodes.unpack_from(data, at + nodes_at)[1::2]
        pairs = self._buffers.unpack_from(data, at + buffers_at)
        if count < 0 or data[at:start] != self.fill(count, nulls, pairs, size):
            raise BadEvents(f"the message at byte {at} of a batch is not of its version")
        if not 0 <= size <= len(data) - start:
            raise BadEvents(f"the body of a batch, {size} bytes at {start}, is cut off at byte {len(data)}")
        buffers = [Buffer(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
        if any(buffer.at < 0 or buffer.size < 0 or buffer.at + buffer.size > size for buffer in buffers):
            raise BadEvents("a buffer is outside of the body of its batch")
        return Body(count, nulls, buffers, start, start + size)


DICTIONARY = MessageTemplate(_DICTIONARY_BATCH, 1, 3)
BATCHES = {
    version: MessageTemplate(_RECORD_BATCH, columns, sum([3 if each.type == TEXT else 2 for each in COLUMNS[:columns]]))
    for version, columns in COLUMNS_OF_VERSION.items()
}
