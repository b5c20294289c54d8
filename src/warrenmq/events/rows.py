# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Events as the loop gathers them: rows in one growing buffer, in the raw form that docs/formats/events.md draws.

The raw form is also what the commit log keeps, so handing rows to it is a copy. Names (of queues, keys, consumers, ...)
are numbers in a row and written once; what belongs to the message is left out where the row before is of the same one.

`Rows` belongs to the loop until `take`, whose result belongs to whoever gets it. Nothing here blocks. One of the files
that know whether they are compiled (docs/decisions/0002), in the functions at the end: C copies octets, Python slices.
Compiled when the package is built (rows.pxd).
"""

import struct
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

from warrenmq.events.row_reader import (
    CORRELATION_ID,
    ENQUEUED,
    MESSAGE_ID,
    RAW_HEAD,
    SAME,
    SOURCE,
    SPAN_ID,
    TRACE_ID,
    RowReader,
    check_rows,
    read_head,
    used_names,
)
from warrenmq.events.schema import HIGHEST_CODE, VERSION, Event

Pointer: TypeAlias = Any  # an unsigned char * in compiled code, a bytearray or bytes in plain Python

_FIRST_CAPACITY = 256 * 1024
_LONGEST_ROW = 160  # octets of a row without its ids
_HIGHEST = 0x7FFF_FFFF  # of the columns with 32 bits
_KEY_MASK = 0xFFFF_FFFF
_CODES = HIGHEST_CODE
_SLOTS = 256  # names that are found by the address of their object; a power of 2

# Flags of a row (row_reader.py), as C integers.
_SAME = SAME
_ENQUEUED = ENQUEUED
_SOURCE = SOURCE
_MESSAGE_ID = MESSAGE_ID
_CORRELATION_ID = CORRELATION_ID
_TRACE_ID = TRACE_ID
_SPAN_ID = SPAN_ID


class Trace:
    """What all rows of one message have in common. Its texts are UTF-8; source_uid 0 is none."""

    __slots__ = ("correlation_id", "message_id", "publish_time", "source_uid", "span_id", "trace_id", "uid")

    def __init__(
        self,
        uid: int,
        publish_time: int,
        source_uid: int = 0,
        message_id: bytes | None = None,
        correlation_id: bytes | None = None,
        trace_id: bytes | None = None,
        span_id: bytes | None = None,
    ) -> None:
        self.uid = uid
        self.publish_time = publish_time
        self.source_uid = source_uid
        self.message_id = None if message_id is None else _clean(message_id)
        self.correlation_id = None if correlation_id is None else _clean(correlation_id)
        self.trace_id = None if trace_id is None else _clean(trace_id)
        self.span_id = None if span_id is None else _clean(span_id)


def make_trace(
    uid: int,
    publish_time: int,
    source_uid: int,
    message_id: bytes | None,
    correlation_id: bytes | None,
    trace_id: bytes | None,
    span_id: bytes | None,
) -> Trace:
    """As Trace(...), without the detour over a Python call when compiled."""
    trace = Trace.__new__(Trace)
    trace.uid = uid
    trace.publish_time = publish_time
    trace.source_uid = source_uid
    trace.message_id = None if message_id is None else _clean(message_id)
    trace.correlation_id = None if correlation_id is None else _clean(correlation_id)
    trace.trace_id = None if trace_id is None else _clean(trace_id)
    trace.span_id = None if span_id is None else _clean(span_id)
    return trace


class Rows:
    """Rows in the order they were added. `size` is the memory they take.

    The sums are what the texts of all rows take in columns, where no row can refer to the one before.
    """

    __slots__ = (
        "_capacity",
        "_data",
        "_found",
        "_found_numbers",
        "_last",
        "_logged_count",
        "_logged_size",
        "_names",
        "_numbers",
        "correlation_id_sum",
        "count",
        "first_time",
        "last_time",
        "message_id_sum",
        "size",
        "span_id_sum",
        "trace_id_sum",
    )

    count: int
    size: int
    _last: Trace | None
    _logged_count: int
    _logged_size: int

    def __init__(self) -> None:
        self._begin()

    def add(
        self,
        kind: int,
        time: int,
        trace: Trace | None,
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
        """One more row. `address` is exchange and routing key as two wire short strings.

        None is null, and so is 0 for channel, enqueue_time, attempt and reason, and -1 for size and depth. A name is
        found quickly where it is the same object as before.
        """
        exchange_and_key = self._number_of(address)
        self._write(
            kind,
            time,
            trace,
            self._number_of(vhost),
            exchange_and_key >> 32,
            exchange_and_key & _KEY_MASK,
            self._number_of(queue),
            self._number_of(consumer),
            self._number_of(connection),
            channel,
            enqueue_time,
            size,
            attempt,
            reason,
            depth,
        )

    def add_event(self, kind: int, time: int, **fields: Any) -> None:
        """One more row, by the names of the fields of Event; for what happens seldom."""
        self.add_row(Event(time, kind, **{"uid": 0, **fields}))

    def add_row(self, event: Event) -> None:
        """The same from an Event."""
        self._write(
            event.kind,
            event.time,
            _trace_in(event),
            self._number_of(event.vhost),
            self._number_of(event.exchange),
            self._number_of(event.routing_key),
            self._number_of(event.queue),
            self._number_of(event.consumer),
            self._number_of(event.connection),
            event.channel or 0,
            event.enqueue_time or 0,
            -1 if event.size is None else event.size,
            event.attempt or 0,
            event.reason or 0,
            -1 if event.depth is None else event.depth,
        )

    def take(self) -> "Rows":
        """All rows, as an object that nobody else has; this one begins anew."""
        taken = Rows.__new__(Rows)
        taken._data = self._data
        taken._capacity = self._capacity
        taken._names = self._names
        taken._numbers = self._numbers
        taken._found = self._found
        taken._found_numbers = self._found_numbers
        taken._last = None
        taken._logged_size = self._logged_size
        taken._logged_count = self._logged_count
        taken.size = self.size
        taken.count = self.count
        taken.first_time = self.first_time
        taken.last_time = self.last_time
        taken.message_id_sum = self.message_id_sum
        taken.correlation_id_sum = self.correlation_id_sum
        taken.trace_id_sum = self.trace_id_sum
        taken.span_id_sum = self.span_id_sum
        self._begin()
        return taken

    def unlogged(self) -> bytes | None:
        """The raw form of what was added since the last call; None: nothing was."""
        if self._logged_count == self.count:
            return None
        raw = self._raw_from(self._logged_size, self.count - self._logged_count)
        self._logged_size = self.size
        self._logged_count = self.count
        self._last = None  # the next part must not refer to this one
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
        count, names, at = read_head(raw)
        check_rows(RowReader(raw, at, len(raw)), count, names)
        reader = RowReader(raw, at, len(raw))
        trace: Trace | None = None
        while reader.advance():
            if not reader.is_same:
                trace = _trace_of(reader)
            self._write(
                reader.kind,
                reader.time,
                trace,
                self._number_of(names[reader.vhost]),
                self._number_of(names[reader.exchange]),
                self._number_of(names[reader.routing_key]),
                self._number_of(names[reader.queue]),
                self._number_of(names[reader.consumer]),
                self._number_of(names[reader.connection]),
                reader.channel,
                reader.enqueue_time,
                reader.size,
                reader.attempt,
                reader.reason,
                reader.depth,
            )
        return count

    def reader(self) -> "RowReader":
        """Reads the rows from the first on; nothing may be added meanwhile."""
        return RowReader(self._data, 0, self.size)

    def names(self) -> list[bytes]:
        """By number; number 0 stands for no name."""
        return self._names

    def events(self) -> list[Event]:
        found = []
        names: list[str | None] = [None]
        names += [name.decode() for name in self._names[1:]]
        reader = self.reader()
        while reader.advance():
            found.append(reader.event(names))
        return found

    def _begin(self) -> None:
        self._data = bytearray(_FIRST_CAPACITY)
        self._capacity = _FIRST_CAPACITY
        self._names: list[bytes] = [b""]
        self._numbers: dict[Any, int] = {None: 0}
        self._found: list[Any] = [None] * _SLOTS
        self._found_numbers: list[int] = [0] * _SLOTS
        self._last = None
        self._logged_size = 0
        self._logged_count = 0
        self.size = 0
        self.count = 0
        self.first_time = 0
        self.last_time = 0
        self.message_id_sum = 0
        self.correlation_id_sum = 0
        self.trace_id_sum = 0
        self.span_id_sum = 0

    def _number_of(self, name: Any) -> int:
        """The number of a name (str), or two of an address (bytes): the exchange's << 32 | the key's."""
        slot = _slot_of(name)
        if self._found[slot] is name:
            return self._found_numbers[slot]
        number = self._numbers.get(name)
        if number is None:
            number = self._learn(name)
        self._found[slot] = name
        self._found_numbers[slot] = number
        return number

    def _learn(self, name: Any) -> int:
        if isinstance(name, bytes):
            key_at = 1 + name[0]
            exchange = self._number_of(_text(name[1:key_at]))
            number = exchange << 32 | self._number_of(_text(name[key_at + 1 :]))
        elif (clean := clean_name(name)) != name:
            number = self._number_of(clean)
        else:
            number = len(self._names)
            self._names.append(name.encode())
        self._numbers[name] = number
        return number

    def _write(
        self,
        kind: int,
        time: int,
        trace: Trace | None,
        vhost: int,
        exchange: int,
        routing_key: int,
        queue: int,
        consumer: int,
        connection: int,
        channel: int,
        enqueue_time: int,
        size: int,
        attempt: int,
        reason: int,
        depth: int,
    ) -> None:
        """The one place that knows the order of the parts; RowReader.next reads them again."""
        if self.size + _LONGEST_ROW > self._capacity:
            self._grow(_LONGEST_ROW)
        data: Pointer = self._data
        start = self.size
        flags = 0
        at = _put_i64(data, start + 3, time)
        at = _put_varint(data, at, vhost)
        at = _put_varint(data, at, exchange)
        at = _put_varint(data, at, routing_key)
        at = _put_varint(data, at, queue)
        at = _put_varint(data, at, consumer)
        at = _put_varint(data, at, connection)
        at = _put_varint(data, at, _limited(channel))
        at = _put_varint(data, at, _limited(attempt))
        at = _put_varint(data, at, _limited(size) + 1 if size >= 0 else 0)
        at = _put_varint(data, at, _limited(depth) + 1 if depth >= 0 else 0)
        if enqueue_time != 0:
            flags |= _ENQUEUED
            at = _put_i64(data, at, enqueue_time)
        data[start] = kind & _CODES
        data[start + 1] = reason & _CODES
        self.size = at
        if trace is None:
            trace = _NO_MESSAGE
        if trace is self._last:
            flags |= _SAME
        else:
            flags |= self._write_message(trace)
            self._last = trace
            data = self._data
        data[start + 2] = flags
        self._count(time, trace)

    def _write_message(self, trace: Trace) -> int:
        """What belongs to the message; gives the flags of what is there."""
        flags = 0
        if self.size + _LONGEST_ROW > self._capacity:
            self._grow(_LONGEST_ROW)
        data: Pointer = self._data
        at = _put_i64(data, self.size, trace.uid)
        at = _put_i64(data, at, trace.publish_time)
        if trace.source_uid != 0:
            flags |= _SOURCE
            at = _put_i64(data, at, trace.source_uid)
        self.size = at
        if trace.message_id is not None:
            flags |= _MESSAGE_ID
            self._write_text(trace.message_id)
        if trace.correlation_id is not None:
            flags |= _CORRELATION_ID
            self._write_text(trace.correlation_id)
        if trace.trace_id is not None:
            flags |= _TRACE_ID
            self._write_text(trace.trace_id)
        if trace.span_id is not None:
            flags |= _SPAN_ID
            self._write_text(trace.span_id)
        return flags

    def _write_text(self, text: bytes) -> None:
        size = len(text)
        if self.size + size + 8 > self._capacity:
            self._grow(size + 8)
        data: Pointer = self._data
        at = _put_varint(data, self.size, size)
        _put_text(data, at, text, size)
        self.size = at + size

    def _count(self, time: int, trace: Trace) -> None:
        if time < self.first_time or self.count == 0:
            self.first_time = time
        if time > self.last_time or self.count == 0:
            self.last_time = time
        self.count += 1
        if trace.message_id is not None:
            self.message_id_sum += len(trace.message_id)
        if trace.correlation_id is not None:
            self.correlation_id_sum += len(trace.correlation_id)
        if trace.trace_id is not None:
            self.trace_id_sum += len(trace.trace_id)
        if trace.span_id is not None:
            self.span_id_sum += len(trace.span_id)

    def _grow(self, needed: int) -> None:
        grown = bytearray(max(2 * self._capacity, self.size + needed))
        grown[: self.size] = self._data[: self.size]
        self._data = grown
        self._capacity = len(grown)

    def _raw_from(self, start: int, count: int) -> bytes:
        """The head, the names that are used from here on, and the rows as they are."""
        reader = RowReader(self._data, start, self.size)
        used = used_names(reader, len(self._names))
        pieces = [RAW_HEAD.pack(VERSION, count, len(used))]
        for number in used:
            name = self._names[number]
            pieces += (_varint(number), _varint(len(name)), name)
        pieces.append(bytes(memoryview(self._data)[start : self.size]))
        return b"".join(pieces)


def clean_name(name: str) -> str:
    """The name as events show it: what was no text on the wire is U+FFFD there."""
    if name.isascii():
        return name
    return "".join(["\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in name])


def _clean(text: bytes) -> bytes:
    return text if _is_ascii(text) else text.decode("utf-8", "replace").encode()


def _is_ascii(text: bytes) -> bool:
    if cython.compiled:
        data: Pointer = text
        found = 0
        for at in range(len(text)):
            found |= data[at]
        return found < 0x80
    else:
        return text.isascii()


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _octets(text: str | None) -> bytes | None:
    return None if text is None else clean_name(text).encode()


def _trace_in(event: Event) -> Trace:
    return make_trace(
        event.uid,
        event.publish_time or 0,
        event.source_uid or 0,
        _octets(event.message_id),
        _octets(event.correlation_id),
        _octets(event.trace_id),
        _octets(event.span_id),
    )


def _trace_of(reader: RowReader) -> Trace:
    return make_trace(
        reader.uid,
        reader.publish_time,
        reader.source_uid,
        reader.octets(reader.message_id_at, reader.message_id_size),
        reader.octets(reader.correlation_id_at, reader.correlation_id_size),
        reader.octets(reader.trace_id_at, reader.trace_id_size),
        reader.octets(reader.span_id_at, reader.span_id_size),
    )


def _varint(value: int) -> bytes:
    data = bytearray(10)
    return bytes(data[: _put_varint(data, 0, value)])


def _limited(value: int) -> int:
    if value < 0:
        return 0
    return value if value < _HIGHEST else _HIGHEST


def _slot_of(name: Any) -> int:
    """By the address of the object: names are few, and the same object comes again and again."""
    address: int = 0
    if cython.compiled:
        address = cython.cast(cython.size_t, cython.cast(cython.p_void, name))
    else:
        address = id(name)
    return (address >> 4 ^ address >> 12) & (_SLOTS - 1)


def _put_varint(data: Pointer, at: int, value: int) -> int:
    """Seven bits per octet, the low ones first; gives where the next part begins."""
    while value >= 0x80:
        data[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    data[at] = value
    return at + 1


def _put_i64(data: Pointer, at: int, value: int) -> int:
    if cython.compiled:
        memcpy(data + at, cython.address(value), 8)
    else:
        _I64.pack_into(data, at, value)
    return at + 8


def _put_text(data: Pointer, at: int, text: bytes, size: int) -> None:
    if cython.compiled:
        source: Pointer = text
        memcpy(data + at, source, size)
    else:
        data[at : at + size] = text


_I64 = struct.Struct("<q")
_NO_MESSAGE = Trace(0, 0)
