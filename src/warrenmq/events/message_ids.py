# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Texts of events: names as events show them, and the ids of a message as they stand in its rows.

What was no text on the wire is U+FFFD in events. One of the files that know whether they are compiled
(docs/decisions/0002): C copies bytes, Python packs them. Compiled when the package is built (message_ids.pxd).
"""

import struct
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

Pointer: TypeAlias = Any  # an unsigned char * in compiled code, and never used in plain Python

_SOURCE = struct.Struct("<q")
_SIZE = struct.Struct("<I")


def pack_message_ids(
    source_uid: int,
    message_id: bytes | None,
    correlation_id: bytes | None,
    trace_id: bytes | None,
    span_id: bytes | None,
) -> bytes | None:
    """The ids of a message and its source (0: none) as they stand in a row; None if there is nothing to tell."""
    if source_uid == 0 and message_id is None and correlation_id is None and trace_id is None and span_id is None:
        return None
    if cython.compiled:
        message_id, correlation_id = _clean(message_id), _clean(correlation_id)
        trace_id, span_id = _clean(trace_id), _clean(span_id)
        size = 24 + _size_of(message_id) + _size_of(correlation_id) + _size_of(trace_id) + _size_of(span_id)
        packed: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        data: Pointer = packed
        memcpy(data, cython.address(source_uid), 8)
        at = _put_text(data, 8, message_id)
        at = _put_text(data, at, correlation_id)
        at = _put_text(data, at, trace_id)
        _put_text(data, at, span_id)
        return packed
    else:
        pieces = [_SOURCE.pack(source_uid)]
        for text in (message_id, correlation_id, trace_id, span_id):
            clean = _clean(text)
            pieces += (_SIZE.pack(0),) if clean is None else (_SIZE.pack(len(clean) + 1), clean)
        return b"".join(pieces)


def clean_name(name: str) -> str:
    """The name as events show it: what was no text on the wire is U+FFFD there."""
    if name.isascii():
        return name
    return "".join(["\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in name])


def _clean(text: bytes | None) -> bytes | None:
    if text is None or _is_ascii(text):
        return text
    return text.decode("utf-8", "replace").encode()


def _is_ascii(text: bytes) -> bool:
    if cython.compiled:
        data: Pointer = text
        found = 0
        for at in range(len(text)):
            found |= data[at]
        return found < 0x80
    else:
        return text.isascii()


def _size_of(text: bytes | None) -> int:
    return 0 if text is None else len(text)


def _put_text(data: Pointer, at: int, text: bytes | None) -> int:
    """In C; gives where the next one stands."""
    if text is None:
        _put_u32(data, at, 0)
        return at + 4
    size: int = len(text)
    source: Pointer = text
    _put_u32(data, at, size + 1)
    memcpy(data + at + 4, source, size)
    return at + 4 + size


def _put_u32(data: Pointer, at: int, value: int) -> None:
    memcpy(data + at, cython.address(value), 4)
