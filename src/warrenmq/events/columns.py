# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True, infer_types=True
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

from warrenmq.events import fields, memory, records
from warrenmq.events.arrow import padded
from warrenmq.events.errors import BadEvents
from warrenmq.events.row_header import EventContext
from warrenmq.events.row_reader import RowReader
from warrenmq.events.rows import Rows
from warrenmq.events.schema import COLUMNS, INT8, INT64, NAME, TEXT, TIME, column_number

_WIDTH_OF_TYPE = {INT8: 1, NAME: 2, INT64: 8, TIME: 8}
WIDTHS = bytes([_WIDTH_OF_TYPE.get(column.type, 4) for column in COLUMNS])  # bytes of a value, or of a text's offset
IS_TEXT = bytes([column.type == TEXT for column in COLUMNS])
MAX_NAMES = 0x7FFF

# The columns that validity bits stand for, in the order of the bits: those of a context, and RowReader.validity.
_ROW_COLUMNS = ("reason", "publish_time", "enqueue_time", "attempt", "size", "depth", "priority")
_BIT_COLUMNS = (*range(fields.VHOST, fields.CHANNEL + 1), None, *map(column_number, _ROW_COLUMNS), None)  # a byte each
# All others with nulls: ids and details, which few records have.
_RARE_COLUMNS = tuple(
    number for number, column in enumerate(COLUMNS) if column.is_nullable and number not in _BIT_COLUMNS
)

_IS_TEXT, _WIDTHS = IS_TEXT, WIDTHS  # the same as C objects
_NOT_STORED = -1  # the offset of a buffer that is not in the batch

# What a column has: no nulls, some, or nothing else.
NO_NULLS, SOME_NULLS, ALL_NULLS = 0, 1, 2

# The bits that move when a square of eight by eight bits is transposed: single bits, pairs, fours.
_BITS = 0x00AA00AA00AA00AA
_PAIRS = 0x0000CCCC0000CCCC
_FOURS = 0x00000000F0F0F0F0


