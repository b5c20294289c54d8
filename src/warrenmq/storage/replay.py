"""Replays the commit log in two passes.

The first one collects deletions and definitions, the second one hands live messages to their stores. So memory does not
grow with the log: when a live message is read, everything about it is known. An epoch is checked as a whole first, so
that it applies as a whole or not at all.

Compiled when the package is built (replay.pxd): a log of 128 MiB may hold millions of records.
"""

import struct
from typing import Protocol

from warrenmq.core.message import Message, QueuedMessage, enqueue_as, make_message
from warrenmq.journal.errors import BadRecord
from warrenmq.journal.record import PERSISTENT, RELOGGED
from warrenmq.storage.codec import SEEN_ADD, SEEN_REPLACE_ALL, fields_size, read_fields, restore_message
from warrenmq.storage.segments import Segment

_APPEND = 1
_AGAIN = 2
_FORGET = 3
_RANGE = 4
_DEFINE = 5
_UNDEFINE = 6
_EVENTS = 7
_EVENTS_DISCARDED = 8
_SEEN = 9

_ATTEMPTS = 10
_POSITION = 11
_OFFSET = 12

_RECORD_SIZE = 19
_AGAIN_SIZE = 14
_SEEN_HEAD = 14
_SEEN_SIZE = 24
_OFFSET_HEAD = 14
_SEEN_ADD = SEEN_ADD
_SEEN_REPLACE_ALL = SEEN_REPLACE_ALL
_CHUNK_BITS = 10  # small: 100,000 queues may have one ack each
_CHUNK_BYTES = 1 << (_CHUNK_BITS - 3)
_RELOGGED = RELOGGED
_PERSISTENT = PERSISTENT

_unpack_record = struct.Struct("<QBHII").unpack_from
_unpack_u32 = struct.Struct("<I").unpack_from
_unpack_u64 = struct.Struct("<Q").unpack_from


