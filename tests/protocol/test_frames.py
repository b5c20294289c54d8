"""The frame reader: what it hears, what it refuses and with which words, what it leaves for later.

Frames are written by tests/support/wire_format.py, which shares no line with the package.
"""

import pytest

from tests.protocol.recorder import Recorder, traced_growth
from tests.support.wire_format import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    pack_frame,
    pack_header,
    pack_method,
    pack_publish,
)
from warrenmq.protocol.errors import FrameError, ProtocolError, UnexpectedFrame
from warrenmq.protocol.frames import HEARTBEAT_FRAME, FrameReader, frame

FRAME_MAX = 4096

PUBLISH = pack_method("basic.publish", exchange="e", routing_key="k")
DECLARE = pack_method("queue.declare", queue="q")
CLOSE = pack_method("channel.close", reply_code=200)
CLOSE_OK = pack_method("channel.close-ok")


def read(data: bytes, recorder: Recorder | None = None) -> Recorder:
    """Everything in one go; all of it has to be used."""
    recorder = recorder or Recorder()
    assert FrameReader(recorder, FRAME_MAX).receive(data, len(data)) == len(data)
    return recorder


def refusal(data: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        read(data)
    return caught.value


# -- what it hears -------------------------------------------------------------------------------------------------


def test_a_method_is_given_with_its_payload() -> None:
    assert read(pack_frame(METHOD, 7, DECLARE)).calls == [("method", 7, DECLARE)]


def test_an_ack_is_given_decoded() -> None:
    data = pack_frame(METHOD, 7, pack_method("basic.ack", delivery_tag=2**64 - 1, multiple=True))
    data += pack_frame(METHOD, 7, pack_method("basic.ack", delivery_tag=1))
    assert read(data).calls == [("ack", 7, 2**64 - 1, True), ("ack", 7, 1, False)]


@pytest.mark.parametrize("payload", [b"\0\x3c\0\x50" + bytes(8), b"\0\x3c\0\x50" + bytes(10)], ids=["short", "long"])
def test_an_ack_of_the_wrong_size_is_left_to_the_method_decoder(payload: bytes) -> None:
    assert read(pack_frame(METHOD, 7, payload)).calls == [("method", 7, payload)]


@pytest.mark.parametrize("name", ["basic.ack", "basic.publish", "basic.deliver", "basic.get-ok", "basic.return"])
def test_message_methods_on_channel_0_are_plain_methods(name: str) -> None:
    payload = pack_method(name)
    assert read(pack_frame(METHOD, 0, payload)).calls == [("method", 0, payload)]


@pytest.mark.parametrize("name", ["basic.publish", "basic.deliver", "basic.get-ok", "basic.return"])
@pytest.mark.parametrize("body", [b"", b"x", b"x" * (FRAME_MAX - 8)], ids=len)
def test_a_content_is_given_whole(name: str, body: bytes) -> None:
    method, header = pack_method(name), pack_header(len(body), {"content_type": "text/plain"})
    data = pack_frame(METHOD, 1, method) + pack_frame(HEADER, 1, header) + (pack_frame(BODY, 1, body) if body else b"")
    assert read(data).calls == [("content", 1, method, header, body)]


def test_a_body_in_several_frames_is_joined() -> None:
    header = pack_header(6)
    data = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, header)
    data += (
        pack_frame(BODY, 1, b"abc") + pack_frame(BODY, 1, b"") + pack_frame(BODY, 1, b"de") + pack_frame(BODY, 1, b"f")
    )
    assert read(data).calls == [("content", 1, PUBLISH, header, b"abcdef")]


def test_empty_body_frames_are_not_kept() -> None:
    reader = FrameReader(Recorder(), FRAME_MAX)
    data = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(1))
    reader.receive(data, len(data))
    empties = pack_frame(BODY, 1, b"") * 50_000
    assert traced_growth(lambda: reader.receive(empties, len(empties))) < 10_000


