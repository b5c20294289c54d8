"""How input was cut, or damaged, changes nothing that it should not.

A plain model of the frame reader says what valid input means; cut anywhere, the reader must say the same. Damaged
input ends in a ProtocolError or in other calls of the same kinds, at the same place however it was cut.
"""

import re
from collections.abc import Iterable
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.recorder import Recorder
from tests.support.bystander import attack
from tests.support.conversations import CONVERSATIONS, Edit, EditKind, apply_edits
from tests.support.wire_format import BODY, HEADER, HEARTBEAT, METHOD, Frame, pack_frame, pack_header, pack_method
from warrenmq.protocol.errors import ProtocolError
from warrenmq.protocol.frames import FrameReader

FRAME_MAX = 4096
REPLY_ADDRESS = re.compile(rb"amq\.rabbitmq\.reply-to\.[\w-]{32}", re.ASCII)
CONTENT_METHODS = ["basic.publish", "basic.deliver", "basic.get-ok", "basic.return"]
OTHER_METHODS = ["queue.declare", "basic.nack", "channel.close", "connection.close-ok", "tx.commit"]


@st.composite
def contents(draw: st.DrawFn, channel: int) -> list[Frame]:
    """A method with its content; the body in any pieces."""
    method = pack_method(draw(st.sampled_from(CONTENT_METHODS)))
    pieces = draw(st.lists(st.binary(max_size=12), max_size=4))
    body = b"".join(pieces)
    while pieces and not pieces[-1]:
        pieces.pop()  # behind the last byte an empty frame would belong to nothing
    properties = draw(st.sampled_from([{}, {"content_type": "a"}, {"headers": {"a": [1, "b"]}, "priority": 3}]))
    header = pack_header(len(body), properties)
    pieces = pieces if body else []
    return [
        Frame(METHOD, channel, method),
        Frame(HEADER, channel, header),
        *(Frame(BODY, channel, piece) for piece in pieces),
    ]


def items(channel: int) -> st.SearchStrategy[list[Frame]]:
    """What may come on a channel: each list stays together on it, other channels may come in between."""
    methods = st.sampled_from(OTHER_METHODS).map(lambda name: [Frame(METHOD, channel, pack_method(name))])
    acks = st.builds(
        lambda tag, multiple: [Frame(METHOD, channel, pack_method("basic.ack", delivery_tag=tag, multiple=multiple))],
        st.integers(0, 2**64 - 1),
        st.booleans(),
    )
    return methods | acks | contents(channel)


@st.composite
def streams(draw: st.DrawFn) -> list[Frame]:
    """Frames of several channels, interleaved, with heartbeats anywhere."""
    numbers = draw(st.lists(st.integers(1, 65535), unique=True, min_size=1, max_size=3))
    waiting = [list(chain(*draw(st.lists(items(channel), max_size=4)))) for channel in numbers]
    waiting.append([Frame(HEARTBEAT, 0, b"")] * draw(st.integers(0, 2)))
    stream = []
    while any(waiting):
        queue = draw(st.sampled_from([queue for queue in waiting if queue]))
        count = draw(st.integers(1, len(queue)))
        stream += queue[:count]
        del queue[:count]
    return stream


cuts = st.lists(st.integers(0, 2**16), max_size=12)
damages = st.builds(Edit, st.sampled_from(EditKind), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1))


def cut_up(data: bytes, places: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


def read(chunks: Iterable[bytes]) -> tuple[list[tuple[object, ...]], str]:
    """What the reader says to the chunks, fed as a connection does it, and the error that ended it, if any."""
    recorder = Recorder()
    reader = FrameReader(recorder, FRAME_MAX)
    leftover = b""
    for chunk in chunks:
        data = leftover + chunk
        try:
            used = reader.receive(data, len(data))
        except ProtocolError as error:
            return recorder.calls, repr(error)
        leftover = data[used:]
        assert len(leftover) < FRAME_MAX + 8
    return recorder.calls, ""


def modelled(stream: Iterable[Frame]) -> list[tuple[object, ...]]:
    """What valid frames mean, one after the other."""
    calls: list[tuple[object, ...]] = []
    pending: dict[int, list[bytes]] = {}
    for frame in stream:
        if frame.kind == HEARTBEAT:
            calls.append(("heartbeat",))
        elif frame.kind == METHOD and frame.payload[:4] == b"\0\x3c\0\x50":
            tag, bits = frame.payload[4:12], frame.payload[12]
            calls.append(("ack", frame.channel, int.from_bytes(tag, "big"), bits == 1))
        elif frame.kind == METHOD and frame.payload not in map(pack_method, CONTENT_METHODS):
            calls.append(("method", frame.channel, frame.payload))
        else:
            parts = pending.setdefault(frame.channel, [])
            parts.append(frame.payload)
            body = b"".join(parts[2:])
            if len(parts) >= 2 and len(body) == int.from_bytes(parts[1][4:12], "big"):
                calls.append(("content", frame.channel, parts[0], parts[1], body))
                del pending[frame.channel]
    return calls


def packed(stream: Iterable[Frame]) -> bytes:
    return b"".join(pack_frame(frame.kind, frame.channel, frame.payload) for frame in stream)


@given(streams(), cuts)
def test_valid_input_means_the_same_however_it_is_cut(stream: list[Frame], places: list[int]) -> None:
    data = packed(stream)
    expected = modelled(stream), ""
    assert read([data]) == expected
    assert read(cut_up(data, places)) == expected


@given(streams())
def test_valid_input_may_come_byte_by_byte(stream: list[Frame]) -> None:
    data = packed(stream)
    assert read(bytes((byte,)) for byte in data) == (modelled(stream), "")


@given(streams(), st.lists(damages, min_size=1, max_size=4), cuts)
def test_damaged_input_means_the_same_however_it_is_cut(
    stream: list[Frame], edits: list[Edit], places: list[int]
) -> None:
    _, *pieces = apply_edits(stream, edits)  # without the protocol header
    data = b"".join(pieces)
    at_once = read([data])
    assert read(cut_up(data, places)) == at_once
    assert {call[0] for call in at_once[0]} <= {"method", "ack", "content", "heartbeat"}


@given(st.binary(max_size=300), cuts)
def test_any_bytes_mean_the_same_however_they_are_cut(data: bytes, places: list[int]) -> None:
    assert read(cut_up(data, places)) == read([data])


@given(st.sampled_from(CONVERSATIONS), st.lists(damages, max_size=2), cuts)
def test_the_server_answers_the_same_however_its_input_is_cut(
    conversation: list[Frame], edits: list[Edit], places: list[int]
) -> None:
    data = b"".join(apply_edits(conversation, edits))
    assert answer_to(cut_up(data, places)) == answer_to([data])


@pytest.mark.parametrize("place", range(40))
def test_the_server_answers_the_same_each_time(place: int) -> None:
    for conversation in CONVERSATIONS:
        data = b"".join(apply_edits(conversation, [Edit(EditKind.SWAP_WITH_NEXT, place, 0)]))
        assert answer_to([data]) == answer_to([data])


def answer_to(chunks: list[bytes]) -> bytes:
    """What the server answers; addresses for direct replies are random."""
    return REPLY_ADDRESS.sub(b"an address", attack(chunks, ends_turns=False))
