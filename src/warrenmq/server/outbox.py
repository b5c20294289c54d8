"""Output of one connection: frames collected during the turn, written once at its end.

Compiled, output that is in one piece goes straight to the socket: uvloop's transport would write it later, after the
pause that may follow a turn (moderation.py). The transport writes what the socket does not take.

The outbox of a peer that reads too slowly is congested: its consumers get no deliveries until the socket has drained.
So the output that waits for one connection stays below the limit of a turn plus that of the transport.

Owned by the loop thread. Compiled when the package is built (outbox.pxd).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from warrenmq.core.consumer import wake_parked
from warrenmq.core.errors import BrokerError
from warrenmq.core.message import Message
from warrenmq.core.ports import Outbox
from warrenmq.core.stats import Stats, Traffic
from warrenmq.protocol import methods, spec
from warrenmq.protocol.output import BufferPool, OutputBuffer
from warrenmq.protocol.values import encode_shortstr
from warrenmq.server.ticker import Ticker

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

if cython.compiled:
    from cython.cimports.posix.unistd import write

_GET_OK = struct.Struct(">IQB")
_RETURN = struct.Struct(">IH")
_LONG = struct.Struct(">I")

# Pause a connection's consumers until the next turn when this much output is collected.
TURN_LIMIT = 1024 * 1024
_TURN_LIMIT = TURN_LIMIT  # the same as a C integer


class ConnectionOutbox(Outbox):
    """`transport` is asyncio's; None before the connection is made and after it is lost."""

    __slots__ = (
        "_transport_has_output",
        "buffer",
        "closes_channel",
        "fd",
        "is_dirty",
        "is_peer_slow",
        "notifies_cancel",
        "stats",
        "ticker",
        "traffic",
        "transport",
    )

    def __init__(self, ticker: Ticker, stats: Stats, traffic: Traffic, pool: BufferPool, frame_max: int) -> None:
        super().__init__()
        self.ticker = ticker
        self.stats = stats
        self.traffic = traffic
        self.buffer = OutputBuffer(frame_max, pool)
        self.transport: Any = None
        self.fd = -1  # of the socket, if output may be written straight to it
        self._transport_has_output = False  # it may still have some
        self.is_dirty = False
        self.is_peer_slow = False  # the transport is over its high-water mark
        self.closes_channel: Callable[[int, BrokerError, str], None] | None = None  # set by the session
        self.notifies_cancel = False  # the client supports consumer_cancel_notify

    # -- port of the core --------------------------------------------------------------------------------------------

    def deliver(
        self, channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, message: Message
    ) -> None:
        self.buffer.put_delivery(
            channel, consumer_tag, delivery_tag, redelivered, message.address, message.header, message.body
        )
        if not self.is_dirty:
            self._mark_dirty()
        if self.buffer.size > _TURN_LIMIT:
            self.is_congested = True

    def get_ok(self, channel: int, delivery_tag: int, redelivered: bool, message: Message, remaining: int) -> None:
        # Encoded here: the address is sent as the publisher sent it, whatever bytes it holds.
        method = (
            _GET_OK.pack(spec.BasicGetOk.index, delivery_tag, redelivered) + message.address + _LONG.pack(remaining)
        )
        self.buffer.put_content(channel, method, message.header, message.body)
        self._mark_dirty()

    def return_message(self, channel: int, reply_code: int, reply_text: str, message: Message) -> None:
        method = _RETURN.pack(spec.BasicReturn.index, reply_code) + encode_shortstr(reply_text) + message.address
        self.buffer.put_content(channel, method, message.header, message.body)
        self._mark_dirty()

    def confirm(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.buffer.put_ack(channel, delivery_tag, multiple)
        self._mark_dirty()

    def nack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.send(channel, spec.BasicNack(delivery_tag, multiple))

    def cancel_consumer(self, channel: int, consumer_tag: str) -> None:
        if self.notifies_cancel:
            self.send(channel, spec.BasicCancel(consumer_tag, no_wait=True))

    def close_channel(self, channel: int, refusal: BrokerError, cause: str) -> None:
        if self.closes_channel is not None:
            self.closes_channel(channel, refusal, cause)

    # -- used by the session -----------------------------------------------------------------------------------------

    def send(self, channel: int, method: spec.Method) -> None:
        """Send a method without content."""
        self.buffer.put_method(channel, methods.encode(method))
        self._mark_dirty()

    def send_raw(self, frames: bytes) -> None:
        """Send encoded bytes: the protocol header, a heartbeat."""
        self.buffer.put(frames)
        self._mark_dirty()

    # -- the transport -----------------------------------------------------------------------------------------------

    def _mark_dirty(self) -> None:
        if not self.is_dirty:
            self.is_dirty = True
            self.ticker.mark_dirty(self)

    def flush(self) -> None:
        """Write the collected output; resume consumers that waited for the end of the turn."""
        self.is_dirty = False
        if self.transport is None:
            self.buffer.take()
            return
        size = self.buffer.size
        self.stats.bytes_out += size
        self.traffic.bytes_out += size
        if self.fd >= 0 and 0 < size == self.buffer.length and self._can_write():
            output: Any = self.buffer.scratch
            self.buffer.drop(write(self.fd, output, size))
        if self.buffer.size != 0:
            chunks = self.buffer.take()
            if len(chunks) == 1:
                self.transport.write(chunks[0])
            else:
                self.transport.writelines(chunks)
            self._transport_has_output = True
        if self.is_congested and not self.is_peer_slow:
            self.resume_consumers()

    def _can_write(self) -> bool:
        """Return True if the socket is open, and the transport has no output that comes first."""
        if self._transport_has_output:
            self._transport_has_output = self.transport.get_write_buffer_size() != 0
        # A transport that closes has given up its descriptor, which may already be another socket's.
        return not self._transport_has_output and not self.transport.is_closing()

    def peer_is_slow(self) -> None:
        """The transport is over its high-water mark."""
        self.is_peer_slow = True
        self.is_congested = True

    def peer_caught_up(self) -> None:
        """The transport has drained."""
        self.is_peer_slow = False
        self.resume_consumers()

    def resume_consumers(self) -> None:
        """Put parked consumers back into the rings of their queues."""
        self.is_congested = False
        if self.parked:
            wake_parked(self.parked)
            self.ticker.schedule()  # queues dispatch at the end of a turn
