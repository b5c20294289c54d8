"""AMQP 0-9-1 as bytes, written from the specification for tests alone: it shares no line with the package under test.

Encodes any values, legal or not, and decodes what a broker sends. Plain functions and values; no state.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"

# One line per method: name, class id, method id, then its fields in wire order. An indented line goes on.
_METHOD_LINES = """
connection.start 10 10 octet:version_major octet:version_minor table:server_properties longstr:mechanisms
    longstr:locales
connection.start-ok 10 11 table:client_properties shortstr:mechanism longstr:response shortstr:locale
connection.secure 10 20 longstr:challenge
connection.secure-ok 10 21 longstr:response
connection.tune 10 30 short:channel_max long:frame_max short:heartbeat
connection.tune-ok 10 31 short:channel_max long:frame_max short:heartbeat
connection.open 10 40 shortstr:virtual_host shortstr:capabilities bit:insist
connection.open-ok 10 41 shortstr:known_hosts
connection.close 10 50 short:reply_code shortstr:reply_text short:class_id short:method_id
connection.close-ok 10 51
connection.blocked 10 60 shortstr:reason
connection.unblocked 10 61
connection.update-secret 10 70 longstr:new_secret shortstr:reason
connection.update-secret-ok 10 71
channel.open 20 10 shortstr:out_of_band
channel.open-ok 20 11 longstr:channel_id
channel.flow 20 20 bit:active
channel.flow-ok 20 21 bit:active
channel.close 20 40 short:reply_code shortstr:reply_text short:class_id short:method_id
channel.close-ok 20 41
access.request 30 10 shortstr:realm bit:exclusive bit:passive bit:active bit:write bit:read
access.request-ok 30 11 short:ticket
exchange.declare 40 10 short:ticket shortstr:exchange shortstr:type bit:passive bit:durable bit:auto_delete
    bit:internal bit:no_wait table:arguments
exchange.declare-ok 40 11
exchange.delete 40 20 short:ticket shortstr:exchange bit:if_unused bit:no_wait
exchange.delete-ok 40 21
exchange.bind 40 30 short:ticket shortstr:destination shortstr:source shortstr:routing_key bit:no_wait table:arguments
exchange.bind-ok 40 31
exchange.unbind 40 40 short:ticket shortstr:destination shortstr:source shortstr:routing_key bit:no_wait
    table:arguments
exchange.unbind-ok 40 51
queue.declare 50 10 short:ticket shortstr:queue bit:passive bit:durable bit:exclusive bit:auto_delete bit:no_wait
    table:arguments
queue.declare-ok 50 11 shortstr:queue long:message_count long:consumer_count
queue.bind 50 20 short:ticket shortstr:queue shortstr:exchange shortstr:routing_key bit:no_wait table:arguments
queue.bind-ok 50 21
queue.purge 50 30 short:ticket shortstr:queue bit:no_wait
queue.purge-ok 50 31 long:message_count
queue.delete 50 40 short:ticket shortstr:queue bit:if_unused bit:if_empty bit:no_wait
queue.delete-ok 50 41 long:message_count
queue.unbind 50 50 short:ticket shortstr:queue shortstr:exchange shortstr:routing_key table:arguments
queue.unbind-ok 50 51
basic.qos 60 10 long:prefetch_size short:prefetch_count bit:global
basic.qos-ok 60 11
basic.consume 60 20 short:ticket shortstr:queue shortstr:consumer_tag bit:no_local bit:no_ack bit:exclusive
    bit:no_wait table:arguments
