# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Reads rows in the row format (docs/formats/events.md) in blocks: one array per field, small enough for the L1 cache.

A record is one row, or two if the second follows from the first. `read` needs no interpreter lock, so a thread can
encode rows while the event loop runs. A reader belongs to its creator; the bytes must not change. Compiled
(row_reader.pxd).
"""

import struct
from array import array
from typing import Any

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

from warrenmq.events import memory
from warrenmq.events.errors import BadEvents
from warrenmq.events.schema import DELIVERED, MAX_CODE, R_AUTO_ACK, ROUTED, Event

BLOCK = 64  # rows: a word of validity bits

# Flags of a record.
HAS_IDS = 1  # the message's ids and source follow
SAME_IDS = 2  # they are those of the previous record
ROUTED_FOLLOWS = 4  # a second row: the same, but of the kind `routed`
IS_SHORT = 8  # message, time and size are those of the previous record; it was enqueued at that time
DELIVERED_FOLLOWS = 16  # a short record with a second row: `delivered`, in the context that follows
IS_PUBLISHED = 32  # a short form of `published`: it has no enqueue time, depth or attempt
HAS_DETAILS = 64  # due time, retry max and note follow

# Kind, reason, flags, priority, context, time, uid, publish and enqueue time, size + 1, depth + 1, attempt; 0: null.
FULL_RECORD = struct.Struct("<BBBBIqqqqIII")
# Kind, reason, flags, attempt, context, depth + 1.
SHORT_RECORD = struct.Struct("<BBBBII")
# The same, and the context of the delivery.
DIRECT_RECORD = struct.Struct("<BBBBIII")
# Kind, reason, flags, priority, context, time, uid, size + 1.
PUBLISHED_RECORD = struct.Struct("<BBBBIqqI")
# Due time, retry max, size of the note + 1, which follows; 0: null.
DETAILS = struct.Struct("<qII")

_BLOCK = BLOCK  # the same as C integers
_HAS_IDS = HAS_IDS
_SAME_IDS = SAME_IDS
_ROUTED_FOLLOWS = ROUTED_FOLLOWS
_IS_SHORT = IS_SHORT
_DELIVERED_FOLLOWS = DELIVERED_FOLLOWS
_IS_PUBLISHED = IS_PUBLISHED
_HAS_DETAILS = HAS_DETAILS
_FULL_SIZE = FULL_RECORD.size
_SHORT_SIZE = SHORT_RECORD.size
_DIRECT_SIZE = DIRECT_RECORD.size
_PUBLISHED_SIZE = PUBLISHED_RECORD.size
_DETAILS_SIZE = DETAILS.size
_ROUTED = ROUTED
_DELIVERED = DELIVERED
_AUTO_ACK = R_AUTO_ACK
_MAX_CODE = MAX_CODE
_LIMIT = 0x8000_0000  # numbers of a row are below this: int32 in a batch


class RowReader:
    """The rows that `read` found, as arrays. Nulls are 0.

    `validity` has a bit for each field that is not null: 1 reason, 2 publish time, 4 enqueue time, 8 attempt, 16 size,
    32 depth, 64 priority. `ids_at` and `details_at` are offsets in `data`: 0 if the message has no ids and no source, 0
    if the row has no details. `used_kinds` marks the kinds of all rows so far. `differing_times` is 0 while all times
    of each row are the same.
    """

    __slots__ = (
        "_buffer",
        "_end",
        "_has_message",
        "_second",
        "_second_context",
        "at",
        "attempts",
        "contexts",
        "data",
        "depths",
        "details_at",
        "differing_times",
        "enqueue_times",
        "ids_at",
        "is_damaged",
        "kinds",
        "priorities",
        "publish_times",
        "reasons",
        "sizes",
        "times",
        "uids",
        "used_kinds",
        "validity",
    )

    def __init__(self, data: "bytes | bytearray", at: int, end: int) -> None:
        self._buffer = data  # keeps `data` valid
        self.data = memory.pointer(data)
        self.at = at
        self._end = end
        self._second = 0  # the flag of a second row that begins the next block
        self._second_context = 0
        self._has_message = False
        self.is_damaged = False
        self.differing_times = 0
        if not cython.compiled:  # C arrays are part of the object, and zero
            self.times, self.uids, self.publish_times, self.enqueue_times, self.ids_at, self.details_at = (
                array("q", [0] * BLOCK) for _ in range(6)
            )
            self.contexts = array("I", [0] * BLOCK)
            self.sizes, self.depths, self.attempts, self.priorities = (array("i", [0] * BLOCK) for _ in range(4))
            self.kinds, self.reasons, self.validity, self.used_kinds = (bytearray(256) for _ in range(4))

    def read(self) -> int:
        """Read the next rows and return their number: a full block, or fewer at the end or before damaged data."""
        data = self.data
        at = self.at
        end = self._end
        last = _BLOCK - 1  # the previous row, if there is one
        time = self.times[last]
        uid = self.uids[last]
        publish_time = self.publish_times[last]
        ids_at = self.ids_at[last]
        size = self.sizes[last]
        size_bit = self.validity[last] & 16
        priority = self.priorities[last]
        row = 0
        if self._second != 0:
            self._copy_row(last, 0)
            row = 1
        while row < _BLOCK and end - at >= _SHORT_SIZE:
            kind = data[at]
            reason = data[at + 1]
            flags = data[at + 2]
            context = memory.load_u32(data, at + 4)
            details_at = 0
            if kind > _MAX_CODE or reason > _MAX_CODE:
                break
            if flags & _IS_SHORT:
                if not self._has_message:
                    break
                enqueue_time = time
                depth = memory.load_u32(data, at + 8)
                attempt = data[at + 3]
                if flags & _DELIVERED_FOLLOWS:
                    if end - at < _DIRECT_SIZE:
                        break
                    self._second_context = memory.load_u32(data, at + 12)
                    at += _DIRECT_SIZE
                else:
                    at += _SHORT_SIZE
            else:
                if end - at < (_PUBLISHED_SIZE if flags & _IS_PUBLISHED else _FULL_SIZE) or flags & _DELIVERED_FOLLOWS:
                    break
                time = memory.load_i64(data, at + 8)
                uid = memory.load_i64(data, at + 16)
                priority = data[at + 3]
                if flags & _IS_PUBLISHED:
                    publish_time = time
                    enqueue_time = 0
                    size = memory.load_u32(data, at + 24)
                    depth = 0
                    attempt = 0
                    at += _PUBLISHED_SIZE
                else:
                    publish_time = memory.load_i64(data, at + 24)
                    enqueue_time = memory.load_i64(data, at + 32)
                    size = memory.load_u32(data, at + 40)
                    depth = memory.load_u32(data, at + 44)
                    attempt = memory.load_u32(data, at + 48)
                    self.differing_times |= time ^ publish_time if publish_time != 0 else 0
                    self.differing_times |= time ^ enqueue_time if enqueue_time != 0 else 0
                    at += _FULL_SIZE
                if size > _LIMIT or attempt >= _LIMIT:
                    break
                size_bit = 16 if size != 0 else 0
                size -= 1 if size != 0 else 0
                if flags & _HAS_IDS:
                    ids_at = at
                    at = _end_of_ids(data, at, end)
                    if at < 0:
                        break
                elif flags & _SAME_IDS == 0:
                    ids_at = 0
                elif not self._has_message:
                    break
                if flags & _HAS_DETAILS:
                    details_at = at
                    at = _end_of_details(data, at, end)
                    if at < 0:
                        break
                self._has_message = True
            if depth > _LIMIT:
                break
            self.at = at
            # Numbers as they are: C would have to read a named one from memory for each row.
            bits = size_bit | (1 if reason != 0 else 0) | (2 if publish_time != 0 else 0)
            bits |= (4 if enqueue_time != 0 else 0) | (8 if attempt != 0 else 0) | (32 if depth != 0 else 0)
            bits |= 64 if priority != 0 else 0
            self.times[row] = time
            self.uids[row] = uid
            self.publish_times[row] = publish_time
            self.enqueue_times[row] = enqueue_time
            self.ids_at[row] = ids_at
            self.details_at[row] = details_at
            self.contexts[row] = context
            self.sizes[row] = size
            self.depths[row] = depth - (1 if depth != 0 else 0)
            self.attempts[row] = attempt
            self.priorities[row] = priority
            self.kinds[row] = kind
            self.used_kinds[kind] = 1
            self.reasons[row] = reason
            self.validity[row] = bits
            row += 1
            if flags & (_ROUTED_FOLLOWS | _DELIVERED_FOLLOWS):
                self._second = flags & (_ROUTED_FOLLOWS | _DELIVERED_FOLLOWS)
                if row == _BLOCK:
                    break
                self._copy_row(row - 1, row)
                row += 1
        self.is_damaged = row < _BLOCK and self.at != end
        return row

    def _copy_row(self, row: int, to: int) -> None:
        """Write the second row of a record."""
        self.times[to] = self.times[row]
        self.uids[to] = self.uids[row]
        self.publish_times[to] = self.publish_times[row]
        self.enqueue_times[to] = self.enqueue_times[row]
        self.ids_at[to] = self.ids_at[row]
        self.details_at[to] = 0
        self.sizes[to] = self.sizes[row]
        self.priorities[to] = self.priorities[row]
        if self._second & _ROUTED_FOLLOWS:
            self.contexts[to] = self.contexts[row]
            self.depths[to] = self.depths[row]
            self.attempts[to] = self.attempts[row]
            self.kinds[to] = _ROUTED
            self.used_kinds[_ROUTED] = 1
            self.reasons[to] = self.reasons[row]
            self.validity[to] = self.validity[row]
        else:
            self.contexts[to] = self._second_context
            self.depths[to] = 0
            self.attempts[to] = 1
            self.kinds[to] = _DELIVERED
            self.used_kinds[_DELIVERED] = 1
            self.reasons[to] = _AUTO_ACK
            self.validity[to] = self.validity[row] | 1 | 8 | 32
        self._second = 0

    def message_ids(self, row: int) -> tuple[int, "bytes | None", "bytes | None", "bytes | None", "bytes | None"]:
        """Return source uid (0: none), message id, correlation id, trace id and span id."""
        at = self.ids_at[row]
        if at == 0:
            return 0, None, None, None, None
        ids: list[Any] = [memory.load_i64(self.data, at)]
        at += 8
        for _ in range(4):
            size = memory.load_u32(self.data, at)  # + 1; 0: null
            at += 4
            ids.append(bytes(self.data[at : at + size - 1]) if size != 0 else None)
            at += size - 1 if size != 0 else 0
        return tuple(ids)

    def details(self, row: int) -> tuple[int, int, "bytes | None"]:
        """Return due time, retry max (0: null) and note."""
        at = self.details_at[row]
        if at == 0:
            return 0, 0, None
        size = memory.load_u32(self.data, at + 12)  # + 1; 0: null
        note_at = at + _DETAILS_SIZE
        note = bytes(self.data[note_at : note_at + size - 1]) if size != 0 else None
        return memory.load_i64(self.data, at), memory.load_u32(self.data, at + 8), note

    def event(self, row: int, names: "list[str | None]", contexts: "list[tuple[int, ...]]") -> Event:
        """Return the row as a value."""
        vhost, exchange, routing_key, queue, consumer, connection, channel = contexts[self.contexts[row]]
        source_uid, *ids = self.message_ids(row)
        message_id, correlation_id, trace_id, span_id = [None if each is None else each.decode() for each in ids]
        due_time, retry_max, note = self.details(row)
        return Event(
            time=self.times[row],
            kind=self.kinds[row],
            uid=self.uids[row],
            message_id=message_id,
            publish_time=self.publish_times[row] or None,
            enqueue_time=self.enqueue_times[row] or None,
            vhost=names[vhost],
            exchange=names[exchange],
            routing_key=names[routing_key],
            queue=names[queue],
            consumer=names[consumer],
            connection=names[connection],
            channel=channel or None,
            size=self.sizes[row] if self.validity[row] & 16 else None,
            attempt=self.attempts[row] or None,
            reason=self.reasons[row] or None,
            correlation_id=correlation_id,
            trace_id=trace_id,
            span_id=span_id,
            source_uid=source_uid or None,
            depth=self.depths[row] if self.validity[row] & 32 else None,
            priority=self.priorities[row] or None,
            note=None if note is None else note.decode(),
            due_time=due_time or None,
            retry_max=retry_max or None,
        )


def _end_of_ids(data: memory.Pointer, at: int, end: int) -> int:
    """Return where source uid and ids end; -1 if that is not before `end`."""
    at += 8
    for _ in range(4):
        if end - at < 4:
            return -1
        size = memory.load_u32(data, at)
        at += 4 + (size - 1 if size != 0 else 0)
    return at if at <= end else -1


def _end_of_details(data: memory.Pointer, at: int, end: int) -> int:
    """Return where due time, retry max and note end; -1 if that is not before `end`, or retry max is too large."""
    if end - at < _DETAILS_SIZE or memory.load_u32(data, at + 8) >= _LIMIT:
        return -1
    size = memory.load_u32(data, at + 12)
    at += _DETAILS_SIZE + (size - 1 if size != 0 else 0)
    return at if at <= end else -1


def used_contexts(reader: RowReader, number_of_contexts: int) -> list[int]:
    """Return the numbers of the contexts of the remaining rows, each once."""
    used: list[int] = []
    seen = bytearray(number_of_contexts)
    count = reader.read()
    while count != 0:
        for row in range(count):
            if not seen[reader.contexts[row]]:
                seen[reader.contexts[row]] = 1
                used.append(reader.contexts[row])
        count = reader.read()
    return used


def check_rows(reader: RowReader, count: int, contexts: "dict[int, tuple[int, ...]]") -> None:
    """Read all rows. BadEvents: they are damaged, not `count`, or of a context that is not in `contexts`."""
    read = 0
    block = reader.read()
    while block != 0:
        for row in range(block):
            if reader.contexts[row] not in contexts:
                raise BadEvents(f"rows have an undefined context before byte {reader.at}")
        read += block
        block = reader.read()
    if read < count:
        raise BadEvents(f"rows are damaged at byte {reader.at}")
    if read > count or reader.is_damaged:
        raise BadEvents(f"more bytes follow {count} rows")
