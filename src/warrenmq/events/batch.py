# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True, infer_types=True
"""A batch of events, read in place: its columns, searched without the interpreter lock, and its rows as values.

All offsets are checked when it is created, so nothing outside of its bytes is read later. It is immutable. Compiled
(batch.pxd).
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

from warrenmq.events import fields, ids, memory
from warrenmq.events.arrow import Body
from warrenmq.events.columns import IS_TEXT, WIDTHS
from warrenmq.events.errors import BadEvents
from warrenmq.events.schema import COLUMNS, NAME, Event, column_number

_IS_TEXT, _WIDTHS = IS_TEXT, WIDTHS  # the same as C objects and integers
_MESSAGE_ID_KEY = ids.MESSAGE_ID_KEY
_CORRELATION_ID_KEY = ids.CORRELATION_ID_KEY
_TRACE_ID_KEY = ids.TRACE_ID_KEY

_I64 = struct.Struct("<q")
_CODES = 256
_SEEN_MESSAGES = 16384  # remembered by the low bits of their uids; a power of 2
_NODE_BITS = 6  # the low bits of a uid name the broker
_GROUP_BITS = ids.GROUP_BITS
_SEEN_GROUPS = 512  # the same for their groups
_MIN, _MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows to find: those that match all fields that are not None. Times: time_from <= time < time_to."""

    time_from: int | None = None
    time_to: int | None = None
    kinds: frozenset[int] | None = None
    uids: frozenset[int] | None = None
    source_uids: frozenset[int] | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    vhost: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    queue: str | None = None
    consumer: str | None = None
    connection: str | None = None


