# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Reads rows in their raw form (docs/formats/events.md) many at a time, side by side, for whoever wants columns.

`RowReader` gives one row after the other, with its texts; here are all parts but these, in arrays that stay in the
processor's nearest memory. The rows must be sound: such as `Rows` has, which are written or checked there. Belongs to
whoever made it; the bytes must not change meanwhile. One of the files that know whether they are compiled
(docs/decisions/0002), in the functions at the end. Compiled when the package is built (row_blocks.pxd).
"""

from array import array
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

from warrenmq.events.row_reader import (
    DELIVERED_FOLLOWS,
    DIRECT_RECORD,
    FULL_RECORD,
    HAS_IDS,
    IS_PUBLISHED,
    IS_SHORT,
    PUBLISHED_RECORD,
    ROUTED_FOLLOWS,
    SHORT_RECORD,
    RowReader,
)
from warrenmq.events.schema import DELIVERED, R_AUTO_ACK, ROUTED

Pointer: TypeAlias = Any  # a const unsigned char * in compiled code, bytes or a bytearray in plain Python

BLOCK = 64  # rows: a word of flags

_BLOCK = BLOCK  # the same as C integers
_HAS_IDS = HAS_IDS
_ROUTED_FOLLOWS = ROUTED_FOLLOWS
_IS_SHORT = IS_SHORT
_DELIVERED_FOLLOWS = DELIVERED_FOLLOWS
_IS_PUBLISHED = IS_PUBLISHED
_FULL_SIZE = FULL_RECORD.size
_SHORT_SIZE = SHORT_RECORD.size
_DIRECT_SIZE = DIRECT_RECORD.size
_PUBLISHED_SIZE = PUBLISHED_RECORD.size
_ROUTED = ROUTED
_DELIVERED = DELIVERED
_AUTO_ACK = R_AUTO_ACK


class RowBlocks:
    """The rows that `read` came to, each part an array.

    What is null is 0, and `there` says what is not: 1 reason, 2 publish time, 4 enqueue time, 8 attempt, 16 size,
    32 depth, 64 priority. `used_kinds` has a mark for each kind that was met. `apart` is 0 as long as all times of each
    row are one.
    """

    __slots__ = (
        "_at",
        "_data",
        "_data_end",
        "_following",
        "_held",
        "_second_context",
        "apart",
        "attempts",
        "contexts",
        "depths",
        "enqueue_times",
        "kinds",
        "priorities",
        "publish_times",
        "reasons",
        "sizes",
        "there",
        "times",
        "uids",
        "used_kinds",
    )

    def __init__(self, reader: RowReader) -> None:
        self._held = reader  # and with it the bytes
        self._data = self._held.data
        self._at = self._held.at
        self._data_end = self._held._data_end
        self._following = 0  # the second row of a record begins the next block
        self._second_context = 0
        self.apart = 0
        if not cython.compiled:  # arrays of C have their places already
            self.times, self.uids, self.publish_times, self.enqueue_times = (array("q", [0] * BLOCK) for _ in range(4))
            self.contexts, self.sizes, self.depths, self.attempts, self.priorities = (
                array("i", [0] * BLOCK) for _ in range(5)
            )
            self.kinds, self.reasons, self.there = (bytearray(BLOCK) for _ in range(3))
            self.used_kinds = bytearray(256)

    def read(self) -> int:
        """Go on to the next rows; gives how many there are: a full block, or what is left."""
        data = self._data
        at = self._at
        end = self._data_end
        last = _BLOCK - 1  # what the row before had, if there is one
        time = self.times[last]
        uid = self.uids[last]
        publish_time = self.publish_times[last]
        size = self.sizes[last]
        size_there = self.there[last] & 16
        priority = self.priorities[last]
        row = 0
        if self._following != 0:
            self._follow(last, 0)
            row = 1
        while row < _BLOCK and end - at >= _SHORT_SIZE:
            kind = data[at]
            reason = data[at + 1]
            flags = data[at + 2]
            context = _get_u32(data, at + 4)
            if flags & _IS_SHORT:
                enqueue_time = time
                depth = _get_u32(data, at + 8)
                attempt = data[at + 3]
                at += _SHORT_SIZE
                if flags & _DELIVERED_FOLLOWS:
                    self._second_context = _get_u32(data, at)
                    at += _DIRECT_SIZE - _SHORT_SIZE
            elif flags & _IS_PUBLISHED:
                time = _get_i64(data, at + 8)
                uid = _get_i64(data, at + 16)
                publish_time = time
                enqueue_time = 0
                priority = data[at + 3]
                size = _get_u32(data, at + 24)
                depth = 0
                attempt = 0
                size_there = 16 if size != 0 else 0
                size -= 1 if size != 0 else 0
                at += _PUBLISHED_SIZE
                if flags & _HAS_IDS:
                    at = _behind_texts(data, at, end)
            elif end - at >= _FULL_SIZE:
                time = _get_i64(data, at + 8)
                uid = _get_i64(data, at + 16)
                publish_time = _get_i64(data, at + 24)
                enqueue_time = _get_i64(data, at + 32)
                size = _get_u32(data, at + 40)
                depth = _get_u32(data, at + 44)
                attempt = _get_u32(data, at + 48)
                priority = data[at + 3]
                self.apart |= time ^ publish_time if publish_time != 0 else 0
                self.apart |= time ^ enqueue_time if enqueue_time != 0 else 0
                size_there = 16 if size != 0 else 0
                size -= 1 if size != 0 else 0
                at += _FULL_SIZE
                if flags & _HAS_IDS:
                    at = _behind_texts(data, at, end)
            else:
                break
            # Plain numbers, which C has in its instructions: names of numbers it would have to read again for each row.
            there = size_there | (1 if reason != 0 else 0) | (2 if publish_time != 0 else 0)
            there |= (4 if enqueue_time != 0 else 0) | (8 if attempt != 0 else 0) | (32 if depth != 0 else 0)
            there |= 64 if priority != 0 else 0
            self.times[row] = time
            self.uids[row] = uid
            self.publish_times[row] = publish_time
            self.enqueue_times[row] = enqueue_time
            self.contexts[row] = context
            self.sizes[row] = size
            self.depths[row] = depth - (1 if depth != 0 else 0)
            self.attempts[row] = attempt
            self.priorities[row] = priority
            self.kinds[row] = kind
            self.used_kinds[kind] = 1
            self.reasons[row] = reason
            self.there[row] = there
            row += 1
            if flags & (_ROUTED_FOLLOWS | _DELIVERED_FOLLOWS):
                self._following = flags & (_ROUTED_FOLLOWS | _DELIVERED_FOLLOWS)
                if row == _BLOCK:
                    break
                self._follow(row - 1, row)
                row += 1
        self._at = at
        return row

    def _follow(self, row: int, to: int) -> None:
        """The second row of a record, which is the first one but for what its flag says."""
        self.times[to] = self.times[row]
        self.uids[to] = self.uids[row]
        self.publish_times[to] = self.publish_times[row]
        self.enqueue_times[to] = self.enqueue_times[row]
        self.sizes[to] = self.sizes[row]
        self.priorities[to] = self.priorities[row]
        if self._following & _ROUTED_FOLLOWS:
            self.contexts[to] = self.contexts[row]
            self.depths[to] = self.depths[row]
            self.attempts[to] = self.attempts[row]
            self.kinds[to] = _ROUTED
            self.used_kinds[_ROUTED] = 1
            self.reasons[to] = self.reasons[row]
            self.there[to] = self.there[row]
        else:
            self.contexts[to] = self._second_context
            self.depths[to] = 0
            self.attempts[to] = 1
            self.kinds[to] = _DELIVERED
            self.used_kinds[_DELIVERED] = 1
            self.reasons[to] = _AUTO_ACK
            self.there[to] = self.there[row] | 1 | 8 | 32
        self._following = 0


def _behind_texts(data: Pointer, at: int, end: int) -> int:
    """Where the source uid and the four texts end."""
    at += 8
    for _ in range(4):
        if end - at < 4:
            return end
        size = _get_u32(data, at)
        at += 4 + (size - 1 if size != 0 else 0)
    return at


def _get_i64(data: Pointer, at: int) -> int:
    value: int = 0
    if cython.compiled:
        memcpy(cython.address(value), data + at, 8)
    else:
        value = int.from_bytes(data[at : at + 8], "little", signed=True)
    return value


def _get_u32(data: Pointer, at: int) -> int:
    value: int = 0
    if cython.compiled:
        memcpy(cython.address(value), data + at, 4)
    else:
        value = int.from_bytes(data[at : at + 4], "little")
    return value
