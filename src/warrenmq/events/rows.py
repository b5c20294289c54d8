# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""The rows that the event loop collects, in one growing buffer, in the row format that docs/formats/events.md draws.

The commit log stores the same format, so passing rows to it is a copy. The names of an event (queue, key, consumer,
...) and its channel are its event context, a number in a row: few differ, and each is written once. A row that follows
directly from the previous one leaves out what they share.

`Rows` belongs to the event loop until `take`, whose result belongs to the caller. Nothing here blocks. Compiled
(rows.pxd).
"""

from typing import Any

from warrenmq.events import memory
from warrenmq.events.context_cache import ContextCache
from warrenmq.events.message_ids import clean_name, clean_text, pack_message_ids
from warrenmq.events.row_header import EventContext, RowHeader, encode_header, make_row_header, read_header
from warrenmq.events.row_reader import (
    DELIVERED_FOLLOWS,
    DETAILS,
    DIRECT_RECORD,
    FULL_RECORD,
    HAS_DETAILS,
    HAS_IDS,
    IS_PUBLISHED,
    IS_SHORT,
    PUBLISHED_RECORD,
    ROUTED_FOLLOWS,
    SAME_IDS,
    SHORT_RECORD,
    RowReader,
    check_rows,
    used_contexts,
)
from warrenmq.events.schema import ENQUEUED, MAX_CODE, PUBLISHED, Event

_FIRST_CAPACITY = 256 * 1024
_KEPT_CAPACITY = 4 * 1024 * 1024
_SPARES = 4  # buffers of up to that size to keep: the encoding thread may be some batches behind
_MAX_INT = 0x7FFF_FFFF  # of int32 columns
_CODES = MAX_CODE
# With so few contexts, finding out which of them some rows use takes ten times as long as copying the last row header.
_FEW_CONTEXTS = 16
# A batch numbers its names with 16 bits, and one more row may add six.
NAME_LIMIT = 32_000

# The same as C integers.
_NAME_LIMIT = NAME_LIMIT
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
_PUBLISHED = PUBLISHED
_ENQUEUED = ENQUEUED


class Rows:
    """Rows in the order they were added. `size` is the memory they take, in bytes.

    `time` is that of the last row; 0 if the next one must not refer to it: add it by `put` or `put_published`.
    """

    __slots__ = (
        "_capacity",
        "_context_numbers",
        "_contexts",
        "_data",
        "_expected",
        "_last_message_ids",
        "_logged_count",
        "_logged_size",
        "_names",
        "_numbers",
        "_record_at",
        "_row_header",
        "_spares",
        "context_cache",
        "count",
        "first_time",
        "has_details",
        "has_message_ids",
        "last_time",
        "size",
        "time",
    )

    count: int
    size: int
    first_time: int
    last_time: int
    _last_message_ids: bytes | None
    _logged_count: int
    _logged_size: int

    def __init__(self) -> None:
        self._spares: list[bytearray] = []
        self._expected = _FIRST_CAPACITY  # bytes the rows will need: starting with less costs a copy
        self.context_cache = ContextCache()
        self._begin()

    def add_event(self, kind: int, time: int, **fields: Any) -> None:
        """Add a row from fields of Event; for rare events."""
        self.add_row(Event(time, kind, **{"uid": 0, **fields}))

    def add_row(self, event: Event) -> None:
        """Add a row from an Event."""
        names = event.vhost, event.exchange, event.routing_key, event.queue, event.consumer, event.connection
        ids = event.message_id, event.correlation_id, event.trace_id, event.span_id
        self.put(
            event.kind,
            event.reason or 0,
            False,
            self._context_number((*[self._number_of(name) for name in names], _limited(event.channel or 0))),
            event.time,
            event.uid,
            event.publish_time or 0,
            pack_message_ids(event.source_uid or 0, *[_bytes(text) for text in ids]),
            event.enqueue_time or 0,
            -1 if event.size is None else event.size,
            -1 if event.depth is None else event.depth,
            event.attempt or 0,
            min(event.priority or 0, 255),
        )
        if event.note is not None or event.due_time is not None or event.retry_max is not None:
            self.put_details(event.due_time or 0, event.retry_max or 0, _bytes(event.note))

    def put(
        self,
        kind: int,
        reason: int,
        is_routed: bool,
        context: int,
        time: int,
        uid: int,
        publish_time: int,
        message_ids: bytes | None,
        enqueue_time: int,
        size: int,
        depth: int,
        attempt: int,
        priority: int,
    ) -> None:
        """Add a row, or two: the second is `routed`. Null: None, -1 for size and depth, else 0; priority <= 255."""
        room = _FULL_SIZE if message_ids is None else _FULL_SIZE + len(message_ids)
        if self.size + room > self._capacity:
            self._grow(room)
        flags = _ROUTED_FOLLOWS if is_routed else 0
        if message_ids is not None:
            flags |= _SAME_IDS if message_ids is self._last_message_ids and self.time != 0 else _HAS_IDS
        data: memory.Pointer = self._data
        at = self.size
        data[at] = kind & _CODES
        data[at + 1] = reason & _CODES
        data[at + 2] = flags
        data[at + 3] = priority
        memory.store_32(data, at + 4, context)
        memory.store_64(data, at + 8, time)
        memory.store_64(data, at + 16, uid)
        memory.store_64(data, at + 24, publish_time)
        memory.store_64(data, at + 32, enqueue_time)
        memory.store_32(data, at + 40, _limited(size) + 1 if size >= 0 else 0)
        memory.store_32(data, at + 44, _limited(depth) + 1 if depth >= 0 else 0)
        memory.store_32(data, at + 48, _limited(attempt))
        self._record_at = at
        self.size += _FULL_SIZE
        self._end_record(time, flags, message_ids)

    def put_details(self, due_time: int, retry_max: int, note: bytes | None) -> None:
        """Add these to the last row, which `put` has just added; null: 0 or None."""
        note = clean_text(note)
        length = 0 if note is None else len(note)
        if self.size + _DETAILS_SIZE + length > self._capacity:
            self._grow(_DETAILS_SIZE + length)
        data: memory.Pointer = self._data
        at = self.size
        data[self._record_at + 2] |= _HAS_DETAILS
        memory.store_64(data, at, due_time)
        memory.store_32(data, at + 8, _limited(retry_max))
        memory.store_32(data, at + 12, 0 if note is None else length + 1)
        if note is not None:
            memory.copy(data, at + _DETAILS_SIZE, note, 0, length)
        self.size += _DETAILS_SIZE + length
        self.has_details = True

    def put_published(
        self, is_routed: bool, context: int, time: int, uid: int, message_ids: bytes | None, size: int, priority: int
    ) -> None:
        """Add the `published` row of a message that is published now; or two, the second is `routed`."""
        room = _PUBLISHED_SIZE if message_ids is None else _PUBLISHED_SIZE + len(message_ids)
        if self.size + room > self._capacity:
            self._grow(room)
        flags = _IS_PUBLISHED | _ROUTED_FOLLOWS if is_routed else _IS_PUBLISHED
        if message_ids is not None:
            flags |= _HAS_IDS
        data: memory.Pointer = self._data
        at = self.size
        data[at] = _PUBLISHED
        data[at + 1] = 0
        data[at + 2] = flags
        data[at + 3] = priority
        memory.store_32(data, at + 4, context)
        memory.store_64(data, at + 8, time)
        memory.store_64(data, at + 16, uid)
        memory.store_32(data, at + 24, _limited(size) + 1)
        self.size += _PUBLISHED_SIZE
        self._end_record(time, flags, message_ids)

    def _end_record(self, time: int, flags: int, message_ids: bytes | None) -> None:
        """Add the ids to a record that is not short, and note what the next one may refer to."""
        if flags & _HAS_IDS and message_ids is not None:
            data: memory.Pointer = self._data
            memory.copy(data, self.size, message_ids, 0, len(message_ids))
            self.size += len(message_ids)
            self.has_message_ids = True
        self._last_message_ids = message_ids
        self.time = time
        if time < self.first_time or self.count == 0:
            self.first_time = time
        if time > self.last_time or self.count == 0:
            self.last_time = time
        self.count += 2 if flags & _ROUTED_FOLLOWS else 1

    def put_short(self, kind: int, reason: int, context: int, depth: int, attempt: int) -> None:
        """Add a row of the same message and time as the last one, enqueued at that time; attempt: up to 255."""
        if self.size + _SHORT_SIZE > self._capacity:
            self._grow(_SHORT_SIZE)
        data: memory.Pointer = self._data
        at = self.size
        data[at] = kind & _CODES
        data[at + 1] = reason & _CODES
        data[at + 2] = _IS_SHORT
        data[at + 3] = attempt
        memory.store_32(data, at + 4, context)
        memory.store_32(data, at + 8, _limited(depth) + 1 if depth >= 0 else 0)
        self.size += _SHORT_SIZE
        self.count += 1

    def put_direct_delivery(self, enqueue_context: int, context: int, depth: int) -> None:
        """Add two rows of the same message and time as the last one: `enqueued`, and `delivered` without acks."""
        if self.size + _DIRECT_SIZE > self._capacity:
            self._grow(_DIRECT_SIZE)
        data: memory.Pointer = self._data
        at = self.size
        data[at] = _ENQUEUED
        data[at + 1] = 0
        data[at + 2] = _IS_SHORT | _DELIVERED_FOLLOWS
        data[at + 3] = 0
        memory.store_32(data, at + 4, enqueue_context)
        memory.store_32(data, at + 8, _limited(depth) + 1)
        memory.store_32(data, at + 12, context)
        self.size += _DIRECT_SIZE
        self.count += 2

    def context_of(
        self,
        address: bytes | None,
        vhost: str | None,
        queue: str | None,
        consumer: str | None,
        connection: str | None,
        channel: int,
    ) -> int:
        """Return the number of a context; `address`: exchange and routing key as two short strings."""
        exchange = routing_key = 0
        if address is not None:
            key_at = 1 + address[0]
            exchange = self._number_of(_text(address[1:key_at]))
            routing_key = self._number_of(_text(address[key_at + 1 :]))
        others = [self._number_of(name) for name in (vhost, queue, consumer, connection)]
        return self._context_number((others[0], exchange, routing_key, *others[1:], _limited(channel)))

    def _context_number(self, context: EventContext) -> int:
        number = self._context_numbers.get(context)
        if number is None:
            number = self._context_numbers[context] = len(self._contexts)
            self._contexts.append(context)
        return number

    def _number_of(self, name: str | None) -> int:
        number = self._numbers.get(name)
        return self._add_name(name) if number is None else number

    def _add_name(self, name: Any) -> int:
        clean = clean_name(name)
        if clean != name:
            number = self._number_of(clean)
        else:
            number = len(self._names)
            self._names.append(name.encode())
        self._numbers[name] = number
        return number

    def is_full(self, count: int) -> bool:
        """Return True if there are `count` rows, or as many names as a batch can hold."""
        return self.count >= count or len(self._names) >= _NAME_LIMIT

    def take(self) -> "Rows":
        """Move all rows to a new object, and start again."""
        taken = Rows.__new__(Rows)
        taken._spares = []
        taken._expected = _FIRST_CAPACITY
        taken._data = self._data
        taken._capacity = self._capacity
        taken._names = self._names
        taken._numbers = self._numbers
        taken._contexts = self._contexts
        taken._context_numbers = self._context_numbers
        taken.context_cache = ContextCache()  # the other one stays with the loop
        taken._row_header = self._row_header
        taken._last_message_ids = None
        taken._logged_size = self._logged_size
        taken._logged_count = self._logged_count
        taken.size = self.size
        taken.count = self.count
        taken.first_time = self.first_time
        taken.last_time = self.last_time
        taken.time = 0
        taken.has_message_ids = self.has_message_ids
        taken.has_details = self.has_details
        taken._record_at = 0
        self._expected = min(self._capacity, _KEPT_CAPACITY)
        self._begin()
        return taken

    def recycle(self, rows: "Rows") -> None:
        """Take the buffer of rows that are no longer read: new memory costs zeroing and page faults."""
        if rows._capacity <= _KEPT_CAPACITY and len(self._spares) < _SPARES:
            self._spares.append(rows._data)
        rows._data = bytearray()
        rows._capacity = rows.size = 0

    def take_unlogged(self) -> bytes | None:
        """Return the rows added since the last call in their encoded form; None if there are none."""
        if self._logged_count == self.count:
            return None
        raw = self._raw_from(self._logged_size, self.count - self._logged_count)
        self._logged_size = self.size
        self._logged_count = self.count
        self.time = 0  # the next part must not refer to this one
        return raw

    def to_bytes(self) -> bytes:
        """Return all rows in their encoded form."""
        return self._raw_from(0, self.count)

    @staticmethod
    def from_bytes(raw: bytes) -> "Rows":
        rows = Rows()
        rows.extend(raw)
        return rows

    def extend(self, raw: bytes) -> int:
        """Add rows from their encoded form and return their number. BadEvents: damaged, and nothing was added."""
        count, names, contexts, at = read_header(raw)
        check_rows(RowReader(raw, at, len(raw)), count, contexts)
        known = {
            number: self._context_number((*[self._number_of(names[name]) for name in context[:6]], context[6]))
            for number, context in contexts.items()
        }
        reader = RowReader(raw, at, len(raw))
        message_ids: bytes | None = None
        ids_at = 0
        read = reader.read()
        while read != 0:
            for row in range(read):
                if reader.ids_at[row] != ids_at:
                    ids_at = reader.ids_at[row]
                    message_ids = pack_message_ids(*reader.message_ids(row))
                self.put(
                    reader.kinds[row],
                    reader.reasons[row],
                    False,
                    known[reader.contexts[row]],
                    reader.times[row],
                    reader.uids[row],
                    reader.publish_times[row],
                    message_ids,
                    reader.enqueue_times[row],
                    reader.sizes[row] if reader.validity[row] & 16 else -1,
                    reader.depths[row] if reader.validity[row] & 32 else -1,
                    reader.attempts[row],
                    reader.priorities[row],
                )
                if reader.details_at[row] != 0:
                    self.put_details(*reader.details(row))
            read = reader.read()
        return count

    def reader(self) -> "RowReader":
        """Return a reader of all rows; none may be added while it is used."""
        return RowReader(self._data, 0, self.size)

    def names(self) -> list[bytes]:
        """Return the names by number; number 0 is null."""
        return self._names

    def contexts(self) -> list[EventContext]:
        """Return the contexts by number."""
        return self._contexts

    def events(self) -> list[Event]:
        found: list[Event] = []
        names: list[str | None] = [None, *[name.decode() for name in self._names[1:]]]
        reader = self.reader()
        count = reader.read()
        while count != 0:
            for row in range(count):
                found.append(reader.event(row, names, self._contexts))
            count = reader.read()
        return found

    def _begin(self) -> None:
        self._data = self._spares.pop() if self._spares else bytearray(self._expected)
        self._capacity = len(self._data)
        self._names: list[bytes] = [b""]
        self._numbers: dict[Any, int] = {None: 0}
        self._contexts: list[EventContext] = []
        self._context_numbers: dict[EventContext, int] = {}
        self.context_cache.clear()
        self._row_header: RowHeader | None = None  # of all contexts so far
        self._last_message_ids = None
        self._logged_size = 0
        self._logged_count = 0
        self.size = 0
        self.count = 0
        self.first_time = 0
        self.last_time = 0
        self.time = 0
        self.has_message_ids = False
        self.has_details = False
        self._record_at = 0

    def _grow(self, needed: int) -> None:
        grown = bytearray(max(2 * self._capacity, self.size + needed))
        grown[: self.size] = self._data[: self.size]
        self._data = grown
        self._capacity = len(grown)

    def _raw_from(self, start: int, count: int) -> bytes:
        """Return the header, with the names and contexts used from here on (or all), and the rows."""
        if count < len(self._contexts) and len(self._contexts) > _FEW_CONTEXTS:
            used = used_contexts(RowReader(self._data, start, self.size), len(self._contexts))
            row_header = make_row_header(self._names, self._contexts, used)
        else:  # reused until there is a new context
            if self._row_header is None or self._row_header[1] != len(self._contexts):
                self._row_header = make_row_header(self._names, self._contexts, list(range(len(self._contexts))))
            row_header = self._row_header
        return b"".join((encode_header(count, row_header), memoryview(self._data)[start : self.size]))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else clean_name(text).encode()


def _limited(value: int) -> int:
    if value < 0:
        return 0
    return value if value < _MAX_INT else _MAX_INT