def test_channels_may_interleave_their_contents() -> None:
    one, two = pack_header(2), pack_header(4)
    data = b"".join(
        (
            pack_frame(METHOD, 1, PUBLISH),
            pack_frame(METHOD, 2, PUBLISH),
            pack_frame(HEADER, 2, two),
            pack_frame(BODY, 2, b"ab"),
            HEARTBEAT_FRAME,
            pack_frame(HEADER, 1, one),
            pack_frame(METHOD, 3, DECLARE),
            pack_frame(BODY, 1, b"xy"),
            pack_frame(BODY, 2, b"cd"),
        )
    )
    assert read(data).calls == [
        ("heartbeat",),
        ("method", 3, DECLARE),
        ("content", 1, PUBLISH, one, b"xy"),
        ("content", 2, PUBLISH, two, b"abcd"),
    ]


def test_a_header_belongs_to_its_own_channel() -> None:
    begun = pack_frame(METHOD, 2, PUBLISH) + pack_frame(METHOD, 1, PUBLISH)
    one, two = pack_header(1), pack_header(0)
    recorder = read(begun + pack_frame(HEADER, 2, two) + pack_frame(HEADER, 1, one) + pack_frame(BODY, 1, b"x"))
    assert recorder.calls == [("content", 2, PUBLISH, two, b""), ("content", 1, PUBLISH, one, b"x")]
    stray = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 2, two)
    assert refusal(stray).text == "expected method frame, got non method frame instead"


def test_a_body_belongs_to_its_own_channel() -> None:
    begun = pack_frame(METHOD, 2, PUBLISH) + pack_frame(HEADER, 2, pack_header(1))
    begun += pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(1))
    recorder = read(begun + pack_frame(BODY, 2, b"2") + pack_frame(BODY, 1, b"1"))
    assert [(call[1], call[4]) for call in recorder.calls] == [(2, b"2"), (1, b"1")]


@pytest.mark.parametrize("name", ["basic.ack", "basic.publish", "basic.deliver"])
def test_without_contents_message_methods_are_plain_methods(name: str) -> None:
    recorder = Recorder()
    reader = FrameReader(recorder, FRAME_MAX)
    reader.accepts_content = False
    data = pack_frame(METHOD, 1, pack_method(name))
    assert reader.receive(data, len(data)) == len(data)
    assert recorder.calls == [("method", 1, pack_method(name))]
    assert not reader.pending


def test_a_message_method_too_long_to_be_one_is_left_to_the_method_decoder() -> None:
    payload = PUBLISH + bytes(FRAME_MAX - len(PUBLISH) - 8)
    assert read(pack_frame(METHOD, 1, payload)).calls == [("method", 1, payload)]


def test_a_large_body_is_announced_before_it_is_gathered() -> None:
    recorder = Recorder()
    read(pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(2**63)), recorder)
    assert recorder.announced == [(1, 2**63)]


def test_a_body_that_is_refused_silences_its_channel() -> None:
    recorder = Recorder(largest_body=10)
    data = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(11)) + pack_frame(BODY, 1, b"x" * 11)
    reader = FrameReader(recorder, FRAME_MAX)
    in_two = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(11))
    reader.receive(in_two, len(in_two))
    rest = data[len(in_two) :] + pack_frame(METHOD, 1, DECLARE) + pack_frame(METHOD, 2, DECLARE)
    assert reader.receive(rest, len(rest)) == len(rest)
    assert recorder.calls == [("method", 2, DECLARE)]
    assert not reader.pending


# -- what it leaves for later --------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", range(1, len(pack_frame(METHOD, 1, DECLARE)) + 1))
def test_an_incomplete_frame_is_left_to_the_caller(missing: int) -> None:
    whole, cut = pack_frame(METHOD, 1, DECLARE), pack_frame(METHOD, 2, DECLARE)[:-missing]
    recorder = Recorder()
    data = whole + cut
    assert FrameReader(recorder, FRAME_MAX).receive(data, len(data)) == len(whole)
    assert recorder.calls == [("method", 1, DECLARE)]


