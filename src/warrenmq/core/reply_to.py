"""Direct reply-to: replies that go to the requesting channel without a queue.

A client consumes from `amq.rabbitmq.reply-to` and publishes with that as reply-to; the broker replaces it by an
address. A message published to the default exchange with that address as routing key goes directly to the channel.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.outcome import DELIVERED, DROPPED, QUEUED
from warrenmq.core.ports import NOTHING
from warrenmq.core.publish_rules import ADDRESS_PREFIX
from warrenmq.core.queue import Queue

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel


class ReplyQueue(Queue):
    """A channel that waits for replies, as a queue that stores nothing. Its name is the address, which is secret."""

    __slots__ = ("_channel", "_deferred", "_wire_tag", "tag")

    def __init__(self, channel: Channel, tag: str) -> None:
        address = ADDRESS_PREFIX + secrets.token_urlsafe(24)
        super().__init__(
            channel.vhost.name, address, False, False, None, {}, channel.stats, channel.turn, NOTHING, channel.events
        )
        self._channel = channel
        self._deferred: list[Message] = []  # enqueued during a settlement
        self.tag = tag
        encoded = tag.encode()
        self._wire_tag = bytes((len(encoded),)) + encoded

    def enqueue(self, message: Message) -> int:
        """Send the reply, or drop it if the peer's socket is full: nothing may wait without a limit."""
        if self.turn.is_settling:
            if not self._deferred:
                self.turn.due.append(self)
            self._deferred.append(message)
            return QUEUED
        outbox = self._channel.outbox
        if outbox.is_congested:
            return DROPPED
        self.stats.delivered += 1
        if message.uid != 0:
            self.events.enqueued(message, self, 1)
            self.emit_delivered(_first_delivery(message), self._channel, True)
        outbox.deliver(self._channel.number, self._wire_tag, self._channel.ledger.next_tag(), False, message)
        return DELIVERED

    def dispatch(self) -> None:
        """Send the messages that were enqueued during a settlement."""
        deferred, self._deferred = self._deferred, []
        if not self.is_deleted:
            for message in deferred:
                self.enqueue(message)


def _first_delivery(message: Message) -> QueuedMessage:
    entry = QueuedMessage(message, 0)
    entry.attempts = 1
    return entry
