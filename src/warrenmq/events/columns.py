# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Rows to columns: the body of a record batch (docs/formats/events.md), written without the interpreter.

`Layout` says where each column lies, `ColumnWriter` writes them in one walk over the rows. Both belong to the thread
that encodes. One of the files that know whether they are compiled (docs/decisions/0002), in the functions at the end.
Compiled when the package is built (columns.pxd).
"""

import struct
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

from warrenmq.events.arrow import padded
from warrenmq.events.row_reader import RowReader
from warrenmq.events.rows import Rows
from warrenmq.events.schema import COLUMNS, INT8, INT64, TEXT, TIME, column_number

Pointer: TypeAlias = Any  # an unsigned char * in compiled code, a bytearray in plain Python

WIDTHS = {INT8: 1, INT64: 8, TIME: 8}  # octets of a value; 4 for all others: numbers, names and ends of texts
BUFFERS = sum([3 if column.type == TEXT else 2 for column in COLUMNS])

_SHAPES = [(column.is_nullable, WIDTHS.get(column.type, 4), column.type == TEXT) for column in COLUMNS]

_TIME = column_number("time")
_KIND = column_number("kind")
_UID = column_number("uid")
_MESSAGE_ID = column_number("message_id")
_PUBLISH_TIME = column_number("publish_time")
_ENQUEUE_TIME = column_number("enqueue_time")
_VHOST = column_number("vhost")
_EXCHANGE = column_number("exchange")
_ROUTING_KEY = column_number("routing_key")
_QUEUE = column_number("queue")
_CONSUMER = column_number("consumer")
_CONNECTION = column_number("connection")
_CHANNEL = column_number("channel")
_SIZE = column_number("size")
_ATTEMPT = column_number("attempt")
_REASON = column_number("reason")
_CORRELATION_ID = column_number("correlation_id")
_TRACE_ID = column_number("trace_id")
_SPAN_ID = column_number("span_id")
_SOURCE_UID = column_number("source_uid")
_DEPTH = column_number("depth")

_I64 = struct.Struct("<q")
_I32 = struct.Struct("<i")


class Layout:
    """Where the buffers of each column lie in a body of `size` octets: which values are there, values, texts.

    `buffers` has the place and the size of each, one behind the other; the other lists are the places by column, -1
    where a column has no such buffer.
    """

    __slots__ = ("buffers", "flags", "size", "texts", "values")

    def __init__(self, rows: Rows) -> None:
        self.buffers: list[int] = []
        self.flags: list[int] = []
        self.values: list[int] = []
        self.texts: list[int] = []
        self.size = 0
        count = rows.count
        flag_size = (count + 7) // 8
        text_sizes = [rows.message_id_sum, rows.correlation_id_sum, rows.trace_id_sum, rows.span_id_sum]
        for is_nullable, width, is_text in _SHAPES:
            flags = self._place(flag_size if is_nullable else 0)
            self.flags.append(flags if is_nullable else -1)
            self.values.append(self._place(width * (count + 1) if is_text else width * count))
            self.texts.append(self._place(text_sizes.pop(0)) if is_text else -1)

    def _place(self, size: int) -> int:
        at = self.size
        self.buffers += (at, size)
        self.size = padded(at + size)
        return at


class ColumnWriter:
    """Writes into octets that are all 0: what is null is left so."""

    __slots__ = ("_flags", "_nulls", "_out", "_row", "_text_ends", "_texts", "_values")

    def __init__(self, layout: Layout, out: Any, start: int) -> None:
        self._out = _pointer_to(out)
        self._flags = [start + at if at >= 0 else -1 for at in layout.flags]
        self._values = [start + at for at in layout.values]
        self._texts = [start + at for at in layout.texts]
        self._nulls = [0 for _ in COLUMNS]
        self._text_ends = [0 for _ in COLUMNS]
        self._row = 0

    def fill(self, reader: RowReader) -> list[int]:
        """Write all rows; gives the number of nulls by column."""
        with cython.nogil:
            self._fill(reader)
        return list(self._nulls)

    def _fill(self, reader: RowReader) -> None:
        while reader.advance():
            self._write_row(reader)
            self._row = self._row + 1

    def _write_row(self, row: RowReader) -> None:
        self._put_i64(_TIME, row.time, True)
        self._put_i8(_KIND, row.kind, True)
        self._put_i64(_UID, row.uid, True)
        self._put_text(_MESSAGE_ID, row, row.message_id_at, row.message_id_size)
        self._put_i64(_PUBLISH_TIME, row.publish_time, row.publish_time != 0)
        self._put_i64(_ENQUEUE_TIME, row.enqueue_time, row.enqueue_time != 0)
        self._put_i32(_VHOST, row.vhost - 1, row.vhost != 0)  # no name is 0 in rows and null here
        self._put_i32(_EXCHANGE, row.exchange - 1, row.exchange != 0)
        self._put_i32(_ROUTING_KEY, row.routing_key - 1, row.routing_key != 0)
        self._put_i32(_QUEUE, row.queue - 1, row.queue != 0)
        self._put_i32(_CONSUMER, row.consumer - 1, row.consumer != 0)
        self._put_i32(_CONNECTION, row.connection - 1, row.connection != 0)
        self._put_i32(_CHANNEL, row.channel, row.channel != 0)
        self._put_i32(_SIZE, row.size, row.size >= 0)
        self._put_i32(_ATTEMPT, row.attempt, row.attempt != 0)
        self._put_i8(_REASON, row.reason, row.reason != 0)
        self._put_text(_CORRELATION_ID, row, row.correlation_id_at, row.correlation_id_size)
        self._put_text(_TRACE_ID, row, row.trace_id_at, row.trace_id_size)
        self._put_text(_SPAN_ID, row, row.span_id_at, row.span_id_size)
        self._put_i64(_SOURCE_UID, row.source_uid, row.source_uid != 0)
        self._put_i32(_DEPTH, row.depth, row.depth >= 0)

    def _put_i64(self, column: int, value: int, is_there: bool) -> None:
        if self._is_there(column, is_there):
            _store_i64(self._out, self._values[column] + 8 * self._row, value)

    def _put_i32(self, column: int, value: int, is_there: bool) -> None:
        if self._is_there(column, is_there):
            _store_i32(self._out, self._values[column] + 4 * self._row, value)

    def _put_i8(self, column: int, value: int, is_there: bool) -> None:
        if self._is_there(column, is_there):
            self._out[self._values[column] + self._row] = value

    def _put_text(self, column: int, row: RowReader, at: int, size: int) -> None:
        end = self._text_ends[column]
        if self._is_there(column, size >= 0):
            _copy(self._out, self._texts[column] + end, row.data, at, size)
            end += size
            self._text_ends[column] = end
        _store_i32(self._out, self._values[column] + 4 * (self._row + 1), end)

    def _is_there(self, column: int, is_there: bool) -> bool:
        """Note whether the row has a value here."""
        if not is_there:
            self._nulls[column] = self._nulls[column] + 1
            return False
        flags = self._flags[column]
        if flags >= 0:
            at = flags + (self._row >> 3)
            self._out[at] = self._out[at] | 1 << (self._row & 7)
        return True


def new_octets(size: int) -> Any:
    """Zeros that a ColumnWriter may write to, until `bytes` makes them the result: in C without a copy."""
    return bytes(size) if cython.compiled else bytearray(size)


def put_octets(out: Any, at: int, octets: bytes) -> None:
    _copy(_pointer_to(out), at, _pointer_to(octets), 0, len(octets))


def _pointer_to(data: Any) -> Pointer:
    if cython.compiled:
        octets: bytes = data
        return octets
    else:
        return data


def _store_i64(out: Pointer, at: int, value: int) -> None:
    if cython.compiled:
        memcpy(out + at, cython.address(value), 8)
    else:
        _I64.pack_into(out, at, value)


def _store_i32(out: Pointer, at: int, value: int) -> None:
    if cython.compiled:
        memcpy(out + at, cython.address(value), 4)
    else:
        _I32.pack_into(out, at, value)


def _copy(out: Pointer, at: int, source: Pointer, source_at: int, size: int) -> None:
    if cython.compiled:
        memcpy(out + at, source + source_at, size)
    else:
        out[at : at + size] = source[source_at : source_at + size]
