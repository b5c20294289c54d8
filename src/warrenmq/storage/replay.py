"""Reads epochs of the log back, in two passes.

The first learns what is dead and what was defined, the second gives the messages that are alive. So memory does not
grow with the log: a living message is met when everything about it is known.

Compiled when the package is built (replay.pxd): a log of 128 MiB may hold millions of records.
"""

import struct
from typing import Protocol

from warrenmq.core.message import Message, QueuedMessage, enqueue_as, make_message
from warrenmq.journal.errors import BadRecord
from warrenmq.storage.codec import SEEN_ONLY, SEEN_TOO, read_trace
from warrenmq.storage.segments import Segment

_APPEND = 1
_AGAIN = 2
_FORGET = 3
_RANGE = 4
_DEFINE = 5
_UNDEFINE = 6
_EVENTS = 7
_EVENTS_KEPT = 8
_SEEN = 9

_RECORD_SIZE = 19
_TRACE_SIZE = 24
_TRACED = 0x80
_SEEN_HEAD = 14
_SEEN_SIZE = 24
_SEEN_ONLY = SEEN_ONLY
_SEEN_TOO = SEEN_TOO
_CHUNK_BITS = 10  # small ones: there may be 100,000 queues with an ack each
_CHUNK_OCTETS = 1 << (_CHUNK_BITS - 3)
PERSISTENT = 1
# Said again because the log was about to forget the first time.
CARRIED = 2
_CARRIED = CARRIED
_PERSISTENT = PERSISTENT

_unpack_record = struct.Struct("<QBHII").unpack_from
_unpack_u32 = struct.Struct("<I").unpack_from
_unpack_u64 = struct.Struct("<Q").unpack_from


