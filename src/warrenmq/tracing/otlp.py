"""The wire format of OTLP: spans to the bytes of an ExportTraceServiceRequest, and what the answer to one says.

Protocol Buffers, written by hand: it is one message with some twenty fields, and every collector reads it (JSON, the
other form, not every one). So that exporting needs no package that the broker has not. Fields have the numbers of
opentelemetry/proto/trace/v1/trace.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct

from warrenmq.tracing.spans import OtelSpan, Value

CONTENT_TYPE = "application/x-protobuf"

_VARINT = 0
_FIXED64 = 1
_DELIMITED = 2
_FIXED32 = 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_U64 = Struct("<Q")
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_STATUS_ERROR = 2


def encode_request(spans: Iterable[OtelSpan], resource: Mapping[str, Value], scope: str, version: str) -> bytes:
    """All spans as those of one resource and one scope."""
    scope_spans = _message(1, _text(1, scope) + _text(2, version)) + b"".join(
        _message(2, _span(each)) for each in spans
    )
    return _message(1, _message(1, _attributes(1, resource)) + _message(2, scope_spans))


def rejected_spans(answer: bytes) -> tuple[int, str]:
    """How many spans the collector did not take though it said yes, and why; 0 of an answer that is none."""
    try:
        partial = _fields(answer).get(1, b"")
        found = _fields(partial) if isinstance(partial, bytes) else {}
    except (IndexError, ValueError):
        return 0, ""
    count, text = found.get(1, 0), found.get(2, b"")
    return (count if isinstance(count, int) else 0), (
        text.decode("utf-8", "replace") if isinstance(text, bytes) else ""
    )


def _span(span: OtelSpan) -> bytes:
    parts = [_bytes(1, span.trace_id), _bytes(2, span.span_id)]
    if span.parent_id:
        parts.append(_bytes(4, span.parent_id))
    parts += [_text(5, span.name), _number(6, span.kind), _time(7, span.begin), _time(8, span.end)]
    parts.append(_attributes(9, span.attributes))
    parts += [_message(13, _bytes(1, trace_id) + _bytes(2, span_id)) for trace_id, span_id in span.links]
    if span.failure is not None:
        parts.append(_message(15, _text(2, span.failure) + _number(3, _STATUS_ERROR)))
    return b"".join(parts)


def _attributes(field: int, attributes: Mapping[str, Value]) -> bytes:
    return b"".join([_message(field, _key(name) + _message(2, _value(value))) for name, value in attributes.items()])


@lru_cache(256)
def _key(name: str) -> bytes:
    """The same few names come with every span."""
    return _text(1, name)


def _value(value: Value) -> bytes:
    return _text(1, value) if isinstance(value, str) else _number(3, value)


def _message(field: int, octets: bytes) -> bytes:
    return _bytes(field, octets)


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode("utf-8", "replace"))


def _bytes(field: int, octets: bytes) -> bytes:
    return _head(field, len(octets)) + octets


@lru_cache(4096)
def _head(field: int, size: int) -> bytes:
    return _varint(field << 3 | _DELIMITED) + _varint(size)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(number & _MASK)


def _time(field: int, microseconds: int) -> bytes:
    return _varint(field << 3 | _FIXED64) + _U64.pack(microseconds * 1000)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    octets = bytearray()
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def _fields(data: bytes) -> dict[int, int | bytes]:
    """The fields of a message; of one that repeats, the last. IndexError or ValueError: it is none."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag & 7 == _VARINT:
            found[tag >> 3], at = _read_varint(data, at)
        elif tag & 7 == _DELIMITED:
            size, at = _read_varint(data, at)
            found[tag >> 3] = data[at : at + size]
            at += size
        elif tag & 7 in _FIXED_SIZES:
            at += _FIXED_SIZES[tag & 7]
        else:
            raise ValueError(f"no field has the wire type {tag & 7}")
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    raise ValueError("a number is longer than 64 bits")
