# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True, infer_types=True
"""The rows that the event loop collects, in one growing buffer, in the row format that docs/formats/events.md draws.

The commit log stores the same format, so passing rows to it is a copy. The names of an event (queue, key, consumer,
...) and its channel are its event context, a number in a row: few differ, and each is written once. A row that follows
directly from the previous one leaves out what they share.

`Rows` belongs to the event loop, and when it has a successor, to the thread that encodes. Nothing here blocks.
Compiled (rows.pxd).
"""

from typing import Any

from warrenmq.events import memory, records, schema
from warrenmq.events.context_cache import ContextCache
from warrenmq.events.errors import BadEvents
from warrenmq.events.message_ids import clean_name, clean_text, pack_message_ids
from warrenmq.events.row_header import EventContext, RowHeader, encode_header, make_row_header, read_header
from warrenmq.events.row_reader import RowReader, scan
from warrenmq.events.schema import Event

_FIRST_CAPACITY = 256 * 1024
_KEPT_CAPACITY = 4 * 1024 * 1024
_SPARES = 4  # buffers of up to that size to keep: the encoding thread may be some batches behind
# With so few contexts, finding out which of them some rows use takes ten times as long as copying the last row header.
_FEW_CONTEXTS = 16
# A batch numbers its names with 16 bits, and one more row may add six.
NAME_LIMIT = 32_000


