"""One connection's way out: frames gathered during the turn, written once at its end.

A peer that reads too slowly makes the outbox congested: its consumers get nothing more until the socket has drained.
So what waits for one connection stays within the turn's limit plus the transport's.

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

_GET_OK = struct.Struct(">IQB")
_RETURN = struct.Struct(">IH")
_LONG = struct.Struct(">I")

# What one turn may gather for one connection before its consumers have to wait for the next turn.
TURN_LIMIT = 1024 * 1024
_TURN_LIMIT = TURN_LIMIT  # the same as a C integer


class ConnectionOutbox(Outbox):
    """`transport` is asyncio's; None until the connection is made and after it is lost."""

    __slots__ = (
        "buffer",
        "closes_channel",
        "has_written",
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
        self.is_dirty = False
        self.is_peer_slow = False  # the transport holds more than it should
        self.has_written = False  # since the heartbeat was last looked at
        self.closes_channel: Callable[[int, BrokerError, str], None] | None = None  # set by the session
        self.notifies_cancel = False  # the client wants to hear that its consumer's queue is gone

    # -- what the core says ------------------------------------------------------------------------------------------

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
        # By hand: the address goes out as the publisher sent it, whatever bytes it holds.
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

    # -- what the session says ---------------------------------------------------------------------------------------

    def send(self, channel: int, method: spec.Method) -> None:
        """Any method without content."""
        self.buffer.put_method(channel, methods.encode(method))
        self._mark_dirty()

    def send_raw(self, frames: bytes) -> None:
        """Bytes ready made: the protocol header, a heartbeat."""
        self.buffer.put(frames)
        self._mark_dirty()

    # -- the transport -----------------------------------------------------------------------------------------------

    def _mark_dirty(self) -> None:
        if not self.is_dirty:
            self.is_dirty = True
            self.ticker.mark_dirty(self)

    def flush(self) -> None:
        """Write everything gathered; consumers that waited for the turn to end may go on."""
        self.is_dirty = False
        size = self.buffer.size
        chunks = self.buffer.take()
        if self.transport is None:
            return
        self.stats.bytes_out += size
        self.traffic.bytes_out += size
        self.has_written = True
        if len(chunks) == 1:
            self.transport.write(chunks[0])
        else:
            self.transport.writelines(chunks)
        if self.is_congested and not self.is_peer_slow:
            self.revive()

    def peer_is_slow(self) -> None:
        """The transport's buffer is over its limit."""
        self.is_peer_slow = True
        self.is_congested = True

    def peer_caught_up(self) -> None:
        """The transport's buffer has drained."""
        self.is_peer_slow = False
        self.revive()

    def revive(self) -> None:
        """Let the parked consumers wait for messages again."""
        self.is_congested = False
        if self.parked:
            wake_parked(self.parked)
            self.ticker.schedule()  # what they are due is handed out by the end of a turn