basic.consume-ok 60 21 shortstr:consumer_tag
basic.cancel 60 30 shortstr:consumer_tag bit:no_wait
basic.cancel-ok 60 31 shortstr:consumer_tag
basic.publish 60 40 short:ticket shortstr:exchange shortstr:routing_key bit:mandatory bit:immediate
basic.return 60 50 short:reply_code shortstr:reply_text shortstr:exchange shortstr:routing_key
basic.deliver 60 60 shortstr:consumer_tag longlong:delivery_tag bit:redelivered shortstr:exchange shortstr:routing_key
basic.get 60 70 short:ticket shortstr:queue bit:no_ack
basic.get-ok 60 71 longlong:delivery_tag bit:redelivered shortstr:exchange shortstr:routing_key long:message_count
basic.get-empty 60 72 shortstr:cluster_id
basic.ack 60 80 longlong:delivery_tag bit:multiple
basic.reject 60 90 longlong:delivery_tag bit:requeue
basic.recover-async 60 100 bit:requeue
basic.recover 60 110 bit:requeue
basic.recover-ok 60 111
basic.nack 60 120 longlong:delivery_tag bit:multiple bit:requeue
confirm.select 85 10 bit:no_wait
confirm.select-ok 85 11
tx.select 90 10
tx.select-ok 90 11
tx.commit 90 20
tx.commit-ok 90 21
tx.rollback 90 30
tx.rollback-ok 90 31
"""

# Basic content properties, from the highest flag bit downwards.
_PROPERTIES = (
    ("content_type", "shortstr"),
    ("content_encoding", "shortstr"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "shortstr"),
    ("reply_to", "shortstr"),
    ("expiration", "shortstr"),
    ("message_id", "shortstr"),
    ("timestamp", "longlong"),
    ("type", "shortstr"),
    ("user_id", "shortstr"),
    ("app_id", "shortstr"),
    ("cluster_id", "shortstr"),
)

_INTEGER_FORMATS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}
_FIELD_FORMATS = {
    "t": ">?", "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "f": ">f",
    "d": ">d", "T": ">Q",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tagged:
    """A field value whose wire type is chosen by the test."""

    tag: str
    value: Any


@dataclass(frozen=True, slots=True)
class Shape:
    """What one method looks like on the wire."""

    name: str
    class_id: int
    method_id: int
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, undecoded."""

    kind: int
    channel: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Method:
    """One decoded method; `method["queue"]` is an argument."""

    channel: int
    name: str
    arguments: Mapping[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.arguments[field]


@dataclass(frozen=True, slots=True)
class Content:
    """A method with the message that followed it."""

    method: Method
    properties: Mapping[str, Any]
    body: bytes

    def __getitem__(self, field: str) -> Any:
        return self.method.arguments[field]


def _read_shapes() -> dict[str, Shape]:
    shapes = {}
    for line in _METHOD_LINES.replace("\n    ", " ").strip().splitlines():
        name, class_id, method_id, *fields = line.split()
        pairs = tuple((kind, field) for kind, _, field in (entry.partition(":") for entry in fields))
        shapes[name] = Shape(name, int(class_id), int(method_id), pairs)
    return shapes


SHAPES = _read_shapes()
_SHAPES_BY_ID = {(shape.class_id, shape.method_id): shape for shape in SHAPES.values()}


# ---------------------------------------------------------------- encoding


def pack_shortstr(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(">B", len(raw)) + raw


def pack_longstr(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(raw)) + raw


def pack_table(table: Mapping[str, Any]) -> bytes:
    return pack_longstr(b"".join(pack_shortstr(key) + pack_field(value) for key, value in table.items()))


def pack_field(value: Any) -> bytes:
    """One table or array entry with its type byte; Python's type chooses it unless `Tagged` does."""
    match value:
        case Tagged(tag, inner):
            return tag.encode() + _pack_tagged(tag, inner)
        case bool():
            return _pack_as("t", value)
        case int():
            return _pack_as("I" if -(2**31) <= value < 2**31 else "l", value)
        case float():
            return _pack_as("d", value)
        case str():
            return b"S" + pack_longstr(value)
        case bytes():
            return b"x" + pack_longstr(value)
        case None:
            return b"V"
        case Decimal():
            digits = value.as_tuple()
            scale = -int(digits.exponent)
            return b"D" + struct.pack(">Bi", scale, int(value.scaleb(scale)))
        case list() | tuple():
            return b"A" + pack_longstr(b"".join(pack_field(item) for item in value))
        case Mapping():
            return b"F" + pack_table(value)
    raise TypeError(f"no field type for {value!r}")


def _pack_as(tag: str, value: Any) -> bytes:
    return tag.encode() + struct.pack(_FIELD_FORMATS[tag], value)


def _pack_tagged(tag: str, value: Any) -> bytes:
    if tag in _FIELD_FORMATS:
        return struct.pack(_FIELD_FORMATS[tag], value)
    if tag in "Sx":
        return pack_longstr(value)
    return bytes(value)


def pack_method(name: str, **arguments: Any) -> bytes:
    """A method frame's payload; fields not given are zero, empty or false."""
    shape = SHAPES[name]
    unknown = set(arguments) - {field for _, field in shape.fields}
    if unknown:
        raise TypeError(f"{name} has no field {', '.join(sorted(unknown))}")
    return struct.pack(">HH", shape.class_id, shape.method_id) + _pack_fields(shape.fields, arguments)


def _pack_fields(fields: tuple[tuple[str, str], ...], arguments: Mapping[str, Any]) -> bytes:
    parts: list[bytes] = []
    bits: list[bool] = []
    for kind, field in fields:
        value = arguments.get(field)
        if kind == "bit":
            bits.append(bool(value))
            continue
        parts.append(_pack_bits(bits))
        bits = []
        parts.append(_pack_value(kind, value))
    parts.append(_pack_bits(bits))
    return b"".join(parts)


def _pack_bits(bits: list[bool]) -> bytes:
    if not bits:
        return b""
    return bytes([sum(1 << position for position, bit in enumerate(bits) if bit)])


def _pack_value(kind: str, value: Any) -> bytes:
    if kind in _INTEGER_FORMATS:
        return struct.pack(_INTEGER_FORMATS[kind], value or 0)
    if kind == "shortstr":
        return pack_shortstr(value or "")
    if kind == "longstr":
        return pack_longstr(value or "")
    return value if isinstance(value, bytes) else pack_table(value or {})


def pack_header(
    body_size: int, properties: Mapping[str, Any] | None = None, class_id: int = 60, weight: int = 0
) -> bytes:
    """A content header frame's payload."""
    given = properties or {}
    flags = 0
    values = b""
    for position, (name, kind) in enumerate(_PROPERTIES):
        if name in given:
            flags |= 1 << (15 - position)
            values += _pack_value(kind, given[name])
    return struct.pack(">HHQH", class_id, weight, body_size, flags) + values


def pack_frame(kind: int, channel: int, payload: bytes, end: bytes = FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def pack_publish(
    channel: int, body: bytes = b"", properties: Mapping[str, Any] | None = None, **arguments: Any
) -> bytes:
    """The three frames of one publish (two when the body is empty)."""
    frames = pack_frame(METHOD, channel, pack_method("basic.publish", **arguments))
    frames += pack_frame(HEADER, channel, pack_header(len(body), properties))
    return frames + b"".join(
        pack_frame(BODY, channel, body[start : start + 100_000]) for start in range(0, len(body), 100_000)
    )


# ---------------------------------------------------------------- decoding


class _Reader:
    """Takes values off the front of a payload."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.position = 0

    def take(self, size: int) -> bytes:
        taken = self.payload[self.position : self.position + size]
        if len(taken) != size:
            raise ValueError(f"payload ends {size - len(taken)} bytes early: {self.payload!r}")
        self.position += size
        return taken

    def unpack(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, kind: str) -> Any:
        if kind in _INTEGER_FORMATS:
            return self.unpack(_INTEGER_FORMATS[kind])
        if kind == "shortstr":
            return self.take(self.unpack(">B")).decode()
        if kind == "longstr":
            return self.take(self.unpack(">I"))
        return self.table()

    def table(self) -> dict[str, Any]:
        end = self.unpack(">I") + self.position
        table = {}
        while self.position < end:
            key = self.value("shortstr")
            table[key] = self.field()
        return table

    def field(self) -> Any:
        tag = self.take(1).decode()
        if tag in _FIELD_FORMATS:
            return self.unpack(_FIELD_FORMATS[tag])
        if tag == "S":
            return self.take(self.unpack(">I")).decode()
        if tag == "x":
            return self.take(self.unpack(">I"))
        if tag == "V":
            return None
        if tag == "D":
            scale, digits = self.unpack(">B"), self.unpack(">i")
            return Decimal(digits).scaleb(-scale)
        if tag == "F":
            return self.table()
        if tag == "A":
            end = self.unpack(">I") + self.position
            items = []
            while self.position < end:
                items.append(self.field())
            return items
        raise ValueError(f"unknown field type {tag!r}")


def read_method(frame: Frame) -> Method:
    reader = _Reader(frame.payload)
    shape = _SHAPES_BY_ID[reader.unpack(">H"), reader.unpack(">H")]
    arguments: dict[str, Any] = {}
    bit_position = 8
    bits = 0
    for kind, field in shape.fields:
        if kind != "bit":
            arguments[field] = reader.value(kind)
            bit_position = 8
            continue
        if bit_position == 8:
            bits, bit_position = reader.unpack(">B"), 0
        arguments[field] = bool(bits >> bit_position & 1)
        bit_position += 1
    if reader.position != len(frame.payload):
        raise ValueError(f"{shape.name} has {len(frame.payload) - reader.position} bytes too many")
    return Method(frame.channel, shape.name, arguments)


def read_header(frame: Frame) -> tuple[int, dict[str, Any]]:
    """Body size and properties of a content header frame."""
    reader = _Reader(frame.payload)
    class_id, weight, body_size, flags = (reader.unpack(form) for form in (">H", ">H", ">Q", ">H"))
    assert (class_id, weight) == (60, 0)
    properties = {
        name: reader.value(kind) for position, (name, kind) in enumerate(_PROPERTIES) if flags >> (15 - position) & 1
    }
    return body_size, properties
