# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Rows to columns: the body of a record batch (docs/formats/events.md), written without the interpreter lock.

`ColumnWriter` writes all columns in one pass over the rows, each directly to its offset in the batch. The offsets
depend on which columns have nulls (a column without nulls has no validity bitmap, one of nulls only shares its buffers)
and on whether all times of a row are equal, which is known only after the pass. So it assumes what the previous batch
had, which is nearly always right; if not, it makes a second pass.

A writer belongs to the thread that encodes. Compiled (columns.pxd).
"""

from typing import Any

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

from warrenmq.events import fields, memory
from warrenmq.events.arrow import padded
from warrenmq.events.errors import BadEvents
from warrenmq.events.row_header import EventContext
from warrenmq.events.row_reader import BLOCK, RowReader
from warrenmq.events.rows import Rows
from warrenmq.events.schema import COLUMNS, INT8, INT64, NAME, TEXT, TIME, column_number

WIDTHS = {INT8: 1, NAME: 2, INT64: 8, TIME: 8}  # bytes of a value; 4 for all others: numbers and offsets of texts
MAX_NAMES = 0x7FFF

# The columns that validity bits stand for, in the order of the bits: those of a context, and RowReader.validity.
_CONTEXT_COLUMNS = (
    fields.VHOST,
    fields.EXCHANGE,
    fields.ROUTING_KEY,
    fields.QUEUE,
    fields.CONSUMER,
    fields.CONNECTION,
    fields.CHANNEL,
)
_ROW_COLUMNS = (
    fields.REASON,
    fields.PUBLISH_TIME,
    fields.ENQUEUE_TIME,
    fields.ATTEMPT,
    fields.SIZE,
    fields.DEPTH,
    fields.PRIORITY,
)
_BIT_COLUMNS = (*_CONTEXT_COLUMNS, None, *_ROW_COLUMNS, None)  # a byte each
_ID_COLUMNS = (fields.MESSAGE_ID, fields.CORRELATION_ID, fields.TRACE_ID, fields.SPAN_ID)
_DETAIL_COLUMNS = (fields.NOTE, fields.DUE_TIME, fields.RETRY_MAX)
# Those of which the pass that measures finds out how many values they have.
_MEASURED_COLUMNS = (*_ID_COLUMNS, fields.SOURCE_UID, *_DETAIL_COLUMNS)

_IS_TEXT = bytes([column.type == TEXT for column in COLUMNS])
_WIDTHS = bytes([WIDTHS.get(column.type, 4) for column in COLUMNS])
_BLOCK = BLOCK
_NOT_STORED = -1  # the offset of a buffer that is not in the batch

# What a column has: no nulls, some, or nothing else.
NO_NULLS, SOME_NULLS, ALL_NULLS = 0, 1, 2

# The bits that move when a square of eight by eight bits is transposed: single bits, pairs, fours.
_BITS = 0x00AA00AA00AA00AA
_PAIRS = 0x0000CCCC0000CCCC
_FOURS = 0x00000000F0F0F0F0


class Layout:
    """The offsets of the buffers of each column in a batch whose body begins at `start`, by the states of its columns.

    `buffers` are offset in the body and size of each buffer, `size` is that of the body, `ends` are the ends of buffers
    that do not overlap with others. Columns of nulls only share: `zeros` for validity and offsets of texts, and for
    their values, which mean nothing, the time column; their `validity` and `values` are not stored. With
    `has_equal_times` the publish and enqueue times share the values of the time column, too.
    """

    __slots__ = ("_start", "buffers", "ends", "size", "texts", "validity", "values", "zeros")

    def __init__(self, states: list[int], has_equal_times: bool, count: int, text_sizes: list[int], start: int) -> None:
        self._start = start
        self.size = 0
        self.buffers: list[int] = []
        self.ends: list[int] = []
        self.validity = [_NOT_STORED for _ in COLUMNS]
        self.values = [_NOT_STORED for _ in COLUMNS]
        self.texts = [_NOT_STORED for _ in COLUMNS]
        self.zeros = _NOT_STORED
        self._add_all(states, has_equal_times, count, text_sizes)

    def _add_all(self, states: list[int], has_equal_times: bool, count: int, text_sizes: list[int]) -> None:
        buffers = self.buffers
        bitmap_size = (count + 7) // 8
        self.values[fields.TIME] = self._add(8 * count)
        for number in range(fields.NUMBER_OF_COLUMNS):
            state = states[number]
            is_text = _IS_TEXT[number]
            size = _WIDTHS[number] * (count + is_text)
            if number == fields.TIME:
                buffers += (0, 0, 0, size)
            elif state == ALL_NULLS:
                if self.zeros == _NOT_STORED:
                    self.zeros = self._add(4 * (count + 1))
                zeros = self.zeros - self._start
                buffers += (zeros, bitmap_size, zeros if is_text else 0, size)
                if is_text:
                    buffers += (zeros, 0)
            else:
                if state == SOME_NULLS:
                    self.validity[number] = self._add(bitmap_size)
                    buffers += (self.validity[number] - self._start, bitmap_size)
                else:
                    buffers += (0, 0)
                if has_equal_times and number in (fields.PUBLISH_TIME, fields.ENQUEUE_TIME):
                    buffers += (0, size)
                    continue
                self.values[number] = self._add(size)
                buffers += (self.values[number] - self._start, size)
                if is_text:
                    self.texts[number] = self._add(text_sizes[number])
                    buffers += (self.texts[number] - self._start, text_sizes[number])

    def _add(self, size: int) -> int:
        """Add a buffer and return its offset in the batch."""
        offset = self._start + self.size
        self.size = padded(self.size + size)
        if size:
            self.ends.append(self._start + self.size)
        return offset


class ColumnWriter:
    """Writes one batch after another. `nulls` are the null counts of the last one's columns, `layout` is its layout.

    Call `write`, then the methods that describe the batch, then `finish`.
    """

    __slots__ = (
        "_bitmaps",
        "_block_validity",
        "_buffer",
        "_context_channels",
        "_context_names",
        "_context_table",
        "_context_validity",
        "_contexts_all",
        "_contexts_any",
        "_count",
        "_has_equal_times",
        "_names",
        "_number_of_contexts",
        "_out",
        "_rows_all",
        "_rows_any",
        "_scratch",
        "_states",
        "_text_sizes",
        "_texts",
        "_used_contexts",
        "_used_kinds",
        "_valid_counts",
        "_validity",
        "_values",
        "layout",
        "nulls",
    )

    _buffer: Any  # of the batch
    _out: memory.Pointer

    def __init__(self) -> None:
        self._count = 0
        self._names: list[bytes] = []
        self._number_of_contexts = 0
        self._states = [NO_NULLS for _ in COLUMNS]
        self._has_equal_times = False
        self._used_kinds: list[int] = []
        self._buffer = b""
        self.nulls = [0 for _ in COLUMNS]
        self.layout = Layout(self._states, False, 0, self.nulls, 0)
        self._values = [0 for _ in COLUMNS]
        self._validity = [0 for _ in COLUMNS]
        self._texts = [0 for _ in COLUMNS]
        self._text_sizes = [0 for _ in COLUMNS]
        self._valid_counts = [0 for _ in COLUMNS]
        self._bitmaps = [0 for _ in _BIT_COLUMNS]
        self._block_validity = _zeros(BLOCK)
        self._scratch = _zeros(4 * BLOCK)  # for names and channels of columns that are not stored

    def write(self, rows: Rows, head_size: int, end_size: int) -> None:
        """Write all rows, with room for a head and an end. BadEvents: they have too many names."""
        self._names = rows.names()
        if len(self._names) > MAX_NAMES:
            raise BadEvents(f"{len(self._names)} names are too many for a batch")
        self._count = rows.count
        self._set_contexts(rows.contexts())
        text_sizes = self._measure_texts(rows)
        has_equal_times = self._write_rows(rows, text_sizes, head_size, end_size)
        states = self._found_states()
        if states != self._states or has_equal_times != self._has_equal_times:
            self._states = states
            self._has_equal_times = has_equal_times
            self._write_rows(rows, text_sizes, head_size, end_size)
        if rows.has_message_ids:
            self._write_texts(rows.reader())
        if rows.has_details:
            self._write_details(rows.reader())
        self._count_nulls()

    def used_kinds(self) -> list[int]:
        """Return the kinds of the rows, each once."""
        return self._used_kinds

    def used_names(self, column: str) -> list[str]:
        """Return the names that rows have in this column, each once."""
        seen = bytearray(len(self._names))
        part = _CONTEXT_COLUMNS.index(column_number(column))
        for context in range(self._number_of_contexts):
            if self._used_contexts[context] and self._context_validity[context] >> part & 1:
                seen[self._context_names[8 * context + part] + 1] = 1
        return [self._names[number].decode() for number in range(1, len(seen)) if seen[number]]

    def uids_offset(self) -> int:
        """Return the offset of the uids in the batch: 8 bytes for each row, 0 if it has no message."""
        return self.layout.values[fields.UID]

    def finish(self, head: bytes, end: bytes) -> bytes:
        """Return the batch with its head and its end, once."""
        buffer = self._buffer
        if len(buffer) != len(head) + self.layout.size + len(end):
            raise ValueError("the batch is finished already, or its head or end has not the announced size")
        memory.copy(self._out, 0, head, 0, len(head))
        memory.copy(self._out, len(buffer) - len(end), end, 0, len(end))
        self._buffer = b""
        return memory.finished(buffer)

    def _set_contexts(self, contexts: list[EventContext]) -> None:
        """Store the contexts as columns have them, 18 bytes each: six names, channel, validity bits, a mark if used.

        A null is name 0, so that null slots hold valid dictionary indices.
        """
        count = len(contexts)
        self._number_of_contexts = count
        self._context_table = bytearray(18 * count + 16)
        table = memory.writable(self._context_table)
        self._context_names = names = memory.shorts_at(table, 0)
        self._context_channels = channels = memory.ints_at(table, 0)
        self._context_validity = memory.bytes_at(table, 16 * count)
        self._used_contexts = memory.bytes_at(table, 17 * count)
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
            self._context_validity[number] = bits

    def _measure_texts(self, rows: Rows) -> list[int]:
        """Return the sizes of texts by column; set the states of these columns, of the sources and of details."""
        for column in _MEASURED_COLUMNS:
            self._text_sizes[column] = self._valid_counts[column] = 0
        if rows.has_message_ids:
            reader = rows.reader()
            with cython.nogil:
                self._measure_rows(reader)
        if rows.has_details:
            reader = rows.reader()
            with cython.nogil:
                self._measure_details(reader)
        for column in _MEASURED_COLUMNS:
            valid = self._valid_counts[column]
            self._states[column] = NO_NULLS if valid == self._count else ALL_NULLS if valid == 0 else SOME_NULLS
            self.nulls[column] = self._count - valid
        return [self._text_sizes[column] for column in range(fields.NUMBER_OF_COLUMNS)]

    def _measure_rows(self, reader: RowReader) -> None:
        at = repeats = 0
        block = reader.read()
        while block != 0:
            for row in range(block):
                if reader.ids_at[row] == at:
                    repeats += 1
                else:  # rows of one message have the same ids
                    self._measure_ids(reader.data, at, repeats)
                    at = reader.ids_at[row]
                    repeats = 1
            block = reader.read()
        self._measure_ids(reader.data, at, repeats)

    def _measure_ids(self, data: memory.Pointer, at: int, rows: int) -> None:
        if at != 0:
            self._valid_counts[fields.SOURCE_UID] += rows if memory.load_i64(data, at) != 0 else 0
            at = self._measure_text(fields.MESSAGE_ID, data, at + 8, rows)
            at = self._measure_text(fields.CORRELATION_ID, data, at, rows)
            at = self._measure_text(fields.TRACE_ID, data, at, rows)
            self._measure_text(fields.SPAN_ID, data, at, rows)

    def _measure_text(self, column: int, data: memory.Pointer, at: int, rows: int) -> int:
        """Add the text of these rows, and return where it ends."""
        size = memory.load_u32(data, at)  # + 1; 0: null
        if size == 0:
            return at + 4
        self._valid_counts[column] += rows
        self._text_sizes[column] += rows * (size - 1)
        return at + 3 + size

    def _measure_details(self, reader: RowReader) -> None:
        block = reader.read()
        while block != 0:
            for row in range(block):
                at = reader.details_at[row]
                if at != 0:
                    self._valid_counts[fields.DUE_TIME] += memory.load_i64(reader.data, at) != 0
                    self._valid_counts[fields.RETRY_MAX] += memory.load_u32(reader.data, at + 8) != 0
                    self._measure_text(fields.NOTE, reader.data, at + 12, 1)
            block = reader.read()

    def _write_rows(self, rows: Rows, text_sizes: list[int], head_size: int, end_size: int) -> bool:
        """Write all columns but the texts, and return True if all times of each row are equal."""
        layout = self.layout = Layout(self._states, self._has_equal_times, self._count, text_sizes, head_size)
        self._buffer = memory.new_bytes(head_size + layout.size + end_size)
        self._out = memory.writable(self._buffer)
        for end in layout.ends:
            memory.clear(self._out, end - 8, 8)
        if layout.zeros != _NOT_STORED:
            memory.clear(self._out, layout.zeros, 4 * (self._count + 1))
        for number in range(fields.NUMBER_OF_COLUMNS):
            self._values[number] = layout.values[number]
            self._validity[number] = layout.validity[number]
            self._texts[number] = layout.texts[number]
        for bit, column in enumerate(_BIT_COLUMNS):
            self._bitmaps[bit] = _NOT_STORED if column is None else layout.validity[column]
        self._contexts_any = self._rows_any = 0
        self._contexts_all = self._rows_all = 255
        reader = rows.reader()
        row = 0
        with cython.nogil:
            while True:
                count = reader.read()
                if count == 0 or row + count > self._count:
                    break
                self._put_values(reader, row, count)
                self._put_contexts(reader, row, count)
                self._put_validity(reader, row, count)
                row += count
        if row != self._count or count != 0:
            raise BadEvents(f"of {self._count} rows {row} can be read")
        self._used_kinds = [kind for kind in range(256) if reader.used_kinds[kind]]
        return reader.differing_times == 0

    def _put_values(self, reader: RowReader, row: int, count: int) -> None:
        self._put(fields.TIME, 8, row, count, reader.times)
        self._put(fields.KIND, 1, row, count, reader.kinds)
        self._put(fields.UID, 8, row, count, reader.uids)
        self._put(fields.PUBLISH_TIME, 8, row, count, reader.publish_times)
        self._put(fields.ENQUEUE_TIME, 8, row, count, reader.enqueue_times)
        self._put(fields.SIZE, 4, row, count, reader.sizes)
        self._put(fields.ATTEMPT, 4, row, count, reader.attempts)
        self._put(fields.REASON, 1, row, count, reader.reasons)
        self._put(fields.DEPTH, 4, row, count, reader.depths)
        self._put(fields.PRIORITY, 4, row, count, reader.priorities)

    def _put(self, column: int, width: int, row: int, count: int, source: memory.Pointer) -> None:
        if self._values[column] != _NOT_STORED:
            memory.copy_array(self._out, self._values[column] + width * row, source, width * count)

    def _put_contexts(self, reader: RowReader, row: int, count: int) -> None:
        """Write the columns of the rows' contexts, and mark these as used."""
        first = reader.contexts[0]
        differing = 0
        for at in range(count):
            differing |= reader.contexts[at] ^ first
        if differing == 0:
            self._put_context(first, row, count)
            return
        names, channels_of = self._context_names, self._context_channels
        validity_of, used = self._context_validity, self._used_contexts
        vhosts = self._shorts_of(fields.VHOST, row)
        exchanges = self._shorts_of(fields.EXCHANGE, row)
        routing_keys = self._shorts_of(fields.ROUTING_KEY, row)
        queues = self._shorts_of(fields.QUEUE, row)
        consumers = self._shorts_of(fields.CONSUMER, row)
        connections = self._shorts_of(fields.CONNECTION, row)
        channels = self._ints_of(fields.CHANNEL, row)
        for at in range(count):
            context = reader.contexts[at]
            used[context] = 1
            self._block_validity[at] = validity_of[context]
            channels[at] = channels_of[4 * context + 3]
            context *= 8
            vhosts[at] = names[context]
            exchanges[at] = names[context + 1]
            routing_keys[at] = names[context + 2]
            queues[at] = names[context + 3]
            consumers[at] = names[context + 4]
            connections[at] = names[context + 5]

    def _put_context(self, context: int, row: int, count: int) -> None:
        """The same for rows of one context, which are common in a burst."""
        self._used_contexts[context] = 1
        validity = self._context_validity[context]
        channel = self._context_channels[4 * context + 3]
        channels = self._ints_of(fields.CHANNEL, row)
        for at in range(count):
            self._block_validity[at] = validity
            channels[at] = channel
        for part in range(6):
            name = self._context_names[8 * context + part]
            names = self._shorts_of(fields.VHOST + part, row)
            for at in range(count):
                names[at] = name

    def _shorts_of(self, column: int, row: int) -> memory.Pointer:
        """Return a pointer to the names of a column, from this row on."""
        if self._values[column] == _NOT_STORED:
            return memory.shorts_at(self._scratch, 0)
        return memory.shorts_at(self._out, self._values[column] + 2 * row)

    def _ints_of(self, column: int, row: int) -> memory.Pointer:
        if self._values[column] == _NOT_STORED:
            return memory.ints_at(self._scratch, 0)
        return memory.ints_at(self._out, self._values[column] + 4 * row)

    def _put_validity(self, reader: RowReader, row: int, count: int) -> None:
        """Write the validity bits of up to 64 rows: a byte for each row becomes a bit in each column's bitmap."""
        contexts_any, contexts_all = self._contexts_any, self._contexts_all
        rows_any, rows_all = self._rows_any, self._rows_all
        for at in range(count):
            contexts_any |= self._block_validity[at]
            contexts_all &= self._block_validity[at]
            rows_any |= reader.validity[at]
            rows_all &= reader.validity[at]
        self._contexts_any, self._contexts_all = contexts_any, contexts_all
        self._rows_any, self._rows_all = rows_any, rows_all
        for at in range(count, _BLOCK):
            self._block_validity[at] = reader.validity[at] = 0
        for start in range(0, count, 8):
            at = (row + start) >> 3
            self._put_bitmap_bytes(at, 0, _transpose(memory.load_u64(self._block_validity, start)))
            self._put_bitmap_bytes(at, 8, _transpose(memory.load_u64(reader.validity, start)))

    def _put_bitmap_bytes(self, at: int, first: int, columns: int) -> None:
        """Write a byte to each bitmap that is stored."""
        for number in range(8):
            if self._bitmaps[first + number] != _NOT_STORED:
                self._out[self._bitmaps[first + number] + at] = columns >> 8 * number & 255

    def _found_states(self) -> list[int]:
        """Return the states that the columns turned out to have."""
        states = list(self._states)
        any_bits = self._contexts_any | self._rows_any << 8
        all_bits = self._contexts_all | self._rows_all << 8
        for bit, column in enumerate(_BIT_COLUMNS):
            if column is not None:
                states[column] = NO_NULLS if all_bits >> bit & 1 else SOME_NULLS if any_bits >> bit & 1 else ALL_NULLS
        return states

    def _count_nulls(self) -> None:
        words = (self._count + 63) // 64
        for bit, column in enumerate(_BIT_COLUMNS):
            if column is not None:
                state = self._states[column]
                if state == SOME_NULLS:
                    self.nulls[column] = self._count - _count_ones(self._out, self._bitmaps[bit], words)
                else:
                    self.nulls[column] = self._count if state == ALL_NULLS else 0

    def _write_texts(self, reader: RowReader) -> None:
        """Write ids and sources. Most batches have none, and skip this."""
        for column in (*_ID_COLUMNS, fields.SOURCE_UID):
            self._clear(column)
        with cython.nogil:
            self._put_ids(reader)

    def _write_details(self, reader: RowReader) -> None:
        """Write notes, due times and the numbers of retries, which few rows have."""
        for column in _DETAIL_COLUMNS:
            self._clear(column)
        with cython.nogil:
            self._put_details(reader)

    def _clear(self, column: int) -> None:
        """Begin to write a column: no value is valid, and the first text begins at 0."""
        self._text_sizes[column] = 0
        if self._validity[column] != _NOT_STORED:
            memory.clear(self._out, self._validity[column], (self._count + 7) // 8)
        if self._values[column] != _NOT_STORED:
            memory.clear(self._out, self._values[column], 4)

    def _put_details(self, reader: RowReader) -> None:
        first = 0
        count = reader.read()
        while count != 0:
            for row in range(count):
                at = reader.details_at[row]
                self._put_due_time(first + row, memory.load_i64(reader.data, at) if at != 0 else 0)
                self._put_retry_max(first + row, memory.load_u32(reader.data, at + 8) if at != 0 else 0)
                self._put_text(fields.NOTE, first + row, reader.data, at + 12 if at != 0 else 0)
            first += count
            count = reader.read()

    def _put_due_time(self, row: int, time: int) -> None:
        if self._values[fields.DUE_TIME] != _NOT_STORED:
            if time != 0:
                self._set_valid(fields.DUE_TIME, row)
            memory.longs_at(self._out, self._values[fields.DUE_TIME])[row] = time

    def _put_retry_max(self, row: int, number: int) -> None:
        if self._values[fields.RETRY_MAX] != _NOT_STORED:
            if number != 0:
                self._set_valid(fields.RETRY_MAX, row)
            memory.ints_at(self._out, self._values[fields.RETRY_MAX])[row] = number

    def _put_ids(self, reader: RowReader) -> None:
        first = 0
        count = reader.read()
        while count != 0:
            for row in range(count):
                at = reader.ids_at[row]
                self._put_source(first + row, memory.load_i64(reader.data, at) if at != 0 else 0)
                at = self._put_text(fields.MESSAGE_ID, first + row, reader.data, at + 8 if at != 0 else 0)
                at = self._put_text(fields.CORRELATION_ID, first + row, reader.data, at)
                at = self._put_text(fields.TRACE_ID, first + row, reader.data, at)
                self._put_text(fields.SPAN_ID, first + row, reader.data, at)
            first += count
            count = reader.read()

    def _put_text(self, column: int, row: int, data: memory.Pointer, at: int) -> int:
        """Write the text at this offset, null if that is 0, and return where the next one begins."""
        size = 0
        if at != 0:
            size = memory.load_u32(data, at)  # + 1; 0: null
            at += 4
        if self._values[column] != _NOT_STORED:
            if size != 0:
                self._set_valid(column, row)
                memory.copy(self._out, self._texts[column] + self._text_sizes[column], data, at, size - 1)
                self._text_sizes[column] += size - 1
            memory.ints_at(self._out, self._values[column])[row + 1] = self._text_sizes[column]
        return at + (size - 1 if size != 0 else 0)

    def _put_source(self, row: int, uid: int) -> None:
        if self._values[fields.SOURCE_UID] == _NOT_STORED:
            return
        if uid != 0:
            self._set_valid(fields.SOURCE_UID, row)
        memory.longs_at(self._out, self._values[fields.SOURCE_UID])[row] = uid

    def _set_valid(self, column: int, row: int) -> None:
        if self._validity[column] != _NOT_STORED:
            self._out[self._validity[column] + (row >> 3)] |= 1 << (row & 7)


def _zeros(size: int) -> Any:
    return bytearray(size)


def _transpose(rows: int) -> int:
    """Transpose eight bytes as a square of bits: bit 3 of byte 5 becomes bit 5 of byte 3."""
    moved = (rows ^ rows >> 7) & _BITS
    rows = rows ^ moved ^ moved << 7
    moved = (rows ^ rows >> 14) & _PAIRS
    rows = rows ^ moved ^ moved << 14
    moved = (rows ^ rows >> 28) & _FOURS
    return rows ^ moved ^ moved << 28


def _count_ones(data: memory.Pointer, at: int, words: int) -> int:
    """Count the bits that are set."""
    found = 0
    for place in range(at, at + 8 * words):
        bits = data[place]
        bits = bits - (bits >> 1 & 0x55)
        bits = (bits & 0x33) + (bits >> 2 & 0x33)
        found += (bits + (bits >> 4)) & 0x0F
    return found
