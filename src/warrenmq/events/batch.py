# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""A batch of events as it lies in its bytes: its columns, searched without the interpreter, and its rows as values.

All places are checked once, when it is made, so that nothing is read outside of the bytes later. It never changes. One
of the files that know whether they are compiled (docs/decisions/0002), in the functions at the end. Compiled when the
package is built (batch.pxd).
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy
    from cython.cimports.warrenmq.events.ids import hash_bytes
else:
    from warrenmq.events.ids import hash_bytes

from warrenmq.events.arrow import Body, number_of_buffers
from warrenmq.events.columns import WIDTHS
from warrenmq.events.errors import BadEvents
from warrenmq.events.ids import CORRELATION_ID_KEY, GROUP_BITS, MESSAGE_ID_KEY, TRACE_ID_KEY
from warrenmq.events.schema import COLUMNS, NAME, TEXT, Event, column_number

Pointer: TypeAlias = Any  # a const unsigned char * in compiled code, bytes in plain Python

_MESSAGE_ID_KEY = MESSAGE_ID_KEY  # the same as C integers
_CORRELATION_ID_KEY = CORRELATION_ID_KEY
_TRACE_ID_KEY = TRACE_ID_KEY

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

_I64 = struct.Struct("<q")
_I32 = struct.Struct("<i")
_I16 = struct.Struct("<h")
_CODES = 256
_MET = 16384  # messages that are known again, by the low bits of their uids; a power of 2
_UID_STEP = 6  # lower bits of a uid name the broker
_GROUP_BITS = GROUP_BITS
_MET_GROUPS = 512  # the same of their groups
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows are wanted: those that agree with all that is not None. Times: time_from <= time < time_to."""

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
    """`count` is the number of its rows. It has the first `columns` of all columns: those of its version."""

    __slots__ = (
        "_data",
        "_flags",
        "_has_ids",
        "_has_priorities",
        "_held",
        "_names",
        "_numbers",
        "_text_sizes",
        "_texts",
        "_values",
        "count",
    )

    def __init__(self, data: bytes, body: Body, names: list[str], columns: int, is_trusted: bool = False) -> None:
        self._held = data
        self._data = _pointer_to(data)
        self._names = names
        self._numbers: dict[str, int] | None = None
        self.count = body.count
        if not cython.compiled:  # arrays of C have their places already
            self._flags, self._values, self._texts, self._text_sizes = ([0] * len(COLUMNS) for _ in range(4))
        self._find_places(body, columns)  # which checks that there is a number of nulls for each column
        self._has_priorities = columns > _PRIORITY  # from version 2 on
        self._has_ids = any(body.nulls[column] < body.count for column in (_MESSAGE_ID, _CORRELATION_ID, _TRACE_ID))
        if not is_trusted:
            self._check_columns(columns)

    def event(self, row: int) -> Event:
        if not 0 <= row < self.count:
            raise IndexError(f"a batch of {self.count} rows has no row {row}")
        return Event(
            self._i64(_TIME, row),
            self._byte(_KIND, row),
            self._i64(_UID, row),
            self._text(_MESSAGE_ID, row),
            self._long(_PUBLISH_TIME, row),
            self._long(_ENQUEUE_TIME, row),
            self._name(_VHOST, row),
            self._name(_EXCHANGE, row),
            self._name(_ROUTING_KEY, row),
            self._name(_QUEUE, row),
            self._name(_CONSUMER, row),
            self._name(_CONNECTION, row),
            self._int(_CHANNEL, row),
            self._int(_SIZE, row),
            self._int(_ATTEMPT, row),
            self._byte(_REASON, row) if self._is_there(_REASON, row) else None,
            self._text(_CORRELATION_ID, row),
            self._text(_TRACE_ID, row),
            self._text(_SPAN_ID, row),
            self._long(_SOURCE_UID, row),
            self._int(_DEPTH, row),
            self._int(_PRIORITY, row) if self._has_priorities else None,
        )

    def events(self, rows: "list[int] | None" = None) -> list[Event]:
        """These rows as values, or all."""
        return [self.event(row) for row in (range(self.count) if rows is None else rows)]

    def uids(self, rows: Sequence[int]) -> list[int]:
        """The uids of these rows."""
        if rows and not 0 <= min(rows) <= max(rows) < self.count:
            raise IndexError(f"a batch of {self.count} rows does not have all of these")
        return [self._i64(_UID, row) for row in rows]

    def select(self, wanted: RowFilter, most: int = -1) -> list[int]:
        """The numbers of the rows that are wanted, in order; the first `most` of them, if that is not negative."""
        marks = bytearray(b"\1") * self.count
        if wanted.time_from is not None or wanted.time_to is not None:
            least = _LEAST if wanted.time_from is None else wanted.time_from
            self._keep_between(marks, _TIME, least, _GREATEST if wanted.time_to is None else wanted.time_to - 1)
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
            self._keep_uids(marks, _UID, b"".join([_I64.pack(uid) for uid in sorted(wanted.uids)]))
        if wanted.source_uids is not None:
            self._keep_uids(marks, _SOURCE_UID, b"".join([_I64.pack(uid) for uid in sorted(wanted.source_uids)]))
        for column in ("message_id", "correlation_id", "trace_id"):
            text = getattr(wanted, column)
            if text is not None:
                self._keep_text(marks, column_number(column), text.encode("utf-8", "replace"))
        return _marked(marks, most)

    def key_hashes(self) -> "array[int]":
        """The hashes of all ids that its rows can be found by (`uid_key`, `key_hash`), sorted, each once."""
        found = bytearray(8 * self.max_keys())
        size = self.hash_keys(found)
        hashes = array("Q")
        hashes.frombytes(memoryview(found)[:size])
        return array("Q", sorted(set(hashes)))

    def used_names(self, column: str) -> list[str]:
        """The names that a column holds, each once."""
        seen = bytearray(len(self._names))
        self._mark_names(seen, column_number(column))
        return [self._names[number] for number in _marked(seen, -1)]

    def used_kinds(self) -> list[int]:
        seen = bytearray(_CODES)
        self._mark_kinds(seen)
        return _marked(seen, -1)

    def time_range(self) -> tuple[int, int]:
        """The least and the greatest time; 0 and 0 if there are no rows."""
        return self._range(_TIME)

    def uid_range(self) -> tuple[int, int]:
        """The least and the greatest uid of rows with a message; 0 and 0 where there is none."""
        return self._range(_UID)

    def _find_places(self, body: Body, columns: int) -> None:
        buffers = iter(body.buffers)
        if body.count < 0 or body.lengths != [body.count] * columns:
            raise BadEvents("the columns of a batch do not have the same length")
        if len(body.buffers) != number_of_buffers(columns):
            raise BadEvents("a batch has too few or too many buffers")
        for number, column in enumerate(COLUMNS[:columns]):
            flags, values = next(buffers), next(buffers)
            is_text = column.type == TEXT
            needed = WIDTHS.get(column.type, 4) * (body.count + is_text)
            has_flags = column.is_nullable and body.nulls[number] != 0
            if values.size < needed or (has_flags and flags.size < (body.count + 7) // 8):
                raise BadEvents(f"the column {column.name} of a batch is too short")
            texts = next(buffers) if is_text else values
            self._flags[number] = body.start + flags.at if has_flags else -1
            self._values[number] = body.start + values.at
            self._texts[number] = body.start + texts.at
            self._text_sizes[number] = texts.size if is_text else 0

    def _check_columns(self, columns: int) -> None:
        for number, column in enumerate(COLUMNS[:columns]):
            if column.type == TEXT and not self._has_good_texts(number):
                raise BadEvents(f"texts of the column {column.name} of a batch overlap")
            if column.type == NAME and not self._has_good_names(number, len(self._names)):
                raise BadEvents(f"the column {column.name} of a batch has a name that is not there")

    def _text(self, column: int, row: int) -> str | None:
        if not self._is_there(column, row):
            return None
        start = self._texts[column] + self._i32(column, row)
        return self._held[start : self._texts[column] + self._i32(column, row + 1)].decode("utf-8", "replace")

    def _name(self, column: int, row: int) -> str | None:
        return self._names[self._i16(column, row)] if self._is_there(column, row) else None

    def _long(self, column: int, row: int) -> int | None:
        return self._i64(column, row) if self._is_there(column, row) else None

    def _int(self, column: int, row: int) -> int | None:
        return self._i32(column, row) if self._is_there(column, row) else None

    def _number_of(self, name: str) -> int | None:
        if self._numbers is None:
            self._numbers = {known: number for number, known in enumerate(self._names)}
        return self._numbers.get(name)

    def _keep_between(self, marks: bytearray, column: int, least: int, greatest: int) -> None:
        kept = _changeable(marks)
        with cython.nogil:
            for row in range(self.count):
                value = self._i64(column, row)
                kept[row] &= least <= value <= greatest

    def _keep_name(self, marks: bytearray, column: int, number: int) -> None:
        kept = _changeable(marks)
        with cython.nogil:
            for row in range(self.count):
                kept[row] &= self._i16(column, row) == number and self._is_there(column, row)

    def _keep_kinds(self, marks: bytearray, wanted: bytes) -> None:
        kept = _changeable(marks)
        by_code = _pointer_to(wanted)
        with cython.nogil:
            for row in range(self.count):
                kept[row] &= by_code[self._byte(_KIND, row)]

    def _keep_uids(self, marks: bytearray, column: int, wanted: bytes) -> None:
        """`wanted` are uids in ascending order, 8 bytes each."""
        kept = _changeable(marks)
        uids = _pointer_to(wanted)
        size = len(wanted)
        with cython.nogil:
            for row in range(self.count):
                if kept[row]:
                    kept[row] = self._is_there(column, row) and _has_i64(uids, size, self._i64(column, row))

    def _keep_text(self, marks: bytearray, column: int, wanted: bytes) -> None:
        kept = _changeable(marks)
        text = _pointer_to(wanted)
        size = len(wanted)
        with cython.nogil:
            for row in range(self.count):
                start = self._i32(column, row)
                if self._i32(column, row + 1) - start != size or not self._is_there(column, row):
                    kept[row] = 0
                elif kept[row]:
                    kept[row] = _is_text(self._data, self._texts[column] + start, text, size)

    def max_keys(self) -> int:
        """It has no more than so many."""
        return 4 * self.count if self._has_ids else self.count

    def hash_keys(self, found: bytearray) -> int:
        """Put the hashes of all ids, a few more than once; gives the bytes that they take."""
        size = _put_uid_keys(self._data, self._values[_UID], self.count, _changeable(found), bytearray(8 * _MET_GROUPS))
        return self._hash_ids(_changeable(found), size, bytearray(4 * _MET)) if self._has_ids else size

    def _hash_ids(self, out: Pointer, size: int, met: bytearray) -> int:
        """Rows of a message are known by its uid, if it was met lately: then only what differs from there is hashed."""
        rows = _changeable(met)
        data = self._data  # in C, what is asked of self is read again after each byte that is written
        uids = self._values[_UID]
        with cython.nogil:
            for row in range(self.count):
                uid = _load_i64(data, uids + 8 * row)
                place = 4 * ((uid >> _UID_STEP) & (_MET - 1))
                before = _load_i32(rows, place) - 1
                if before < 0 or _load_i64(data, uids + 8 * before) != uid:
                    before = -1
                    _store_i32(rows, place, row + 1)
                size = self._hash_text(out, size, _MESSAGE_ID, _MESSAGE_ID_KEY, row, before)
                size = self._hash_text(out, size, _CORRELATION_ID, _CORRELATION_ID_KEY, row, before)
                size = self._hash_text(out, size, _TRACE_ID, _TRACE_ID_KEY, row, before)
        return size

    def _hash_text(self, out: Pointer, size: int, column: int, space: int, row: int, before: int) -> int:
        """Unless the row before, if there is one, has the same text."""
        if not self._is_there(column, row):
            return size
        start = self._texts[column] + self._i32(column, row)
        end = self._texts[column] + self._i32(column, row + 1)
        if before >= 0 and self._is_there(column, before):
            known = self._texts[column] + self._i32(column, before)
            is_as_long = self._texts[column] + self._i32(column, before + 1) - known == end - start
            if is_as_long and _is_repeated(self._data, known, start, end - start):
                return size
        _store_u64(out, size, hash_bytes(space, self._data, start, end))
        return size + 8

    # These take some microseconds: to let go of the interpreter, and to wait for it again, takes longer.

    def _mark_names(self, seen: bytearray, column: int) -> None:
        marks = _changeable(seen)
        data = self._data
        values = self._values[column]
        flags = self._flags[column]
        for row in range(self.count):
            if flags < 0 or data[flags + (row >> 3)] >> (row & 7) & 1:
                marks[_load_i16(data, values + 2 * row)] = 1

    def _mark_kinds(self, seen: bytearray) -> None:
        marks = _changeable(seen)
        data = self._data
        values = self._values[_KIND]
        for at in range(values, values + self.count):
            marks[data[at]] = 1

    def _range(self, column: int) -> tuple[int, int]:
        """The least and the greatest value but for 0, which is none."""
        least = 0
        greatest = 0
        for row in range(self.count):
            value = self._i64(column, row)
            if value != 0 and (value < least or least == 0):
                least = value
            if value != 0 and (value > greatest or greatest == 0):
                greatest = value
        return least, greatest

    def _has_good_texts(self, column: int) -> bool:
        end = 0
        with cython.nogil:
            for row in range(self.count + 1):
                start = end
                end = self._i32(column, row)
                if end < start or end > self._text_sizes[column]:
                    return False
        return True

    def _has_good_names(self, column: int, number_of_names: int) -> bool:
        with cython.nogil:
            for row in range(self.count):
                number = self._i16(column, row)
                if self._is_there(column, row) and not 0 <= number < number_of_names:
                    return False
        return True

    def _is_there(self, column: int, row: int) -> bool:
        flags = self._flags[column]
        return flags < 0 or self._data[flags + (row >> 3)] >> (row & 7) & 1 != 0

    def _i64(self, column: int, row: int) -> int:
        return _load_i64(self._data, self._values[column] + 8 * row)

    def _i32(self, column: int, row: int) -> int:
        return _load_i32(self._data, self._values[column] + 4 * row)

    def _i16(self, column: int, row: int) -> int:
        return _load_i16(self._data, self._values[column] + 2 * row)

    def _byte(self, column: int, row: int) -> int:
        octet: int = self._data[self._values[column] + row]
        return octet


def uid_keys(octets: bytes, at: int, count: int) -> bytearray:
    """The keys of so many uids that lie there, 8 bytes each, a few more than once."""
    found = bytearray(8 * count)
    size = _put_uid_keys(_pointer_to(octets), at, count, _changeable(found), bytearray(8 * _MET_GROUPS))
    del found[size:]
    return found


def _put_uid_keys(data: Pointer, uids: int, count: int, out: Pointer, met: bytearray) -> int:
    """Messages that came together share a key, and most rows have one that was met lately. Gives the bytes.

    Takes less than a tenth of a millisecond: to let go of the interpreter, and to wait for it again, takes longer.
    """
    groups = _changeable(met)
    last = -1
    size = 0
    for row in range(count):
        uid = _load_i64(data, uids + 8 * row)
        group = uid >> _GROUP_BITS
        if group == last or uid == 0:
            continue
        last = group
        place = 8 * (group & (_MET_GROUPS - 1))
        if _load_i64(groups, place) != group + 1:  # 0 is none
            _store_u64(groups, place, group + 1)
            _store_u64(out, size, group)
            size += 8
    return size


def _marked(marks: bytearray, most: int) -> list[int]:
    found: list[int] = []
    kept = _changeable(marks)
    for at in range(len(marks)):
        if kept[at]:
            if len(found) == most:
                break
            found.append(at)
    return found


def _has_i64(numbers: Pointer, size: int, wanted: int) -> bool:
    """Whether a number is among these, which are in ascending order."""
    low = 0
    high = size // 8
    while low < high:
        middle = (low + high) // 2
        number = _load_i64(numbers, 8 * middle)
        if number == wanted:
            return True
        if number < wanted:
            low = middle + 1
        else:
            high = middle
    return False


def _pointer_to(data: bytes) -> Pointer:
    return data


def _changeable(data: bytearray) -> Pointer:
    return data


def _load_i64(data: Pointer, at: int) -> int:
    value: int = 0
    if cython.compiled:
        memcpy(cython.address(value), data + at, 8)
    else:
        value = _I64.unpack_from(data, at)[0]
    return value


def _load_i32(data: Pointer, at: int) -> int:
    value: int = 0
    if cython.compiled:
        memcpy(cython.address(value), data + at, 4)
    else:
        value = _I32.unpack_from(data, at)[0]
    return value


def _load_i16(data: Pointer, at: int) -> int:
    value: int = 0
    if cython.compiled:
        memcpy(cython.address(value), data + at, 2)
    else:
        value = _I16.unpack_from(data, at)[0]
    return value


def _store_u64(out: Pointer, at: int, value: int) -> None:
    if cython.compiled:
        memcpy(out + at, cython.address(value), 8)
    else:
        out[at : at + 8] = (value & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")


def _store_i32(out: Pointer, at: int, value: int) -> None:
    if cython.compiled:
        memcpy(out + at, cython.address(value), 4)
    else:
        _I32.pack_into(out, at, value)


def _is_text(data: Pointer, at: int, text: Pointer, size: int) -> bool:
    if cython.compiled:
        return bool(memcmp(data + at, text, size) == 0)
    else:
        return bool(data[at : at + size] == text)


def _is_repeated(data: Pointer, at: int, again_at: int, size: int) -> bool:
    if cython.compiled:
        return bool(memcmp(data + at, data + again_at, size) == 0)
    else:
        return bool(data[at : at + size] == data[again_at : again_at + size])
