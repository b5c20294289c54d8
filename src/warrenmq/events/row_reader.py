# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True, infer_types=True
"""Reads rows in the row format (docs/formats/events.md) in blocks: one array per field, small enough for the L1 cache.

A record is one row, or two if the second follows from the first. `read` needs no interpreter lock, so a thread can
encode rows while the event loop runs. A reader belongs to its creator; the bytes must not change. Compiled
(row_reader.pxd).
"""

from array import array
from typing import Any

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

from warrenmq.events import memory, records, schema

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
        "_first",
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
        self.at = self._first = at
        self._end = end
        self._second = 0  # the flag of a second row that begins the next block
        self._second_context = 0
        self.is_damaged = False
        self.differing_times = 0
        if not cython.compiled:  # C arrays are part of the object, and zero
            self.times, self.uids, self.publish_times, self.enqueue_times, self.ids_at, self.details_at = (
                array("q", [0] * records.BLOCK) for _ in range(6)
            )
            self.contexts = array("I", [0] * records.BLOCK)
            self.sizes, self.depths, self.attempts, self.priorities = (
                array("i", [0] * records.BLOCK) for _ in range(4)
            )
            self.kinds, self.reasons, self.validity, self.used_kinds = (bytearray(256) for _ in range(4))

    def read(self) -> int:
        """Read the next rows and return their number: a full block, or fewer at the end or before damaged data."""
        data = self.data
        at = self.at
        end = self._end
        last = records.BLOCK - 1  # the previous row, if there is one
        time = self.times[last]
        uid = self.uids[last]
        publish_time = self.publish_times[last]
        enqueue_time = self.enqueue_times[last]
        ids_at = self.ids_at[last]
        context = self.contexts[last]
        size = self.sizes[last] + (self.validity[last] >> 4 & 1)  # 0: null
        depth = self.depths[last] + (self.validity[last] >> 5 & 1)
        attempt = self.attempts[last]
        priority = self.priorities[last]
        reason = self.reasons[last]
        second = self._second
        row = 0
        while row < records.BLOCK:
            details_at = 0
            if second & records.ROUTED_FOLLOWS:
                kind = schema.ROUTED
                second = 0
            elif second:
                kind = schema.DELIVERED
                reason = schema.R_AUTO_ACK
                context = self._second_context
                depth = attempt = 1
                second = 0
            else:
                if end - at < records.SHORT_SIZE:
                    break
                kind = data[at]
                reason = data[at + 1]
                flags = data[at + 2]
                context = memory.load_u32(data, at + 4)
                if kind > schema.MAX_CODE or reason > schema.MAX_CODE:
                    break
                if flags & records.IS_SHORT:
                    if self.at == self._first:
                        break
                    enqueue_time = time
                    depth = memory.load_u32(data, at + 8)
                    attempt = data[at + 3]
                    if flags & records.DELIVERED_FOLLOWS:
                        if end - at < records.DIRECT_SIZE:
                            break
                        self._second_context = memory.load_u32(data, at + 12)
                        at += records.DIRECT_SIZE
                    else:
                        at += records.SHORT_SIZE
                else:
                    record_size = records.PUBLISHED_SIZE if flags & records.IS_PUBLISHED else records.FULL_SIZE
                    if end - at < record_size or flags & records.DELIVERED_FOLLOWS:
                        break
                    time = memory.load_i64(data, at + 8)
                    uid = memory.load_i64(data, at + 16)
                    priority = data[at + 3]
                    if flags & records.IS_PUBLISHED:
                        publish_time = time
                        size = memory.load_u32(data, at + 24)
                        enqueue_time = depth = attempt = 0
                    else:
                        publish_time = memory.load_i64(data, at + 24)
                        enqueue_time = memory.load_i64(data, at + 32)
                        size = memory.load_u32(data, at + 40)
                        depth = memory.load_u32(data, at + 44)
                        attempt = memory.load_u32(data, at + 48)
                        self.differing_times |= time ^ publish_time if publish_time != 0 else 0
                        self.differing_times |= time ^ enqueue_time if enqueue_time != 0 else 0
                    at += record_size
                    if size > _LIMIT or attempt >= _LIMIT:
                        break
                    if flags & records.HAS_IDS:
                        ids_at = at
                        at = _end_of_ids(data, at, end)
                        if at < 0:
                            break
                    elif flags & records.SAME_IDS == 0:
                        ids_at = 0
                    elif self.at == self._first:
                        break
                    if flags & records.HAS_DETAILS:
                        details_at = at
                        at = _end_of_details(data, at, end)
                        if at < 0:
                            break
                if depth > _LIMIT:
                    break
                self.at = at
                second = flags & (records.ROUTED_FOLLOWS | records.DELIVERED_FOLLOWS)
            bits = (1 if reason != 0 else 0) | (2 if publish_time != 0 else 0) | (4 if enqueue_time != 0 else 0)
            bits |= (8 if attempt != 0 else 0) | (16 if size != 0 else 0) | (32 if depth != 0 else 0)
            bits |= 64 if priority != 0 else 0
            self.times[row] = time
            self.uids[row] = uid
            self.publish_times[row] = publish_time
            self.enqueue_times[row] = enqueue_time
            self.ids_at[row] = ids_at
            self.details_at[row] = details_at
            self.contexts[row] = context
            self.sizes[row] = size - (1 if size != 0 else 0)
            self.depths[row] = depth - (1 if depth != 0 else 0)
            self.attempts[row] = attempt
            self.priorities[row] = priority
            self.kinds[row] = kind
            self.used_kinds[kind] = 1
            self.reasons[row] = reason
            self.validity[row] = bits
            row += 1
        self._second = second
        self.is_damaged = row < records.BLOCK and self.at != end
        return row

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
        note_at = at + records.DETAILS_SIZE
        note = bytes(self.data[note_at : note_at + size - 1]) if size != 0 else None
        return memory.load_i64(self.data, at), memory.load_u32(self.data, at + 8), note


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
    if end - at < records.DETAILS_SIZE or memory.load_u32(data, at + 8) >= _LIMIT:
        return -1
    size = memory.load_u32(data, at + 12)
    at += records.DETAILS_SIZE + (size - 1 if size != 0 else 0)
    return at if at <= end else -1


def scan(reader: RowReader) -> tuple[int, list[int]]:
    """Read all rows; return their number, and the numbers of their contexts, each once."""
    rows = 0
    used: dict[int, None] = {}
    while count := reader.read():
        for row in range(count):
            if row == 0 or reader.contexts[row] != reader.contexts[row - 1]:
                used[reader.contexts[row]] = None
        rows += count
    return rows, list(used)
