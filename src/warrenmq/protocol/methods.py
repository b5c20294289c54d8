"""Methods between their classes and the payload of a method frame.

A payload is the class id and method id, two bytes each, then the arguments in wire order; neighbouring bits share an
byte, the first one lowest (AMQP 0-9-1 §4.2.5.2). The classes and their fields stand in `spec.py`; this file only reads
those tables, so a method added there needs nothing here.

The per-message methods (publish, deliver, ack) have faster ways of their own in `output.py` and `connection.py`; this
is for all others.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from warrenmq.protocol.errors import (
    FrameError,
    LocalMisuse,
    MalformedArguments,
    MalformedText,
    MalformedValue,
    UnknownMethod,
    describe_payload,
)
from warrenmq.protocol.spec import FRAME_METHOD, METHODS, FieldType, Method
from warrenmq.protocol.values import ValueReader, encode_longstr, encode_shortstr, encode_table

__all__ = ["Method", "decode", "encode"]


def encode(method: Method) -> bytes:
    """The payload of the method's frame."""
    out = bytearray(method.index.to_bytes(4, "big"))
    bits = bit_count = 0
    for name, kind in method.fields:
        value = _RESERVED[kind] if name.startswith("reserved") else getattr(method, name)
        if kind == "bit":
            bits |= bool(value) << bit_count
            bit_count += 1
            continue
        if bit_count:
            out += bits.to_bytes((bit_count + 7) // 8, "little")
            bits = bit_count = 0
        try:
            out += _WRITE[kind](value)
        except (AttributeError, TypeError, LocalMisuse) as misuse:
            raise LocalMisuse(f"{method.name}: {name} cannot be {value!r:.80}: {misuse}") from misuse
    if bit_count:
        out += bits.to_bytes((bit_count + 7) // 8, "little")
    return bytes(out)


def decode(payload: bytes) -> Method:
    """The method of a method frame's payload; all of the payload, or it is malformed."""
    if len(payload) < 4:
        raise FrameError(f"{describe_payload(FRAME_METHOD, payload)}: unknown_frame")
    index = int.from_bytes(payload[:4], "big")
    class_id, method_id = index >> 16, index & 0xFFFF
    method = METHODS.get(index)
    if method is None:
        raise UnknownMethod(class_id, method_id)
    reader = ValueReader(payload, 4, len(payload))
    try:
        return method(*_read_arguments(method, reader))
    except MalformedText:
        raise
    except MalformedValue as malformed:
        raise MalformedArguments(payload[4:], class_id, method_id) from malformed


def _read_arguments(method: type[Method], reader: ValueReader) -> list[Any]:
    """The arguments that the method's constructor takes, in its order."""
    arguments: list[Any] = []
    malformed_text: MalformedText | None = None
    bits = bit_count = 0
    for name, kind in method.fields:
        value: Any
        if kind == "bit":
            if bit_count % 8 == 0:
                bits = reader.read_octet()
            value = bool(bits >> bit_count % 8 & 1)
            bit_count += 1
        else:
            bit_count = 0
            try:
                value = _READ[kind](reader)
            except MalformedText as malformed:
                # Told only where everything else can be read, as RabbitMQ does.
                malformed_text = malformed
                continue
        if not name.startswith("reserved"):
            arguments.append(value)
    if reader.position != reader.end:
        raise MalformedValue("bytes left over after the last argument")
    if malformed_text is not None:
        raise malformed_text
    return arguments


def _encode_integer(width: int, value: int) -> bytes:
    try:
        return value.to_bytes(width, "big")
    except OverflowError as overflow:
        raise LocalMisuse(f"not an unsigned integer of {8 * width} bits") from overflow


_READ: dict[FieldType, Callable[[ValueReader], Any]] = {
    "octet": ValueReader.read_octet,
    "short": ValueReader.read_short,
    "long": ValueReader.read_long,
    "longlong": ValueReader.read_longlong,
    "shortstr": ValueReader.read_shortstr,
    "longstr": ValueReader.read_longstr,
    "table": ValueReader.read_table,
}

_WRITE: dict[FieldType, Callable[[Any], bytes]] = {
    "octet": partial(_encode_integer, 1),
    "short": partial(_encode_integer, 2),
    "long": partial(_encode_integer, 4),
    "longlong": partial(_encode_integer, 8),
    "shortstr": encode_shortstr,
    "longstr": encode_longstr,
    "table": encode_table,
}

_RESERVED: dict[FieldType, Any] = {
    "bit": False,
    "octet": 0,
    "short": 0,
    "long": 0,
    "longlong": 0,
    "shortstr": "",
    "longstr": b"",
    "table": {},
}
