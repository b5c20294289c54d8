"""The metadata of an Arrow IPC stream of events: the schema, one dictionary of names, one record batch, the end.

Implements only what this schema needs (Arrow columnar format 1.5, metadata version 5, little endian).
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from warrenmq.events.errors import BadEvents
from warrenmq.events.flatbuffer import Builder, Table
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
BUFFERS_OF_NAMES = 3


class Buffer(NamedTuple):
    """A buffer within a body."""

    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a message: rows, length and null count of each column, buffers, and its range of bytes."""

    count: int
    lengths: list[int]
    nulls: list[int]
    buffers: list[Buffer]
    start: int
    end: int


def padded(size: int) -> int:
    return size + 7 & ~7


def number_of_buffers(columns: int) -> int:
    """Return how many buffers a record batch with this number of columns has."""
    return sum([3 if column.type == TEXT else 2 for column in COLUMNS[:columns]])


def schema_message(version: int = VERSION) -> bytes:
    """Return the first message of every batch, which is the same for all batches of one version."""
    builder = Builder()
    fields = builder.refs([_field(builder, column) for column in COLUMNS[: COLUMNS_OF_VERSION[version]]])
    key, value = builder.string("warrenmq.events.version"), builder.string(str(version))
    metadata = builder.refs([builder.table((0, "ref", key), (1, "ref", value))])
    schema = builder.table((0, "h", 0), (1, "ref", fields), (2, "ref", metadata))
    return _message(builder, _SCHEMA, schema, 0)


def dictionary_message(count: int, buffers: list[int], body_size: int) -> bytes:
    """Return the message before the body of the dictionary; `buffers`: offset and size of each."""
    return _DICTIONARY.fill(count, [count, 0], buffers, body_size)


def batch_message(count: int, nulls: list[int], buffers: list[int], body_size: int) -> bytes:
    """Return the message before the body of the record batch. Its size does not depend on the numbers."""
    nodes = [count] * (2 * len(nulls))
    nodes[1::2] = nulls
    return _BATCH.fill(count, nodes, buffers, body_size)


def read_dictionary(data: bytes, at: int) -> Body:
    """Read the dictionary whose message begins at this offset."""
    message, start = _read_message(data, at, _DICTIONARY_BATCH)
    return _read_batch(data, message, message.table(2).table(1), start)


def read_batch(data: bytes, at: int) -> Body:
    """Read the record batch whose message begins at this offset."""
    message, start = _read_message(data, at, _RECORD_BATCH)
    return _read_batch(data, message, message.table(2), start)


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


def _batch(builder: Builder, count: int, nodes: list[int], buffers: list[int]) -> int:
    """`nodes` and `buffers`: two numbers each."""
    node_ref = builder.structs(len(nodes) // 2, struct.pack(f"<{len(nodes)}q", *nodes))
    buffer_ref = builder.structs(len(buffers) // 2, struct.pack(f"<{len(buffers)}q", *buffers))
    return builder.table((0, "q", count), (1, "ref", node_ref), (2, "ref", buffer_ref))


def _message(builder: Builder, kind: int, header: int, body_size: int) -> bytes:
    fields = ((0, "h", _METADATA_V5), (1, "B", kind), (2, "ref", header), (3, "q", body_size))
    metadata = builder.finish(builder.table(*fields))
    return _PREFIX.pack(_CONTINUATION, len(metadata)) + metadata


class _Template:
    """A message that differs only in numbers from batch to batch: built once, then filled in."""

    __slots__ = ("_buffers", "_message", "_nodes", "_offsets", "size")

    def __init__(self, kind: int, columns: int, buffers: int) -> None:
        # Unique numbers, to find the offset of each in the message.
        marks = [_MARK + number for number in range(2 + 2 * columns + 2 * buffers)]
        builder = Builder()
        header = _batch(builder, marks[0], marks[2 : 2 + 2 * columns], marks[2 + 2 * columns :])
        if kind == _DICTIONARY_BATCH:
            header = builder.table((0, "q", NAMES_ID), (1, "ref", header))
        self._message = _message(builder, kind, header, marks[1])
        self.size = len(self._message)
        self._offsets = [self._message.index(_I64.pack(marks[number])) for number in (0, 1, 2, 2 + 2 * columns)]
        self._nodes = struct.Struct(f"<{2 * columns}q")
        self._buffers = struct.Struct(f"<{2 * buffers}q")

    def fill(self, count: int, nodes: list[int], buffers: list[int], body_size: int) -> bytes:
        """Return the message with these numbers; `nodes` and `buffers`: two numbers each."""
        message = bytearray(self._message)
        count_at, size_at, nodes_at, buffers_at = self._offsets
        _I64.pack_into(message, count_at, count)
        _I64.pack_into(message, size_at, body_size)
        self._nodes.pack_into(message, nodes_at, *nodes)
        self._buffers.pack_into(message, buffers_at, *buffers)
        return bytes(message)


def _read_message(data: bytes, at: int, kind: int) -> tuple[Table, int]:
    """Return the message at this offset, and the offset of its body."""
    continuation, size = _PREFIX.unpack_from(data, at)
    at += _PREFIX.size
    if continuation != _CONTINUATION or not 0 < size <= len(data) - at:
        raise BadEvents(f"no message of a batch at byte {at - _PREFIX.size}")
    message = Table.root(data, at)
    if message.number(1, "B") != kind:
        raise BadEvents(f"unexpected message in a batch at byte {at}")
    return message, at + size


def _read_batch(data: bytes, message: Table, batch: Table, start: int) -> Body:
    size = message.number(3, "q")
    nodes = batch.structs(1, 2)
    buffers = [Buffer(*pair) for pair in batch.structs(2, 2)]
    if not 0 <= size <= len(data) - start:
        raise BadEvents(f"the body of a batch, {size} bytes at {start}, is cut off at byte {len(data)}")
    if any(buffer.at < 0 or buffer.size < 0 or buffer.at + buffer.size > size for buffer in buffers):
        raise BadEvents("a buffer is outside of the body of its batch")
    lengths, nulls = [node[0] for node in nodes], [node[1] for node in nodes]
    return Body(batch.number(0, "q"), lengths, nulls, buffers, start, start + size)


_DICTIONARY = _Template(_DICTIONARY_BATCH, 1, BUFFERS_OF_NAMES)
_BATCH = _Template(_RECORD_BATCH, len(COLUMNS), number_of_buffers(len(COLUMNS)))
BATCH_MESSAGE_SIZE = _BATCH.size