def test_what_lies_behind_the_end_is_not_looked_at() -> None:
    whole = pack_frame(METHOD, 1, DECLARE)
    recorder = Recorder()
    data = whole + pack_publish(1, b"later")
    assert FrameReader(recorder, FRAME_MAX).receive(data, len(whole)) == len(whole)
    assert recorder.calls == [("method", 1, DECLARE)]
    data = pack_publish(1, b"later")
    for end in range(len(data)):
        recorder = Recorder()
        assert FrameReader(recorder, FRAME_MAX).receive(data, end) <= end
        assert recorder.calls == []


@pytest.mark.parametrize("header_size", [20, 2000, 4000])
@pytest.mark.parametrize("body_size", [1, 2000, 4088])
def test_never_more_than_a_frame_is_left_to_the_caller(header_size: int, body_size: int) -> None:
    header = pack_header(body_size, {"headers": {"h": "x" * (header_size - 20)}})
    data = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, header) + pack_frame(BODY, 1, bytes(body_size))
    for end in range(len(data)):
        assert end - FrameReader(Recorder(), FRAME_MAX).receive(data, end) < FRAME_MAX + 8


# -- behind a mistake ----------------------------------------------------------------------------------------------

MISTAKES = {
    "unknown frame": pack_frame(9, 1, b"x"),
    "stray body": pack_frame(BODY, 1, b"x"),
    "short method": pack_frame(METHOD, 1, b"\0"),
    "heartbeat on a channel": pack_frame(HEARTBEAT, 1, b""),
}
RUINS = {"too large": b"\x01\0\x01\xff\xff\xff\xff", "bad end": pack_frame(METHOD, 1, DECLARE, end=b"\0")}


@pytest.mark.parametrize("name", MISTAKES)
def test_reading_can_go_on_behind_a_frame_at_fault(name: str) -> None:
    before = pack_frame(METHOD, 1, DECLARE)
    data = before + MISTAKES[name] + pack_frame(METHOD, 2, DECLARE)
    reader = FrameReader(Recorder(), FRAME_MAX)
    with pytest.raises(ProtocolError):
        reader.receive(data, len(data))
    assert reader.resume_at == len(before + MISTAKES[name])


@pytest.mark.parametrize("name", RUINS)
def test_reading_cannot_go_on_where_the_framing_is_broken(name: str) -> None:
    data = pack_frame(METHOD, 1, DECLARE) + RUINS[name] + pack_frame(METHOD, 2, DECLARE)
    reader = FrameReader(Recorder(), FRAME_MAX)
    with pytest.raises(ProtocolError):
        reader.receive(data, len(data))
    assert reader.resume_at == 0


# -- channels that are closed --------------------------------------------------------------------------------------


def test_ignored_channel_accepts_only_close_and_close_ok() -> None:
    recorder = Recorder()
    reader = FrameReader(recorder, FRAME_MAX)
    reader.ignore_channel(1)
    data = b"".join(
        (
            pack_frame(METHOD, 1, DECLARE),
            pack_publish(1, b"unheard"),
            pack_frame(METHOD, 1, pack_method("basic.ack", delivery_tag=1)),
            pack_frame(BODY, 1, b"stray"),
            pack_frame(METHOD, 1, b"\0"),
            pack_frame(METHOD, 1, CLOSE),
            pack_frame(METHOD, 1, CLOSE_OK),
            pack_frame(METHOD, 2, DECLARE),
        )
    )
    assert reader.receive(data, len(data)) == len(data)
    assert recorder.calls == [("method", 1, CLOSE), ("method", 1, CLOSE_OK), ("method", 2, DECLARE)]


