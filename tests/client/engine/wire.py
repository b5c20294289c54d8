"""A server's side without a socket: frames that open a connection and its channels, and what a client said."""

from __future__ import annotations

from typing import Any

from warrenmq.client.engine.channel_state import ChannelState, LinkListener, SharedConnection
from warrenmq.protocol import methods, spec
from warrenmq.protocol.connection import ClientConnection
from warrenmq.protocol.frames import FrameHandler, FrameReader
from warrenmq.protocol.handshake import ClientHandshake
from warrenmq.protocol.output import BufferPool, OutputBuffer
from warrenmq.protocol.properties import BasicProperties, content_header

FRAME_MAX = 131072


class Server:
    """What one link's server says. Nothing is sent anywhere: `say` passes it to the client at once."""

    def __init__(self, shared: SharedConnection) -> None:
        self.listener = LinkListener(shared)
        self.protocol = ClientConnection(ClientHandshake("PLAIN", b""), 0.0, content_handler=self.listener)
        self.say(0, spec.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US"))
        self.say(0, spec.ConnectionTune(10, FRAME_MAX, 0))
        self.say(0, spec.ConnectionOpenOk())
        self.listener.events.clear()
        shared.protocol = self.protocol
        self.said()

    def open(self, state: ChannelState) -> None:
        """The channel is open here, and may publish."""
        self.protocol.send_method(state.number, spec.ChannelOpen())
        self.say(state.number, spec.ChannelOpenOk())
        self.said()
        state.attach(self.protocol)
        state.resume_publishing()

    def say(self, channel: int, method: spec.Method) -> None:
        output = OutputBuffer(FRAME_MAX, BufferPool())
        output.put_method(channel, methods.encode(method))
        self._hear(output)

    def deliver(self, state: ChannelState, tag: int, consumer: str = "c", body: bytes = b"body") -> None:
        self.say_content(state.number, spec.BasicDeliver(consumer, tag, False, "", "key"), body)

    def say_content(self, channel: int, method: spec.Method, body: bytes, header: bytes | None = None) -> None:
        output = OutputBuffer(FRAME_MAX, BufferPool())
        output.put_content(
            channel, methods.encode(method), header or content_header(len(body), BasicProperties()), body
        )
        self._hear(output)

    def said(self) -> list[Any]:
        """The client's methods since the last time; a publish as its body."""
        heard = _Heard()
        data = b"".join(self.protocol.take_output(0.0))
        if data[:4] == b"AMQP":
            data = data[8:]
        FrameReader(heard, FRAME_MAX).receive(data, len(data))
        return heard.things

    def _hear(self, output: OutputBuffer) -> None:
        self.protocol.receive(b"".join(output.take()), 0.0)


class _Heard(FrameHandler):
    def __init__(self) -> None:
        self.things: list[Any] = []

    def on_method(self, channel: int, payload: bytes) -> None:
        self.things.append(methods.decode(payload))

    def on_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.things.append((channel, delivery_tag, multiple))

    def on_content_header(self, channel: int, body_size: int) -> bool:
        return True

    def on_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        self.things.append(body)

    def on_heartbeat(self) -> None:
        self.things.append("heartbeat")