class DeletedPositions:
    """A set of positions in chunks of bits."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}

    def add(self, position: int) -> None:
        chunk = self._chunks.get(position >> _CHUNK_BITS)
        if chunk is None:
            chunk = self._chunks[position >> _CHUNK_BITS] = bytearray(_CHUNK_BYTES)
        index = position & ((1 << _CHUNK_BITS) - 1)
        chunk[index >> 3] |= 1 << (index & 7)

    def has(self, position: int) -> bool:
        chunk = self._chunks.get(position >> _CHUNK_BITS)
        if chunk is None:
            return False
        index = position & ((1 << _CHUNK_BITS) - 1)
        return chunk[index >> 3] >> (index & 7) & 1 == 1

    def mark(self, segment: Segment) -> None:
        """Mark the positions that are in this segment as deleted."""
        for number in range(segment.first >> _CHUNK_BITS, (segment.last >> _CHUNK_BITS) + 1):
            chunk = self._chunks.get(number)
            if chunk is not None:
                for place in range(_CHUNK_BYTES):
                    bits = chunk[place]
                    position = (number << _CHUNK_BITS) + 8 * place
                    while bits:
                        if bits & 1 and segment.first <= position and position <= segment.last:
                            segment.mark_inexact(position, position)
                        bits >>= 1
                        position += 1


class LogReader(Protocol):
    """The store of a queue or stream, during recovery."""

    @property
    def last_position(self) -> int:
        """The last position on disk: messages up to it are not read from the log."""

    def restore_message(self, entry: QueuedMessage) -> None:
        """Take a live message that only the log has."""


class QueueReplay:
    """What the log says about one queue."""

    __slots__ = ("attempts", "deleted", "first_append", "next_position", "ranges", "relogged", "store")

    def __init__(self) -> None:
        self.first_append = -1  # first position not relogged: the log has everything from here on
        self.next_position = 0  # above all used positions
        self.deleted: DeletedPositions | None = None
        self.ranges: list[tuple[int, int]] | None = None
        self.relogged: dict[int, QueuedMessage] | None = None  # as last logged
        self.attempts: dict[int, int] | None = None  # by position
        self.store: LogReader | None = None  # receives live messages in the second pass

    def is_dead(self, position: int) -> bool:
        if self.deleted is not None and self.deleted.has(position):
            return True
        if self.ranges is not None:
            for first, last in self.ranges:
                if first <= position and position <= last:
                    return True
        return False

    def mark(self, segment: Segment) -> None:
        """Mark the deletions in the log on a segment."""
        if self.deleted is not None:
            self.deleted.mark(segment)
        if self.ranges is not None:
            for first, last in self.ranges:
                segment.mark_inexact(max(first, segment.first), min(last, segment.last))

    def has_records(self) -> bool:
        """Return True if the log has more of the queue than its next position."""
        has_changes = self.deleted is not None or self.ranges is not None or self.attempts is not None
        return has_changes or self.relogged is not None or self.first_append >= 0

    def note_used(self, position: int) -> None:
        if position >= self.next_position:
            self.next_position = position + 1

    def append(self, position: int) -> None:
        self.note_used(position)
        if self.first_append < 0 or position < self.first_append:
            self.first_append = position

    def relog(self, entry: QueuedMessage) -> None:
        self.note_used(entry.position)
        if self.relogged is None:
            self.relogged = {}
        self.relogged[entry.position] = entry

    def forget(self, position: int) -> None:
        self.note_used(position)
        if self.deleted is None:
            self.deleted = DeletedPositions()
        self.deleted.add(position)

    def forget_range(self, first: int, last: int) -> None:
        self.note_used(last)
        if self.ranges is None:
            self.ranges = []
        elif first <= self.ranges[-1][1] + 1 and last >= self.ranges[-1][0] - 1:
            # An expiring backlog is deleted page by page: keep it one range.
            before = self.ranges.pop()
            first, last = min(first, before[0]), max(last, before[1])
        self.ranges.append((first, last))

    def set_attempts(self, position: int, attempts: int) -> None:
        self.note_used(position)
        if self.attempts is None:
            self.attempts = {}
        self.attempts[position] = attempts

    def deleted_below(self) -> int:
        """Return the first position after all ranges: for a stream, what retention has left."""
        return max([last + 1 for _, last in self.ranges]) if self.ranges is not None else 0


class LogReplay:
    """Both passes over the epochs, in order.

    `events` are the rows of the event log that are in none of its batches, with first and last number; `last_event` is
    the highest number used. `seen` are the ids of each owner in the log, in order; `reset_epochs` the epoch that last
    replaced them: older files are ignored. `offsets` are those of tracked consumers by stream and consumer tag, in the
    order they were last logged.
    """

    __slots__ = (
        "_data",
        "_end",
        "_message",
        "_message_at",
        "events",
        "last_event",
        "offsets",
        "queues",
        "reset_epochs",
        "seen",
    )

    def __init__(self) -> None:
        self.queues: dict[int, QueueReplay] = {}
        self.events: list[tuple[int, int, bytes]] = []
        self.last_event = 0
        self.seen: dict[int, bytearray] = {}
        self.reset_epochs: dict[int, int] = {}
        self.offsets: dict[int, dict[bytes, int]] = {}
        self._data = b""
        self._end = 0
        self._message: Message = make_message(b"", b"", b"")  # the last decoded one, of the record at `_message_at`
        self._message_at = -1

    def check(self, payload: bytes) -> list[bytes]:
        """Raise BadRecord unless every record of the epoch is whole; return its definitions. Changes nothing."""
        self._read(payload)
        definitions: list[bytes] = []
        has_message = False
        offset = 0
        while offset < self._end:
            kind = payload[offset]
            end = self._end_of(offset, kind)
            if end > self._end:
                raise BadRecord(offset, "a record is longer than its epoch")
            if kind == _APPEND:
                has_message = True
            elif kind == _AGAIN and not has_message:
                raise BadRecord(offset, "it repeats a message that is not in the epoch")
            elif kind in (_DEFINE, _UNDEFINE):
                definitions.append(payload[offset + 5 : end])
            elif kind == _SEEN and payload[offset + 9] > _SEEN_REPLACE_ALL:
                raise BadRecord(offset, f"unknown mode of ids: {payload[offset + 9]}")
            offset = end
        return definitions

    def scan(self, payload: bytes, epoch: int) -> None:
        """First pass, for a checked epoch: collect deletions and relogged messages."""
        self._read(payload)
        offset = 0
        record = -1  # of the last APPEND
        while offset < self._end:
            kind = payload[offset]
            if kind == _APPEND:
                record = offset + 5
                queue = self._queue(self._u32(offset + 1))
                if payload[record + 8] & _RELOGGED:
                    queue.relog(self._entry(record, record, epoch))
                else:
                    queue.append(self._u64(record))
            elif kind == _AGAIN:
                queue = self._queue(self._u32(offset + 1))
                if payload[offset + 13] & _RELOGGED:
                    queue.relog(self._entry(record, offset + 5, epoch))
                else:
                    queue.append(self._u64(offset + 5))
            elif kind == _FORGET:
                self._queue(self._u32(offset + 1)).forget(self._u64(offset + 5))
            elif kind == _RANGE:
                self._queue(self._u32(offset + 1)).forget_range(self._u64(offset + 5), self._u64(offset + 13))
            elif kind == _EVENTS:
                rows = payload[offset + 21 : offset + 21 + self._u32(offset + 17)]
                self._note_events(self._u64(offset + 1), self._u64(offset + 9), rows)
            elif kind == _EVENTS_DISCARDED:
                last = self._u64(offset + 1)
                self.events = [rows for rows in self.events if rows[1] > last]
                self.last_event = max(self.last_event, last)
            elif kind == _SEEN:
                self._note_seen(offset, epoch)
            elif kind == _ATTEMPTS:
                self._queue(self._u32(offset + 1)).set_attempts(self._u64(offset + 5), self._u32(offset + 13))
            elif kind == _POSITION:
                self._queue(self._u32(offset + 1)).note_used(self._u64(offset + 5) - 1)
            elif kind == _OFFSET:
                self._note_offset(self._u32(offset + 1), self._u64(offset + 5), offset + _OFFSET_HEAD)
            offset = self._end_of(offset, kind)

    def _note_events(self, first: int, last: int, rows: bytes) -> None:
        """Add rows; they replace earlier ones with the same numbers."""
        while self.events and self.events[-1][0] >= first:
            self.events.pop()
        self.events.append((first, last, rows))
        self.last_event = max(self.last_event, last)

    def _note_seen(self, offset: int, epoch: int) -> None:
        """Apply a record of ids, as its head says."""
        owner: int = _unpack_u64(self._data, offset + 1)[0]  # uses all 64 bits
        how = self._data[offset + 9]
        if how != _SEEN_ADD or owner not in self.seen:
            self.seen[owner] = bytearray()
        if how == _SEEN_REPLACE_ALL:
            self.reset_epochs[owner] = epoch
        self.seen[owner] += self._data[offset + _SEEN_HEAD : self._end_of(offset, _SEEN)]

    def _note_offset(self, stream: int, position: int, tag_at: int) -> None:
        """Apply an offset; 0 removes it."""
        offsets = self.offsets.setdefault(stream, {})
        tag = self._data[tag_at : tag_at + self._data[tag_at - 1]]
        offsets.pop(tag, None)
        if position:
            offsets[tag] = position

    def restore_messages(self, payload: bytes, epoch: int) -> None:
        """Second pass: hand live messages to their stores."""
        self._read(payload)
        offset = 0
        record = -1  # of the last APPEND
        while offset < self._end:
            kind = payload[offset]
            if kind == _APPEND:
                record = offset + 5
                if self._wants(self._u32(offset + 1), self._u64(record), payload[record + 8]):
                    self._restore(self._u32(offset + 1), self._entry(record, record, epoch))
            elif kind == _AGAIN and self._wants(self._u32(offset + 1), self._u64(offset + 5), payload[offset + 13]):
                self._restore(self._u32(offset + 1), self._entry(record, offset + 5, epoch))
            offset = self._end_of(offset, kind)

    def _wants(self, number: int, position: int, flags: int) -> bool:
        queue: QueueReplay | None = self.queues.get(number)
        if queue is None or queue.store is None or flags & _RELOGGED:
            return False
        return position > queue.store.last_position and not queue.is_dead(position)

    def _restore(self, number: int, entry: QueuedMessage) -> None:
        queue: QueueReplay = self.queues[number]
        if queue.attempts is not None:
            entry.attempts = queue.attempts.get(entry.position, 0)
        assert queue.store is not None
        queue.store.restore_message(entry)

    def _queue(self, number: int) -> QueueReplay:
        queue = self.queues.get(number)
        if queue is None:
            queue = self.queues[number] = QueueReplay()
        return queue

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self, payload: bytes) -> None:
        self._data = payload
        self._end = len(payload)
        self._message_at = -1

    def _end_of(self, offset: int, kind: int) -> int:
        """Return the end of the record at this offset; raise BadRecord if it cannot be known."""
        if kind == _APPEND:
            return self._end_of_message(offset + 5)
        if kind == _AGAIN:
            return offset + _AGAIN_SIZE + fields_size(self._byte(offset + 13))
        if kind in (_FORGET, _POSITION):
            return offset + 13
        if kind == _RANGE:
            return offset + 21
        if kind in (_DEFINE, _UNDEFINE):
            return offset + 5 + self._u32(offset + 1)
        if kind == _EVENTS:
            return offset + 21 + self._u32(offset + 17)
        if kind == _EVENTS_DISCARDED:
            return offset + 9
        if kind == _SEEN:
            return offset + _SEEN_HEAD + _SEEN_SIZE * self._u32(offset + 10)
        if kind == _ATTEMPTS:
            return offset + 17
        if kind == _OFFSET:
            return offset + _OFFSET_HEAD + self._byte(offset + _OFFSET_HEAD - 1)
        raise BadRecord(offset, f"unknown record kind {kind}")

    def _end_of_message(self, offset: int) -> int:
        if offset + _RECORD_SIZE > self._end:
            raise BadRecord(offset, "a record is cut short")
        sizes = self._u32(offset + 11) + self._u32(offset + 15) + fields_size(self._data[offset + 8])
        return offset + _RECORD_SIZE + self._data[offset + 9] + 256 * self._data[offset + 10] + sizes

    def _entry(self, record: int, place: int, epoch: int) -> QueuedMessage:
        """Return the message of a record, with the position, flags and optional fields at `place`."""
        if record != self._message_at:
            self._message = self._read_message(record)
            self._message_at = record
        entry = enqueue_as(self._message, self._u64(place))
        entry.epoch = epoch
        flags = self._data[place + 8]
        if fields_size(flags) != 0:
            read_fields(self._data, place + (_RECORD_SIZE if place == record else 9), flags, entry)
        return entry

    def _read_message(self, record: int) -> Message:
        data = self._data
        _, flags, address_size, header_size, body_size = _unpack_record(data, record)
        address_at = record + _RECORD_SIZE + fields_size(flags)
        header_at = address_at + address_size
        body_at = header_at + header_size
        body = data[body_at : body_at + body_size]
        message = restore_message(data[address_at:header_at], data[header_at:body_at], body)
        read_fields(data, record + _RECORD_SIZE, flags, enqueue_as(message, 0))
        return message

    def _byte(self, offset: int) -> int:
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


def count_alive(payload: bytes, first: int, dead: "bytearray | None") -> tuple[int, int]:
    """Return how many persistent messages of a page are not marked dead, and the bytes of their bodies."""
    alive = 0
    alive_bytes = 0
    offset = 0
    while offset < len(payload):
        position, flags, address_size, header_size, body_size = _unpack_record(payload, offset)
        offset += _RECORD_SIZE + fields_size(flags) + address_size + header_size + body_size
        index = position - first
        if flags & _PERSISTENT and not (
            dead is not None and index >> 3 < len(dead) and dead[index >> 3] >> (index & 7) & 1
        ):
            alive += 1
            alive_bytes += body_size
    return alive, alive_bytes
