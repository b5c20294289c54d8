# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Reads rows in their raw form, one after the other (docs/formats/events.md).

A record of the raw form is one row, or two where the second follows from the first. `advance` needs no interpreter,
so that a thread can turn rows into columns while the loop goes on. A reader belongs to whoever made it; the bytes must
not change meanwhile. Compiled when the package is built (row_reader.pxd).
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
from warrenmq.events.schema import DELIVERED, MAX_CODE, R_AUTO_ACK, ROUTED, Event

Pointer: TypeAlias = Any  # a const unsigned char * in compiled code, bytes or a bytearray in plain Python

# Flags of a record.
HAS_IDS = 1  # ids and source stand behind it
SAME_IDS = 2  # they are those of the record before
ROUTED_FOLLOWS = 4  # another row follows, of the kind "routed"
IS_SHORT = 8  # a short record: time, message and size are those of the one before, and it was enqueued right then
DELIVERED_FOLLOWS = 16  # a brief one; another row follows, "delivered", in the context that stands behind
IS_PUBLISHED = 32  # a short record: it was published at that time, and has no place in a queue yet

# Kind, reason, flags, priority, context, time, uid, publish and enqueue time, size + 1, depth + 1, attempt: 0 is null.
FULL_RECORD = struct.Struct("<BBBBIqqqqIII")
# Kind, reason, flags, attempt, context, depth + 1.
SHORT_RECORD = struct.Struct("<BBBBII")
# The same, and the context of the delivery.
DIRECT_RECORD = struct.Struct("<BBBBIII")
# Kind, reason, flags, priority, context, time, uid, size + 1.
PUBLISHED_RECORD = struct.Struct("<BBBBIqqI")

_HAS_IDS = HAS_IDS  # the same as C integers
_SAME_IDS = SAME_IDS
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
_MAX_CODE = MAX_CODE
_HIGHEST = 1 << 31  # of numbers with 31 bits, plus 1

_I64 = struct.Struct("<q")
_U32 = struct.Struct("<I")


