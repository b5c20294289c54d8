# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Events as the loop gathers them: rows in one growing buffer, in the raw form that docs/formats/events.md draws.

The raw form is also what the commit log keeps, so handing rows to it is a copy. Where something happened and who had to
do with it (queue, key, consumer, ...) is a context, a number in a row: few differ, and they are written once. What
follows at once from the row before leaves out what they share.

`Rows` belongs to the loop until `take`, whose result belongs to whoever gets it. Nothing here blocks. One of the files
that know whether they are compiled (docs/decisions/0002), in the functions at the end: C copies bytes, Python slices.
Compiled when the package is built (rows.pxd).
"""

from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

from warrenmq.events.context_cache import ContextCache
from warrenmq.events.message_ids import clean_name, pack_message_ids
from warrenmq.events.row_header import EventContext, RowHeader, encode_header, make_row_header, read_header
from warrenmq.events.row_reader import (
    DELIVERED_FOLLOWS,
    DIRECT_RECORD,
    FULL_RECORD,
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

Pointer: TypeAlias = Any  # an unsigned char * in compiled code, a bytearray or bytes in plain Python

_FIRST_CAPACITY = 256 * 1024
_KEPT_CAPACITY = 4 * 1024 * 1024
_SPARES = 4  # buffers of that size at most that are kept: the thread that encodes may be some batches behind
_HIGHEST = 0x7FFF_FFFF  # of the columns with 32 bits
_CODES = MAX_CODE
# To look which of so few contexts are told of takes ten times as long as to tell all of them, as the last time.
_FEW_CONTEXTS = 16
# A batch numbers its names with 16 bits, and one more row may bring six.
NAME_LIMIT = 32_000

# Flags and sizes of a record (row_reader.py), as C integers.
_HAS_IDS = HAS_IDS
_SAME_IDS = SAME_IDS
_ROUTED_FOLLOWS = ROUTED_FOLLOWS
_IS_SHORT = IS_SHORT
_DELIVERED_FOLLOWS = DELIVERED_FOLLOWS
_IS_PUBLISHED = IS_PUBLISHED
_FULL_SIZE = FULL_RECORD.size
_SHORT_SIZE = SHORT_RECORD.size
_DIRECT_SIZE = DIRECT_RECORD.size
_PUBLISHED_SIZE = PUBLISHED_RECORD.size
_PUBLISHED = PUBLISHED
_ENQUEUED = ENQUEUED
_FULL_NAMES = NAME_LIMIT


class TracedMessage:
    """The fields that all rows of one message share; `message_ids` are packed as in a row."""

    __slots__ = ("message_ids", "priority", "publish_time", "uid")

    def __init__(
        self,
        uid: int,
        publish_time: int,
        source_uid: int = 0,
        message_id: bytes | None = None,
        correlation_id: bytes | None = None,
        trace_id: bytes | None = None,
        span_id: bytes | None = None,
        priority: int = 0,
    ) -> None:
        self.uid = uid
        self.publish_time = publish_time
        self.message_ids = pack_message_ids(source_uid, message_id, correlation_id, trace_id, span_id)
        self.priority = priority


class Rows:
    """Rows in the order they were added. `size` is the memory they take.
    `time` is that of the last one; 0 where the next must not refer to it, and has to say all (`put`, `put_published`).
    `context_cache` knows contexts of these rows by the objects that they are of.
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
        "_row_header",
        "_spares",
        "context_cache",
        "count",
        "first_time",
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
        self._expected = _FIRST_CAPACITY  # what rows take: to begin with less would cost a copy
        self.context_cache = ContextCache()
        self._begin()

    def add(
        self,
        kind: int,
        time: int,
        trace: TracedMessage | None,
        address: bytes | None,
        vhost: str | None,
        queue: str | None,
        consumer: str | None,
        connection: str | None,
        channel: int,
        enqueue_time: int,
        size: int,
        attempt: int,
        reason: int,
        depth: int,
    ) -> None:
        """Add a row; `address`: exchange and routing key as two short strings.

        Null is None, 0 for channel, enqueue_time, attempt and reason, and -1 for size and depth.
        """
        context = self.context_of(address, vhost, queue, consumer, connection, channel)
        trace = trace or _NO_MESSAGE
        self.put(
            kind,
            reason,
            False,
            context,
            time,
            trace.uid,
            trace.publish_time,
            trace.message_ids,
            enqueue_time,
            size,
            depth,
            attempt,
            trace.priority,
        )

    def add_event(self, kind: int, time: int, **fields: Any) -> None:
        """One more row, by the names of the fields of Event; for what happens seldom."""
        self.add_row(Event(time, kind, **{"uid": 0, **fields}))

    def add_row(self, event: Event) -> None:
        """The same from an Event."""
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
        """Add a row, or two: the second is `routed`. Nulls as in `add`; priority: 0 to 255, 0 is null."""
        room = _FULL_SIZE if message_ids is None else _FULL_SIZE + len(message_ids)
        if self.size + room > self._capacity:
            self._grow(room)
        flags = _ROUTED_FOLLOWS if is_routed else 0
        if message_ids is not None:
            flags |= _SAME_IDS if message_ids is self._last_message_ids and self.time != 0 else _HAS_IDS
        data: Pointer = self._data
        _put_record(
            data,
            self.size,
            kind & _CODES,
            reason & _CODES,
            flags,
            priority,
            context,
            time,
            uid,
            publish_time,
            enqueue_time,
            _limited(size) + 1 if size >= 0 else 0,
            _limited(depth) + 1 if depth >= 0 else 0,
            _limited(attempt),
        )
        self.size += _FULL_SIZE
        self._end_record(time, flags, message_ids)

    def put_published(
        self, is_routed: bool, context: int, time: int, uid: int, message_ids: bytes | None, size: int, priority: int
    ) -> None:
        """The row of a message that is published now; or two, the second of the kind "routed"."""
        room = _PUBLISHED_SIZE if message_ids is None else _PUBLISHED_SIZE + len(message_ids)
        if self.size + room > self._capacity:
            self._grow(room)
        flags = _IS_PUBLISHED | _ROUTED_FOLLOWS if is_routed else _IS_PUBLISHED
        if message_ids is not None:
            flags |= _HAS_IDS
        data: Pointer = self._data
        _put_published(data, self.size, flags, priority, context, time, uid, _limited(size) + 1)
        self.size += _PUBLISHED_SIZE
        self._end_record(time, flags, message_ids)

    def _end_record(self, time: int, flags: int, message_ids: bytes | None) -> None:
        """What comes behind a record that says all, and what is known of it."""
        if flags & _HAS_IDS and message_ids is not None:
            _put_bytes(self._data, self.size, message_ids, len(message_ids))
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
        data: Pointer = self._data
        _put_short(
            data, self.size, kind & _CODES, reason & _CODES, context, _limited(depth) + 1 if depth >= 0 else 0, attempt
        )
        self.size += _SHORT_SIZE
        self.count += 1

    def put_direct_delivery(self, came: int, context: int, depth: int) -> None:
        """Two rows of the same message and time as the one before: it came to a queue, and was delivered by that."""
        if self.size + _DIRECT_SIZE > self._capacity:
            self._grow(_DIRECT_SIZE)
        data: Pointer = self._data
        _put_direct(data, self.size, came, context, _limited(depth) + 1)
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
        """The number of this context."""
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
        return self._learn(name) if number is None else number

    def _learn(self, name: Any) -> int:
        clean = clean_name(name)
        if clean != name:
            number = self._number_of(clean)
        else:
            number = len(self._names)
            self._names.append(name.encode())
        self._numbers[name] = number
        return number

    def is_full(self, count: int) -> bool:
        """Whether there are so many, or as many names as a batch can have."""
        return self.count >= count or len(self._names) >= _FULL_NAMES

    def take(self) -> "Rows":
        """All rows, as an object that nobody else has; this one begins anew."""
        taken = Rows.__new__(Rows)
        taken._spares = []
        taken._expected = _FIRST_CAPACITY
        taken._data = self._data
        taken._capacity = self._capacity
        taken._names = self._names
        taken._numbers = self._numbers
        taken._contexts = self._contexts
        taken._context_numbers = self._context_numbers
        taken.context_cache = ContextCache()  # what the loop's own objects are found by stays here, and goes
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
        self._expected = min(self._capacity, _KEPT_CAPACITY)
        self._begin()
        return taken

    def recycle(self, rows: "Rows") -> None:
        """Take the memory of rows that nobody reads any more: fresh memory has to be zeroed, and costs page faults."""
        if rows._capacity <= _KEPT_CAPACITY and len(self._spares) < _SPARES:
            self._spares.append(rows._data)
        rows._data = bytearray()
        rows._capacity = rows.size = 0

    def take_unlogged(self) -> bytes | None:
        """The raw form of what was added since the last call; None: nothing was."""
        if self._logged_count == self.count:
            return None
        raw = self._raw_from(self._logged_size, self.count - self._logged_count)
        self._logged_size = self.size
        self._logged_count = self.count
        self.time = 0  # the next part must not refer to this one
        return raw

    def to_bytes(self) -> bytes:
        """The raw form of all rows."""
        return self._raw_from(0, self.count)

    @staticmethod
    def from_bytes(raw: bytes) -> "Rows":
        rows = Rows()
        rows.extend(raw)
        return rows

    def extend(self, raw: bytes) -> int:
        """Add the rows of a raw form and give their number. BadEvents: it is damaged, and nothing was added."""
        count, names, contexts, at = read_header(raw)
        check_rows(RowReader(raw, at, len(raw)), count, contexts)
        known = {
            number: self._context_number((*[self._number_of(names[name]) for name in context[:6]], context[6]))
            for number, context in contexts.items()
        }
        reader = RowReader(raw, at, len(raw))
        while reader.advance():
            self.put(
                reader.kind,
                reader.reason,
                False,
                known[reader.context],
                reader.time,
                reader.uid,
                reader.publish_time,
                _pack_ids_of(reader),
                reader.enqueue_time,
                reader.size,
                reader.depth,
                reader.attempt,
                reader.priority,
            )
        return count

    def reader(self) -> "RowReader":
        """Reads the rows from the first on; nothing may be added meanwhile."""
        return RowReader(self._data, 0, self.size)

    def names(self) -> list[bytes]:
        """By number; number 0 stands for no name."""
        return self._names

    def contexts(self) -> list[EventContext]:
        """By number."""
        return self._contexts

    def events(self) -> list[Event]:
        found = []
        names: list[str | None] = [None]
        names += [name.decode() for name in self._names[1:]]
        reader = self.reader()
        while reader.advance():
            found.append(reader.event(names, self._contexts))
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

    def _grow(self, needed: int) -> None:
        grown = bytearray(max(2 * self._capacity, self.size + needed))
        grown[: self.size] = self._data[: self.size]
        self._data = grown
        self._capacity = len(grown)

    def _raw_from(self, start: int, count: int) -> bytes:
        """The head, the names and contexts that are used from here on (or all), and the rows as they are."""
        if count < len(self._contexts) and len(self._contexts) > _FEW_CONTEXTS:
            used = used_contexts(RowReader(self._data, start, self.size), len(self._contexts))
            row_header = make_row_header(self._names, self._contexts, used)
        else:  # written once for many times
            if self._row_header is None or self._row_header[1] != len(self._contexts):
                self._row_header = make_row_header(self._names, self._contexts, list(range(len(self._contexts))))
            row_header = self._row_header
        return b"".join((encode_header(count, row_header), memoryview(self._data)[start : self.size]))


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else clean_name(text).encode()


