"""The client's side of a connection, sans-I/O: bytes in, events and output out.

The caller owns the socket and the clock. It passes received bytes to `receive`, writes the result of `take_output`, and
calls `check_time` at `next_deadline`. No input raises: if the server breaks the protocol, it is sent a close and the
last event has the reason. A wrong call raises LocalMisuse and sends nothing.

Per-message input has a fast path: with a `ContentHandler`, deliveries and confirms are calls of it during `receive`
instead of events.

Memory is bounded: one incomplete frame, one body of `max_body_size` per open channel, and a limited cache of decoded
names. Contents are accepted on open channels only. Compiled when the package is built (connection.pxd).
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class

from warrenmq.protocol import big_endian, methods, spec
from warrenmq.protocol.content import decode_content_method
from warrenmq.protocol.errors import (
    ChannelError,
    CommandInvalid,
    LocalMisuse,
    ProtocolError,
    ResourceError,
    clip_reply_text,
)
from warrenmq.protocol.events import (
    Blocked,
    ClosedBy,
    ConnectionClosed,
    ContentReceived,
    Event,
    MethodReceived,
    Opened,
    Unblocked,
)
from warrenmq.protocol.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, FrameHandler, FrameReader
from warrenmq.protocol.handshake import ClientHandshake
from warrenmq.protocol.heartbeat import Heartbeat
from warrenmq.protocol.output import BufferPool, OutputBuffer
from warrenmq.protocol.properties import BasicProperties

MAX_BODY_SIZE = 128 * 1024 * 1024

_FRAME_OVERHEAD = 8
_HEADER_PREFIX = PROTOCOL_HEADER[:4]
_NO_PROPERTIES = b"\x00\x00"
_HEADER_START = 12  # before the property flags: class, weight, body size
_pack_header_start = Struct(">HHQ").pack

_BASIC_CLASS = 60
_DELIVER_ID = 60
_MIN_DELIVER_SIZE = 16  # ids, consumer tag, delivery tag, bit, exchange, routing key, all names empty
_NACK = spec.BasicNack.index
_REJECT = spec.BasicReject.index

# Cached names per connection and kind. A full cache is cleared, which costs each name one encoding.
_MAX_CACHED = 1024

# What the caller may send by `send_method`; this class sends the handshake and the close itself.
_ON_CHANNEL_ZERO = frozenset({spec.ConnectionUpdateSecret})
_SENDABLE = _ON_CHANNEL_ZERO | {
    method
    for method in spec.METHODS.values()
    if method.sender != "server" and not method.has_content and not method.name.startswith("connection.")
}


class Phase(Enum):
    """How far a connection is. CLOSING: close was sent, its reply has not arrived."""

    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_OPEN = Phase.OPEN


class ContentHandler:
    """Receives the per-message input, in wire order. It must neither raise nor call back."""

    __slots__ = ()

    def on_deliver(
        self,
        channel: int,
        consumer_tag: str,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
    ) -> None:
        """basic.deliver. `header` is the payload of the content header frame: its properties begin at byte 12."""
        raise NotImplementedError

    def on_confirm(self, channel: int, delivery_tag: int, multiple: bool, is_ack: bool) -> None:
        """basic.ack or basic.nack."""
        raise NotImplementedError

    def on_event(self, event: Event) -> None:
        """Any other event, in order; the current call returns it as well."""


class ClientConnection(FrameHandler):
    """One connection, from the protocol header to the close. `phase` is for reading only."""

    __slots__ = (
        "_addresses",
        "_channels",
        "_consumer_tags",
        "_content_handler",
        "_events",
        "_handshake",
        "_has_received",
        "_heartbeat",
        "_leftover",
        "_max_body_size",
        "_output",
        "_publishes",
        "_reader",
        "_sent_close",
        "phase",
    )

    def __init__(
        self,
        handshake: ClientHandshake,
        now: float,
        max_body_size: int = MAX_BODY_SIZE,
        pool: BufferPool | None = None,
        content_handler: ContentHandler | None = None,
    ) -> None:
        self._handshake = handshake
        self._content_handler = content_handler
        self._max_body_size = max_body_size
        # Until tune-ok, frames have at most the protocol's minimum limit (AMQP 0-9-1 §4.2.3).
        self._reader = FrameReader(self, spec.FRAME_MIN_SIZE)
        self._output = OutputBuffer(spec.FRAME_MIN_SIZE, pool or BufferPool())
        self._output.put(PROTOCOL_HEADER)
        self._channels: set[int] = set()
        self._events: list[Event] = []
        self._publishes: dict[tuple[str, str, bool], bytes] = {}
        self._consumer_tags: dict[bytes, str] = {}
        self._addresses: dict[bytes, tuple[str, str]] = {}
        self._leftover = b""
        self._has_received = False
        self._heartbeat = Heartbeat(0, now)
        self._sent_close = spec.REPLY_SUCCESS, ""
        self.phase = Phase.HANDSHAKE

    # -- input -------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process bytes from the socket, cut anywhere; return their events."""
        self._heartbeat.received_at = now
        data = self._leftover + data if self._leftover else bytes(data)
        self._leftover = b""
        if not self._has_received and _HEADER_PREFIX.startswith(data[:4]):
            self._receive_header(data)
        elif self.phase is not Phase.CLOSED:
            self._has_received = True
            self._read_frames(data)
        return self._take_events()

    def receive_eof(self) -> list[Event]:
        """Handle the end of the socket."""
        if self.phase is Phase.HANDSHAKE:
            # RabbitMQ closes the socket of a client to which it cannot report a failed login.
            self._end(ClosedBy.NETWORK, 0, "the server hung up during the handshake: is the login right?")
        else:
            self._end(ClosedBy.NETWORK, 0, "the server hung up")
        return self._take_events()

    def _receive_header(self, data: bytes) -> None:
        """Handle a server of another protocol, which answers with the header that it wants."""
        if len(data) < len(PROTOCOL_HEADER):
            self._leftover = data
            return
        wanted = "-".join(map(str, data[4 : len(PROTOCOL_HEADER)]))
        text = f"the server does not speak AMQP 0-9-1 (0-0-9-1 on the wire): it asks for {wanted}"
        self._end(ClosedBy.SERVER, 0, text)

    def _read_frames(self, data: bytes) -> None:
        try:
            self._leftover = data[self._reader.receive(data, len(data)) :]
        except ProtocolError as error:
            self._refuse(error)

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if self._content_handler is not None:
            self._content_handler.on_event(event)

    def _take_events(self) -> list[Event]:
        events = self._events
        self._events = []
        return events

    # -- output ------------------------------------------------------------------------------------------------------

    def send_method(self, channel: int, method: spec.Method) -> None:
        """Send a method without content; use `close` for the connection."""
        if type(method) not in _SENDABLE or (channel == 0) is not (type(method) in _ON_CHANNEL_ZERO):
            raise LocalMisuse(f"{method.name} cannot be sent this way on channel {channel}")
        self._require_open()
        payload = methods.encode(method)
        self._require_fits_frame(method.name, payload)
        if isinstance(method, spec.ChannelOpen):
            self._open_channel(channel)
        elif channel:
            self._require_channel(channel)
        if isinstance(method, spec.ChannelClose):
            # The peer may still be sending on it; the number is free once it has replied.
            self._channels.discard(channel)
            self._reader.ignore_channel(channel)
        self._output.put_method(channel, payload)

    def publish(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: BasicProperties | None = None,
        mandatory: bool = False,
        header: bytes | None = None,
    ) -> None:
        """Send basic.publish with its content; `header`, a complete content header, replaces the properties.

        The properties are encoded at once: later changes to them have no effect.
        """
        self._require_channel(channel)
        method = self._publishes.get((exchange, routing_key, mandatory))
        if method is None:
            method = self._encode_publish(exchange, routing_key, mandatory)
        if header is not None:
            if header[:_HEADER_START] != _pack_header_start(_BASIC_CLASS, 0, len(body)):
                raise LocalMisuse(f"not a content header of a body of {len(body)} bytes")
            encoded = header[_HEADER_START:]
        else:
            encoded = _NO_PROPERTIES if properties is None else properties.encode()
        if _HEADER_START + len(encoded) + _FRAME_OVERHEAD > self._output.frame_max:
            raise self._too_long("the content header", _HEADER_START + len(encoded))
        self._output.put_message(channel, method, encoded, body)

    def ack(self, channel: int, delivery_tag: int, multiple: bool = False) -> None:
        """Send basic.ack."""
        self._require_channel(channel)
        try:
            self._output.put_ack(channel, delivery_tag, multiple)
        except (OverflowError, StructError) as error:
            raise _no_tag(delivery_tag) from error

    def nack(self, channel: int, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        """Send basic.nack."""
        self._require_channel(channel)
        try:
            self._output.put_settlement(channel, _NACK, delivery_tag, (1 if multiple else 0) | (2 if requeue else 0))
        except (OverflowError, StructError) as error:
            raise _no_tag(delivery_tag) from error

    def reject(self, channel: int, delivery_tag: int, requeue: bool = True) -> None:
        """Send basic.reject."""
        self._require_channel(channel)
        try:
            self._output.put_settlement(channel, _REJECT, delivery_tag, 1 if requeue else 0)
        except (OverflowError, StructError) as error:
            raise _no_tag(delivery_tag) from error

    def close(self, reply_code: int = spec.REPLY_SUCCESS, reply_text: str = "Goodbye") -> list[Event]:
        """Send close; ConnectionClosed follows the server's reply, or comes at once if none is expected."""
        if self.phase is Phase.OPEN:
            self._send_close(reply_code, reply_text)
            self._sent_close = reply_code, reply_text
            self.phase = Phase.CLOSING
        elif self.phase is Phase.HANDSHAKE:
            self._end(ClosedBy.CLIENT, reply_code, reply_text)
        return self._take_events()

    @property
    def output_size(self) -> int:
        """The number of bytes waiting for `take_output`."""
        return self._output.size

    def take_output(self, now: float) -> list[bytes | memoryview]:
        """Return all output in order; it counts as sent."""
        if self._output.size:
            self._heartbeat.sent_at = now
        return self._output.take()

    def _encode_publish(self, exchange: str, routing_key: str, mandatory: bool) -> bytes:
        method = methods.encode(spec.BasicPublish(exchange, routing_key, mandatory))
        if len(self._publishes) >= _MAX_CACHED:
            self._publishes.clear()
        self._publishes[exchange, routing_key, mandatory] = method
        return method

    def _require_open(self) -> None:
        if self.phase is not _OPEN:
            raise LocalMisuse(f"the connection is not open: {self.phase.value}")

    def _require_channel(self, channel: int) -> None:
        """Raise unless connection and channel are open."""
        if self.phase is not _OPEN or channel not in self._channels:
            self._require_open()
            raise LocalMisuse(f"channel {channel} is not open")

    def _require_fits_frame(self, what: str, payload: bytes) -> None:
        if len(payload) + _FRAME_OVERHEAD > self._output.frame_max:
            raise self._too_long(what, len(payload))

    def _too_long(self, what: str, size: int) -> LocalMisuse:
        return LocalMisuse(f"{what} takes {size} bytes, frames hold {self._output.frame_max} in all")

    def _open_channel(self, channel: int) -> None:
        assert self._handshake.tuning is not None
        if not 0 < channel <= self._handshake.tuning.channel_max:
            raise LocalMisuse(f"channels go from 1 to {self._handshake.tuning.channel_max}, not {channel}")
        if channel in self._channels or channel in self._reader.ignored_channels:
            raise LocalMisuse(f"channel {channel} is in use")
        self._channels.add(channel)

    # -- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when to call `check_time`; None if no timer runs."""
        return None if self.phase is Phase.CLOSED else self._heartbeat.next_deadline()

    def restart_heartbeat_timeout(self, now: float) -> None:
        """Restart the receive timer: for a caller that did not read for a while."""
        self._heartbeat.received_at = now

    def check_time(self, now: float) -> list[Event]:
        """Send a heartbeat if due; end the connection if the server was silent for two intervals."""
        if self.phase is Phase.CLOSED:
            return []
        if self._heartbeat.is_missed(now):
            text = f"missed heartbeats: nothing heard for {2 * self._heartbeat.interval} seconds"
            self._end(ClosedBy.NETWORK, 0, text)
        elif self._heartbeat.is_due(now):
            if not self._output.size:
                self._output.put(HEARTBEAT_FRAME)
            self._heartbeat.sent_at = now
        return self._take_events()

    # -- the frame reader's calls ------------------------------------------------------------------------------------

    def on_method(self, channel: int, payload: bytes) -> None:
        if self.phase is Phase.CLOSED:
            return
        method = methods.decode(payload)
        if method.sender == "client":
            raise CommandInvalid(f"a server does not send {method.name}", method.index >> 16, method.index & 0xFFFF)
        if (channel == 0) is not method.name.startswith("connection."):
            raise _misplaced(channel, method)
        if channel == 0:
            self._on_connection_method(method)
            return
        self._on_channel_method(channel, method)

    def on_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        if self._content_handler is not None and channel in self._channels:
            self._content_handler.on_confirm(channel, delivery_tag, multiple, True)
        else:
            self._on_channel_method(channel, spec.BasicAck(delivery_tag, multiple))

    def on_content_header(self, channel: int, body_size: int) -> bool:
        self._admit_content(channel, body_size)
        return True

    def on_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        self._admit_content(channel, len(body))
        if self._content_handler is None or not self._handle_delivery(channel, method, header, body):
            self._emit(ContentReceived(channel, decode_content_method(method), header, body))

    def _handle_delivery(self, channel: int, method: bytes, header: bytes, body: bytes) -> bool:
        """Pass a delivery to the content handler; return False for another or a malformed method.

        0      4                5 + length     13 + length   14 + length
        | ids  | consumer tag   | delivery tag | redelivered | exchange, routing key
        """
        data = method
        size = len(method)
        if data[3] != _DELIVER_ID or size < _MIN_DELIVER_SIZE:
            return False
        tag_end = 5 + data[4]
        address_at = tag_end + 9
        if address_at + 2 > size:
            return False
        key_at = address_at + 1 + data[address_at]
        if key_at >= size or key_at + 1 + data[key_at] != size:
            return False
        consumer_tag = self._consumer_tags.get(data[5:tag_end])
        if consumer_tag is None:
            consumer_tag = self._cache_consumer_tag(data[5:tag_end])
        address = self._addresses.get(data[address_at:size])
        if address is None:
            address = self._cache_address(data[address_at:size])
        exchange, routing_key = address
        assert self._content_handler is not None
        self._content_handler.on_deliver(
            channel,
            consumer_tag,
            big_endian.load_u64(data, tag_end),
            data[address_at - 1] & 1 == 1,
            exchange,
            routing_key,
            header,
            body,
        )
        return True

    def _cache_consumer_tag(self, data: bytes) -> str:
        if len(self._consumer_tags) >= _MAX_CACHED:
            self._consumer_tags.clear()
        consumer_tag = self._consumer_tags[data] = _text(data)
        return consumer_tag

    def _cache_address(self, data: bytes) -> tuple[str, str]:
        """Decode and cache exchange and routing key."""
        if len(self._addresses) >= _MAX_CACHED:
            self._addresses.clear()
        exchange_end = 1 + data[0]
        address = self._addresses[data] = _text(data[1:exchange_end]), _text(data[exchange_end + 1 :])
        return address

    def on_heartbeat(self) -> None:
        """Do nothing: `receive` has updated the timer."""

    def _admit_content(self, channel: int, body_size: int) -> None:
        if channel not in self._channels:
            raise ChannelError(f"content on channel {channel}, which is not open")
        if body_size > self._max_body_size:
            raise ResourceError(f"a body of {body_size} bytes, {self._max_body_size} at most are taken")

    def _on_connection_method(self, method: spec.Method) -> None:
        if isinstance(method, spec.ConnectionClose):
            self._output.put_method(0, methods.encode(spec.ConnectionCloseOk()))
            self._end(ClosedBy.SERVER, method.reply_code, method.reply_text, method.class_id, method.method_id)
        elif self.phase is Phase.HANDSHAKE:
            self._on_handshake_method(method)
        elif isinstance(method, spec.ConnectionCloseOk) and self.phase is Phase.CLOSING:
            self._end(ClosedBy.CLIENT, *self._sent_close)
        elif isinstance(method, spec.ConnectionBlocked):
            self._emit(Blocked(method.reason))
        elif isinstance(method, spec.ConnectionUnblocked):
            self._emit(Unblocked())
        elif isinstance(method, spec.ConnectionUpdateSecretOk):
            self._emit(MethodReceived(0, method))
        else:
            raise _misplaced(0, method)

    def _on_handshake_method(self, method: spec.Method) -> None:
        for answer in self._handshake.receive(method):
            self._output.put_method(0, methods.encode(answer))
        tuning = self._handshake.tuning
        if tuning is not None:
            self._reader.frame_max = self._output.frame_max = tuning.frame_max
            self._heartbeat.interval = tuning.heartbeat
            if self._handshake.is_done:
                self.phase = Phase.OPEN
                self._emit(Opened(tuning, self._handshake.server_properties))

    def _on_channel_method(self, channel: int, method: spec.Method) -> None:
        """Track open channels. On a channel that we closed, the reader passes only close and close-ok."""
        if channel in self._reader.ignored_channels:
            if isinstance(method, spec.ChannelCloseOk):
                self._reader.resume_channel(channel)
            else:
                self._output.put_method(channel, methods.encode(spec.ChannelCloseOk()))
        elif channel not in self._channels:
            raise _misplaced(channel, method)
        elif isinstance(method, spec.ChannelClose):
            self._channels.discard(channel)
            self._output.put_method(channel, methods.encode(spec.ChannelCloseOk()))
        elif isinstance(method, spec.BasicNack) and self._content_handler is not None:
            self._content_handler.on_confirm(channel, method.delivery_tag, method.multiple, False)
            return
        self._emit(MethodReceived(channel, method))

    # -- the end -----------------------------------------------------------------------------------------------------

    def _refuse(self, error: ProtocolError) -> None:
        """Close the connection because the server broke the protocol."""
        if self.phase in (Phase.OPEN, Phase.HANDSHAKE):
            self._send_close(error.reply_code, error.reply_text, error.class_id, error.method_id)
        self._end(ClosedBy.CLIENT, error.reply_code, error.reply_text, error.class_id, error.method_id)

    def _send_close(self, reply_code: int, reply_text: str, class_id: int = 0, method_id: int = 0) -> None:
        close = spec.ConnectionClose(reply_code, clip_reply_text(reply_text), class_id, method_id)
        self._output.put_method(0, methods.encode(close))
        self._reader.close()

    def _end(self, by: ClosedBy, reply_code: int, reply_text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Stop reading and emit the last event."""
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.CLOSED
            self._leftover = b""
            self._channels.clear()
            self._reader.close()
            self._emit(ConnectionClosed(by, reply_code, reply_text, class_id, method_id))


def _misplaced(channel: int, method: spec.Method) -> ProtocolError:
    text = f"{method.name} is not expected on channel {channel} now"
    return ChannelError(text, method.index >> 16, method.index & 0xFFFF)


def _no_tag(delivery_tag: int) -> LocalMisuse:
    return LocalMisuse(f"a delivery tag is an unsigned integer of 64 bits, not {delivery_tag!r:.80}")


def _text(data: bytes) -> str:
    """Decode a name as `decode_content_method` does."""
    return data.decode("utf-8", "backslashreplace")