class EventBatch:
    """`count` rows. It has the first `columns` of all columns: those of its version."""

    __slots__ = (
        "_buffer",
        "_columns",
        "_data",
        "_has_ids",
        "_names",
        "_numbers",
        "_texts",
        "_validity",
        "_values",
        "count",
    )

    def __init__(self, data: bytes, body: Body, names: list[str], columns: int, is_trusted: bool = False) -> None:
        self._buffer = data
        self._data = memory.pointer(data)
        self._names = names
        self._numbers: dict[str, int] | None = None
        self.count = body.count
        self._columns = columns
        self._validity = [0 for _ in COLUMNS]
        self._values = [0 for _ in COLUMNS]
        self._texts = [0 for _ in COLUMNS]
        self._set_offsets(body, columns, is_trusted)
        id_columns = (fields.MESSAGE_ID, fields.CORRELATION_ID, fields.TRACE_ID)
        self._has_ids = any(body.nulls[column] < body.count for column in id_columns)

    def event(self, row: int) -> Event:
        if not 0 <= row < self.count:
            raise IndexError(f"a batch of {self.count} rows has no row {row}")
        return Event(
            self._i64(fields.TIME, row),
            self._byte(fields.KIND, row),
            self._i64(fields.UID, row),
            self._text(fields.MESSAGE_ID, row),
            self._long(fields.PUBLISH_TIME, row),
            self._long(fields.ENQUEUE_TIME, row),
            self._name(fields.VHOST, row),
            self._name(fields.EXCHANGE, row),
            self._name(fields.ROUTING_KEY, row),
            self._name(fields.QUEUE, row),
            self._name(fields.CONSUMER, row),
            self._name(fields.CONNECTION, row),
            self._int(fields.CHANNEL, row),
            self._int(fields.SIZE, row),
            self._int(fields.ATTEMPT, row),
            self._byte(fields.REASON, row) if self._is_valid(fields.REASON, row) else None,
            self._text(fields.CORRELATION_ID, row),
            self._text(fields.TRACE_ID, row),
            self._text(fields.SPAN_ID, row),
            self._long(fields.SOURCE_UID, row),
            self._int(fields.DEPTH, row),
            self._int(fields.PRIORITY, row) if self._columns > fields.PRIORITY else None,  # from version 2 on
            self._text(fields.NOTE, row) if self._columns > fields.NOTE else None,  # from version 3 on
            self._long(fields.DUE_TIME, row) if self._columns > fields.DUE_TIME else None,
            self._int(fields.RETRY_MAX, row) if self._columns > fields.RETRY_MAX else None,
        )

    def events(self, rows: "list[int] | None" = None) -> list[Event]:
        """Return these rows as values, or all."""
        return [self.event(row) for row in (range(self.count) if rows is None else rows)]

    def uids(self, rows: Sequence[int]) -> list[int]:
        """Return the uids of these rows."""
        if rows and not 0 <= min(rows) <= max(rows) < self.count:
            raise IndexError(f"a batch of {self.count} rows does not have all of these")
        return [self._i64(fields.UID, row) for row in rows]

    def select(self, wanted: RowFilter, limit: int = -1) -> list[int]:
        """Return the numbers of the rows that match, in order; only the first `limit` unless that is negative."""
        marks = bytearray(b"\1") * self.count
        if wanted.time_from is not None or wanted.time_to is not None:
            first = _MIN if wanted.time_from is None else wanted.time_from
            self._keep_between(marks, fields.TIME, first, _MAX if wanted.time_to is None else wanted.time_to - 1)
        for column in ("vhost", "exchange", "routing_key", "queue", "consumer", "connection"):
            name = getattr(wanted, column)
            if name is not None:
                number = self._number_of(name)
                if number is None:
                    return []
                self._keep_name(marks, column_number(column), number)
        if wanted.kinds is not None:
            self._keep_kinds(marks, bytes([code in wanted.kinds for code in range(_CODES)]))
        if wanted.uids is not None:
            self._keep_uids(marks, fields.UID, b"".join([_I64.pack(uid) for uid in sorted(wanted.uids)]))
        if wanted.source_uids is not None:
            self._keep_uids(marks, fields.SOURCE_UID, b"".join([_I64.pack(uid) for uid in sorted(wanted.source_uids)]))
        for column in ("message_id", "correlation_id", "trace_id"):
            text = getattr(wanted, column)
            if text is not None:
                self._keep_text(marks, column_number(column), text.encode("utf-8", "replace"))
        return _marked(marks, limit)

    def key_hashes(self) -> "array[int]":
        """Return the hashes of all ids that its rows can be found by (`uid_key`, `key_hash`), sorted, each once."""
        found = bytearray(8 * self.max_keys())
        size = self.hash_keys(found)
        hashes = array("Q")
        hashes.frombytes(memoryview(found)[:size])
        return array("Q", sorted(set(hashes)))

    # These take some microseconds: releasing the interpreter lock and waiting for it again takes longer.

    def used_names(self, column: str) -> list[str]:
        """Return the names in a column, each once."""
        number = column_number(column)
        seen = bytearray(len(self._names))
        marks = memory.writable(seen)
        data = self._data
        values = self._values[number]
        validity = self._validity[number]
        for row in range(self.count):
            if validity < 0 or data[validity + (row >> 3)] >> (row & 7) & 1:
                marks[memory.load_i16(data, values + 2 * row)] = 1
        return [self._names[name] for name in _marked(seen, -1)]

    def used_kinds(self) -> list[int]:
        seen = bytearray(_CODES)
        marks = memory.writable(seen)
        data = self._data
        values = self._values[fields.KIND]
        for at in range(values, values + self.count):
            marks[data[at]] = 1
        return _marked(seen, -1)

    def time_range(self) -> tuple[int, int]:
        """Return the min and max time; 0 and 0 if there are no rows."""
        if self.count == 0:
            return 0, 0
        lowest = highest = self._i64(fields.TIME, 0)
        for row in range(1, self.count):
            time = self._i64(fields.TIME, row)
            if time < lowest:
                lowest = time
            if time > highest:
                highest = time
        return lowest, highest

    def _set_offsets(self, body: Body, columns: int, is_trusted: bool) -> None:
        """Set the offsets of all columns. BadEvents: a buffer is too short, or a value refers outside of its column."""
        buffers = iter(body.buffers)
        for number, column in enumerate(COLUMNS[:columns]):
            validity, values = next(buffers), next(buffers)
            has_nulls = column.is_nullable and body.nulls[number] != 0
            needed = _WIDTHS[number] * (body.count + _IS_TEXT[number])
            if values.size < needed or (has_nulls and validity.size < (body.count + 7) // 8):
                raise BadEvents(f"the column {column.name} of a batch is too short")
            self._validity[number] = body.start + validity.at if has_nulls else -1
            self._values[number] = body.start + values.at
            if _IS_TEXT[number]:
                texts = next(buffers)
                self._texts[number] = body.start + texts.at
                if not is_trusted and not self._has_valid_texts(number, texts.size):
                    raise BadEvents(f"offsets in the column {column.name} of a batch are invalid")
            if column.type == NAME and not is_trusted and not self._has_valid_names(number, len(self._names)):
                raise BadEvents(f"the column {column.name} of a batch has a name that is not in the dictionary")

    def _text(self, column: int, row: int) -> str | None:
        if not self._is_valid(column, row):
            return None
        start = self._texts[column] + self._i32(column, row)
        return self._buffer[start : self._texts[column] + self._i32(column, row + 1)].decode("utf-8", "replace")

    def _name(self, column: int, row: int) -> str | None:
        return self._names[self._i16(column, row)] if self._is_valid(column, row) else None

    def _long(self, column: int, row: int) -> int | None:
        return self._i64(column, row) if self._is_valid(column, row) else None

    def _int(self, column: int, row: int) -> int | None:
        return self._i32(column, row) if self._is_valid(column, row) else None

    def _number_of(self, name: str) -> int | None:
        if self._numbers is None:
            self._numbers = {known: number for number, known in enumerate(self._names)}
        return self._numbers.get(name)

    def _keep_between(self, marks: bytearray, column: int, min_value: int, max_value: int) -> None:
        kept = memory.writable(marks)
        with cython.nogil:
            for row in range(self.count):
                value = self._i64(column, row)
                kept[row] &= min_value <= value <= max_value

    def _keep_name(self, marks: bytearray, column: int, number: int) -> None:
        kept = memory.writable(marks)
        with cython.nogil:
            for row in range(self.count):
                kept[row] &= self._i16(column, row) == number and self._is_valid(column, row)

    def _keep_kinds(self, marks: bytearray, kinds: bytes) -> None:
        kept = memory.writable(marks)
        by_code = memory.pointer(kinds)
        with cython.nogil:
            for row in range(self.count):
                kept[row] &= by_code[self._byte(fields.KIND, row)]

    def _keep_uids(self, marks: bytearray, column: int, uids: bytes) -> None:
        """`uids`: in ascending order, 8 bytes each."""
        kept = memory.writable(marks)
        sorted_uids = memory.pointer(uids)
        size = len(uids)
        with cython.nogil:
            for row in range(self.count):
                if kept[row]:
                    kept[row] = self._is_valid(column, row) and _contains_i64(sorted_uids, size, self._i64(column, row))

    def _keep_text(self, marks: bytearray, column: int, text: bytes) -> None:
        kept = memory.writable(marks)
        wanted = memory.pointer(text)
        size = len(text)
        with cython.nogil:
            for row in range(self.count):
                start = self._i32(column, row)
                if self._i32(column, row + 1) - start != size or not self._is_valid(column, row):
                    kept[row] = 0
                elif kept[row]:
                    kept[row] = memory.equal(self._data, self._texts[column] + start, wanted, 0, size)

    def max_keys(self) -> int:
        return 4 * self.count if self._has_ids else self.count

    def hash_keys(self, found: bytearray) -> int:
        """Store the hashes of all ids in `found`, some more than once, and return their size in bytes."""
        out = memory.writable(found)
        size = _put_uid_keys(self._data, self._values[fields.UID], self.count, out, bytearray(8 * _SEEN_GROUPS))
        return self._hash_ids(out, size, bytearray(4 * _SEEN_MESSAGES)) if self._has_ids else size

    def _hash_ids(self, out: memory.Pointer, size: int, seen: bytearray) -> int:
        """Hash the ids of each row, unless a recent row of the same message (`seen`) has the same."""
        rows = memory.writable(seen)
        data = self._data  # a local: C would read attributes again after each byte that is written
        uids = self._values[fields.UID]
        with cython.nogil:
            for row in range(self.count):
                uid = memory.load_i64(data, uids + 8 * row)
                slot = 4 * ((uid >> _NODE_BITS) & (_SEEN_MESSAGES - 1))
                previous = memory.load_i32(rows, slot) - 1
                if previous < 0 or memory.load_i64(data, uids + 8 * previous) != uid:
                    previous = -1
                    memory.store_32(rows, slot, row + 1)
                size = self._hash_text(out, size, fields.MESSAGE_ID, _MESSAGE_ID_KEY, row, previous)
                size = self._hash_text(out, size, fields.CORRELATION_ID, _CORRELATION_ID_KEY, row, previous)
                size = self._hash_text(out, size, fields.TRACE_ID, _TRACE_ID_KEY, row, previous)
        return size

    def _hash_text(self, out: memory.Pointer, size: int, column: int, space: int, row: int, previous: int) -> int:
        if not self._is_valid(column, row):
            return size
        start = self._texts[column] + self._i32(column, row)
        end = self._texts[column] + self._i32(column, row + 1)
        if previous >= 0 and self._is_valid(column, previous):
            other = self._texts[column] + self._i32(column, previous)
            other_end = self._texts[column] + self._i32(column, previous + 1)
            if other_end - other == end - start and memory.equal(self._data, other, self._data, start, end - start):
                return size
        memory.store_64(out, size, ids.hash_bytes(space, self._data, start, end))
        return size + 8

    def _has_valid_texts(self, column: int, size: int) -> bool:
        end = 0
        with cython.nogil:
            for row in range(self.count + 1):
                start = end
                end = self._i32(column, row)
                if end < start or end > size:
                    return False
        return True

    def _has_valid_names(self, column: int, number_of_names: int) -> bool:
        with cython.nogil:
            for row in range(self.count):
                number = self._i16(column, row)
                if self._is_valid(column, row) and not 0 <= number < number_of_names:
                    return False
        return True

    def _is_valid(self, column: int, row: int) -> bool:
        """Return False if the value is null."""
        validity = self._validity[column]
        return validity < 0 or self._data[validity + (row >> 3)] >> (row & 7) & 1 != 0

    def _i64(self, column: int, row: int) -> int:
        return memory.load_i64(self._data, self._values[column] + 8 * row)

    def _i32(self, column: int, row: int) -> int:
        return memory.load_i32(self._data, self._values[column] + 4 * row)

    def _i16(self, column: int, row: int) -> int:
        return memory.load_i16(self._data, self._values[column] + 2 * row)

    def _byte(self, column: int, row: int) -> int:
        value: int = self._data[self._values[column] + row]
        return value


def uid_keys(data: bytes, at: int, count: int) -> bytearray:
    """Return the keys of `count` uids at this offset, 8 bytes each, some more than once."""
    found = bytearray(8 * count)
    size = _put_uid_keys(memory.pointer(data), at, count, memory.writable(found), bytearray(8 * _SEEN_GROUPS))
    del found[size:]
    return found


def _put_uid_keys(data: memory.Pointer, uids: int, count: int, out: memory.Pointer, seen: bytearray) -> int:
    """Store the keys of uids, skip those stored recently, and return the size in bytes.

    Messages that came together share a key. Takes under 0.1 ms: releasing the interpreter lock and waiting for it again
    takes longer.
    """
    groups = memory.writable(seen)
    last = -1
    size = 0
    for row in range(count):
        uid = memory.load_i64(data, uids + 8 * row)
        group = uid >> _GROUP_BITS
        if group == last or uid == 0:
            continue
        last = group
        slot = 8 * (group & (_SEEN_GROUPS - 1))
        if memory.load_i64(groups, slot) != group + 1:  # 0 is an empty slot
            memory.store_64(groups, slot, group + 1)
            memory.store_64(out, size, group)
            size += 8
    return size


def _marked(marks: bytearray, limit: int) -> list[int]:
    found: list[int] = []
    kept = memory.writable(marks)
    for at in range(len(marks)):
        if kept[at]:
            if len(found) == limit:
                break
            found.append(at)
    return found


def _contains_i64(numbers: memory.Pointer, size: int, wanted: int) -> bool:
    """Return True if the number is among these, which are in ascending order."""
    low = 0
    high = size // 8
    while low < high:
        middle = (low + high) // 2
        number = memory.load_i64(numbers, 8 * middle)
        if number == wanted:
            return True
        if number < wanted:
            low = middle + 1
        else:
            high = middle
    return False
