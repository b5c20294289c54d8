"""The wire format of OTLP: encodes an ExportTraceServiceRequest, and decodes the response.

Protocol Buffers, hand-written to spare a dependency: one message with some twenty fields. Not every collector reads
OTLP's JSON form. Field numbers are those of opentelemetry/proto/trace/v1/trace.proto.
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
    """Encode spans of one resource and one scope."""
    scope_spans = _bytes(1, _text(1, scope) + _text(2, version)) + b"".join(_bytes(2, _span(each)) for each in spans)
    return _bytes(1, _bytes(1, _attributes(1, resource)) + _bytes(2, scope_spans))


def rejected_spans(answer: bytes) -> tuple[int, str]:
    """Return how many spans a successful response rejects, and why; 0 if it is malformed."""
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
    parts += [_bytes(13, _bytes(1, trace_id) + _bytes(2, span_id)) for trace_id, span_id in span.links]
    if span.failure is not None:
        parts.append(_bytes(15, _text(2, span.failure) + _number(3, _STATUS_ERROR)))
    return b"".join(parts)


def _attributes(field: int, attributes: Mapping[str, Value]) -> bytes:
    return b"".join([_bytes(field, _key(name) + _bytes(2, _value(value))) for name, value in attributes.items()])


@lru_cache(256)
def _key(name: str) -> bytes:
    """Cached, as every span has the same names."""
    return _text(1, name)


def _value(value: Value) -> bytes:
    return _text(1, value) if isinstance(value, str) else _number(3, value)


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode("utf-8", "replace"))


def _bytes(field: int, data: bytes) -> bytes:
    return _head(field, len(data)) + data


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
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _fields(data: bytes) -> dict[int, int | bytes]:
    """Decode a message; the last value of a repeated field counts. IndexError or ValueError: it is malformed."""
    found: dict[int, int | bytes] = {}
    offset = 0
    while offset < len(data):
        tag, offset = _read_varint(data, offset)
        if tag & 7 == _VARINT:
            found[tag >> 3], offset = _read_varint(data, offset)
        elif tag & 7 == _DELIMITED:
            size, offset = _read_varint(data, offset)
            found[tag >> 3] = data[offset : offset + size]
            offset += size
        elif tag & 7 in _FIXED_SIZES:
            offset += _FIXED_SIZES[tag & 7]
        else:
            raise ValueError(f"unknown wire type {tag & 7}")
    return found


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        number |= (data[offset] & 0x7F) << shift
        offset += 1
        if data[offset - 1] < 0x80:
            return number, offset
    raise ValueError("a varint is longer than 64 bits")