class Rows:
    """Rows in the order they were added. `size` is the memory they take, in bytes.

    `time` is that of the last row; 0 if the next one must not refer to it: add it by `put` or `put_published`.
    `names` and `contexts` are by number; name 0 is null.
    """

    __slots__ = (
        "_context_numbers",
        "_data",
        "_last_message_ids",
        "_logged_count",
        "_logged_size",
        "_numbers",
        "_out",
        "_record_at",
        "_row_header",
        "_spares",
        "context_cache",
        "contexts",
        "count",
        "first_time",
        "has_details",
        "has_message_ids",
        "last_time",
        "names",
        "size",
        "time",
    )

    def __init__(self) -> None:
        self._begin([], ContextCache(), _FIRST_CAPACITY)

    def successor(self) -> "Rows":
        """Return empty rows to go on with: they take over what can be used again. These get no more."""
        rows = Rows.__new__(Rows)
        rows._begin(self._spares, self.context_cache, min(len(self._data), _KEPT_CAPACITY))
        return rows

    def _begin(self, spares: list[bytearray], context_cache: ContextCache, capacity: int) -> None:
        """Begin empty; `capacity`: the bytes they will probably need, because starting with less costs a copy."""
        self._spares = spares
        self.context_cache = context_cache
        context_cache.clear()
        self._data = spares.pop() if spares else bytearray(capacity)
        self._out = memory.writable(self._data)
        self.names: list[bytes] = [b""]
        self._numbers: dict[Any, int] = {None: 0}
        self.contexts: list[EventContext] = []
        self._context_numbers: dict[EventContext, int] = {}
        self._row_header: RowHeader | None = None  # of all contexts so far
        self._last_message_ids: bytes | None = None
        self._logged_size = self._logged_count = 0
        self.size = self.count = 0
        self.first_time = self.last_time = self.time = 0
        self.has_message_ids = self.has_details = False
        self._record_at = 0

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
            self._context_number((*[self._name_number(name) for name in names], _limited(event.channel or 0))),
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
        flags = records.ROUTED_FOLLOWS if is_routed else 0
        if message_ids is not None:
            flags |= records.SAME_IDS if message_ids is self._last_message_ids and self.time != 0 else records.HAS_IDS
        at = self._begin_record(records.FULL_SIZE, kind, reason, flags, priority, context)
        out = self._out
        memory.store_64(out, at + 8, time)
        memory.store_64(out, at + 16, uid)
        memory.store_64(out, at + 24, publish_time)
        memory.store_64(out, at + 32, enqueue_time)
        memory.store_64(out, at + 40, _plus_1(size) | _plus_1(depth) << 32)  # two fields: uncompiled, a store is a call
        memory.store_32(out, at + 48, _limited(attempt))
        self._end_record(time, flags, message_ids)

    def put_details(self, due_time: int, retry_max: int, note: bytes | None) -> None:
        """Add these to the last row, which `put` has just added; null: 0 or None."""
        note = clean_text(note)
        length = 0 if note is None else len(note)
        at = self.size
        if at + records.DETAILS_SIZE + length > len(self._data):
            self._grow(records.DETAILS_SIZE + length)
        out = self._out
        out[self._record_at + 2] |= records.HAS_DETAILS
        memory.store_64(out, at, due_time)
        memory.store_32(out, at + 8, _limited(retry_max))
        memory.store_32(out, at + 12, 0 if note is None else length + 1)
        if note is not None:
            memory.copy(out, at + records.DETAILS_SIZE, note, 0, length)
        self.size = at + records.DETAILS_SIZE + length
        self.has_details = True

    def put_published(
        self, is_routed: bool, context: int, time: int, uid: int, message_ids: bytes | None, size: int, priority: int
    ) -> None:
        """Add the `published` row of a message that is published now; or two, the second is `routed`."""
        flags = records.IS_PUBLISHED | (records.ROUTED_FOLLOWS if is_routed else 0)
        if message_ids is not None:
            flags |= records.HAS_IDS
        at = self._begin_record(records.PUBLISHED_SIZE, schema.PUBLISHED, 0, flags, priority, context)
        out = self._out
        memory.store_64(out, at + 8, time)
        memory.store_64(out, at + 16, uid)
        memory.store_32(out, at + 24, _plus_1(size))
        self._end_record(time, flags, message_ids)

    def put_short(self, kind: int, reason: int, context: int, depth: int, attempt: int) -> None:
        """Add a row of the same message and time as the last one, enqueued at that time; attempt: up to 255."""
        at = self._begin_record(records.SHORT_SIZE, kind, reason, records.IS_SHORT, attempt, context)
        memory.store_32(self._out, at + 8, _plus_1(depth))

    def put_direct_delivery(self, enqueue_context: int, context: int, depth: int) -> None:
        """Add two rows of the same message and time as the last one: `enqueued`, and `delivered` without acks."""
        flags = records.IS_SHORT | records.DELIVERED_FOLLOWS
        at = self._begin_record(records.DIRECT_SIZE, schema.ENQUEUED, 0, flags, 0, enqueue_context)
        memory.store_64(self._out, at + 8, _plus_1(depth) | context << 32)

    def _begin_record(self, size: int, kind: int, reason: int, flags: int, number: int, context: int) -> int:
        """Write what all records begin with (`number`: priority or attempt), and return the offset of the record."""
        at = self._record_at = self.size
        if at + size > len(self._data):
            self._grow(size)
        self.size = at + size
        head = kind & schema.MAX_CODE | (reason & schema.MAX_CODE) << 8 | flags << 16 | number << 24 | context << 32
        memory.store_64(self._out, at, head)
        self.count += 2 if flags & (records.ROUTED_FOLLOWS | records.DELIVERED_FOLLOWS) else 1
        return at

    def _end_record(self, time: int, flags: int, message_ids: bytes | None) -> None:
        """Add the ids to a record that is not short, and note what the next one may refer to."""
        if flags & records.HAS_IDS and message_ids is not None:
            if self.size + len(message_ids) > len(self._data):
                self._grow(len(message_ids))
            memory.copy(self._out, self.size, message_ids, 0, len(message_ids))
            self.size += len(message_ids)
            self.has_message_ids = True
        self._last_message_ids = message_ids
        self.time = time
        if time < self.first_time or self._record_at == 0:
            self.first_time = time
        if time > self.last_time or self._record_at == 0:
            self.last_time = time

    def _grow(self, needed: int) -> None:
        self._data += bytes(self.size + needed)  # the size doubles at least
        self._out = memory.writable(self._data)

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
            exchange = self._name_number(_text(address[1:key_at]))
            routing_key = self._name_number(_text(address[key_at + 1 :]))
        others = [self._name_number(name) for name in (vhost, queue, consumer, connection)]
        return self._context_number((others[0], exchange, routing_key, *others[1:], _limited(channel)))

    def _context_number(self, context: EventContext) -> int:
        number = self._context_numbers.setdefault(context, len(self.contexts))
        if number == len(self.contexts):
            self.contexts.append(context)
        return number

    def _name_number(self, name: Any) -> int:
        number = self._numbers.get(name)
        if number is not None:
            return number
        clean = clean_name(name)
        if clean != name:
            number = self._name_number(clean)
        else:
            number = len(self.names)
            self.names.append(name.encode())
        self._numbers[name] = number
        return number

    def is_full(self, count: int) -> bool:
        """Return True if there are `count` rows, or as many names as a batch can hold."""
        return self.count >= count or len(self.names) >= NAME_LIMIT

    def recycle(self, rows: "Rows") -> None:
        """Take the buffer of rows that are no longer read: new memory costs zeroing and page faults."""
        if len(rows._data) <= _KEPT_CAPACITY and len(self._spares) < _SPARES:
            self._spares.append(rows._data)
        rows._data = bytearray()
        rows.size = 0

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

    def extend(self, raw: bytes) -> int:
        """Add rows from their encoded form and return their number. BadEvents: damaged, and nothing was added."""
        count, names, contexts, at = read_header(raw)
        reader = RowReader(raw, at, len(raw))
        found, used = scan(reader)
        if not contexts.keys() >= {*used}:
            raise BadEvents("rows have an undefined context")
        if found < count:
            raise BadEvents(f"rows are damaged at byte {reader.at}")
        if found > count or reader.is_damaged:
            raise BadEvents(f"more bytes follow {count} rows")
        known = {
            number: self._context_number((*[self._name_number(names[name]) for name in context[:6]], context[6]))
            for number, context in contexts.items()
        }
        reader = RowReader(raw, at, len(raw))
        message_ids: bytes | None = None
        ids_at = 0
        while read := reader.read():
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
        return count

    def reader(self) -> "RowReader":
        """Return a reader of all rows; none may be added while it is used."""
        return RowReader(self._data, 0, self.size)

    def _raw_from(self, start: int, count: int) -> bytes:
        """Return the header, with the names and contexts used from here on (or all), and the rows."""
        if count < len(self.contexts) and len(self.contexts) > _FEW_CONTEXTS:
            _, used = scan(RowReader(self._data, start, self.size))
            row_header = make_row_header(self.names, self.contexts, used)
        else:  # reused until there is a new context
            if self._row_header is None or self._row_header[1] != len(self.contexts):
                self._row_header = make_row_header(self.names, self.contexts, list(range(len(self.contexts))))
            row_header = self._row_header
        return b"".join((encode_header(count, row_header), memoryview(self._data)[start : self.size]))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else clean_name(text).encode()


def _limited(value: int) -> int:
    if value < 0:
        return 0
    return value if value < records.MAX_INT else records.MAX_INT


def _plus_1(value: int) -> int:
    """Return a number as rows have it where 0 means null, which is given as -1."""
    if value < 0:
        return 0
    return (value if value < records.MAX_INT else records.MAX_INT) + 1
