"""A client of a server without sockets: methods in, methods out, in order, with nothing awaited.

Frames are packed and read by the tests' own wire format, so that what is heard is what a foreign client would hear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.bystander import frames_of
from tests.support.socketless import Line, SocketlessServer
from tests.support.wire_format import (
    BODY,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    Frame,
    Method,
    pack_frame,
    pack_method,
    pack_publish,
    read_method,
)


class Dialogue:
    """One connection; `line` is the wire itself."""

    def __init__(self, server: SocketlessServer, line: Line | None = None) -> None:
        self.server = server
        self.line = line or server.connect()

    def open(self, capabilities: Mapping[str, Any] | None = None, heartbeat: int = 0) -> Dialogue:
        """The whole handshake and channel 1."""
        self.start(capabilities)
        self.say("connection.tune-ok", channel_max=2047, frame_max=131072, heartbeat=heartbeat)
        self.say("connection.open", virtual_host="/")
        self.say("channel.open", 1)
        assert self.hear() == ["connection.start", "connection.tune", "connection.open-ok", "channel.open-ok"]
        return self

    def start(self, capabilities: Mapping[str, Any] | None = None) -> None:
        """Up to the login; connection.start and connection.tune are left to be heard."""
        self.line.send(PROTOCOL_HEADER)
        self.say(
            "connection.start-ok",
            client_properties={"capabilities": dict(capabilities or {})},
            mechanism="PLAIN",
            response="\0guest\0guest",
            locale="en_US",
        )

    def say(self, method: str, channel: int = 0, **arguments: Any) -> None:
        self.line.send(pack_frame(METHOD, channel, pack_method(method, **arguments)))

    def publish(self, body: bytes, key: str, channel: int = 1, **arguments: Any) -> None:
        self.line.send(pack_publish(channel, body, None, routing_key=key, **arguments))

    def beat(self) -> None:
        self.line.send(pack_frame(HEARTBEAT, 0, b""))

    def frames(self) -> list[Frame]:
        return frames_of(self.line.receive())

    def methods(self) -> list[Method]:
        return [read_method(frame) for frame in self.frames() if frame.kind == METHOD]

    def hear(self) -> list[str]:
        """The names of the methods that came since the last time; a heartbeat is "heartbeat"."""
        return [
            "heartbeat" if frame.kind == HEARTBEAT else read_method(frame).name
            for frame in self.frames()
            if frame.kind in (METHOD, HEARTBEAT)
        ]

    def bodies(self) -> list[bytes]:
        """The bodies of messages that came since the last time, each in one frame."""
        return [frame.payload for frame in self.frames() if frame.kind == BODY]
