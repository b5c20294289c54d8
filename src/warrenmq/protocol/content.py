"""The methods that carry a message to a client: deliver, get-ok, return.

Apart from `methods.py` because names are taken here whatever their bytes: a broker passes on what a publisher sent,
and one routing key that is not UTF-8 must not cost the consumer its connection.
"""

from __future__ import annotations

from typing import TypeAlias

from warrenmq.protocol import spec
from warrenmq.protocol.errors import CommandInvalid, MalformedArguments, MalformedValue
from warrenmq.protocol.values import ValueReader

ContentMethod: TypeAlias = spec.BasicDeliver | spec.BasicGetOk | spec.BasicReturn


def decode_content_method(payload: bytes) -> ContentMethod:
    """The method of a payload that came with a content; bytes that are not UTF-8 become readable escapes."""
    index = int.from_bytes(payload[:4], "big")
    class_id, method_id = index >> 16, index & 0xFFFF
    reader = ValueReader(payload, 4, len(payload))
    try:
        if index == spec.BasicDeliver.index:
            method = _read_deliver(reader)
        elif index == spec.BasicGetOk.index:
            method = _read_get_ok(reader)
        elif index == spec.BasicReturn.index:
            method = _read_return(reader)
        else:
            raise CommandInvalid("a server does not send this method", class_id, method_id)
        if reader.position != reader.end:
            raise MalformedValue("bytes left over after the last argument")
    except MalformedValue as malformed:
        raise MalformedArguments(payload[4:], class_id, method_id) from malformed
    return method


def _read_deliver(reader: ValueReader) -> ContentMethod:
    consumer_tag = reader.read_label()
    delivery_tag = reader.read_longlong()
    redelivered = reader.read_octet() & 1 == 1
    return spec.BasicDeliver(consumer_tag, delivery_tag, redelivered, reader.read_label(), reader.read_label())


def _read_get_ok(reader: ValueReader) -> ContentMethod:
    delivery_tag = reader.read_longlong()
    redelivered = reader.read_octet() & 1 == 1
    exchange, routing_key = reader.read_label(), reader.read_label()
    return spec.BasicGetOk(delivery_tag, redelivered, exchange, routing_key, reader.read_long())


def _read_return(reader: ValueReader) -> ContentMethod:
    reply_code = reader.read_short()
    reply_text = reader.read_label()
    return spec.BasicReturn(reply_code, reply_text, reader.read_label(), reader.read_label())