class Forgotten:
    """A set of positions; a bit each, where they are dense."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}

    def add(self, position: int) -> None:
        chunk = self._chunks.get(position >> _CHUNK_BITS)
        if chunk is None:
            chunk = self._chunks[position >> _CHUNK_BITS] = bytearray(_CHUNK_OCTETS)
        index = position & ((1 << _CHUNK_BITS) - 1)
        chunk[index >> 3] |= 1 << (index & 7)

    def has(self, position: int) -> bool:
        chunk = self._chunks.get(position >> _CHUNK_BITS)
        if chunk is None:
            return False
        index = position & ((1 << _CHUNK_BITS) - 1)
        return chunk[index >> 3] >> (index & 7) & 1 == 1

    def mark(self, segment: Segment) -> None:
        """Mark those that lie in this segment as dead."""
        for number in range(segment.first >> _CHUNK_BITS, (segment.last >> _CHUNK_BITS) + 1):
            chunk = self._chunks.get(number)
            if chunk is not None:
                for place in range(_CHUNK_OCTETS):
                    octet = chunk[place]
                    position = (number << _CHUNK_BITS) + 8 * place
                    while octet:
                        if octet & 1 and segment.first <= position and position <= segment.last:
                            segment.bury(position, position)
                        octet >>= 1
                        position += 1


class LogReader(Protocol):
    """Whoever takes the living messages of one queue."""

    def last_position(self) -> int:
        """What is on disk up to here is not wanted again."""

    def take_back(self, entry: QueuedMessage) -> None: ...


class QueueReplay:
    """What the log says about one queue."""

    __slots__ = ("carried", "first_append", "forgotten", "next_position", "ranges", "store")

    def __init__(self) -> None:
        self.first_append = -1  # of those said for the first time: all from here on is in the log
        self.next_position = 0  # no position from here on was ever used
        self.forgotten: Forgotten | None = None
        self.ranges: list[tuple[int, int]] | None = None
        self.carried: dict[int, QueuedMessage] | None = None  # what was said again, as it was the last time
        self.store: LogReader | None = None  # who takes the living, in the second pass

    def is_dead(self, position: int) -> bool:
        if self.forgotten is not None and self.forgotten.has(position):
            return True
        if self.ranges is not None:
            for first, last in self.ranges:
                if first <= position and position <= last:
                    return True
        return False

    def mark(self, segment: Segment) -> None:
        """Mark in a segment what the log says is dead."""
        if self.forgotten is not None:
            self.forgotten.mark(segment)
        if self.ranges is not None:
            for first, last in self.ranges:
                segment.bury(max(first, segment.first), min(last, segment.last))

    def saw(self, position: int) -> None:
        if position >= self.next_position:
            self.next_position = position + 1

    def append(self, position: int) -> None:
        self.saw(position)
        if self.first_append < 0 or position < self.first_append:
            self.first_append = position

    def carry(self, message: Message, position: int, epoch: int) -> None:
        self.saw(position)
        entry = enqueue_as(message, position)
        entry.epoch = epoch
        if self.carried is None:
            self.carried = {}
        self.carried[position] = entry

    def forget(self, position: int) -> None:
        self.saw(position)
        if self.forgotten is None:
            self.forgotten = Forgotten()
        self.forgotten.add(position)

    def forget_range(self, first: int, last: int) -> None:
        self.saw(last)
        if self.ranges is None:
            self.ranges = []
        self.ranges.append((first, last))


class LogReplay:
    """Both passes over the epochs, which are given in order.

    `events` are the rows of the event log that are in none of its batches, with the numbers of the first and the last;
    `last_event` is the highest number that was ever used. `seen` are the ids that the log has of each owner, in order,
    `unseen` the epoch up to which nothing else counts that was kept of it.
    """

    __slots__ = ("_data", "_end", "definitions", "events", "last_event", "queues", "seen", "unseen")

    def __init__(self) -> None:
        self.queues: dict[int, QueueReplay] = {}
        self.definitions: list[tuple[bool, bytes]] = []  # of the last epoch learned
        self.events: list[tuple[int, int, bytes]] = []
        self.last_event = 0
        self.seen: dict[int, bytearray] = {}
        self.unseen: dict[int, int] = {}
        self._data = b""
        self._end = 0

    def learn(self, payload: bytes, epoch: int) -> None:
        """First pass: who is dead, what is defined, and what was carried."""
        self.definitions = []
        self._data = payload
        self._end = len(payload)
        offset = 0
        record = -1  # of the last APPEND
        message: Message | None = None  # the same, once somebody wants it
        while offset < self._end:
            kind = payload[offset]
            if kind == _APPEND:
                record = offset + 5
                offset = self._record_end(record)
                message = None
                queue = self._queue(self._u32(record - 4))
                if self._octet(record + 8) & _CARRIED:
                    message = self._message(record)
                    queue.carry(message, self._u64(record), epoch)
                else:
                    queue.append(self._u64(record))
            elif kind == _AGAIN:
                if record < 0:
                    raise BadRecord(offset, "a message is repeated that its epoch does not hold")
                queue = self._queue(self._u32(offset + 1))
                if self._octet(offset + 13) & _CARRIED:
                    if message is None:
                        message = self._message(record)
                    queue.carry(message, self._u64(offset + 5), epoch)
                else:
                    queue.append(self._u64(offset + 5))
                offset += 14
            elif kind == _FORGET:
                self._queue(self._u32(offset + 1)).forget(self._u64(offset + 5))
                offset += 13
            elif kind == _RANGE:
                self._queue(self._u32(offset + 1)).forget_range(self._u64(offset + 5), self._u64(offset + 13))
                offset += 21
            elif kind in (_DEFINE, _UNDEFINE):
                start = offset + 5
                offset = start + self._u32(offset + 1)
                if offset > self._end:
                    raise BadRecord(offset, "a definition is longer than its epoch")
                self.definitions.append((kind == _DEFINE, payload[start:offset]))
            elif kind == _EVENTS:
                start = offset + 21
                first = self._u64(offset + 1)
                last = self._u64(offset + 9)
                offset = start + self._u32(offset + 17)
                if offset > self._end:
                    raise BadRecord(offset, "rows of events are longer than their epoch")
                self._note_events(first, last, payload[start:offset])
            elif kind == _EVENTS_KEPT:
                last = self._u64(offset + 1)
                self.events = [rows for rows in self.events if rows[1] > last]
                self.last_event = max(self.last_event, last)
                offset += 9
            elif kind == _SEEN:
                start = offset + _SEEN_HEAD
                offset = start + _SEEN_SIZE * self._u32(offset + 10)
                if offset > self._end:
                    raise BadRecord(offset, "ids are longer than their epoch")
                self._note_seen(start, offset, epoch)
            else:
                raise BadRecord(offset, f"no record is of kind {kind}")

    def _note_events(self, first: int, last: int, rows: bytes) -> None:
        """What was said before of the same rows does not count any more."""
        while self.events and self.events[-1][0] >= first:
            self.events.pop()
        self.events.append((first, last, rows))
        self.last_event = max(self.last_event, last)

    def _note_seen(self, start: int, end: int, epoch: int) -> None:
        """The ids between the two, as the head before them says."""
        owner: int = _unpack_u64(self._data, start - 13)[0]  # may have all 64 bits
        how = self._octet(start - 5)
        if how != _SEEN_TOO or owner not in self.seen:
            self.seen[owner] = bytearray()
        if how == _SEEN_ONLY:
            self.unseen[owner] = epoch
        self.seen[owner] += self._data[start:end]

    def give(self, payload: bytes, epoch: int) -> None:
        """Second pass: hand the living to their stores."""
        self._data = payload
        self._end = len(payload)
        offset = 0
        record = -1  # of the last APPEND
        message: Message | None = None  # the same, once somebody wants it
        while offset < self._end:
            kind = payload[offset]
            if kind == _APPEND:
                record = offset + 5
                message = None
                if self._wants(self._u32(offset + 1), self._u64(record), self._octet(offset + 13)):
                    message = self._message(record)
                    self._hand_over(self._u32(offset + 1), message, self._u64(record), epoch)
                offset = self._record_end(record)
            elif kind == _AGAIN:
                if self._wants(self._u32(offset + 1), self._u64(offset + 5), self._octet(offset + 13)):
                    if message is None:
                        if record < 0:
                            raise BadRecord(offset, "a message is repeated that its epoch does not hold")
                        message = self._message(record)
                    self._hand_over(self._u32(offset + 1), message, self._u64(offset + 5), epoch)
                offset += 14
            elif kind == _FORGET:
                offset += 13
            elif kind == _RANGE:
                offset += 21
            elif kind == _EVENTS:
                offset += 21 + self._u32(offset + 17)
            elif kind == _EVENTS_KEPT:
                offset += 9
            elif kind == _SEEN:
                offset += _SEEN_HEAD + _SEEN_SIZE * self._u32(offset + 10)
            else:
                offset += 5 + self._u32(offset + 1)

    def _wants(self, number: int, position: int, flags: int) -> bool:
        queue: QueueReplay | None = self.queues.get(number)
        if queue is None or queue.store is None or flags & _CARRIED:
            return False
        return position > queue.store.last_position() and not queue.is_dead(position)

    def _hand_over(self, number: int, message: Message, position: int, epoch: int) -> None:
        entry = enqueue_as(message, position)
        entry.epoch = epoch
        queue: QueueReplay = self.queues[number]
        assert queue.store is not None
        queue.store.take_back(entry)

    def _queue(self, number: int) -> QueueReplay:
        queue = self.queues.get(number)
        if queue is None:
            queue = self.queues[number] = QueueReplay()
        return queue

    # -- reading -----------------------------------------------------------------------------------------------------

    def _octet(self, offset: int) -> int:
        if offset >= self._end:
            raise BadRecord(offset, "a record is cut short")
        return self._data[offset]

    def _u32(self, offset: int) -> int:
        if offset + 4 > self._end:
            raise BadRecord(offset, "a record is cut short")
        number: int = _unpack_u32(self._data, offset)[0]
        return number

    def _u64(self, offset: int) -> int:
        if offset + 8 > self._end:
            raise BadRecord(offset, "a record is cut short")
        number: int = _unpack_u64(self._data, offset)[0]
        return number

    def _record_end(self, offset: int) -> int:
        """Where the message record ends that begins there."""
        if offset + _RECORD_SIZE > self._end:
            raise BadRecord(offset, "a record is cut short")
        sizes = self._u32(offset + 11) + self._u32(offset + 15)
        if self._octet(offset + 8) & _TRACED:
            sizes += _TRACE_SIZE
        end = offset + _RECORD_SIZE + self._octet(offset + 9) + 256 * self._octet(offset + 10) + sizes
        if end > self._end:
            raise BadRecord(offset, "a record is longer than its epoch")
        return end

    def _message(self, offset: int) -> Message:
        end = self._record_end(offset)
        _, flags, address_size, header_size, _ = _unpack_record(self._data, offset)
        address_at = offset + _RECORD_SIZE
        if flags & _TRACED:
            address_at += _TRACE_SIZE
        header_at = address_at + address_size
        body_at = header_at + header_size
        data = self._data
        message = make_message(data[address_at:header_at], data[header_at:body_at], data[body_at:end])
        if flags & _TRACED:
            read_trace(data, offset + _RECORD_SIZE, message)
        return message


def count_alive(payload: bytes, first: int, dead: "bytearray | None") -> int:
    """How many persistent messages of a page are not marked dead."""
    alive = 0
    offset = 0
    while offset < len(payload):
        position, flags, address_size, header_size, body_size = _unpack_record(payload, offset)
        offset += _RECORD_SIZE + address_size + header_size + body_size
        if flags & _TRACED:
            offset += _TRACE_SIZE
        index = position - first
        if flags & _PERSISTENT and not (
            dead is not None and index >> 3 < len(dead) and dead[index >> 3] >> (index & 7) & 1
        ):
            alive += 1
    return alive