def test_an_attended_channel_begins_anew() -> None:
    recorder = Recorder()
    reader = FrameReader(recorder, FRAME_MAX)
    data = pack_frame(METHOD, 1, PUBLISH)
    reader.receive(data, len(data))
    reader.ignore_channel(1)
    reader.resume_channel(1)
    data = pack_frame(METHOD, 1, DECLARE)
    reader.receive(data, len(data))
    assert recorder.calls == [("method", 1, DECLARE)]


def test_closing_connection_reads_only_channel_0() -> None:
    recorder = Recorder()
    reader = FrameReader(recorder, FRAME_MAX)
    reader.close()
    closed = pack_method("connection.close-ok")
    data = pack_publish(1, b"x") + pack_frame(BODY, 9, b"stray") + HEARTBEAT_FRAME + pack_frame(METHOD, 0, closed)
    assert reader.receive(data, len(data)) == len(data)
    assert recorder.calls == [("heartbeat",), ("method", 0, closed)]


# -- what it refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [FRAME_MAX + 1, 2**31, 2**32 - 1])
def test_a_frame_beyond_the_limit_is_refused_before_it_has_come(size: int) -> None:
    error = refusal(bytes((METHOD, 0, 1)) + size.to_bytes(4, "big"))
    assert isinstance(error, FrameError)
    assert error.reply_text.startswith("FRAME_ERROR")
    assert f"frame_too_large,{size},{FRAME_MAX - 8}" in error.text


def test_a_frame_at_the_limit_is_taken() -> None:
    payload = DECLARE[:4] + bytes(FRAME_MAX - 4)
    assert read(pack_frame(METHOD, 1, payload)).calls == [("method", 1, payload)]


@pytest.mark.parametrize("kind", [METHOD, HEADER, BODY, HEARTBEAT, 200])
def test_a_wrong_end_marker_is_refused(kind: int) -> None:
    error = refusal(pack_frame(kind, 0, b"ab", end=b"\xcd"))
    assert isinstance(error, FrameError)
    assert error.text == f'type {kind}, all octets = <<"ab">>: {{invalid_frame_end_marker,205}}'


@pytest.mark.parametrize("part", [0, 1, 2], ids=["method", "header", "body"])
def test_a_wrong_end_marker_inside_a_content_is_refused(part: int) -> None:
    frames = [(METHOD, PUBLISH), (HEADER, pack_header(1)), (BODY, b"x")]
    data = b"".join(
        pack_frame(kind, 1, payload, end=b"\0" if number == part else b"\xce")
        for number, (kind, payload) in enumerate(frames)
    )
    assert refusal(data).text.endswith("{invalid_frame_end_marker,0}")


@pytest.mark.parametrize("kind", [0, 4, 5, 6, 7, 9, 65, 255])
def test_an_unknown_frame_type_is_refused(kind: int) -> None:
    error = refusal(pack_frame(kind, 1, b"\1\2"))
    assert isinstance(error, FrameError)
    assert error.text == f"type {kind}, all octets = <<1,2>>: unknown_frame"


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x32", b"\0\x32\0"], ids=len)
def test_a_method_frame_without_its_ids_is_refused(payload: bytes) -> None:
    error = refusal(pack_frame(METHOD, 1, payload))
    assert isinstance(error, FrameError)
    assert error.text.endswith("unknown_frame")


@pytest.mark.parametrize("payload", [b"", bytes(13)], ids=len)
@pytest.mark.parametrize("before", [b"", pack_frame(METHOD, 1, PUBLISH)], ids=["alone", "behind a publish"])
def test_a_header_frame_without_its_fixed_part_is_refused(payload: bytes, before: bytes) -> None:
    error = refusal(before + pack_frame(HEADER, 1, payload))
    assert isinstance(error, FrameError)
    assert error.text.endswith("unknown_frame")


def test_a_heartbeat_with_a_payload_is_refused() -> None:
    assert isinstance(refusal(pack_frame(HEARTBEAT, 0, b"x")), FrameError)


def test_a_heartbeat_on_a_channel_is_refused() -> None:
    assert isinstance(refusal(pack_frame(HEARTBEAT, 1, b"")), UnexpectedFrame)


