"""The output buffer: the same bytes as a plain encoder's, in the order of the calls, whatever their sizes.

The plain encoder is tests/support/wire_format.py; pamqp, which knows neither, reads the result as well.
"""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body as pamqp_body
from pamqp import commands, frame, header

from tests.support.wire_format import BODY, HEADER, METHOD, pack_frame, pack_header, pack_method, pack_shortstr
from warrenmq.protocol.output import IS_COMPILED, BufferPool, OutputBuffer

# As in output.py, where it is a number of C's and cannot be imported.
BIG_BODY = 16 * 1024

FRAME_MAXES = [4096, 8192, BIG_BODY + 7, BIG_BODY + 8, BIG_BODY + 9, 131072]
LIMITS = [limit - 8 for limit in FRAME_MAXES]
INTERESTING_SIZES = sorted(
    {0, 1, 2, 200_000, 65536, 65535, 65537}
    | {BIG_BODY + offset for offset in (-1, 0, 1)}
    | {count * limit + offset for limit in LIMITS for count in (1, 2) for offset in (-1, 0, 1)}
)
# Slices of one random-looking text, so that a piece out of place is seen.
SOURCE = bytes((7 * number + number // 251) % 256 for number in range(300_000))

short_bytes = st.binary(max_size=255).map(pack_shortstr)
channels = st.integers(1, 65535)
tags = st.integers(0, 2**64 - 1)
sizes = st.sampled_from(INTERESTING_SIZES) | st.integers(0, 3000)


def buffer(frame_max: int = 131072, pool: BufferPool | None = None) -> OutputBuffer:
    return OutputBuffer(frame_max, pool or BufferPool())


def plain_content(frame_max: int, channel: int, method: bytes, content_header: bytes, body: bytes) -> bytes:
    limit = frame_max - 8
    frames = [pack_frame(METHOD, channel, method), pack_frame(HEADER, channel, content_header)]
    frames += [pack_frame(BODY, channel, body[start : start + limit]) for start in range(0, len(body), limit)]
    return b"".join(frames)


def taken(output: OutputBuffer) -> bytes:
    return b"".join(output.take())


Call = tuple[Callable[[OutputBuffer], None], Callable[[int], bytes]]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Something to put, and the bytes that it should become for a frame_max."""
    channel = draw(channels)
    kind = draw(st.sampled_from(["put", "method", "ack", "nack", "content", "message", "delivery", "delivery"]))
    if kind == "put":
        raw = pack_frame(METHOD, channel, draw(st.binary(min_size=4, max_size=100)))
        return lambda output: output.put(raw), lambda _: raw
    if kind == "method":
        payload = draw(st.binary(min_size=4, max_size=4000))
        return lambda output: output.put_method(channel, payload), lambda _: pack_frame(METHOD, channel, payload)
    if kind == "ack":
        tag, multiple = draw(tags), draw(st.booleans())
        expected = pack_frame(METHOD, channel, pack_method("basic.ack", delivery_tag=tag, multiple=multiple))
        return lambda output: output.put_ack(channel, tag, multiple), lambda _: expected
    if kind == "nack":
        tag, bits = draw(tags), draw(st.integers(0, 3))
        named = {"delivery_tag": tag, "multiple": bits & 1, "requeue": bits >> 1}
        settled = pack_frame(METHOD, channel, pack_method("basic.nack", **named))
        return lambda output: output.put_settlement(channel, 0x003C_0078, tag, bits), lambda _: settled
    size, start = draw(sizes), draw(st.integers(0, 255))
    body = SOURCE[start : start + size]
    content_header = pack_header(len(body), {"headers": draw(st.binary(max_size=1000).map(_as_table))})
    if kind == "content":
        method = draw(st.binary(min_size=4, max_size=500))
        return (
            lambda output: output.put_content(channel, method, content_header, body),
            lambda frame_max: plain_content(frame_max, channel, method, content_header, body),
        )
    if kind == "message":
        method = draw(st.binary(min_size=4, max_size=500))
        return (
            lambda output: output.put_message(channel, method, content_header[12:], body),
            lambda frame_max: plain_content(frame_max, channel, method, content_header, body),
        )
    consumer_tag, exchange, key = draw(short_bytes), draw(short_bytes), draw(short_bytes)
    tag, redelivered = draw(tags), draw(st.booleans())
    deliver = b"\0\x3c\0\x3c" + consumer_tag + tag.to_bytes(8, "big") + bytes((redelivered,)) + exchange + key
    return (
        lambda output: output.put_delivery(
            channel, consumer_tag, tag, redelivered, exchange + key, content_header, body
        ),
        lambda frame_max: plain_content(frame_max, channel, deliver, content_header, body),
    )


def _as_table(content: bytes) -> bytes:
    """A table with one entry of N bytes."""
    entry = b"\x01kx" + len(content).to_bytes(4, "big") + content
    return len(entry).to_bytes(4, "big") + entry


@given(st.sampled_from(FRAME_MAXES), st.lists(calls(), max_size=12), st.sets(st.integers(0, 12)))
def test_bytes_and_order_are_those_of_a_plain_encoder(frame_max: int, sequence: list[Call], takes: set[int]) -> None:
    output = buffer(frame_max)
    expected, written = b"", b""
    for number, (put, encode) in enumerate(sequence):
        put(output)
        expected += encode(frame_max)
        assert output.size == len(expected) - len(written)
        if number in takes:  # taking in between changes nothing
            written += taken(output)
            assert output.size == 0
    assert written + taken(output) == expected


@pytest.mark.parametrize("frame_max", FRAME_MAXES)
@pytest.mark.parametrize("size", INTERESTING_SIZES)
def test_a_delivery_of_any_size_is_cut_at_the_frame_limit(frame_max: int, size: int) -> None:
    body = SOURCE[:size]
    content_header = pack_header(size, {"content_type": "text/plain"})
    method = pack_method("basic.deliver", consumer_tag="c", delivery_tag=9, exchange="e", routing_key="k")
    delivered, as_content, as_message = buffer(frame_max), buffer(frame_max), buffer(frame_max)
    delivered.put_delivery(3, b"\x01c", 9, False, b"\x01e\x01k", content_header, body)
    as_content.put_content(3, method, content_header, body)
    as_message.put_message(3, method, content_header[12:], body)
    expected = plain_content(frame_max, 3, method, content_header, body)
    assert taken(delivered) == expected
    assert taken(as_content) == expected
    assert taken(as_message) == expected


@given(st.lists(st.tuples(channels, sizes, st.booleans()), min_size=1, max_size=6), st.sampled_from(FRAME_MAXES))
def test_pamqp_reads_the_deliveries(deliveries: list[tuple[int, int, bool]], frame_max: int) -> None:
    output = buffer(frame_max)
    for tag, (channel, size, redelivered) in enumerate(deliveries, start=1):
        content_header = pack_header(size, {"delivery_mode": 2})
        output.put_delivery(channel, b"\x03tag", tag, redelivered, b"\x01e\x03key", content_header, SOURCE[:size])
    data = taken(output)
    for tag, (channel, size, redelivered) in enumerate(deliveries, start=1):
        data, their_channel, method = _next_frame(data)
        assert isinstance(method, commands.Basic.Deliver)
        assert (their_channel, method.consumer_tag, method.delivery_tag) == (channel, "tag", tag)
        assert (method.redelivered, method.exchange, method.routing_key) == (redelivered, "e", "key")
        data, their_channel, content_header = _next_frame(data)
        assert isinstance(content_header, header.ContentHeader)
        assert (their_channel, content_header.body_size) == (channel, size)
        assert content_header.properties.delivery_mode == 2
        body = b""
        while len(body) < size:
            data, their_channel, piece = _next_frame(data)
            assert isinstance(piece, pamqp_body.ContentBody)
            assert their_channel == channel
            assert piece.value is not None
            assert len(piece.value) <= frame_max - 8
            body += piece.value
        assert body == SOURCE[:size]
    assert data == b""


def _next_frame(data: bytes) -> tuple[bytes, int, object]:
    used, channel, value = frame.unmarshal(data)
    return data[used:], channel, value


def test_what_was_taken_does_not_change_when_its_scratch_is_used_again() -> None:
    pool = BufferPool()
    first, second = buffer(pool=pool), buffer(pool=pool)
    first.put(b"a" * 1000)
    kept = first.take()
    second.put(b"b" * 1000)
    first.put(b"c" * 1000)
    assert b"".join(kept) == b"a" * 1000
    assert taken(second) == b"b" * 1000
    assert taken(first) == b"c" * 1000


def test_many_small_deliveries_outgrow_every_scratch_in_order() -> None:
    output = buffer()
    expected = []
    for tag in range(5000):
        output.put_delivery(1, b"\x01c", tag, False, b"\0\x01q", pack_header(5), b"%05d" % tag)
        method = pack_method("basic.deliver", consumer_tag="c", delivery_tag=tag, routing_key="q")
        expected.append(plain_content(131072, 1, method, pack_header(5), b"%05d" % tag))
    assert taken(output) == b"".join(expected)


def test_frames_larger_than_a_scratch_keep_their_place() -> None:
    output = buffer()
    pieces = [b"a" * 10, b"b" * 70_000, b"c" * 10, b"d" * 65_536, b"e" * 65_537, b"f"]
    for piece in pieces:
        output.put(piece)
    assert taken(output) == b"".join(pieces)


def test_a_fresh_buffer_has_nothing_to_give() -> None:
    output = buffer()
    assert output.size == 0
    assert output.take() == []


def test_a_big_body_is_copied_only_where_python_joins_everything() -> None:
    body = bytes(BIG_BODY)
    output = buffer()
    output.put_delivery(1, b"\x01c", 1, False, b"\0\x01q", pack_header(len(body)), body)
    is_handed_over = any(isinstance(chunk, memoryview) and chunk.obj is body for chunk in output.take())
    assert is_handed_over is IS_COMPILED
