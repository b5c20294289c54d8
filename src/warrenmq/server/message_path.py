"""The message path of a session: published messages, acks and rejections, the frames that arrive once per message.

All other methods, and all refusals, go to the session. A file of its own because this is compiled (message_path.pxd)
and the session need not be. Owned by the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.core.channel import Channel
from warrenmq.core.errors import BrokerError, PreconditionFailed
from warrenmq.core.exchange import Route
from warrenmq.core.memory import memory_refusal
from warrenmq.core.stats import Revision, Stats
from warrenmq.events import schema
from warrenmq.protocol import spec
from warrenmq.protocol.errors import ChannelError, ProtocolError
from warrenmq.protocol.frames import FrameHandler
from warrenmq.protocol.properties import validate
from warrenmq.server.flow import Alarms

if TYPE_CHECKING:
    from warrenmq.server.session import Session

_PUBLISH = spec.BasicPublish.index
_ACK = spec.BasicAck.index
_REJECT = spec.BasicReject.index
_NACK = spec.BasicNack.index
_REFUSAL_SIZE = 13  # of basic.reject and basic.nack: class, method, delivery tag, flags
_REJECTED = schema.REJECTED
_NACKED = schema.NACKED
# A longer header is validated each time: the cached one takes memory as long as the connection lasts.
_MAX_CACHED_HEADER = 4096


class MessagePath(FrameHandler):
    """Handles the frames of one connection. `channels` are the open ones, `routes` those of its virtual host."""

    __slots__ = (
        "_alarms",
        "_permissions",
        "_session",
        "_stats",
        "_valid_header",
        "channels",
        "max_message_size",
        "routes",
    )

    def __init__(self, session: Session, alarms: Alarms, max_message_size: int) -> None:
        self._session = session
        self._alarms = alarms
        self._permissions: Revision = session.broker.users.revision
        self._stats: Stats = session.broker.stats
        self._valid_header = b""  # the last well-formed one; the next is often the same
        self.max_message_size = max_message_size
        self.channels: dict[int, Channel] = {}
        self.routes: dict[bytes, Route] = {}

    def on_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        """Publish a complete message."""
        target = self.channels.get(channel)
        if target is None:
            self._session.fail(ChannelError("expected 'channel.open'"), channel, index_of(method))
            return
        try:
            if header != self._valid_header:
                validate(header)
                if len(header) <= _MAX_CACHED_HEADER:
                    self._valid_header = header
            route = self.routes.get(method)
            if route is None:
                route = self._session.find_route(method)
            if route.exchange is not target.writable_exchange or target.writable_revision != self._permissions.number:
                self._session.require_writable(target, route)
            if len(body) > self.max_message_size:
                raise self._too_large(len(body))
            target.publish(route, header, body)
        except (BrokerError, ProtocolError) as refusal:
            self._session.fail(refusal, channel, index_of(method))
        if self._alarms.is_raised:
            self._session.block_publisher()

    def on_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        target = self.channels.get(channel)
        if target is None:
            self._session.fail(ChannelError("expected 'channel.open'"), channel, _ACK)
            return
        try:
            target.ack(delivery_tag, multiple)
        except BrokerError as refusal:
            self._session.fail(refusal, channel, _ACK)

    def on_content_header(self, channel: int, body_size: int) -> bool:
        """Refuse a body that is too large, or without a channel, before it is buffered."""
        if channel not in self.channels:
            self._session.fail(ChannelError("expected 'channel.open'"), channel, _PUBLISH)
            return False
        if body_size > self.max_message_size:
            self._session.fail(self._too_large(body_size), channel, _PUBLISH)
            return False
        return True

    def on_buffered(self, channel: int, size: int) -> bool:
        """Count buffered bytes of a content; refuse it above the limit, pause the client during an alarm."""
        is_refused = self._stats.exceeds_unfinished(size)
        self._stats.transit_bytes += size
        if is_refused:
            self._session.fail(memory_refusal(self._stats), channel, _PUBLISH)
            return False
        if self._alarms.is_raised:
            self._session.block_publisher()
        return True

    def on_released(self, size: int) -> None:
        self._stats.transit_bytes -= size

    def end(self) -> None:
        """Drop all references, so that no cycle outlives the connection."""
        self._session = None  # type: ignore[assignment]
        self.channels = {}
        self.routes = {}

    def on_method(self, channel: int, payload: bytes) -> None:
        if len(payload) == _REFUSAL_SIZE and channel in self.channels:
            index = index_of(payload)
            if index in (_REJECT, _NACK):
                self._on_refusal(channel, index, payload)
                return
        self._session.on_method(channel, payload)

    def _on_refusal(self, channel: int, index: int, payload: bytes) -> None:
        """Handle basic.reject or basic.nack: a consumer may send one per message."""
        target = self.channels[channel]
        tag = 0
        for position in range(4, 12):
            tag = tag << 8 | payload[position]
        flags = payload[12]
        try:
            if index == _NACK:
                target.reject(tag, flags & 1 != 0, flags & 2 != 0, _NACKED)
            else:
                target.reject(tag, False, flags & 1 != 0, _REJECTED)
        except BrokerError as refusal:
            self._session.fail(refusal, channel, index)

    def on_heartbeat(self) -> None:
        """Nothing to do: the connection counts every input as a sign of life."""

    def _too_large(self, body_size: int) -> PreconditionFailed:
        return PreconditionFailed(
            f"message size {body_size} is larger than configured max size {self.max_message_size}"
        )


def index_of(payload: bytes) -> int:
    """Return the class and method id of a method frame's payload, as in `spec.Method.index`."""
    class_id = payload[0] << 8 | payload[1]
    return class_id << 16 | payload[2] << 8 | payload[3]
