# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Rows to columns: the body of a record batch (docs/formats/events.md), written without the interpreter.

`ColumnWriter` writes all columns in one walk over the rows, each to its place in the batch: nothing is copied twice.
Where that is depends on which columns have nulls (of one without there are no flags, of one with nothing else there is
nothing), and on whether all times of a row are one, and that is known after the walk only. So it goes by what the
batch before had, which is nearly always right; if not, it walks again.

A writer belongs to the thread that encodes. One of the files that know whether they are compiled
(docs/decisions/0002), in the functions at the end. Compiled when the package is built (columns.pxd).
"""

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
from warrenmq.events.row_blocks import BLOCK, RowBlocks
from warrenmq.events.row_header import EventContext
from warrenmq.events.row_reader import RowReader
from warrenmq.events.rows import Rows
from warrenmq.events.schema import COLUMNS, INT8, INT64, NAME, TEXT, TIME, column_number

Pointer: TypeAlias = Any  # in compiled code a pointer to numbers of some width, in plain Python a memoryview of them

WIDTHS = {INT8: 1, NAME: 2, INT64: 8, TIME: 8}  # bytes of a value; 4 for all others: numbers and ends of texts
MAX_NAMES = 0x7FFF

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
_PRIORITY = column_number("priority")

# Columns with nulls, in the order of the bits that say what is there: those of a context, and those of the row itself.
_CONTEXT_COLUMNS = (_VHOST, _EXCHANGE, _ROUTING_KEY, _QUEUE, _CONSUMER, _CONNECTION, _CHANNEL)
_ROW_COLUMNS = (_REASON, _PUBLISH_TIME, _ENQUEUE_TIME, _ATTEMPT, _SIZE, _DEPTH, _PRIORITY)  # as RowBlocks.there
_FLAGGED = (*_CONTEXT_COLUMNS, None, *_ROW_COLUMNS)  # a byte each
_ID_COLUMNS = (_MESSAGE_ID, _CORRELATION_ID, _TRACE_ID, _SPAN_ID)

_IS_TEXT = bytes([column.type == TEXT for column in COLUMNS])
_WIDTHS = bytes([WIDTHS.get(column.type, 4) for column in COLUMNS])
_NUMBER_OF_COLUMNS = len(COLUMNS)
_BLOCK = BLOCK
_NOWHERE = -1  # the place of what is not in the batch

# What a column has: no nulls, some, or nothing else.
NO_NULLS, SOME_NULLS, ALL_NULLS = 0, 1, 2

# What changes places when a square of eight by eight bits is turned over: bits, then pairs of two, then of four.
_BITS = 0x00AA00AA00AA00AA
_PAIRS = 0x0000CCCC0000CCCC
_FOURS = 0x00000000F0F0F0F0


class Layout:
    """Where the buffers of each column lie in a batch whose body begins at `start`, by the states of its columns.

    `buffers` has place in the body and size of each, `size` is that of the body, `ends` are where buffers end that
    share bytes with no other. A column that is null throughout does: flags of zeros, ends of texts that are all 0, and
    for its values, which mean nothing, those of the column of times. `flags` and `values` are nowhere then. With
    `is_one_time` the columns of publish and enqueue times, too, have the values of the column of times.
    """

    __slots__ = ("_start", "buffers", "ends", "flags", "size", "texts", "values", "zeros")

    def __init__(self, states: list[int], is_one_time: bool, count: int, text_sizes: list[int], start: int) -> None:
        self._start = start
        self.size = 0
        self.buffers: list[int] = []
        self.ends: list[int] = []
        self.flags = [_NOWHERE for _ in COLUMNS]
        self.values = [_NOWHERE for _ in COLUMNS]
        self.texts = [_NOWHERE for _ in COLUMNS]
        self.zeros = _NOWHERE
        self._place_all(states, is_one_time, count, text_sizes)

    def _place_all(self, states: list[int], is_one_time: bool, count: int, text_sizes: list[int]) -> None:
        buffers = self.buffers
        flag_size = (count + 7) // 8
        self.values[_TIME] = self._place(8 * count)
        for number in range(_NUMBER_OF_COLUMNS):
            state = states[number]
            is_text = _IS_TEXT[number]
            size = _WIDTHS[number] * (count + is_text)
            if number == _TIME:
                buffers += (0, 0, 0, size)
            elif state == ALL_NULLS:
                if self.zeros == _NOWHERE:
                    self.zeros = self._place(4 * (count + 1))
                zeros = self.zeros - self._start
                buffers += (zeros, flag_size, zeros if is_text else 0, size)
                if is_text:
                    buffers += (zeros, 0)
            else:
                if state == SOME_NULLS:
                    self.flags[number] = self._place(flag_size)
                    buffers += (self.flags[number] - self._start, flag_size)
                else:
                    buffers += (0, 0)
                if is_one_time and number in (_PUBLISH_TIME, _ENQUEUE_TIME):
                    buffers += (0, size)
                    continue
                self.values[number] = self._place(size)
                buffers += (self.values[number] - self._start, size)
                if is_text:
                    text_size = text_sizes[number]
                    self.texts[number] = self._place(text_size)
                    buffers += (self.texts[number] - self._start, text_size)

    def _place(self, size: int) -> int:
        """Another buffer; gives its place in the batch."""
        place = self._start + self.size
        self.size = padded(self.size + size)
        if size:
            self.ends.append(self._start + self.size)
        return place


class ColumnWriter:
    """Writes one batch after the other. Of the last one, `nulls` are how many each column has, and `layout` is its own.

    To be called in this order: `write`, then what is asked about the batch, then `finish`.
    """

    __slots__ = (
        "_context_bits",
        "_count",
        "_flag_places",
        "_flags",
        "_held",
        "_is_one_time",
        "_names",
        "_number_of_contexts",
        "_of_contexts_all",
        "_of_contexts_any",
        "_of_rows_all",
        "_of_rows_any",
        "_out",
        "_spare",
        "_staged",
        "_staged_channels",
        "_stages",
        "_states",
        "_text_ends",
        "_texts",
        "_there",
        "_used",
        "_used_kinds",
        "_values",
        "layout",
        "nulls",
    )

    _held: Any  # the bytes of the batch, and where they are
    _out: Pointer

    def __init__(self) -> None:
        self._count = 0
        self._names: list[bytes] = []
        self._number_of_contexts = 0
        self._states = [NO_NULLS for _ in COLUMNS]
        self._is_one_time = False
        self._used_kinds: list[int] = []
        self._held = b""
        self.nulls = [0 for _ in COLUMNS]
        self.layout = Layout(self._states, False, 0, self.nulls, 0)
        if not cython.compiled:  # arrays of C have their places already
            self._flag_places, self._flags, self._values, self._texts, self._text_ends = (
                [0] * len(COLUMNS) for _ in range(5)
            )
            self._context_bits = bytearray(BLOCK)
            self._spare = bytearray(4 * BLOCK)  # where names and channels go to that are nowhere

    def write(self, rows: Rows, head_size: int, end_size: int) -> None:
        """Write all rows, with room for a head and an end. BadEvents: they have too many names."""
        self._names = rows.names()
        if len(self._names) > MAX_NAMES:
            raise BadEvents(f"{len(self._names)} names are too many for a batch")
        self._count = rows.count
        self._set_stages(rows.contexts())
        text_sizes = self._measure_texts(rows)
        is_one_time = self._write_rows(rows, text_sizes, head_size, end_size)
        states = self._found_states()
        if states != self._states or is_one_time != self._is_one_time:
            self._states = states
            self._is_one_time = is_one_time
            self._write_rows(rows, text_sizes, head_size, end_size)
        if rows.has_message_ids:
            self._write_texts(rows.reader())
        self._count_nulls()

    def used_kinds(self) -> list[int]:
        """The kinds of the rows, each once."""
        return self._used_kinds

    def used_names(self, column: str) -> list[str]:
        """The names that rows have in this column, each once."""
        seen = bytearray(len(self._names))
        part = _CONTEXT_COLUMNS.index(column_number(column))
        for context in range(self._number_of_contexts):
            if self._used[context] and self._there[context] >> part & 1:
                seen[self._staged[8 * context + part] + 1] = 1
        return [self._names[number].decode() for number in range(1, len(seen)) if seen[number]]

    def uids_offset(self) -> int:
        """Where in the batch the uids begin: 8 bytes each, one of each row, 0 where it has no message."""
        return self.layout.values[_UID]

    def finish(self, head: bytes, end: bytes) -> bytes:
        """The batch with its head and its end, once."""
        held = self._held
        if len(held) != len(head) + self.layout.size + len(end):
            raise ValueError("the head and the end of a batch have another size than was said, or it is finished")
        _copy_bytes(self._out, 0, head, 0, len(head))
        _copy_bytes(self._out, len(held) - len(end), end, 0, len(end))
        self._held = b""
        return bytes(held)

    def _set_stages(self, contexts: list[EventContext]) -> None:
        """Contexts as the columns have them: six names and a channel; a name that is none is 0, as the first one is."""
        count = len(contexts)
        self._number_of_contexts = count
        self._stages = bytearray(18 * count + 16)
        octets = _start_of(self._stages)
        self._staged = names = _shorts(octets, 0)
        self._staged_channels = channels = _ints(octets, 0)
        self._there = there = _bytes(octets, 16 * count)
        self._used = _bytes(octets, 17 * count)
        for number in range(count):
            context = contexts[number]
            bits = 0
            for part in range(7):
                value = context[part]
                if value:
                    bits |= 1 << part
                    if part < 6:
                        names[8 * number + part] = value - 1
                    else:
                        channels[4 * number + 3] = value
            there[number] = bits

    def _measure_texts(self, rows: Rows) -> list[int]:
        """The sizes of texts by column; sets the states of these columns, and of the sources."""
        sizes = [0] * _NUMBER_OF_COLUMNS
        nulls = [self._count] * 5
        if rows.has_message_ids:
            sizes_and_nulls = self._sum_texts(rows.reader())
            nulls = sizes_and_nulls[4:]
            for number, column in enumerate(_ID_COLUMNS):
                sizes[column] = sizes_and_nulls[number]
        for column, found in zip((*_ID_COLUMNS, _SOURCE_UID), nulls, strict=True):
            self._states[column] = NO_NULLS if found == 0 else ALL_NULLS if found == self._count else SOME_NULLS
            self.nulls[column] = found
        return sizes

    def _sum_texts(self, reader: RowReader) -> list[int]:
        """Sizes of the four texts, and how many of them and of the sources are null."""
        first = second = third = fourth = 0
        no_first = no_second = no_third = no_fourth = no_source = 0
        with cython.nogil:
            while reader.advance():
                first += reader.message_id_size if reader.message_id_size > 0 else 0
                second += reader.correlation_id_size if reader.correlation_id_size > 0 else 0
                third += reader.trace_id_size if reader.trace_id_size > 0 else 0
                fourth += reader.span_id_size if reader.span_id_size > 0 else 0
                no_first += 1 if reader.message_id_size < 0 else 0
                no_second += 1 if reader.correlation_id_size < 0 else 0
                no_third += 1 if reader.trace_id_size < 0 else 0
                no_fourth += 1 if reader.span_id_size < 0 else 0
                no_source += 1 if reader.source_uid == 0 else 0
        return [first, second, third, fourth, no_first, no_second, no_third, no_fourth, no_source]

    def _write_rows(self, rows: Rows, text_sizes: list[int], head_size: int, end_size: int) -> bool:
        """All columns but the texts; names that are null become 0: no reader meets an index that is none.

        Says whether all times of each row are the same.
        """
        layout = self.layout = Layout(self._states, self._is_one_time, self._count, text_sizes, head_size)
        self._held = _new_bytes(head_size + layout.size + end_size)
        self._out = _start_of(self._held)
        for end in layout.ends:
            _clear(self._out, end - 8, 8)
        if layout.zeros != _NOWHERE:
            _clear(self._out, layout.zeros, 4 * (self._count + 1))
        for number in range(_NUMBER_OF_COLUMNS):
            self._values[number] = layout.values[number]
        for bit, column in enumerate(_FLAGGED):
            self._flag_places[bit] = _NOWHERE if column is None else layout.flags[column]
        self._of_contexts_any = self._of_rows_any = 0
        self._of_contexts_all = self._of_rows_all = 255
        blocks = RowBlocks(rows.reader())
        row = 0
        with cython.nogil:
            while True:
                count = blocks.read()
                if count == 0 or row + count > self._count:
                    break
                self._put_values(blocks, row, count)
                self._put_contexts(blocks, row, count)
                self._put_flags(blocks, row, count)
                row += count
        if row != self._count or count != 0:
            raise BadEvents(f"of {self._count} rows {row} can be read")
        self._used_kinds = [kind for kind in range(256) if blocks.used_kinds[kind]]
        return blocks.apart == 0

    def _put_values(self, blocks: RowBlocks, row: int, count: int) -> None:
        self._put(_TIME, 8, row, count, blocks.times)
        self._put(_KIND, 1, row, count, blocks.kinds)
        self._put(_UID, 8, row, count, blocks.uids)
        self._put(_PUBLISH_TIME, 8, row, count, blocks.publish_times)
        self._put(_ENQUEUE_TIME, 8, row, count, blocks.enqueue_times)
        self._put(_SIZE, 4, row, count, blocks.sizes)
        self._put(_ATTEMPT, 4, row, count, blocks.attempts)
        self._put(_REASON, 1, row, count, blocks.reasons)
        self._put(_DEPTH, 4, row, count, blocks.depths)
        self._put(_PRIORITY, 4, row, count, blocks.priorities)

    def _put(self, column: int, width: int, row: int, count: int, source: Pointer) -> None:
        place = self._values[column]
        if place != _NOWHERE:
            _copy_values(self._out, place + width * row, source, width * count)

    def _put_contexts(self, blocks: RowBlocks, row: int, count: int) -> None:
        """What the contexts of the rows say, and which of them there are."""
        first = blocks.contexts[0]
        differing = 0
        for at in range(count):
            differing |= blocks.contexts[at] ^ first
        if differing == 0:
            self._put_context(first, row, count)
            return
        names, channels_of, there_of, used = self._staged, self._staged_channels, self._there, self._used
        vhosts = self._shorts_of(_VHOST, row)
        exchanges = self._shorts_of(_EXCHANGE, row)
        routing_keys = self._shorts_of(_ROUTING_KEY, row)
        queues = self._shorts_of(_QUEUE, row)
        consumers = self._shorts_of(_CONSUMER, row)
        connections = self._shorts_of(_CONNECTION, row)
        channels = self._ints_of(_CHANNEL, row)
        for at in range(count):
            context = blocks.contexts[at]
            used[context] = 1
            self._context_bits[at] = there_of[context]
            channels[at] = channels_of[4 * context + 3]
            context *= 8
            vhosts[at] = names[context]
            exchanges[at] = names[context + 1]
            routing_keys[at] = names[context + 2]
            queues[at] = names[context + 3]
            consumers[at] = names[context + 4]
            connections[at] = names[context + 5]

    def _put_context(self, context: int, row: int, count: int) -> None:
        """The same for rows of one context, as those of a burst often are."""
        self._used[context] = 1
        there = self._there[context]
        channel = self._staged_channels[4 * context + 3]
        channels = self._ints_of(_CHANNEL, row)
        for at in range(count):
            self._context_bits[at] = there
            channels[at] = channel
        self._fill(_VHOST, row, count, self._staged[8 * context])
        self._fill(_EXCHANGE, row, count, self._staged[8 * context + 1])
        self._fill(_ROUTING_KEY, row, count, self._staged[8 * context + 2])
        self._fill(_QUEUE, row, count, self._staged[8 * context + 3])
        self._fill(_CONSUMER, row, count, self._staged[8 * context + 4])
        self._fill(_CONNECTION, row, count, self._staged[8 * context + 5])

    def _fill(self, column: int, row: int, count: int, name: int) -> None:
        names = self._shorts_of(column, row)
        for at in range(count):
            names[at] = name

    def _shorts_of(self, column: int, row: int) -> Pointer:
        """Where names of a column go to, from this row on."""
        place = self._values[column]
        return _shorts(self._spare, 0) if place == _NOWHERE else _shorts(self._out, place + 2 * row)

    def _ints_of(self, column: int, row: int) -> Pointer:
        place = self._values[column]
        return _ints(self._spare, 0) if place == _NOWHERE else _ints(self._out, place + 4 * row)

    def _put_flags(self, blocks: RowBlocks, row: int, count: int) -> None:
        """Which values of up to 64 rows are there: bytes of rows in, bytes of columns out."""
        of_contexts_any, of_contexts_all = self._of_contexts_any, self._of_contexts_all
        of_rows_any, of_rows_all = self._of_rows_any, self._of_rows_all
        for at in range(count):
            of_contexts_any |= self._context_bits[at]
            of_contexts_all &= self._context_bits[at]
            of_rows_any |= blocks.there[at]
            of_rows_all &= blocks.there[at]
        self._of_contexts_any, self._of_contexts_all = of_contexts_any, of_contexts_all
        self._of_rows_any, self._of_rows_all = of_rows_any, of_rows_all
        for at in range(count, _BLOCK):
            self._context_bits[at] = blocks.there[at] = 0
        for start in range(0, count, 8):
            place = (row + start) >> 3
            self._put_bytes(place, 0, _turned(_word(self._context_bits, start)))
            self._put_bytes(place, 8, _turned(_word(blocks.there, start)))

    def _put_bytes(self, place: int, first: int, octets: int) -> None:
        """One of each column that has flags."""
        for number in range(8):
            if self._flag_places[first + number] != _NOWHERE:
                self._out[self._flag_places[first + number] + place] = octets >> 8 * number & 255

    def _found_states(self) -> list[int]:
        """What the columns turned out to have."""
        states = list(self._states)
        there = self._of_contexts_any | self._of_rows_any << 8
        throughout = self._of_contexts_all | self._of_rows_all << 8
        for bit, column in enumerate(_FLAGGED):
            if column is not None:
                states[column] = NO_NULLS if throughout >> bit & 1 else SOME_NULLS if there >> bit & 1 else ALL_NULLS
        return states

    def _count_nulls(self) -> None:
        words = (self._count + 63) // 64
        for bit, column in enumerate(_FLAGGED):
            if column is not None:
                state = self._states[column]
                if state == SOME_NULLS:
                    self.nulls[column] = self._count - _count_ones(self._out, self._flag_places[bit], words)
                else:
                    self.nulls[column] = self._count if state == ALL_NULLS else 0

    def _write_texts(self, reader: RowReader) -> None:
        """Ids and source: most rows have none, and then this is left out."""
        for column in (*_ID_COLUMNS, _SOURCE_UID):
            self._flags[column] = self.layout.flags[column]
            self._texts[column] = self.layout.texts[column]
            self._text_ends[column] = 0
            if self._flags[column] != _NOWHERE:
                _clear(self._out, self._flags[column], (self._count + 7) // 8)
            if self._values[column] != _NOWHERE:
                _clear(self._out, self._values[column], 4)  # the first text begins at 0
        row = 0
        with cython.nogil:
            while reader.advance():
                self._put_text(_MESSAGE_ID, row, reader, reader.message_id_at, reader.message_id_size)
                self._put_text(_CORRELATION_ID, row, reader, reader.correlation_id_at, reader.correlation_id_size)
                self._put_text(_TRACE_ID, row, reader, reader.trace_id_at, reader.trace_id_size)
                self._put_text(_SPAN_ID, row, reader, reader.span_id_at, reader.span_id_size)
                self._put_source(row, reader.source_uid)
                row += 1

    def _put_text(self, column: int, row: int, reader: RowReader, at: int, size: int) -> None:
        if self._values[column] == _NOWHERE:
            return
        if size >= 0:
            self._flag(column, row)
            _copy_bytes(self._out, self._texts[column] + self._text_ends[column], reader.data, at, size)
            self._text_ends[column] += size
        _ints(self._out, self._values[column])[row + 1] = self._text_ends[column]

    def _put_source(self, row: int, uid: int) -> None:
        if self._values[_SOURCE_UID] == _NOWHERE:
            return
        if uid != 0:
            self._flag(_SOURCE_UID, row)
        _longs(self._out, self._values[_SOURCE_UID])[row] = uid

    def _flag(self, column: int, row: int) -> None:
        if self._flags[column] != _NOWHERE:
            self._out[self._flags[column] + (row >> 3)] |= 1 << (row & 7)


def _turned(octets: int) -> int:
    """Eight bytes as a square of bits, turned over: bit 3 of byte 5 becomes bit 5 of byte 3."""
    moved = (octets ^ octets >> 7) & _BITS
    octets = octets ^ moved ^ moved << 7
    moved = (octets ^ octets >> 14) & _PAIRS
    octets = octets ^ moved ^ moved << 14
    moved = (octets ^ octets >> 28) & _FOURS
    return octets ^ moved ^ moved << 28


def _new_bytes(size: int) -> Any:
    """In C bytes that are not filled yet, and that nobody else has before they are."""
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.NULL, size)
    else:
        return bytearray(size)


def _start_of(memory: Any) -> Pointer:
    if cython.compiled:
        if isinstance(memory, bytearray):
            changeable: bytearray = memory
            return changeable
        fresh: bytes = memory
        return cython.cast(cython.p_uchar, cython.cast(cython.p_char, fresh))
    else:
        return memory


def _bytes(octets: Pointer, at: int) -> Pointer:
    if cython.compiled:
        return octets + at
    else:
        return memoryview(octets)[at:]


def _longs(octets: Pointer, at: int) -> Pointer:
    if cython.compiled:
        return cython.cast(cython.pointer(cython.longlong), octets + at)
    else:
        return _view(octets, at, 8).cast("q")


def _ints(octets: Pointer, at: int) -> Pointer:
    if cython.compiled:
        return cython.cast(cython.pointer(cython.int), octets + at)
    else:
        return _view(octets, at, 4).cast("i")


def _shorts(octets: Pointer, at: int) -> Pointer:
    if cython.compiled:
        return cython.cast(cython.pointer(cython.short), octets + at)
    else:
        return _view(octets, at, 2).cast("h")


def _view(octets: bytearray, at: int, width: int) -> memoryview:
    return memoryview(octets)[at : at + (len(octets) - at) // width * width]


def _word(octets: Pointer, at: int) -> int:
    value: int = 0
    if cython.compiled:
        memcpy(cython.address(value), octets + at, 8)
    else:
        value = int.from_bytes(octets[at : at + 8], "little")
    return value


def _count_ones(octets: Pointer, at: int, words: int) -> int:
    """How many bits are set."""
    found = 0
    for place in range(at, at + 8 * words):
        octet = octets[place]
        octet = octet - (octet >> 1 & 0x55)
        octet = (octet & 0x33) + (octet >> 2 & 0x33)
        found += (octet + (octet >> 4)) & 0x0F
    return found


def _clear(out: Pointer, at: int, size: int) -> None:
    if cython.compiled:
        memset(out + at, 0, size)
    else:
        out[at : at + size] = bytes(size)


def _copy_bytes(out: Pointer, at: int, source: Pointer, source_at: int, size: int) -> None:
    if cython.compiled:
        memcpy(out + at, source + source_at, size)
    else:
        out[at : at + size] = source[source_at : source_at + size]


def _copy_values(out: Pointer, at: int, source: Pointer, size: int) -> None:
    if cython.compiled:
        memcpy(out + at, source, size)
    else:
        out[at : at + size] = memoryview(source).cast("B")[:size]