def _pack_ids_of(reader: RowReader) -> bytes | None:
    return pack_message_ids(
        reader.source_uid,
        reader.octets(reader.message_id_at, reader.message_id_size),
        reader.octets(reader.correlation_id_at, reader.correlation_id_size),
        reader.octets(reader.trace_id_at, reader.trace_id_size),
        reader.octets(reader.span_id_at, reader.span_id_size),
    )


def _limited(value: int) -> int:
    if value < 0:
        return 0
    return value if value < _HIGHEST else _HIGHEST


def _put_record(
    data: Pointer,
    at: int,
    kind: int,
    reason: int,
    flags: int,
    priority: int,
    context: int,
    time: int,
    uid: int,
    publish_time: int,
    enqueue_time: int,
    size: int,
    depth: int,
    attempt: int,
) -> None:
    if cython.compiled:
        data[at] = kind
        data[at + 1] = reason
        data[at + 2] = flags
        data[at + 3] = priority
        _put_u32(data, at + 4, context)
        _put_i64(data, at + 8, time)
        _put_i64(data, at + 16, uid)
        _put_i64(data, at + 24, publish_time)
        _put_i64(data, at + 32, enqueue_time)
        _put_u32(data, at + 40, size)
        _put_u32(data, at + 44, depth)
        _put_u32(data, at + 48, attempt)
    else:
        FULL_RECORD.pack_into(
            data,
            at,
            kind,
            reason,
            flags,
            priority,
            context,
            time,
            uid,
            publish_time,
            enqueue_time,
            size,
            depth,
            attempt,
        )