@pytest.mark.parametrize(("kind", "payload"), [(HEADER, pack_header(1)), (BODY, b"x")], ids=["header", "body"])
def test_contents_do_not_come_on_channel_0(kind: int, payload: bytes) -> None:
    assert isinstance(refusal(pack_frame(kind, 0, payload)), UnexpectedFrame)


@pytest.mark.parametrize(("kind", "payload"), [(HEADER, pack_header(1)), (BODY, b"x")], ids=["header", "body"])
@pytest.mark.parametrize(
    "before", [b"", pack_publish(1, b"whole"), pack_publish(1, b"")], ids=["first", "body", "empty"]
)
def test_a_content_frame_needs_its_method(kind: int, payload: bytes, before: bytes) -> None:
    error = refusal(before + pack_frame(kind, 1, payload))
    assert isinstance(error, UnexpectedFrame)
    assert error.text == "expected method frame, got non method frame instead"


@pytest.mark.parametrize(
    ("kind", "payload"), [(METHOD, DECLARE), (METHOD, PUBLISH), (BODY, b"x")], ids=["method", "publish", "body"]
)
def test_behind_a_publish_comes_its_header(kind: int, payload: bytes) -> None:
    error = refusal(pack_frame(METHOD, 1, PUBLISH) + pack_frame(kind, 1, payload))
    assert isinstance(error, UnexpectedFrame)
    assert error.text == "expected content header for class 60, got non content header frame instead"
    assert (error.class_id, error.method_id) == (60, 40)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(METHOD, DECLARE), (METHOD, CLOSE), (HEADER, pack_header(3))],
    ids=["method", "close", "header"],
)
def test_behind_a_header_comes_its_body(kind: int, payload: bytes) -> None:
    begun = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(3))
    error = refusal(begun + pack_frame(kind, 1, payload))
    assert isinstance(error, UnexpectedFrame)
    assert error.text == "expected content body, got non content body frame instead"
    assert (error.class_id, error.method_id) == (60, 40)


def test_an_ack_does_not_slip_into_a_content() -> None:
    error = refusal(pack_frame(METHOD, 1, PUBLISH) + pack_frame(METHOD, 1, pack_method("basic.ack", delivery_tag=1)))
    assert isinstance(error, UnexpectedFrame)


def test_a_header_of_another_class_is_refused() -> None:
    error = refusal(pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(0, class_id=10)))
    assert isinstance(error, UnexpectedFrame)
    assert error.text == "expected content header for class 60, got one for class 10 instead"


def test_a_header_with_a_weight_is_refused() -> None:
    error = refusal(pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(0, weight=1)))
    assert isinstance(error, UnexpectedFrame)


@pytest.mark.parametrize("split", [0, 1, 2])
def test_a_body_longer_than_announced_is_refused(split: int) -> None:
    body = b"abc"
    data = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(2))
    data += (pack_frame(BODY, 1, body[:split]) if split else b"") + pack_frame(BODY, 1, body[split:])
    if split == 2:
        assert refusal(data).text == "expected method frame, got non method frame instead"
    else:
        error = refusal(data)
        assert isinstance(error, UnexpectedFrame)
        assert error.text == "content body is longer than announced by 1 bytes"


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2**63 - 1, 2**32])
def test_an_absurd_body_size_takes_no_memory(size: int) -> None:
    data = pack_frame(METHOD, 1, PUBLISH) + pack_frame(HEADER, 1, pack_header(size)) + pack_frame(BODY, 1, b"x")
    recorder = read(data)
    assert recorder.calls == []
    assert recorder.announced == [(1, size)]


def test_frame_writes_what_the_reader_reads() -> None:
    assert frame(METHOD, 65535, DECLARE) == pack_frame(METHOD, 65535, DECLARE)
    assert frame(HEARTBEAT, 0, b"") == HEARTBEAT_FRAME