class ColumnWriter:
    """Writes one batch after another: call `write`, then the methods that describe the batch, then `finish`.

    `nulls` are the null counts of the columns, `size` is that of the body, and `buffers` has the offset in the body and
    the size of each buffer.
    """

    __slots__ = (
        "_all_bits",
        "_any_bits",
        "_bitmaps",
        "_block_validity",
        "_buffer",
        "_context_channels",
        "_context_names",
        "_context_table",
        "_context_validity",
        "_count",
        "_has_equal_times",
        "_names",
        "_number_of_contexts",
        "_out",
        "_scratch",
        "_start",
        "_states",
        "_text_sizes",
        "_texts",
        "_used_contexts",
        "_used_kinds",
        "_valid_counts",
        "_validity",
        "_values",
        "buffers",
        "nulls",
        "size",
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
        self.nulls: list[int] = []
        self.buffers: list[int] = []
        self._start = self.size = 0
        # Offsets in the batch.
        self._values = [0 for _ in COLUMNS]
        self._validity = [0 for _ in COLUMNS]
        self._texts = [0 for _ in COLUMNS]
        self._bitmaps = [0 for _ in _BIT_COLUMNS]
        self._text_sizes = [0 for _ in COLUMNS]  # of those put so far
        self._valid_counts = [0 for _ in COLUMNS]
        self._block_validity = _zeros(records.BLOCK)
        self._scratch = _zeros(4 * records.BLOCK)  # for names and channels of columns that are not stored

    def write(self, rows: Rows, head_size: int, end_size: int) -> None:
        """Write all rows, with room for a head and an end. BadEvents: they have too many names."""
        self._names = rows.names
        if len(self._names) > MAX_NAMES:
            raise BadEvents(f"{len(self._names)} names are too many for a batch")
        self._count = rows.count
        self._set_contexts(rows.contexts)
        self._measure(rows)
        if not self._write_rows(rows, head_size, end_size):
            self._write_rows(rows, head_size, end_size)  # now that the states are known
        self._count_nulls()

    def used_kinds(self) -> list[int]:
        """Return the kinds of the rows, each once."""
        return self._used_kinds

    def used_names(self, column: str) -> list[str]:
        """Return the names that rows have in this column, each once."""
        seen = bytearray(len(self._names))
        part = column_number(column) - fields.VHOST
        for context in range(self._number_of_contexts):
            if self._used_contexts[context] and self._context_validity[context] >> part & 1:
                seen[self._context_names[8 * context + part] + 1] = 1
        return [self._names[number].decode() for number in range(1, len(seen)) if seen[number]]

    def uids_offset(self) -> int:
        """Return the offset of the uids in the batch: 8 bytes for each row, 0 if it has no message."""
        return self._values[fields.UID]

    def finish(self, head: bytes, end: bytes) -> bytes:
        """Return the batch with its head and its end, once."""
        buffer = self._buffer
        if len(buffer) != len(head) + self.size + len(end):
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
        self._context_names = memory.shorts_at(table, 0)
        self._context_channels = memory.ints_at(table, 0)
        self._context_validity = memory.bytes_at(table, 16 * count)
        self._used_contexts = memory.bytes_at(table, 17 * count)
        for number in range(count):
            context = contexts[number]
            for part in range(7):
                value = context[part]
                if value:
                    self._context_validity[number] |= 1 << part
                    if part < 6:
                        self._context_names[8 * number + part] = value - 1
                    else:
                        self._context_channels[4 * number + 3] = value

    # -- ids and details ---------------------------------------------------------------------------------------------

    def _measure(self, rows: Rows) -> None:
        """Find the states of their columns and the sizes of their texts: put them while no column is stored."""
        for column in _RARE_COLUMNS:
            self._validity[column] = self._values[column] = _NOT_STORED
            self._text_sizes[column] = self._valid_counts[column] = 0
        if rows.has_message_ids or rows.has_details:
            reader = rows.reader()
            with cython.nogil:
                while count := reader.read():
                    self._put_ids(reader, 0, count)
                    self._put_details(reader, 0, count)
        for column in _RARE_COLUMNS:
            valid = self._valid_counts[column]
            self._states[column] = NO_NULLS if valid == self._count else ALL_NULLS if valid == 0 else SOME_NULLS

    def _put_ids(self, reader: RowReader, first: int, count: int) -> None:
        for row in range(count):
            at = reader.ids_at[row]
            self._put_number(fields.SOURCE_UID, 8, first + row, memory.load_i64(reader.data, at) if at != 0 else 0)
            at = self._put_text(fields.MESSAGE_ID, first + row, reader.data, at + 8 if at != 0 else 0)
            at = self._put_text(fields.CORRELATION_ID, first + row, reader.data, at)
            at = self._put_text(fields.TRACE_ID, first + row, reader.data, at)
            self._put_text(fields.SPAN_ID, first + row, reader.data, at)

    def _put_details(self, reader: RowReader, first: int, count: int) -> None:
        for row in range(count):
            at = reader.details_at[row]
            self._put_number(fields.DUE_TIME, 8, first + row, memory.load_i64(reader.data, at) if at != 0 else 0)
            self._put_number(fields.RETRY_MAX, 4, first + row, memory.load_u32(reader.data, at + 8) if at != 0 else 0)
            self._put_text(fields.NOTE, first + row, reader.data, at + 12 if at != 0 else 0)

    def _put_number(self, column: int, width: int, row: int, value: int) -> None:
        """Write a number, where 0 is null."""
        if value != 0:
            self._set_valid(column, row)
        if self._values[column] != _NOT_STORED:
            if width == 8:
                memory.store_64(self._out, self._values[column] + 8 * row, value)
            else:
                memory.store_32(self._out, self._values[column] + 4 * row, value)

    def _put_text(self, column: int, row: int, data: memory.Pointer, at: int) -> int:
        """Write the text at this offset, null if that is 0, and return where the next one begins."""
        size = 0
        if at != 0:
            size = memory.load_u32(data, at)  # + 1; 0: null
            at += 4
        if size != 0:
            size -= 1
            self._set_valid(column, row)
            if self._values[column] != _NOT_STORED:
                memory.copy(self._out, self._texts[column] + self._text_sizes[column], data, at, size)
            self._text_sizes[column] += size
        if self._values[column] != _NOT_STORED:
            memory.store_32(self._out, self._values[column] + 4 * (row + 1), self._text_sizes[column])
        return at + size

    def _set_valid(self, column: int, row: int) -> None:
        self._valid_counts[column] += 1
        if self._validity[column] != _NOT_STORED:
            self._out[self._validity[column] + (row >> 3)] |= 1 << (row & 7)

    # -- all columns -------------------------------------------------------------------------------------------------

    def _write_rows(self, rows: Rows, head_size: int, end_size: int) -> bool:
        """Write all columns; return True if they have the assumed states. If not, a second call writes them."""
        zeros = self._lay_out(head_size)
        self._buffer = memory.new_bytes(head_size + self.size + end_size)
        self._out = memory.writable(self._buffer)
        self._clear(zeros)
        self._any_bits = 0
        self._all_bits = 0xFFFF
        has_ids, has_details = rows.has_message_ids, rows.has_details
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
                if has_ids:
                    self._put_ids(reader, row, count)
                if has_details:
                    self._put_details(reader, row, count)
                row += count
        if row != self._count or count != 0:
            raise BadEvents(f"of {self._count} rows {row} can be read")
        self._used_kinds = [kind for kind in range(256) if reader.used_kinds[kind]]
        return self._is_as_assumed(reader.differing_times == 0)

    def _lay_out(self, start: int) -> int:
        """Set the offsets of the buffers by the states of the columns; the body begins at `start`.

        Columns of nulls only share: zeros, whose offset in the body is returned, for validity and offsets of texts, and
        for their values, which mean nothing, the time column. If all times of each row are equal, publish and enqueue
        times share the values of the time column, too.
        """
        bitmap_size = (self._count + 7) // 8
        zeros = _NOT_STORED
        self._start = start
        self.size = 0
        self.buffers = []
        for number in range(fields.NUMBER_OF_COLUMNS):
            is_text = _IS_TEXT[number]
            size = _WIDTHS[number] * (self._count + is_text)
            self._validity[number] = self._values[number] = self._texts[number] = _NOT_STORED
            if self._states[number] == ALL_NULLS:
                if zeros == _NOT_STORED:
                    zeros = self._reserve(4 * (self._count + 1))
                self.buffers += (zeros, bitmap_size, zeros if is_text else 0, size)
                if is_text:
                    self.buffers += (zeros, 0)
                continue
            if self._states[number] == SOME_NULLS:
                self._validity[number] = self._add_buffer(bitmap_size)
            else:
                self.buffers += (0, 0)
            if self._has_equal_times and number in (fields.PUBLISH_TIME, fields.ENQUEUE_TIME):
                self.buffers += (0, size)
            else:
                self._values[number] = self._add_buffer(size)
            if is_text:
                self._texts[number] = self._add_buffer(self._text_sizes[number])
        for bit, column in enumerate(_BIT_COLUMNS):
            self._bitmaps[bit] = _NOT_STORED if column is None else self._validity[column]
        return zeros

    def _add_buffer(self, size: int) -> int:
        """Add a buffer to the body, and return its offset in the batch."""
        at = self._reserve(size)
        self.buffers += (at, size)
        return self._start + at

    def _reserve(self, size: int) -> int:
        at = self.size
        self.size = padded(at + size)
        return at

    def _clear(self, zeros: int) -> None:
        """Clear what is not written later, or not as a whole: zeros, the padding of buffers, and rare columns."""
        for number in range(fields.NUMBER_OF_COLUMNS):
            self._clear_padding(self._validity[number])
            self._clear_padding(self._values[number])
            self._clear_padding(self._texts[number])
        self._clear_padding(self._start + self.size)
        if zeros != _NOT_STORED:
            self._clear_padding(self._start + zeros)
            memory.clear(self._out, self._start + zeros, padded(4 * (self._count + 1)))
        for column in _RARE_COLUMNS:
            self._text_sizes[column] = self._valid_counts[column] = 0
            if self._validity[column] != _NOT_STORED:
                memory.clear(self._out, self._validity[column], (self._count + 7) // 8)
            if _IS_TEXT[column] and self._values[column] != _NOT_STORED:
                memory.clear(self._out, self._values[column], 4)  # the first text begins at 0

    def _clear_padding(self, at: int) -> None:
        """Clear the end of the buffer before this offset, or of the head, which is written last."""
        if at != _NOT_STORED:
            memory.clear(self._out, at - 8, 8)

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
        contexts_any = rows_any = 0
        contexts_all = rows_all = 255
        for at in range(count):
            contexts_any |= self._block_validity[at]
            contexts_all &= self._block_validity[at]
            rows_any |= reader.validity[at]
            rows_all &= reader.validity[at]
        self._any_bits |= contexts_any | rows_any << 8
        self._all_bits &= contexts_all | rows_all << 8
        for at in range(count, records.BLOCK):
            self._block_validity[at] = reader.validity[at] = 0
        for start in range(0, count, 8):
            at = (row + start) >> 3
            self._put_bitmap_bytes(at, 0, _transpose(memory.load_i64(self._block_validity, start)))
            self._put_bitmap_bytes(at, 8, _transpose(memory.load_i64(reader.validity, start)))

    def _put_bitmap_bytes(self, at: int, first: int, columns: int) -> None:
        """Write a byte to each bitmap that is stored."""
        for number in range(8):
            if self._bitmaps[first + number] != _NOT_STORED:
                self._out[self._bitmaps[first + number] + at] = columns >> 8 * number & 255

    def _is_as_assumed(self, has_equal_times: bool) -> bool:
        """Set the states that the columns turned out to have; return False if they differ from the assumed ones."""
        states = list(self._states)
        for bit, column in enumerate(_BIT_COLUMNS):
            if column is not None:
                some = SOME_NULLS if self._any_bits >> bit & 1 else ALL_NULLS
                states[column] = NO_NULLS if self._all_bits >> bit & 1 else some
        is_right = states == self._states and has_equal_times == self._has_equal_times
        self._states = states
        self._has_equal_times = has_equal_times
        return is_right

    def _count_nulls(self) -> None:
        words = (self._count + 63) // 64
        self.nulls = [self._count if state == ALL_NULLS else 0 for state in self._states]
        for bit, column in enumerate(_BIT_COLUMNS):
            if self._bitmaps[bit] != _NOT_STORED:
                self.nulls[column] = self._count - _count_ones(self._out, self._bitmaps[bit], words)
        for column in _RARE_COLUMNS:
            self.nulls[column] = self._count - self._valid_counts[column]


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
