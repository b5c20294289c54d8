"""Sets of positions, read from pages and from epochs of the log without the messages.

Used by checks of data folders. Ten million consecutive messages take a few megabytes.
"""

from __future__ import annotations

from struct import Struct

from warrenmq.journal.errors import BadRecord, DamagedPage
from warrenmq.journal.ids_file import ROW_SIZE as ID_ROW_SIZE
from warrenmq.journal.record import FIELDS_SIZE, HEAD, HEAD_SIZE, RELOGGED
from warrenmq.journal.segment_file import PageHead
from warrenmq.storage.codec import (
    AGAIN,
    APPEND,
    ATTEMPTS,
    DEFINE,
    EVENTS,
    EVENTS_DISCARDED,
    FORGET,
    FORGET_RANGE,
    OFFSET,
    POSITION,
    SEEN,
    UNDEFINE,
)

_CHUNK_BITS = 10
_CHUNK = 1 << _CHUNK_BITS
_FULL = (1 << _CHUNK) - 1

_QUEUE_AND_POSITION = Struct("<IQ")
_AGAIN = Struct("<IQB")
_RANGE = Struct("<IQQ")
_U32 = Struct("<I")


class Positions:
    """A set of positions, one bit each."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}

    def add(self, position: int) -> None:
        chunk = position >> _CHUNK_BITS
        self._chunks[chunk] = self._chunks.get(chunk, 0) | 1 << (position & _CHUNK - 1)

    def discard(self, position: int) -> None:
        chunk = position >> _CHUNK_BITS
        bits = self._chunks.get(chunk)
        if bits is not None:
            self._chunks[chunk] = bits & ~(1 << (position & _CHUNK - 1))

    def add_range(self, first: int, last: int) -> None:
        for chunk in range(first >> _CHUNK_BITS, (last >> _CHUNK_BITS) + 1 if last >= first else first >> _CHUNK_BITS):
            bits = _FULL
            if chunk == first >> _CHUNK_BITS:
                bits &= _FULL << (first & _CHUNK - 1)
            if chunk == last >> _CHUNK_BITS:
                bits &= _FULL >> (_CHUNK - 1 - (last & _CHUNK - 1))
            self._chunks[chunk] = self._chunks.get(chunk, 0) | bits

    def highest(self) -> int:
        """Return the highest position; -1 if there is none."""
        filled = [chunk for chunk, bits in self._chunks.items() if bits]
        return (max(filled) << _CHUNK_BITS) + self._chunks[max(filled)].bit_length() - 1 if filled else -1

    def add_all(self, others: Positions) -> None:
        for chunk, bits in others._chunks.items():
            self._chunks[chunk] = self._chunks.get(chunk, 0) | bits

    def remove_all(self, others: Positions) -> None:
        for chunk in self._chunks.keys() & others._chunks.keys():
            self._chunks[chunk] &= ~others._chunks[chunk]

    def remove_range(self, first: int, last: int) -> None:
        low, high = first >> _CHUNK_BITS, last >> _CHUNK_BITS
        for chunk in [chunk for chunk in self._chunks if low <= chunk <= high]:
            bits = _FULL
            if chunk == low:
                bits &= _FULL << (first & _CHUNK - 1)
            if chunk == high:
                bits &= _FULL >> (_CHUNK - 1 - (last & _CHUNK - 1))
            self._chunks[chunk] &= ~bits

    def above(self, position: int) -> Positions:
        """Return the positions above this one."""
        found = Positions()
        edge = position + 1 >> _CHUNK_BITS
        for chunk, bits in self._chunks.items():
            if chunk > edge:
                found._chunks[chunk] = bits
            elif chunk == edge:
                found._chunks[chunk] = bits & _FULL << (position + 1 & _CHUNK - 1)
        return found

    def count(self) -> int:
        return sum(bits.bit_count() for bits in self._chunks.values())

    def __contains__(self, position: int) -> bool:
        return bool(self._chunks.get(position >> _CHUNK_BITS, 0) >> (position & _CHUNK - 1) & 1)


class LoggedQueue:
    """What the log says about one queue, in any order: a deleted position is never reused."""

    __slots__ = ("appended", "first_append", "first_position", "forgotten", "last_position", "ranges")

    def __init__(self) -> None:
        self.appended = Positions()
        self.forgotten = Positions()
        self.ranges: list[tuple[int, int]] = []  # deleted ranges
        self.first_append = -1  # not counting relogged messages: the log has everything from here on
        self.first_position = -1  # first and last logged next position
        self.last_position = -1

    def forget_range(self, first: int, last: int) -> None:
        """Add a deleted range; merge it with the previous one if they are adjacent."""
        if self.ranges and first <= self.ranges[-1][1] + 1 and last >= self.ranges[-1][0] - 1:
            before = self.ranges.pop()
            first, last = min(first, before[0]), max(last, before[1])
        self.ranges.append((first, last))

    def append(self, position: int, flags: int) -> None:
        self.appended.add(position)
        if not flags & RELOGGED and (self.first_append < 0 or position < self.first_append):
            self.first_append = position

    def note_position(self, next_position: int) -> None:
        """Note a logged next position: all below it were used."""
        if self.first_position < 0:
            self.first_position = next_position
        self.last_position = next_position

    def highest(self) -> int:
        """Return the highest position known to have been used; -1 if there is none."""
        ends = [last for _, last in self.ranges]
        return max([self.appended.highest(), self.forgotten.highest(), self.last_position - 1, *ends])

    def lowest(self) -> int:
        """Return the first new position in the log; -1 if there is none."""
        return min([first for first in (self.first_append, self.first_position) if first >= 0], default=-1)

    def alive_above(self, position: int) -> Positions:
        """Return what was appended above a position and not deleted."""
        alive = self.appended.above(position)
        self.remove_deleted(alive)
        return alive

    def remove_deleted(self, positions: Positions) -> None:
        """Remove deleted positions from the set."""
        positions.remove_all(self.forgotten)
        for first, last in self.ranges:
            positions.remove_range(first, last)


def read_epoch(payload: bytes, queues: dict[int, LoggedQueue]) -> list[bytes]:
    """Note what one epoch says about messages; return its definitions, encoded."""
    definitions = []
    offset = 0
    end = len(payload)
    has_message = False
    while offset < end:
        kind = payload[offset]
        start = offset
        offset += 1
        if kind == APPEND:
            number = _U32.unpack(_piece(payload, offset, 4))[0]
            position, flags, after = _record(payload, offset + 4)
            queues.setdefault(number, LoggedQueue()).append(position, flags)
            has_message = True
            offset = after
        elif kind == AGAIN:
            if not has_message:
                raise BadRecord(start, "it repeats a message that is not in the epoch")
            number, position, flags = _AGAIN.unpack(_piece(payload, offset, 13))
            queues.setdefault(number, LoggedQueue()).append(position, flags)
            _piece(payload, offset + 13, FIELDS_SIZE[flags])
            offset += 13 + FIELDS_SIZE[flags]
        elif kind == FORGET:
            number, position = _QUEUE_AND_POSITION.unpack(_piece(payload, offset, 12))
            queues.setdefault(number, LoggedQueue()).forgotten.add(position)
            offset += 12
        elif kind == FORGET_RANGE:
            number, first, last = _RANGE.unpack(_piece(payload, offset, 20))
            queues.setdefault(number, LoggedQueue()).forget_range(first, last)
            offset += 20
        elif kind in (DEFINE, UNDEFINE):
            length = _U32.unpack(_piece(payload, offset, 4))[0]
            definitions.append(_piece(payload, offset + 4, length))
            offset += 4 + length
        elif kind == EVENTS:
            length = _U32.unpack(_piece(payload, offset + 16, 4))[0]
            _piece(payload, offset + 20, length)
            offset += 20 + length
        elif kind == EVENTS_DISCARDED:
            _piece(payload, offset, 8)
            offset += 8
        elif kind == SEEN:
            size = ID_ROW_SIZE * _U32.unpack(_piece(payload, offset + 9, 4))[0]
            _piece(payload, offset + 13, size)
            offset += 13 + size
        elif kind in (ATTEMPTS, POSITION):
            size = 16 if kind == ATTEMPTS else 12
            piece = _piece(payload, offset, size)
            if kind == POSITION:
                number, position = _QUEUE_AND_POSITION.unpack(piece)
                queues.setdefault(number, LoggedQueue()).note_position(position)
            offset += size
        elif kind == OFFSET:
            size = 13 + _piece(payload, offset + 12, 1)[0]
            _piece(payload, offset, size)
            offset += size
        else:
            raise BadRecord(start, f"unknown record kind {kind}")
    return definitions


def record_positions(page: PageHead, payload: bytes, path: str = "") -> list[tuple[int, int]]:
    """Return positions and flags of the messages of a page; raise DamagedPage if they contradict its head."""
    found: list[tuple[int, int]] = []
    offset = 0
    last = -1
    try:
        while offset < len(payload):
            position, flags, offset = _record(payload, offset)
            if position <= last:
                raise DamagedPage(path, page.offset, "its positions do not increase", page.first, page.last)
            found.append((position, flags))
            last = position
    except BadRecord as error:
        raise DamagedPage(path, page.offset, str(error), page.first, page.last) from None
    if len(found) != page.count or found[0][0] != page.first or last != page.last:
        raise DamagedPage(path, page.offset, "its positions differ from its head", page.first, page.last)
    return found


def _record(data: bytes, offset: int) -> tuple[int, int, int]:
    """Return position, flags and end of the message record at `offset`."""
    start = offset + HEAD_SIZE
    if start > len(data):
        raise BadRecord(offset, "its head exceeds the data")
    position, flags, address_size, header_size, body_size = HEAD.unpack_from(data, offset)
    end: int = start + FIELDS_SIZE[flags] + address_size + header_size + body_size
    if end > len(data):
        raise BadRecord(offset, f"it exceeds the data by {end - len(data)} bytes")
    return position, flags, end


def _piece(data: bytes, offset: int, size: int) -> bytes:
    piece = data[offset : offset + size]
    if len(piece) < size:
        raise BadRecord(offset, "the epoch ends within it")
    return piece
