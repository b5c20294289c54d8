"""A server with an attacker and a bystander: whatever the first one sends, the second one must not notice."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.conversations import handshake, method, publish
from tests.support.socketless import InternalErrors, Line, SocketlessServer
from tests.support.wire_format import BODY, HEADER, METHOD, PROTOCOL_HEADER, Frame, pack_frame, pack_method, read_method

_CARRIERS = {pack_method(name)[:4] for name in ("basic.deliver", "basic.get-ok", "basic.return")}


def attack(chunks: Iterable[bytes], ends_turns: bool = True) -> bytes:
    """Send the chunks to a fresh server, see that it and its other client are well, and give its answer."""
    server = SocketlessServer()
    with InternalErrors() as errors:
        bystander = server.connect()
        _say(bystander, *handshake(), *method(1, "channel.open"))
        _say(bystander, *method(1, "queue.declare", queue="bystander", exclusive=True))
        bystander.receive()
        attacker = server.connect()
        for chunk in chunks:
            attacker.send(chunk, ends_turns)
        answer = attacker.receive()
        attacker.hang_up()
        _say(bystander, *publish(1, b"still here", routing_key="bystander"), *method(1, "basic.get", queue="bystander"))
        frames = frames_of(bystander.receive())
    assert not errors.found, errors.found[0]
    assert [frame.payload for frame in frames if frame.kind == BODY] == [b"still here"]
    assert server.broker.connection_count == 1
    assert server.broker.channel_count == 1
    bystander.hang_up()  # its unacked message would keep the server in memory
    check_frames(answer)
    return answer


def _say(line: Line, *frames: Frame) -> None:
    data = b"".join(pack_frame(frame.kind, frame.channel, frame.payload) for frame in frames)
    line.send(data if line.connection.session.handshake.state.value != "starting" else PROTOCOL_HEADER + data)


def frames_of(data: bytes) -> list[Frame]:
    """What a server wrote, as frames; none may be cut or badly ended."""
    frames = []
    while data:
        size = int.from_bytes(data[3:7], "big")
        assert len(data) >= size + 8
        assert data[size + 7] == 0xCE
        frames.append(Frame(data[0], int.from_bytes(data[1:3], "big"), data[7 : size + 7]))
        data = data[size + 8 :]
    return frames


def check_frames(data: bytes) -> None:
    """Every method can be read; every content is complete and of the announced size before its channel goes on."""
    if data == PROTOCOL_HEADER:
        return
    missing: dict[int, int] = {}
    for frame in frames_of(data):
        if frame.kind == METHOD:
            assert frame.channel not in missing
            if frame.payload[:4] in _CARRIERS:  # their names are the publisher's, and need not be text
                missing[frame.channel] = -1
            else:
                read_method(frame)
        elif frame.kind == HEADER:
            assert missing[frame.channel] == -1
            missing[frame.channel] = int.from_bytes(frame.payload[4:12], "big")
        elif frame.kind == BODY:
            assert 0 < len(frame.payload) <= missing[frame.channel]
            missing[frame.channel] -= len(frame.payload)
        if missing.get(frame.channel) == 0:
            del missing[frame.channel]
    assert not missing
