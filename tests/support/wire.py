"""A small AMQP 0-9-1 client on a plain socket, for tests alone.

It sends any frame, legal or not, and returns each frame as it came. Nothing is retried or hidden: a
connection.close while something else is awaited raises `ConnectionRefusal`, a channel.close raises `ChannelRefusal`,
the end of the stream raises `EndOfStream`.

Owned by the test's thread: the socket, the receive buffer and the frames set aside per channel.
"""

from __future__ import annotations

import socket
import struct
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from tests.support.wire_format import (
    BODY,
    FRAME_END,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    SHAPES,
    Content,
    Frame,
    Method,
    pack_frame,
    pack_method,
    pack_publish,
    read_header,
    read_method,
)

PATIENCE = 30.0  # seconds until a silent broker fails the test; no test waits for it on the good path


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the broker closed a channel or a connection, and which method made it do so ("" when none is named)."""

    scope: str
    code: int
    text: str
    method: str = ""

    @classmethod
    def of_close(cls, close: Method) -> Refusal:
        ids = close["class_id"], close["method_id"]
        named = [shape.name for shape in SHAPES.values() if (shape.class_id, shape.method_id) == ids]
        return cls(
            scope=close.name.partition(".")[0],
            code=close["reply_code"],
            text=close["reply_text"],
            method=named[0] if named else "" if ids == (0, 0) else f"{ids[0]}.{ids[1]}",
        )


class EndOfStream(Exception):
    """The broker closed the socket (or reset it) where a frame was awaited."""


class Refused(Exception):
    """The broker closed the channel or the connection where something else was awaited."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class ChannelRefusal(Refused):
    """channel.close came."""


