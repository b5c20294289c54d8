"""Whole conversations of a client with a server, as frames that can be damaged on purpose.

`apply_edits` damages with care: most edits keep the framing right, so that what is wrong reaches deep into the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from tests.support.wire_format import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    Frame,
    pack_frame,
    pack_header,
    pack_method,
)


class EditKind(IntEnum):
    """What one edit does to the frame at `place`, with `value`."""

    SET_BYTE = 0  # in the payload
    INSERT_BYTE = 1
    REMOVE_BYTE = 2
    DROP_FRAME = 3
    REPEAT_FRAME = 4
    SWAP_WITH_NEXT = 5
    SET_CHANNEL = 6
    SET_KIND = 7
    CUT_PAYLOAD = 8
    COPY_TO_END = 9
    BREAK_BYTE = 10  # in the bytes on the wire, framing and all


@dataclass(frozen=True, slots=True)
class Edit:
    """`place` and `value` may be any number: they are taken modulo what is there."""

    kind: EditKind
    place: int
    value: int


def edits_of(data: bytes) -> list[Edit]:
    """Random bytes as edits, seven for each."""
    return [
        Edit(
            EditKind(data[start] % len(EditKind)),
            int.from_bytes(data[start + 1 : start + 3], "big"),
            int.from_bytes(data[start + 3 : start + 7], "big"),
        )
        for start in range(0, len(data) - 6, 7)
    ]


def apply_edits(conversation: Iterable[Frame], edits: Iterable[Edit]) -> list[bytes]:
    """The conversation on the wire, edited: the protocol header, then a piece for each frame."""
    frames = list(conversation)
    breaks = []
    for edit in edits:
        if edit.kind is EditKind.BREAK_BYTE:
            breaks.append(edit)
        elif frames:
            _edit_frames(frames, edit)
    pieces = [PROTOCOL_HEADER, *(pack_frame(frame.kind, frame.channel, frame.payload) for frame in frames)]
    for edit in breaks:
        index = edit.place % len(pieces)
        pieces[index] = _with_byte(pieces[index], edit)
    return pieces


def _with_byte(raw: bytes, edit: Edit) -> bytes:
    at = (edit.value >> 8) % len(raw)
    return raw[:at] + bytes((edit.value % 256,)) + raw[at + 1 :]


def _edit_frames(frames: list[Frame], edit: Edit) -> None:
    index = edit.place % len(frames)
    frame = frames[index]
    payload = frame.payload
    at = (edit.value >> 8) % (len(payload) or 1)
    if edit.kind is EditKind.SET_BYTE and payload:
        frames[index] = replace(frame, payload=_with_byte(payload, edit))
    elif edit.kind is EditKind.INSERT_BYTE:
        frames[index] = replace(frame, payload=payload[:at] + bytes((edit.value % 256,)) + payload[at:])
    elif edit.kind is EditKind.REMOVE_BYTE:
        frames[index] = replace(frame, payload=payload[:at] + payload[at + 1 :])
    elif edit.kind is EditKind.CUT_PAYLOAD:
        frames[index] = replace(frame, payload=payload[:at])
    elif edit.kind is EditKind.DROP_FRAME:
        del frames[index]
    elif edit.kind is EditKind.REPEAT_FRAME:
        frames.insert(index, frame)
    elif edit.kind is EditKind.COPY_TO_END:
        frames.append(frame)
    elif edit.kind is EditKind.SWAP_WITH_NEXT and index + 1 < len(frames):
        frames[index : index + 2] = frames[index + 1], frame
    elif edit.kind is EditKind.SET_CHANNEL:
        frames[index] = replace(frame, channel=edit.value % 4)
    elif edit.kind is EditKind.SET_KIND:
        frames[index] = replace(frame, kind=(METHOD, HEADER, BODY, HEARTBEAT, 0, 9)[edit.value % 6])


def method(channel: int, name: str, **arguments: Any) -> list[Frame]:
    return [Frame(METHOD, channel, pack_method(name, **arguments))]


def publish(channel: int, body: bytes, properties: dict[str, Any] | None = None, **arguments: Any) -> list[Frame]:
    """A publish whose body comes in frames of 100 bytes."""
    frames = method(channel, "basic.publish", **arguments)
    frames.append(Frame(HEADER, channel, pack_header(len(body), properties)))
    return frames + [Frame(BODY, channel, body[start : start + 100]) for start in range(0, len(body), 100)]


def handshake(login: bytes = b"\0guest\0guest", **tuning: int) -> list[Frame]:
    capabilities = {"consumer_cancel_notify": True, "connection.blocked": True, "authentication_failure_close": True}
    start_ok = {"client_properties": {"capabilities": capabilities}, "mechanism": "PLAIN", "locale": "en_US"}
    tune_ok = {"channel_max": 2047, "frame_max": 131072, "heartbeat": 60} | tuning
    return [
        *method(0, "connection.start-ok", response=login, **start_ok),
        *method(0, "connection.tune-ok", **tune_ok),
        *method(0, "connection.open", virtual_host="/"),
    ]


TOPOLOGY = [
    *method(1, "channel.open"),
    *method(1, "exchange.declare", exchange="t", type="topic"),
    *method(1, "exchange.declare", exchange="h", type="headers", auto_delete=True),
    *method(1, "exchange.declare", exchange="f", type="fanout", arguments={"alternate-exchange": "t"}),
    *method(1, "queue.declare", queue="q", arguments={"x-expires": 60000, "x-max-priority": 3}),
    *method(1, "queue.declare", queue="p", durable=True, exclusive=True),
    *method(1, "queue.declare", queue="q", passive=True),
    *method(1, "queue.bind", queue="q", exchange="t", routing_key="a.*.#"),
    *method(1, "queue.bind", queue="q", exchange="h", arguments={"x-match": "any", "a": 1, "b": "c"}),
    *method(1, "exchange.bind", destination="t", source="f", routing_key="a.b"),
    *publish(1, b"x" * 250, {"headers": {"a": 1}, "delivery_mode": 2}, exchange="h"),
    *publish(1, b"", exchange="f", routing_key="a.b.c"),
    *method(1, "basic.get", queue="q", no_ack=True),
    *method(1, "exchange.unbind", destination="t", source="f", routing_key="a.b"),
    *method(1, "queue.unbind", queue="q", exchange="t", routing_key="a.*.#"),
    *method(1, "queue.purge", queue="q"),
    *method(1, "exchange.delete", exchange="f", if_unused=True),
    *method(1, "queue.delete", queue="q", if_empty=True),
    *method(1, "channel.close", reply_code=200),
]
MESSAGES = [
    *method(1, "channel.open"),
    *method(2, "channel.open"),
    *method(1, "confirm.select"),
    *method(1, "queue.declare", queue="q"),
    *method(2, "basic.qos", prefetch_count=2),
    *method(2, "basic.consume", queue="q", consumer_tag="c"),
    *publish(1, b"one", {"content_type": "text/plain", "priority": 1, "expiration": "60000"}, routing_key="q"),
    *publish(1, b"two" * 100, {"headers": {"CC": ["q", "x"], "BCC": ["q"]}, "user_id": "guest"}, routing_key="x"),
    *publish(1, b"", {"message_id": "m", "timestamp": 1700000000, "cluster_id": "c"}, routing_key="q"),
    *publish(1, b"lost", {"app_id": "a", "type": "t"}, routing_key="nowhere", mandatory=True),
    *method(2, "basic.ack", delivery_tag=1),
    *method(2, "basic.nack", delivery_tag=2, requeue=True),
    *method(2, "basic.reject", delivery_tag=3),
    *method(2, "basic.recover", requeue=True),
    Frame(HEARTBEAT, 0, b""),
    *method(2, "basic.ack", delivery_tag=0, multiple=True),
    *method(2, "basic.cancel", consumer_tag="c"),
    *method(1, "basic.get", queue="q"),
    *method(2, "channel.flow", active=True),
    *method(1, "queue.delete", queue="q"),
]
TRANSACTIONS = [
    *method(1, "channel.open"),
    *method(1, "queue.declare", queue="q", auto_delete=True),
    *method(1, "tx.select"),
    *publish(1, b"held", routing_key="q"),
    *method(1, "tx.commit"),
    *method(1, "basic.consume", queue="q", consumer_tag="c", arguments={"x-priority": 5}),
    *publish(1, b"dropped" * 50, routing_key="q"),
    *method(1, "basic.ack", delivery_tag=1),
    *method(1, "tx.rollback"),
    *method(1, "basic.nack", delivery_tag=1, multiple=True),
    *method(1, "tx.commit"),
    *method(1, "basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True),
    *publish(1, b"ask", {"reply_to": "amq.rabbitmq.reply-to", "correlation_id": "1"}, routing_key="q"),
    *method(1, "tx.commit"),
    *method(1, "basic.cancel", consumer_tag="c"),
]
GOODBYE = [*method(0, "connection.close", reply_code=200), *method(0, "connection.close-ok")]

CONVERSATIONS = [[*handshake(), *middle, *GOODBYE] for middle in (TOPOLOGY, MESSAGES, TRANSACTIONS)]