class RowReader:
    """The row that `advance` came to, part by part; 0 is null, and -1 for sizes and depth.

    `context` is a number, texts are places in `data`.
    """

    __slots__ = (
        "_data_end",
        "_following",
        "_held",
        "_second_context",
        "at",
        "attempt",
        "context",
        "correlation_id_at",
        "correlation_id_size",
        "data",
        "depth",
        "enqueue_time",
        "flags",
        "has_message",
        "is_damaged",
        "kind",
        "message_id_at",
        "message_id_size",
        "priority",
        "publish_time",
        "reason",
        "size",
        "source_uid",
        "span_id_at",
        "span_id_size",
        "time",
        "trace_id_at",
        "trace_id_size",
        "uid",
    )

    time: int

    def __init__(self, data: "bytes | bytearray", at: int, end: int) -> None:
        self._held = data
        self.data = _pointer_to(data)
        self.at = at
        self._data_end = end
        self._following = 0  # ROUTED_FOLLOWS or DELIVERED_FOLLOWS: the second row of a record comes next
        self._second_context = 0
        self.has_message = False
        self.is_damaged = False
        self._forget_texts()

    def advance(self) -> bool:
        """Go to the next row. False: there is none, or what is there is none (`is_damaged`)."""
        if self._following != 0:
            self._follow()
            return True
        if self.at >= self._data_end:
            return False
        if self._data_end - self.at < _SHORT_SIZE:
            return self._damaged()
        data = self.data
        at = self.at
        self.kind = data[at]
        self.reason = data[at + 1]
        self.flags = data[at + 2]
        self.context = _get_u32(data, at + 4)
        if self.flags & _IS_SHORT:
            if not self.has_message:
                return self._damaged()
            self.depth = _get_u32(data, at + 8) - 1
            self.attempt = data[at + 3]
            self.enqueue_time = self.time
            self.at = at + _SHORT_SIZE
            if self.flags & _DELIVERED_FOLLOWS:
                if self._data_end - at < _DIRECT_SIZE:
                    return self._damaged()
                self._second_context = _get_u32(data, at + 12)
                self.at = at + _DIRECT_SIZE
        else:
            if self._data_end - at < (_PUBLISHED_SIZE if self.flags & _IS_PUBLISHED else _FULL_SIZE):
                return self._damaged()
            self.time = _get_i64(data, at + 8)
            self.uid = _get_i64(data, at + 16)
            self.priority = data[at + 3]
            if self.flags & _IS_PUBLISHED:
                self.publish_time = self.time
                self.size = _get_u32(data, at + 24) - 1
                self.enqueue_time = 0
                self.depth = -1
                self.attempt = 0
                self.at = at + _PUBLISHED_SIZE
            else:
                self.publish_time = _get_i64(data, at + 24)
                self.enqueue_time = _get_i64(data, at + 32)
                self.size = _get_u32(data, at + 40) - 1
                self.depth = _get_u32(data, at + 44) - 1
                self.attempt = _get_u32(data, at + 48)
                self.at = at + _FULL_SIZE
            if self.flags & _HAS_IDS:
                self._read_texts()
            elif self.flags & _SAME_IDS == 0:
                self._forget_texts()
            elif not self.has_message:
                return self._damaged()
            self.has_message = True
            if self.flags & _DELIVERED_FOLLOWS:
                return self._damaged()
        self._following = self.flags & (_ROUTED_FOLLOWS | _DELIVERED_FOLLOWS)
        if self.is_damaged or self.kind > _MAX_CODE or self.reason > _MAX_CODE:
            return self._damaged()
        return True

    def _follow(self) -> None:
        """Go to the second row of a record."""
        if self._following & _ROUTED_FOLLOWS:
            self.kind = _ROUTED
        else:
            self.kind = _DELIVERED
            self.reason = _AUTO_ACK
            self.context = self._second_context
            self.attempt = 1
            self.depth = 0
        self._following = 0

    def event(self, names: "list[str | None]", contexts: "list[tuple[int, ...]]") -> Event:
        """The row as a value."""
        vhost, exchange, routing_key, queue, consumer, connection, channel = contexts[self.context]
        return Event(
            time=self.time,
            kind=self.kind,
            uid=self.uid,
            message_id=_text(self.octets(self.message_id_at, self.message_id_size)),
            publish_time=self.publish_time or None,
            enqueue_time=self.enqueue_time or None,
            vhost=names[vhost],
            exchange=names[exchange],
            routing_key=names[routing_key],
            queue=names[queue],
            consumer=names[consumer],
            connection=names[connection],
            channel=channel or None,
            size=None if self.size < 0 else self.size,
            attempt=self.attempt or None,
            reason=self.reason or None,
            correlation_id=_text(self.octets(self.correlation_id_at, self.correlation_id_size)),
            trace_id=_text(self.octets(self.trace_id_at, self.trace_id_size)),
            span_id=_text(self.octets(self.span_id_at, self.span_id_size)),
            source_uid=self.source_uid or None,
            depth=None if self.depth < 0 else self.depth,
            priority=self.priority or None,
        )

    def octets(self, at: int, size: int) -> bytes | None:
        return None if size < 0 else bytes(self.data[at : at + size])

    def numbers_fit(self) -> bool:
        """Whether all numbers are such as a row can have."""
        return self.size < _HIGHEST and self.depth < _HIGHEST and self.attempt < _HIGHEST

    def _forget_texts(self) -> None:
        self.source_uid = 0
        self.message_id_size = -1
        self.correlation_id_size = -1
        self.trace_id_size = -1
        self.span_id_size = -1
        self.message_id_at = self.correlation_id_at = self.trace_id_at = self.span_id_at = 0

    def _read_texts(self) -> None:
        if self._data_end - self.at < 8:
            self.is_damaged = True
            return
        self.source_uid = _get_i64(self.data, self.at)
        self.at = self.at + 8
        self.message_id_size = self._text_size()
        self.message_id_at = self._pass(self.message_id_size)
        self.correlation_id_size = self._text_size()
        self.correlation_id_at = self._pass(self.correlation_id_size)
        self.trace_id_size = self._text_size()
        self.trace_id_at = self._pass(self.trace_id_size)
        self.span_id_size = self._text_size()
        self.span_id_at = self._pass(self.span_id_size)

    def _text_size(self) -> int:
        if self._data_end - self.at < 4:
            self.is_damaged = True
            return -1
        size = _get_u32(self.data, self.at) - 1
        self.at = self.at + 4
        if size > self._data_end - self.at:
            self.is_damaged = True
            return -1
        return size

    def _pass(self, size: int) -> int:
        """Go behind a text; gives where it began."""
        at = self.at
        if size > 0:
            self.at = at + size
        return at

    def _damaged(self) -> bool:
        self.is_damaged = True
        return False


def used_contexts(reader: RowReader, number_of_contexts: int) -> list[int]:
    """The numbers of all contexts in the rows that follow, each once."""
    used: list[int] = []
    seen = bytearray(number_of_contexts)
    while reader.advance():
        if not seen[reader.context]:
            seen[reader.context] = 1
            used.append(reader.context)
    return used


def check_rows(reader: RowReader, count: int, contexts: "dict[int, tuple[int, ...]]") -> None:
    for _ in range(count):
        if not reader.advance() or not reader.numbers_fit():
            raise BadEvents(f"a raw form of events is damaged at byte {reader.at}")
        if reader.context not in contexts:
            raise BadEvents(f"a raw form of events has a context that it does not tell of before byte {reader.at}")
    if reader.advance() or reader.is_damaged:
        raise BadEvents(f"a raw form of events goes on after its {count} rows")


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


def _get_u32(data: Pointer, at: int) -> int:
    value: int = 0
    if cython.compiled:
        memcpy(cython.address(value), data + at, 4)
    else:
        value = _U32.unpack_from(data, at)[0]
    return value
