# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Rows to columns: the body of a record batch (docs/formats/events.md), written without the interpreter.

`ColumnWriter` writes all columns in one walk over the rows, into memory of its own that it uses again, and in the same
walk which values are there; then `Layout` decides which of that goes into the body: of a column without nulls no flags,
of one with nothing else nothing. Both belong to the thread that encodes. One of the files that know whether they are
compiled (docs/decisions/0002), in the functions at the end. Compiled when the package is built (columns.pxd).
"""

from array import array
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy, memset

from warrenmq.events.arrow import padded
from warrenmq.events.errors import BadEvents
from warrenmq.events.row_reader import RowReader
from warrenmq.events.rows import Rows, Scene
from warrenmq.events.schema import COLUMNS, INT8, INT64, NAME, TEXT, TIME, column_number

Pointer: TypeAlias = Any  # in compiled code a pointer to numbers of some width, in plain Python a memoryview of them

WIDTHS = {INT8: 1, NAME: 2, INT64: 8, TIME: 8}  # octets of a value; 4 for all others: numbers and ends of texts
BUFFERS = sum([3 if column.type == TEXT else 2 for column in COLUMNS])
MOST_NAMES = 0x7FFF

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

# Columns with nulls whose flags are written together with their values: those of a stage, then the others.
_FLAGGED = (
    _VHOST, _EXCHANGE, _ROUTING_KEY, _QUEUE, _CONSUMER, _CONNECTION, _CHANNEL, _REASON,
    _PUBLISH_TIME, _ENQUEUE_TIME, _ATTEMPT, _SIZE, _DEPTH,
)  # fmt: skip
_FLAGGED_COUNT = len(_FLAGGED)
_STAGE_PARTS = 8  # the values of the first seven of them, and a bit for each that is there

# What changes places when a square of eight by eight bits is turned over: bits, then pairs of two, then of four.
_BITS = 0x00AA00AA00AA00AA
_PAIRS = 0x0000CCCC0000CCCC
_FOURS = 0x00000000F0F0F0F0

_TEXTS = (_MESSAGE_ID, _CORRELATION_ID, _TRACE_ID, _SPAN_ID)
_IS_TEXT = [column.type == TEXT for column in COLUMNS]
_WIDTHS = [WIDTHS.get(column.type, 4) for column in COLUMNS]
_ZEROS = -1  # the place of what is nothing but zeros


class ColumnWriter:
    """`flags`, `values` and `texts` are the places of each column in its memory, `nulls` how many of it are null."""

    __slots__ = ("_count", "_flagged", "_flagged_nulls", "_memory", "_text_ends", "flags", "nulls", "texts", "values")

    def __init__(self) -> None:
        self._memory = bytearray()
        self._count = 0
        self._text_ends = [0 for _ in COLUMNS]
        self._flagged = [0 for _ in COLUMNS]  # the places of the flags of _FLAGGED, and how many of these are null
        self._flagged_nulls = [0 for _ in COLUMNS]
        self.flags = [0 for _ in COLUMNS]
        self.values = [0 for _ in COLUMNS]
        self.texts = [0 for _ in COLUMNS]
        self.nulls = [0 for _ in COLUMNS]

    def write(self, rows: Rows) -> None:
        """Write all rows; what was written before is gone. BadEvents: they have too many names."""
        if len(rows.names()) > MOST_NAMES:
            raise BadEvents(f"{len(rows.names())} names are too many for a batch")
        self._count = rows.count
        sums = self._sum_texts(rows.reader()) if rows.has_texts else [0, 0, 0, 0]
        self._make_room(rows.count, sums)
        self._write_rows(rows.reader(), _stages(rows.scenes()), rows.has_texts)
        for number, column in enumerate(_FLAGGED):
            self.nulls[column] = self._flagged_nulls[number]

    def text_size(self, column: int) -> int:
        return self._text_ends[column]

    def body(self, layout: "Layout", head: bytes, end: bytes) -> bytes:
        """Head, body and end as one; the body is copied without the interpreter."""
        size = len(head) + layout.size + len(end)
        if cython.compiled:
            found: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
            out: Pointer = found
            start: Pointer = head
            last: Pointer = end
            memcpy(out, start, len(head))
            self._copy(layout.pieces, out + len(head))
            memcpy(out + size - len(end), last, len(end))
            return found
        memory = memoryview(self._memory)
        pieces = [head]
        for at in range(0, len(layout.pieces), 2):
            place, length = layout.pieces[at], layout.pieces[at + 1]
            octets = bytes(length) if place == _ZEROS else bytes(memory[place : place + length])
            pieces.append(octets.ljust(padded(length), b"\0"))
        return b"".join([*pieces, end])

    def _copy(self, pieces: "array[int]", out: Pointer) -> None:
        """In C."""
        memory = _octets(self._memory)
        places = _places(pieces)
        count = len(pieces) // 2
        with cython.nogil:
            for piece in range(count):
                size = places[2 * piece + 1]
                if places[2 * piece] == _ZEROS:
                    memset(out, 0, size)
                else:
                    memcpy(out, memory + places[2 * piece], size)
                memset(out + size, 0, (8 - (size & 7)) & 7)
                out += size + ((8 - (size & 7)) & 7)

    def _sum_texts(self, reader: RowReader) -> list[int]:
        first = second = third = fourth = 0
        with cython.nogil:
            while reader.advance():
                first += reader.message_id_size if reader.message_id_size > 0 else 0
                second += reader.correlation_id_size if reader.correlation_id_size > 0 else 0
                third += reader.trace_id_size if reader.trace_id_size > 0 else 0
                fourth += reader.span_id_size if reader.span_id_size > 0 else 0
        return [first, second, third, fourth]

    def _make_room(self, count: int, text_sums: list[int]) -> None:
        size = 0
        sums = iter(text_sums)
        for number, width in enumerate(_WIDTHS):
            self.flags[number] = size
            self.values[number] = size = size + padded((count + 7) // 8)
            self.texts[number] = size = size + padded(width * (count + 1))
            self._text_ends[number] = 0
            self.nulls[number] = 0
            if _IS_TEXT[number]:
                size += padded(next(sums))
        for number, column in enumerate(_FLAGGED):
            self._flagged[number] = self.flags[column]
        if size > len(self._memory):
            self._memory = bytearray(size)

    def _write_rows(self, reader: RowReader, stages: bytes, has_texts: bool) -> None:
        """All columns but the texts; what is null becomes 0: no reader meets an index that is none."""
        memory = self._memory
        staged = _ints_of(stages)
        times = _longs(memory, self.values[_TIME])
        kinds = _bytes(memory, self.values[_KIND])
        uids = _longs(memory, self.values[_UID])
        publish_times = _longs(memory, self.values[_PUBLISH_TIME])
        enqueue_times = _longs(memory, self.values[_ENQUEUE_TIME])
        vhosts = _shorts(memory, self.values[_VHOST])
        exchanges = _shorts(memory, self.values[_EXCHANGE])
        routing_keys = _shorts(memory, self.values[_ROUTING_KEY])
        queues = _shorts(memory, self.values[_QUEUE])
        consumers = _shorts(memory, self.values[_CONSUMER])
        connections = _shorts(memory, self.values[_CONNECTION])
        channels = _ints(memory, self.values[_CHANNEL])
        sizes = _ints(memory, self.values[_SIZE])
        attempts = _ints(memory, self.values[_ATTEMPT])
        reasons = _bytes(memory, self.values[_REASON])
        depths = _ints(memory, self.values[_DEPTH])
        flags = _bytes(memory, 0)
        row = 0
        first = second = 0  # which values of the last eight rows are there: an octet of each row
        with cython.nogil:
            while reader.advance():
                at = reader.scene * _STAGE_PARTS
                times[row] = reader.time
                kinds[row] = reader.kind
                uids[row] = reader.uid
                publish_times[row] = reader.publish_time
                enqueue_times[row] = reader.enqueue_time
                vhosts[row] = staged[at]
                exchanges[row] = staged[at + 1]
                routing_keys[row] = staged[at + 2]
                queues[row] = staged[at + 3]
                consumers[row] = staged[at + 4]
                connections[row] = staged[at + 5]
                channels[row] = staged[at + 6]
                sizes[row] = reader.size if reader.size > 0 else 0
                attempts[row] = reader.attempt
                reasons[row] = reader.reason
                depths[row] = reader.depth if reader.depth > 0 else 0
                there = staged[at + 7]
                there |= (1 << 7 if reader.reason != 0 else 0) | (1 << 8 if reader.publish_time != 0 else 0)
                there |= (1 << 9 if reader.enqueue_time != 0 else 0) | (1 << 10 if reader.attempt != 0 else 0)
                there |= (1 << 11 if reader.size >= 0 else 0) | (1 << 12 if reader.depth >= 0 else 0)
                first = first >> 8 | (there & 255) << 56
                second = second >> 8 | (there >> 8) << 56
                row += 1
                if row & 7 == 0:
                    self._put_flags(flags, (row >> 3) - 1, first, second)
            if row & 7 != 0:
                missing = 64 - 8 * (row & 7)
                self._put_flags(flags, row >> 3, first >> missing, second >> missing)
            self._count_nulls(flags)
        if has_texts:
            self._write_texts(RowReader(reader._held, 0, reader.at))
            self._flag_longs(_SOURCE_UID)
        else:
            for column in (*_TEXTS, _SOURCE_UID):
                self.nulls[column] = self._count

    def _put_flags(self, flags: Pointer, at: int, first: int, second: int) -> None:
        """Octets of eight rows in, an octet of each column out."""
        first = _turned(first)
        second = _turned(second)
        for number in range(8):
            flags[self._flagged[number] + at] = first >> 8 * number & 255
        for number in range(8, _FLAGGED_COUNT):
            flags[self._flagged[number] + at] = second >> 8 * (number - 8) & 255

    def _count_nulls(self, flags: Pointer) -> None:
        size = (self._count + 7) >> 3
        for number in range(_FLAGGED_COUNT):
            found = 0
            start = self._flagged[number]
            for at in range(start, start + size):
                found += _ones(flags[at])
            self._flagged_nulls[number] = self._count - found

    def _write_texts(self, reader: RowReader) -> None:
        """Ids and source: most rows have none, and then this is left out."""
        memory = _bytes(self._memory, 0)
        sources = _longs(self._memory, self.values[_SOURCE_UID])
        for column in _TEXTS:
            _clear(self._memory, self.flags[column], (self._count + 7) // 8)
            _ints(self._memory, self.values[column])[0] = 0
        message_ids = _ints(self._memory, self.values[_MESSAGE_ID])
        correlation_ids = _ints(self._memory, self.values[_CORRELATION_ID])
        trace_ids = _ints(self._memory, self.values[_TRACE_ID])
        span_ids = _ints(self._memory, self.values[_SPAN_ID])
        row = 0
        with cython.nogil:
            while reader.advance():
                sources[row] = reader.source_uid
                self._put_text(memory, _MESSAGE_ID, row, reader, reader.message_id_at, reader.message_id_size)
                message_ids[row + 1] = self._text_ends[_MESSAGE_ID]
                self._put_text(
                    memory, _CORRELATION_ID, row, reader, reader.correlation_id_at, reader.correlation_id_size
                )
                correlation_ids[row + 1] = self._text_ends[_CORRELATION_ID]
                self._put_text(memory, _TRACE_ID, row, reader, reader.trace_id_at, reader.trace_id_size)
                trace_ids[row + 1] = self._text_ends[_TRACE_ID]
                self._put_text(memory, _SPAN_ID, row, reader, reader.span_id_at, reader.span_id_size)
                span_ids[row + 1] = self._text_ends[_SPAN_ID]
                row += 1

    def _put_text(self, memory: Pointer, column: int, row: int, reader: RowReader, at: int, size: int) -> None:
        if size < 0:
            self.nulls[column] = self.nulls[column] + 1
            return
        place = self.flags[column] + (row >> 3)
        memory[place] = memory[place] | 1 << (row & 7)
        _copy_octets(memory, self.texts[column] + self._text_ends[column], reader.data, at, size)
        self._text_ends[column] = self._text_ends[column] + size

    def _flag_longs(self, column: int) -> None:
        values = _longs(self._memory, self.values[column])
        flags = _bytes(self._memory, self.flags[column])
        count = self._count
        found = 0
        with cython.nogil:
            for start in range(0, count, 8):
                bits = 0
                for row in range(start, start + 8 if start + 8 < count else count):
                    if values[row] != 0:
                        bits |= 1 << (row & 7)
                        found += 1
                flags[start >> 3] = bits
        self.nulls[column] = count - found


class Layout:
    """What of the memory of a writer makes the body of a batch, and where in it the buffers of each column lie.

    `pieces` has place (or _ZEROS) and size of each part, `buffers` place in the body and size of each buffer. A column
    that is null throughout shares octets with others: flags of zeros, ends of texts that are all 0, and for its values,
    which mean nothing, those of the column of times.
    """

    __slots__ = ("buffers", "pieces", "size")

    def __init__(self, writer: ColumnWriter, count: int) -> None:
        self.buffers: list[int] = []
        self.pieces = array("q")
        self.size = 0
        times = self._place(writer.values[_TIME], 8 * count)
        zeros = -1
        flag_size = (count + 7) // 8
        for number, is_text in enumerate(_IS_TEXT):
            nulls = writer.nulls[number]
            size = _WIDTHS[number] * (count + is_text)
            if number == _TIME:
                self.buffers += (0, 0, times, size)
            elif nulls == count and count:
                if zeros < 0:
                    zeros = self._place(_ZEROS, 4 * (count + 1))
                self.buffers += (zeros, flag_size, zeros if is_text else times, size)
                if is_text:
                    self.buffers += (zeros, 0)
            else:
                flags = self._place(writer.flags[number], flag_size) if nulls else 0
                # Of no rows even the ends of texts were never written.
                values = self._place(writer.values[number] if count else _ZEROS, size)
                self.buffers += (flags, flag_size if nulls else 0, values, size)
                if is_text:
                    text_size = writer.text_size(number)
                    self.buffers += (self._place(writer.texts[number], text_size), text_size)

    def _place(self, at: int, size: int) -> int:
        """Another piece; gives its place in the body."""
        place = self.size
        self.pieces.extend((at, size))
        self.size = padded(place + size)
        return place


def _stages(scenes: list[Scene]) -> bytes:
    """Scenes as the columns have them, each as eight ints: a name that is none is 0, as the first one is."""
    stages = array("i")
    for *names, channel in scenes:
        there = [*names, channel]
        stages.extend([max(name - 1, 0) for name in names])
        stages.extend((channel, sum([1 << bit for bit, part in enumerate(there) if part])))
    return stages.tobytes() or bytes(4)


def _turned(octets: int) -> int:
    """Eight octets as a square of bits, turned over: bit 3 of octet 5 becomes bit 5 of octet 3."""
    moved = (octets ^ octets >> 7) & _BITS
    octets = octets ^ moved ^ moved << 7
    moved = (octets ^ octets >> 14) & _PAIRS
    octets = octets ^ moved ^ moved << 14
    moved = (octets ^ octets >> 28) & _FOURS
    return octets ^ moved ^ moved << 28


def _ones(octet: int) -> int:
    """How many of its bits are set."""
    octet = octet - (octet >> 1 & 0x55)
    octet = (octet & 0x33) + (octet >> 2 & 0x33)
    return (octet + (octet >> 4)) & 0x0F


def _clear(memory: bytearray, at: int, size: int) -> None:
    memory[at : at + size] = bytes(size)


def _octets(memory: bytearray) -> Pointer:
    return memory


def _places(pieces: "array[int]") -> Pointer:
    address, _ = pieces.buffer_info()
    return cython.cast(cython.pointer(cython.longlong), cython.cast(cython.size_t, address))


def _longs(memory: bytearray, at: int) -> Pointer:
    if cython.compiled:
        return cython.cast(cython.pointer(cython.longlong), _octets(memory) + at)
    else:
        return _view(memory, at, 8).cast("q")


def _ints(memory: bytearray, at: int) -> Pointer:
    if cython.compiled:
        return cython.cast(cython.pointer(cython.int), _octets(memory) + at)
    else:
        return _view(memory, at, 4).cast("i")


def _shorts(memory: bytearray, at: int) -> Pointer:
    if cython.compiled:
        return cython.cast(cython.pointer(cython.short), _octets(memory) + at)
    else:
        return _view(memory, at, 2).cast("h")


def _bytes(memory: bytearray, at: int) -> Pointer:
    if cython.compiled:
        return _octets(memory) + at
    else:
        return _view(memory, at, 1)


def _ints_of(octets: bytes) -> Pointer:
    if cython.compiled:
        data: Pointer = octets
        return cython.cast(cython.pointer(cython.int), cython.cast(cython.p_void, data))
    else:
        return memoryview(octets).cast("i")


def _view(memory: bytearray, at: int, width: int) -> memoryview:
    return memoryview(memory)[at : at + (len(memory) - at) // width * width]


def _copy_octets(out: Pointer, at: int, source: Pointer, source_at: int, size: int) -> None:
    if cython.compiled:
        memcpy(out + at, source + source_at, size)
    else:
        out[at : at + size] = source[source_at : source_at + size]
