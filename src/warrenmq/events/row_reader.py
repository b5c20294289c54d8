# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Reads rows in their raw form, one after the other (docs/formats/events.md).

`advance` needs no interpreter, so that a thread can turn rows into columns while the loop goes on. A reader belongs to
whoever made it; the octets must not change meanwhile. Compiled when the package is built (row_reader.pxd).
"""

import struct
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

from warrenmq.events.errors import BadEvents
from warrenmq.events.schema import VERSION, Event

Pointer: TypeAlias = Any  # a const unsigned char * in compiled code, bytes or a bytearray in plain Python

# Flags of a row: which of its parts are there. SAME: the message is that of the row before.
SAME = 1
ENQUEUED = 2
SOURCE = 4
MESSAGE_ID = 8
CORRELATION_ID = 16
TRACE_ID = 32
SPAN_ID = 64

_SAME = SAME  # the same as C integers
_ENQUEUED = ENQUEUED
_SOURCE = SOURCE
_MESSAGE_ID = MESSAGE_ID
_CORRELATION_ID = CORRELATION_ID
_TRACE_ID = TRACE_ID
_SPAN_ID = SPAN_ID
_KNOWN = 127
_SHORTEST_ROW = 21
_LONGEST_VARINT = 5  # octets of 32 bits

RAW_HEAD = struct.Struct("<BII")  # version, rows, names

_I64 = struct.Struct("<q")


class RowReader:
    """The row that `advance` came to, part by part; null is as in Rows.add, and -1 for the size of a text.

    Names are numbers, texts are places in `data`.
    """

    __slots__ = (
        "_held",
        "at",
        "attempt",
        "channel",
        "connection",
        "consumer",
        "correlation_id_at",
        "correlation_id_size",
        "data",
        "depth",
        "end",
        "enqueue_time",
        "exchange",
        "flags",
        "has_message",
        "is_damaged",
        "is_same",
        "kind",
        "message_id_at",
        "message_id_size",
        "publish_time",
        "queue",
        "reason",
        "routing_key",
        "size",
        "source_uid",
        "span_id_at",
        "span_id_size",
        "time",
        "trace_id_at",
        "trace_id_size",
        "uid",
        "vhost",
    )

    def __init__(self, data: "bytes | bytearray", at: int, end: int) -> None:
        self._held = data
        self.data = _pointer_to(data)
        self.at = at
        self.end = end
        self.has_message = False
        self.is_damaged = False
        self.is_same = False

    def advance(self) -> bool:
        """Go to the next row. False: there is none, or what is there is none (`is_damaged`)."""
        if self.at >= self.end:
            return False
        if self.end - self.at < _SHORTEST_ROW:
            return self._damaged()
        data = self.data
        self.kind = data[self.at]
        self.reason = data[self.at + 1]
        self.flags = data[self.at + 2]
        self.time = _get_i64(data, self.at + 3)
        self.at = self.at + 11
        self.vhost = self._varint()
        self.exchange = self._varint()
        self.routing_key = self._varint()
        self.queue = self._varint()
        self.consumer = self._varint()
        self.connection = self._varint()
        self.channel = self._varint()
        self.attempt = self._varint()
        self.size = self._varint() - 1
        self.depth = self._varint() - 1
        self.enqueue_time = self._i64() if self.flags & _ENQUEUED else 0
        self.is_same = self.flags & _SAME != 0
        if not self.is_same:
            self._read_message()
            self.has_message = True
        if self.is_damaged or not self.has_message or self.kind > _KNOWN or self.reason > _KNOWN or self.flags > _KNOWN:
            return self._damaged()
        return True

    def name_numbers(self) -> tuple[int, int, int, int, int, int]:
        return self.vhost, self.exchange, self.routing_key, self.queue, self.consumer, self.connection

    def event(self, names: "list[str | None]") -> Event:
        """The row as a value, with its names by their numbers."""
        return Event(
            time=self.time,
            kind=self.kind,
            uid=self.uid,
            message_id=_text(self.octets(self.message_id_at, self.message_id_size)),
            publish_time=self.publish_time or None,
            enqueue_time=self.enqueue_time or None,
            vhost=names[self.vhost],
            exchange=names[self.exchange],
            routing_key=names[self.routing_key],
            queue=names[self.queue],
            consumer=names[self.consumer],
            connection=names[self.connection],
            channel=self.channel or None,
            size=None if self.size < 0 else self.size,
            attempt=self.attempt or None,
            reason=self.reason or None,
            correlation_id=_text(self.octets(self.correlation_id_at, self.correlation_id_size)),
            trace_id=_text(self.octets(self.trace_id_at, self.trace_id_size)),
            span_id=_text(self.octets(self.span_id_at, self.span_id_size)),
            source_uid=self.source_uid or None,
            depth=None if self.depth < 0 else self.depth,
        )

    def octets(self, at: int, size: int) -> bytes | None:
        return None if size < 0 else bytes(self.data[at : at + size])

    def _read_message(self) -> None:
        flags = self.flags
        self.uid = self._i64()
        self.publish_time = self._i64()
        self.source_uid = self._i64() if flags & _SOURCE else 0
        self.message_id_size = self._text_size() if flags & _MESSAGE_ID else -1
        self.message_id_at = self.at
        self._skip(self.message_id_size)
        self.correlation_id_size = self._text_size() if flags & _CORRELATION_ID else -1
        self.correlation_id_at = self.at
        self._skip(self.correlation_id_size)
        self.trace_id_size = self._text_size() if flags & _TRACE_ID else -1
        self.trace_id_at = self.at
        self._skip(self.trace_id_size)
        self.span_id_size = self._text_size() if flags & _SPAN_ID else -1
        self.span_id_at = self.at
        self._skip(self.span_id_size)

    def _varint(self) -> int:
        value: int = 0
        shift = 0
        data = self.data
        while self.at < self.end and shift < 7 * _LONGEST_VARINT:
            octet = data[self.at]
            self.at = self.at + 1
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                return value
            shift += 7
        self.is_damaged = True
        return 0

    def _i64(self) -> int:
        if self.end - self.at < 8:
            self.is_damaged = True
            return 0
        self.at = self.at + 8
        return _get_i64(self.data, self.at - 8)

    def _text_size(self) -> int:
        size = self._varint()
        if size > self.end - self.at:
            self.is_damaged = True
            return 0
        return size

    def _skip(self, size: int) -> None:
        if size > 0:
            self.at = self.at + size

    def _damaged(self) -> bool:
        self.is_damaged = True
        return False


def used_names(reader: RowReader, number_of_names: int) -> list[int]:
    """The numbers of all names in the rows that follow, each once."""
    used: list[int] = []
    seen = bytearray(number_of_names)
    seen[0] = 1  # stands for no name
    while reader.advance():
        if not seen[reader.vhost]:
            seen[reader.vhost] = 1
            used.append(reader.vhost)
        if not seen[reader.exchange]:
            seen[reader.exchange] = 1
            used.append(reader.exchange)
        if not seen[reader.routing_key]:
            seen[reader.routing_key] = 1
            used.append(reader.routing_key)
        if not seen[reader.queue]:
            seen[reader.queue] = 1
            used.append(reader.queue)
        if not seen[reader.consumer]:
            seen[reader.consumer] = 1
            used.append(reader.consumer)
        if not seen[reader.connection]:
            seen[reader.connection] = 1
            used.append(reader.connection)
    return used


def read_head(raw: bytes) -> tuple[int, dict[int, str | None], int]:
    """The number of rows, the names by number, and where the rows begin."""
    try:
        version, count, named = RAW_HEAD.unpack_from(raw)
        if version != VERSION:
            raise BadEvents(f"a raw form of events has version {version}, which is not known here")
        at = RAW_HEAD.size
        names: dict[int, str | None] = {0: None}
        for _ in range(named):
            number, at = _read_varint(raw, at)
            size, at = _read_varint(raw, at)
            if at + size > len(raw):
                raise BadEvents("a raw form of events ends within its names")
            names[number] = raw[at : at + size].decode()
            at += size
    except (struct.error, IndexError, UnicodeDecodeError) as problem:
        raise BadEvents(f"the head of a raw form of events is damaged: {problem}") from problem
    return count, names, at


def _are_known(numbers: tuple[int, ...], names: dict[int, str | None]) -> bool:
    for number in numbers:  # noqa: SIM110 - a generator would not be C
        if number not in names:
            return False
    return True


def check_rows(reader: RowReader, count: int, names: dict[int, str | None]) -> None:
    for _ in range(count):
        if not reader.advance():
            raise BadEvents(f"a raw form of events is damaged at octet {reader.at}")
        if not _are_known(reader.name_numbers(), names):
            raise BadEvents(f"a raw form of events has a name without a text before octet {reader.at}")
    if reader.advance() or reader.is_damaged:
        raise BadEvents(f"a raw form of events goes on after its {count} rows")


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    shift = 0
    while raw[at] >= 0x80:
        value |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | raw[at] << shift, at + 1


def _text(octets: bytes | None) -> str | None:
    return None if octets is None else octets.decode()


def _pointer_to(data: "bytes | bytearray") -> Pointer:
    if cython.compiled:
        if isinstance(data, bytearray):
            changeable: bytearray = data
            return changeable
        constant: bytes = data
        return constant
    else:
        return data


def _get_i64(data: Pointer, at: int) -> int:
    value: int = 0
    if cython.compiled:
        memcpy(cython.address(value), data + at, 8)
    else:
        value = _I64.unpack_from(data, at)[0]
    return value
