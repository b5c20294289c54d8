"""Frames: how they may be cut, and what a broken one leads to."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.conformance.conftest import Connect, Namer
from tests.support.wire import Address, Refusal, WireChannel, WireConnection
from tests.support.wire_format import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    Tagged,
    pack_frame,
    pack_header,
    pack_longstr,
    pack_method,
    pack_publish,
    read_method,
)

FRAME_MAX = 131072
NOT_A_METHOD = "UNEXPECTED_FRAME - expected method frame, got non method frame instead"
NOT_A_HEADER = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
NOT_A_BODY = "UNEXPECTED_FRAME - expected content body, got non content body frame instead"
PUBLISH = pack_frame(METHOD, 1, pack_method("basic.publish", routing_key="nowhere"))
QOS = pack_frame(METHOD, 1, pack_method("basic.qos"))


def frame_error(detail: str, method: str = "") -> Refusal:
    return Refusal("connection", 501, f"FRAME_ERROR - {detail}", method)


def unexpected_frame(text: str, method: str = "") -> Refusal:
    return Refusal("connection", 505, text, method)


def header(size: int = 0, class_id: int = 60, weight: int = 0) -> bytes:
    return pack_frame(HEADER, 1, pack_header(size, class_id=class_id, weight=weight))


def body(content: bytes) -> bytes:
    return pack_frame(BODY, 1, content)


def declare_cut(size: int) -> bytes:
    """A queue.declare frame whose arguments end early."""
    return pack_frame(METHOD, 1, pack_method("queue.declare", queue="abc")[:size])


BROKEN = {
    "wrong end byte": (
        pack_frame(METHOD, 1, pack_method("basic.qos"), end=b"\x01"),
        frame_error("type 1, all octets = <<0,60,0,10,0,0,0,0,0,0,0>>: {invalid_frame_end_marker,1}"),
    ),
    "wrong end byte of a heartbeat": (
        pack_frame(HEARTBEAT, 0, b"", end=b"\x00"),
        frame_error("type 8, all octets = <<>>: {invalid_frame_end_marker,0}"),
    ),
    "frame larger than negotiated, judged by its first bytes": (
        struct.pack(">BHI", METHOD, 1, FRAME_MAX + 1),
        frame_error("type 1, all octets = <<>>: {frame_too_large,131073,131064}"),
    ),
    "frame of two gigabytes": (
        struct.pack(">BHI", BODY, 1, 2**31),
        frame_error("type 3, all octets = <<>>: {frame_too_large,2147483648,131064}"),
    ),
    "protocol header inside": (
        PROTOCOL_HEADER,
        frame_error("type 65, all octets = <<>>: {frame_too_large,1342177289,131064}"),
    ),
    "frame type 0": (pack_frame(0, 1, b"abc"), frame_error('type 0, all octets = <<"abc">>: unknown_frame')),
    "frame type 4": (pack_frame(4, 1, b"abc"), frame_error('type 4, all octets = <<"abc">>: unknown_frame')),
    "frame type 255 on channel zero": (
        pack_frame(255, 0, b"\x00\x01"),
        frame_error("type 255, all octets = <<0,1>>: unknown_frame"),
    ),
    "heartbeat with a payload": (
        pack_frame(HEARTBEAT, 0, b"abc"),
        frame_error('type 8, all octets = <<"abc">>: unknown_frame'),
    ),
    "heartbeat on a channel": (
        pack_frame(HEARTBEAT, 1, b""),
        unexpected_frame("UNEXPECTED_FRAME - type 8, all octets = <<>>"),
    ),
    "method without ids": (pack_frame(METHOD, 1, b""), frame_error("type 1, all octets = <<>>: unknown_frame")),
    "method with half of its ids": (
        pack_frame(METHOD, 1, b"\x00\x32\x00"),
        frame_error("type 1, all octets = <<0,50,0>>: unknown_frame"),
    ),
    "no arguments": (declare_cut(4), frame_error("cannot decode <<>>", "queue.declare")),
    "arguments cut in a text": (declare_cut(8), frame_error("cannot decode <<0,0,3,97>>", "queue.declare")),
    "arguments cut in the table": (
        declare_cut(12),
        frame_error("cannot decode <<0,0,3,97,98,99,0,0>>", "queue.declare"),
    ),
    "arguments with more behind": (
        pack_frame(METHOD, 1, pack_method("basic.qos") + b"zz"),
        frame_error("cannot decode <<0,0,0,0,0,0,0,122,122>>", "basic.qos"),
    ),
    "text longer than the frame": (
        pack_frame(METHOD, 1, struct.pack(">HHH", 50, 10, 0) + b"\xffabc"),
        frame_error("cannot decode <<0,0,255,97,98,99>>", "queue.declare"),
    ),
    "table longer than the frame": (
        pack_frame(METHOD, 1, pack_method("queue.declare", queue="a", arguments=b"\x00\x00\x10\x00")),
        frame_error("cannot decode <<0,0,1,97,0,0,0,16,0>>", "queue.declare"),
    ),
    "name that is no UTF-8": (
        pack_frame(METHOD, 1, pack_method("queue.declare", queue=b"\xff\xfe")),
        frame_error("Malformed UTF-8 in shortstr"),
    ),
    "header without a method": (header(), unexpected_frame(NOT_A_METHOD)),
    "body without a method": (body(b"abc"), unexpected_frame(NOT_A_METHOD)),
    "body for the header": (PUBLISH + body(b"abc"), unexpected_frame(NOT_A_HEADER, "basic.publish")),
    "method for the header": (PUBLISH + QOS, unexpected_frame(NOT_A_HEADER, "basic.publish")),
    "method for the body": (PUBLISH + header(10) + QOS, unexpected_frame(NOT_A_BODY, "basic.publish")),
    "channel.close for the body": (
        PUBLISH + header(10) + pack_frame(METHOD, 1, pack_method("channel.close")),
        unexpected_frame(NOT_A_BODY, "basic.publish"),
    ),
    "header for the body": (PUBLISH + header(10) + header(10), unexpected_frame(NOT_A_BODY, "basic.publish")),
    "body where none was announced": (PUBLISH + header(0) + body(b"a"), unexpected_frame(NOT_A_METHOD)),
    "empty body where none was announced": (PUBLISH + header(0) + body(b""), unexpected_frame(NOT_A_METHOD)),
    "header of another class": (
        PUBLISH + header(0, class_id=50),
        unexpected_frame(
            "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead", "basic.publish"
        ),
    ),
    "header with a weight": (PUBLISH + header(0, weight=1), unexpected_frame(NOT_A_HEADER, "basic.publish")),
    "header cut short": (
        PUBLISH + pack_frame(HEADER, 1, pack_header(0)[:8]),
        frame_error("type 2, all octets = <<0,60,0,0,0,0,0,0>>: unknown_frame"),
    ),
    "empty header": (
        PUBLISH + pack_frame(HEADER, 1, b""),
        frame_error("type 2, all octets = <<>>: unknown_frame"),
    ),
}

# RabbitMQ drops the connection on these without a close; saying why is the better answer.
UNDECODABLE = {
    "unknown class": pack_frame(METHOD, 1, struct.pack(">HH", 99, 10)),
    "unknown method": pack_frame(METHOD, 1, struct.pack(">HH", 50, 99)),
    "unknown class on channel zero": pack_frame(METHOD, 0, struct.pack(">HH", 99, 10)),
    "highest class": pack_frame(METHOD, 1, struct.pack(">HH", 0xFFFF, 0xFFFF)),
    "highest class on a channel that is not open": pack_frame(METHOD, 9, struct.pack(">HH", 0xFFFF, 0xFFFF)),
    "table with an unknown type": pack_frame(
        METHOD, 1, pack_method("queue.declare", queue="a", arguments=pack_longstr(b"\x01aZxx"))
    ),
    "table with a text that overruns it": pack_frame(
        METHOD, 1, pack_method("queue.declare", queue="a", arguments=pack_longstr(b"\x01aS\x00\x00\xff\x00abc"))
    ),
}

# RabbitMQ answers these with a bare INTERNAL_ERROR.
BAD_PROPERTIES = {
    "property announced but absent": struct.pack(">HHQH", 60, 0, 0, 0x8000),
    "bytes behind the properties": pack_header(0) + b"zzz",
    "headers with an unknown type": struct.pack(">HHQH", 60, 0, 0, 0x2000) + pack_longstr(b"\x01aZxx"),
    "headers longer than the frame": struct.pack(">HHQH", 60, 0, 0, 0x2000) + b"\x00\x00\x10\x00",
}


@pytest.fixture(scope="module")
def broken(address: Address) -> Iterator[dict[str, WireChannel]]:
    """A channel for each, on a connection of its own, with what is wrong already sent.

    The broker cannot read on behind some of it, and waits some seconds for the client to hang up: once for all.
    """
    begun: dict[str, WireChannel] = {}
    for label, sent in ({label: sent for label, (sent, _) in BROKEN.items()} | UNDECODABLE).items():
        begun[label] = WireConnection(address).open().channel(1)
        begun[label].connection.send_bytes(sent)
    yield begun
    for channel in begun.values():
        channel.connection.socket.close()


@pytest.mark.parametrize("label", BROKEN)
def test_broken(broken: dict[str, WireChannel], label: str) -> None:
    assert broken[label].expect_refusal() == BROKEN[label][1]


@pytest.mark.parametrize("label", UNDECODABLE)
def test_what_cannot_be_decoded_ends_the_connection(broken: dict[str, WireChannel], label: str) -> None:
    rest = broken[label].connection.read_to_end()
    if rest:
        assert rest[:3] == b"\x01\x00\x00"
        assert rest[7:11] == b"\x00\x0a\x00\x32"
        assert struct.unpack(">H", rest[11:13])[0] in {501, 502, 503, 504, 540}


@pytest.mark.parametrize("label", BAD_PROPERTIES)
def test_bad_properties_end_the_connection(channel: WireChannel, label: str) -> None:
    channel.connection.send_bytes(PUBLISH + pack_frame(HEADER, 1, BAD_PROPERTIES[label]))
    refusal = channel.expect_refusal()
    assert refusal.scope == "connection"
    assert refusal.code in {501, 502, 541}


def test_a_body_longer_than_announced_ends_the_connection(channel: WireChannel) -> None:
    """RabbitMQ notices at the next method."""
    channel.connection.send_bytes(PUBLISH + header(2) + body(b"abc") + QOS)
    refusal = channel.expect_refusal()
    assert refusal.scope == "connection"
    assert refusal.code in {501, 505}


def test_any_cut_of_the_stream_means_the_same(channel: WireChannel, queue: str) -> None:
    dialogue = pack_publish(1, b"byte by byte", {"message_id": "m1"}, routing_key=queue) + pack_frame(
        METHOD, 1, pack_method("basic.get", queue=queue, no_ack=True)
    )
    for byte in dialogue:
        channel.connection.send_bytes(bytes([byte]))
    message = channel.content("basic.get-ok")
    assert (message.body, message.properties) == (b"byte by byte", {"message_id": "m1"})


def test_heartbeats_may_come_amid_content(channel: WireChannel, queue: str) -> None:
    beat = pack_frame(HEARTBEAT, 0, b"")
    publish = pack_frame(METHOD, 1, pack_method("basic.publish", routing_key=queue))
    channel.connection.send_bytes(publish + beat + header(4) + beat + body(b"ab") + beat + body(b"cd"))
    message = channel.get(queue)
    assert message is not None
    assert message.body == b"abcd"


def test_empty_body_frames_may_come_amid_content(channel: WireChannel, queue: str) -> None:
    publish = pack_frame(METHOD, 1, pack_method("basic.publish", routing_key=queue))
    channel.connection.send_bytes(publish + header(4) + body(b"") + body(b"ab") + body(b"") + body(b"cd"))
    message = channel.get(queue)
    assert message is not None
    assert message.body == b"abcd"


def test_other_channels_may_send_methods_between_content_frames(connection: WireConnection) -> None:
    first, second = connection.channel(1), connection.channel(2)
    queue = first.call("queue.declare", exclusive=True)["queue"]
    first.send("basic.publish", routing_key=queue)
    second.barrier()
    connection.send_frame(HEADER, 1, pack_header(2))
    second.publish(b"second", routing_key=queue)
    connection.send_frame(BODY, 1, b"ab")
    second.barrier(queue)
    bodies = {message.body for message in iter(lambda: first.get(queue), None)}
    assert bodies == {b"ab", b"second"}


def test_the_connection_may_be_closed_amid_content(channel: WireChannel) -> None:
    channel.connection.send_bytes(PUBLISH + header(10) + body(b"half"))
    channel.connection.send("connection.close", reply_code=200)
    channel.connection.expect("connection.close-ok")


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 50_000])
def test_deliveries_are_cut_to_the_negotiated_frame_size(connect: Connect, size: int) -> None:
    channel = connect(frame_max=4096).channel()
    queue = channel.call("queue.declare", exclusive=True)["queue"]
    content = bytes(range(256)) * (size // 256 + 1)
    channel.send("basic.publish", routing_key=queue)
    channel.connection.send_frame(HEADER, 1, pack_header(size))
    for start in range(0, size, 3000):
        channel.connection.send_frame(BODY, 1, content[start : min(start + 3000, size)])
    channel.send("basic.get", queue=queue, no_ack=True)
    channel.expect("basic.get-ok")
    channel.connection.read_frame(1)
    received: list[bytes] = []
    while sum(map(len, received)) < size:
        received.append(channel.connection.read_frame(1).payload)
    assert b"".join(received) == content[:size]
    assert [len(part) for part in received[:-1]] == [4088] * (len(received) - 1)


def test_a_frame_of_exactly_the_negotiated_size_is_taken(channel: WireChannel, queue: str) -> None:
    largest = b"x" * (FRAME_MAX - 8)
    publish = pack_frame(METHOD, 1, pack_method("basic.publish", routing_key=queue))
    channel.connection.send_bytes(publish + header(len(largest)) + body(largest))
    message = channel.get(queue)
    assert message is not None
    assert message.body == largest


def test_properties_come_back_bit_for_bit(channel: WireChannel, queue: str) -> None:
    sent = pack_header(
        4,
        {
            "content_type": "application/json",
            "content_encoding": "gzip",
            "headers": {
                "true": True,
                "int8": Tagged("b", -8),
                "uint8": Tagged("B", 8),
                "int16": Tagged("s", -16),
                "uint16": Tagged("u", 16),
                "int32": Tagged("I", -32),
                "uint32": Tagged("i", 32),
                "int64": Tagged("l", -64),
                "float": Tagged("f", 0.5),
                "double": 0.1,
                "decimal": Decimal("3.14"),
                "text": "snowman ☃",
                "bytes": b"\x00\xff",
                "timestamp": Tagged("T", 1_700_000_000),
                "void": None,
                "array": [1, "two", [3.0, None], {"four": 4}],
                "table": {"deep": {"deeper": [True, False]}},
                "empty": {},
            },
            "delivery_mode": 2,
            "priority": 9,
            "correlation_id": "correlation",
            "reply_to": "reply",
            "expiration": "60000",
            "message_id": "message",
            "timestamp": 1_700_000_000,
            "type": "type",
            "user_id": "guest",
            "app_id": "application",
            "cluster_id": "cluster",
        },
    )
    channel.send("basic.publish", routing_key=queue)
    channel.connection.send_frame(HEADER, 1, sent)
    channel.connection.send_frame(BODY, 1, b"body")
    channel.send("basic.get", queue=queue, no_ack=True)
    assert read_method(channel.connection.read_frame(1)).name == "basic.get-ok"
    assert channel.connection.read_frame(1).payload == sent


def test_absent_and_empty_properties_stay_different(channel: WireChannel, queue: str, name: Namer) -> None:
    variants: list[dict[str, Any]] = [{}, {"headers": {}}, {"message_id": "", "priority": 0}]
    for properties in variants:
        channel.publish(b"", properties, routing_key=queue)
        message = channel.get(queue)
        assert message is not None
        assert message.properties == properties