def _put_short(data: Pointer, at: int, kind: int, reason: int, context: int, depth: int, attempt: int) -> None:
    if cython.compiled:
        data[at] = kind
        data[at + 1] = reason
        data[at + 2] = _IS_SHORT
        data[at + 3] = attempt
        _put_u32(data, at + 4, context)
        _put_u32(data, at + 8, depth)
    else:
        SHORT_RECORD.pack_into(data, at, kind, reason, _IS_SHORT, attempt, context, depth)


def _put_direct(data: Pointer, at: int, came: int, context: int, depth: int) -> None:
    if cython.compiled:
        data[at] = _ENQUEUED
        data[at + 1] = 0
        data[at + 2] = _IS_SHORT | _DELIVERED_FOLLOWS
        data[at + 3] = 0
        _put_u32(data, at + 4, came)
        _put_u32(data, at + 8, depth)
        _put_u32(data, at + 12, context)
    else:
        DIRECT_RECORD.pack_into(data, at, _ENQUEUED, 0, _IS_SHORT | _DELIVERED_FOLLOWS, 0, came, depth, context)


def _put_published(
    data: Pointer, at: int, flags: int, priority: int, context: int, time: int, uid: int, size: int
) -> None:
    if cython.compiled:
        data[at] = _PUBLISHED
        data[at + 1] = 0
        data[at + 2] = flags
        data[at + 3] = priority
        _put_u32(data, at + 4, context)
        _put_i64(data, at + 8, time)
        _put_i64(data, at + 16, uid)
        _put_u32(data, at + 24, size)
    else:
        PUBLISHED_RECORD.pack_into(data, at, _PUBLISHED, 0, flags, priority, context, time, uid, size)


def _put_u32(data: Pointer, at: int, value: int) -> None:
    memcpy(data + at, cython.address(value), 4)


def _put_i64(data: Pointer, at: int, value: int) -> None:
    memcpy(data + at, cython.address(value), 8)


def _put_bytes(data: Pointer, at: int, octets: bytes, size: int) -> None:
    if cython.compiled:
        source: Pointer = octets
        memcpy(data + at, source, size)
    else:
        data[at : at + size] = octets


_NO_MESSAGE = TracedMessage(0, 0)
