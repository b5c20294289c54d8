"""A header with a number that is added at delivery: `x-stream-offset` of streams, `x-delivery-count` of quorum queues.

A stream adds it once per message, when the message is read into memory for any number of consumers. Consecutive
messages mostly have equal properties, so where the header goes is found once and the rest is copying. The body of
`stamp` is different when compiled (docs/decisions/0002): copying in C takes 87 ns, joining bytes objects 260 ns.

Compiled when the package is built (number_header.pxd).
"""

from struct import Struct
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcmp, memcpy

from warrenmq.core.message import Message, make_message
from warrenmq.protocol.properties import headers_span, with_entry, without_header

Pointer: TypeAlias = Any  # a char * in compiled code, and never used in plain Python

NAME = "x-stream-offset"

# Class, weight and body size come before the properties, and differ where they are the same.
_START = 12

_pack = Struct(">q").pack


class NumberHeader:
    """Adds a number to headers under one name; caches where the last properties were split for it."""

    __slots__ = ("_after", "_before", "_entry", "_name", "_properties")

    def __init__(self, name: str = NAME) -> None:
        self._name = name
        # The key as a short string, then a 64-bit integer: as RabbitMQ writes it.
        self._entry = bytes((len(name),)) + name.encode() + b"l" + bytes(8)
        self._properties = b""
        self._before = b""
        self._after = b""

    def stamp(self, message: Message, offset: int) -> Message:
        """Return the message with the number among its headers; replaces a header of that name."""
        header = message.header
        if cython.compiled:
            source: Pointer = PyBytes_AS_STRING(header)
            size = len(header) - _START
            if size != len(self._properties) or memcmp(source + _START, PyBytes_AS_STRING(self._properties), size) != 0:
                self._cut(header)
            before = len(self._before)
            after = len(self._after)
            stamped = PyBytes_FromStringAndSize(cython.NULL, _START + before + 8 + after)
            at: Pointer = PyBytes_AS_STRING(stamped)
            memcpy(at, source, _START)
            memcpy(at + _START, PyBytes_AS_STRING(self._before), before)
            at += _START + before
            for place in range(8):
                at[place] = offset >> (56 - 8 * place) & 255
            memcpy(at + 8, PyBytes_AS_STRING(self._after), after)
            return _copy(message, stamped)
        if header[_START:] != self._properties:
            self._cut(header)
        header = b"".join((header[:_START], self._before, _pack(offset), self._after))
        return _copy(message, header)

    def _cut(self, header: bytes) -> None:
        self._properties = header[_START:]
        if self._name.encode() in header:
            header = without_header(header, self._name)
        stamped = with_entry(header, self._entry)
        end = headers_span(stamped)[1]
        self._before = stamped[_START : end - 8]
        self._after = stamped[end:]


def _copy(message: Message, header: bytes) -> Message:
    stamped = make_message(message.address, header, message.body)
    if message.uid != 0:
        stamped.uid = message.uid
        stamped.publish_time = message.publish_time
        stamped.enqueue_time = message.enqueue_time
    stamped.has_deaths = message.has_deaths
    return stamped