class ConnectionRefusal(Refused):
    """connection.close came."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the broker listens and who logs in."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    virtual_host: str = "/"

    @classmethod
    def of_url(cls, url: str) -> Address:
        parts = urlsplit(url)
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        return cls(parts.hostname or "127.0.0.1", parts.port or 5672, user, password, unquote(parts.path[1:]) or "/")


class WireConnection:
    """One socket to the broker, and the frames that came over it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.socket = socket.create_connection((address.host, address.port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._set_aside: defaultdict[int, deque[Frame]] = defaultdict(deque)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # -- sending

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, kind: int, channel_number: int, payload: bytes) -> None:
        self.send_bytes(pack_frame(kind, channel_number, payload))

    def send(self, method: str, channel_number: int = 0, **arguments: Any) -> None:
        self.send_frame(METHOD, channel_number, pack_method(method, **arguments))

    # -- receiving

    def read_bytes(self, size: int) -> bytes:
        while len(self._received) < size:
            if not self._receive():
                raise EndOfStream(f"the stream ended after {bytes(self._received)!r}")
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def read_to_end(self) -> bytes:
        """All that still comes until the broker closes the socket."""
        while self._receive():
            pass
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def read_any_frame(self) -> Frame:
        """The next frame of any kind and channel, in the order of the wire."""
        kind, channel, size = struct.unpack(">BHI", self.read_bytes(7))
        payload = self.read_bytes(size)
        end = self.read_bytes(1)
        assert end == FRAME_END, f"frame ends with {end!r}"
        return Frame(kind, channel, payload)

    def read_frame(self, channel_number: int = 0) -> Frame:
        """The next frame of this channel; other channels' frames are set aside, heartbeats dropped."""
        waiting = self._set_aside[channel_number]
        while not waiting:
            frame = self.read_any_frame()
            if frame.kind == HEARTBEAT:
                continue
            if frame.channel == 0 and channel_number != 0:
                _raise_if_closed(frame)
            self._set_aside[frame.channel].append(frame)
        return waiting.popleft()

    def read(self, channel_number: int = 0) -> Method:
        """The next method of this channel; a close raises."""
        frame = self.read_frame(channel_number)
        assert frame.kind == METHOD, f"a method was awaited, {frame} came"
        _raise_if_closed(frame)
        return read_method(frame)

    def expect(self, method: str, channel_number: int = 0) -> Method:
        received = self.read(channel_number)
        assert received.name == method, f"{method} was awaited, {received} came"
        return received

    def read_content(self, opening: Method) -> Content:
        """The message that follows this method."""
        header = self.read_frame(opening.channel)
        assert header.kind == HEADER, f"a content header was awaited, {header} came"
        size, properties = read_header(header)
        body = bytearray()
        while len(body) < size:
            frame = self.read_frame(opening.channel)
            assert frame.kind == BODY, f"a content body was awaited, {frame} came"
            body += frame.payload
        return Content(opening, properties, bytes(body))

    def expect_refusal(self) -> Refusal:
        """The broker closes the connection; answer, and hear it hang up."""
        try:
            method = self.read(0)
        except ConnectionRefusal as closed:
            self.answer_close()
            return closed.refusal
        raise AssertionError(f"connection.close was awaited, {method} came")

    def answer_close(self) -> None:
        """Send connection.close-ok and wait until the broker has closed the socket."""
        try:
            self.send("connection.close-ok")
        except ConnectionError:
            pass  # some brokers hang up without waiting for the answer
        self.read_to_end()

    def expect_end(self) -> None:
        """The broker hangs up without another frame."""
        rest = self.read_to_end()
        assert rest == b"", f"the end was awaited, {rest!r} came"

    def _receive(self) -> bool:
        """Take what the socket has; false at the end of the stream."""
        try:
            chunk = self.socket.recv(1 << 16)
        except ConnectionError:
            return False
        self._received += chunk
        return bool(chunk)

    # -- the handshake, whole or in steps

    def start(self) -> Method:
        """Send the protocol header, hear connection.start."""
        self.send_bytes(PROTOCOL_HEADER)
        return self.expect("connection.start")

    def log_in(
        self,
        capabilities: Mapping[str, Any] | None = None,
        mechanism: str = "PLAIN",
        response: str | bytes | None = None,
    ) -> None:
        """Answer connection.start, as the address's user unless told otherwise."""
        plain = f"\0{self.address.user}\0{self.address.password}"
        self.send(
            "connection.start-ok",
            client_properties={"product": "wire", "capabilities": dict(capabilities or {})},
            mechanism=mechanism,
            response=plain if response is None else response,
            locale="en_US",
        )

    def tune(self, channel_max: int | None = None, frame_max: int | None = None, heartbeat: int = 0) -> Method:
        """Hear connection.tune and answer it; what is not given is accepted as offered, but no heartbeats."""
        offer = self.expect("connection.tune")
        self.send(
            "connection.tune-ok",
            channel_max=offer["channel_max"] if channel_max is None else channel_max,
            frame_max=offer["frame_max"] if frame_max is None else frame_max,
            heartbeat=heartbeat,
        )
        return offer

    def open(self, capabilities: Mapping[str, Any] | None = None, **tuning: int) -> Self:
        """The whole handshake, up to connection.open-ok."""
        self.start()
        self.log_in(capabilities)
        self.tune(**tuning)
        self.send("connection.open", virtual_host=self.address.virtual_host)
        self.expect("connection.open-ok")
        return self

    def channel(self, number: int = 1) -> WireChannel:
        """Open a channel."""
        channel = WireChannel(self, number)
        channel.call("channel.open")
        return channel

    def close(self) -> None:
        """Say goodbye and hear the answer; frames that were still under way are dropped."""
        self.send("connection.close", reply_code=200, reply_text="goodbye")
        while self.read(0).name != "connection.close-ok":
            pass
        self.socket.close()


class WireChannel:
    """One channel: calls, contents and refusals."""

    def __init__(self, connection: WireConnection, number: int) -> None:
        self.connection = connection
        self.number = number

    def send(self, method: str, **arguments: Any) -> None:
        self.connection.send(method, self.number, **arguments)

    def call(self, method: str, **arguments: Any) -> Method:
        """Send a method and hear its -ok, which must be the next frame on this channel."""
        self.send(method, **arguments)
        return self.expect(f"{method}-ok")

    def expect(self, method: str) -> Method:
        return self.connection.expect(method, self.number)

    def read(self) -> Method:
        return self.connection.read(self.number)

    def content(self, method: str = "basic.deliver") -> Content:
        """The next message, which must come by this method."""
        return self.connection.read_content(self.expect(method))

    def publish(self, body: bytes = b"", properties: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        self.connection.send_bytes(pack_publish(self.number, body, properties, **arguments))

    def get(self, queue: str, no_ack: bool = True) -> Content | None:
        """One message off the queue, or None."""
        self.send("basic.get", queue=queue, no_ack=no_ack)
        answer = self.read()
        if answer.name == "basic.get-empty":
            return None
        assert answer.name == "basic.get-ok", f"basic.get-ok was awaited, {answer} came"
        return self.connection.read_content(answer)

    def expect_refusal(self) -> Refusal:
        """The broker closes the channel, or the connection; the test answers."""
        try:
            method = self.read()
        except ChannelRefusal as closed:
            self.send("channel.close-ok")
            return closed.refusal
        except ConnectionRefusal as closed:
            self.connection.answer_close()
            return closed.refusal
        raise AssertionError(f"a refusal was awaited, {method} came")

    def refused(self, method: str, **arguments: Any) -> Refusal:
        """Send a method that the broker must refuse."""
        self.send(method, **arguments)
        return self.expect_refusal()

    def barrier(self, queue: str | None = None) -> None:
        """All that was sent here was handled, by the queue too, and nothing came back before these answers."""
        if queue is not None:
            self.call("queue.declare", queue=queue, passive=True)
        self.call("channel.flow", active=True)

    def close(self) -> None:
        """Close the channel; messages that were still under way are dropped."""
        self.send("channel.close", reply_code=200, reply_text="goodbye")
        while True:
            frame = self.connection.read_frame(self.number)
            if frame.kind == METHOD and read_method(frame).name == "channel.close-ok":
                return


def _raise_if_closed(frame: Frame) -> None:
    if frame.kind != METHOD:
        return
    method = read_method(frame)
    if method.name == "connection.close":
        raise ConnectionRefusal(Refusal.of_close(method))
    if method.name == "channel.close":
        raise ChannelRefusal(Refusal.of_close(method))
