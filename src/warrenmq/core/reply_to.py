"""Direct reply-to: an answer that goes to the asking channel without waiting anywhere.

A client consumes from `amq.rabbitmq.reply-to`, publishes with that as reply-to, and the broker puts an address in its
place. Whoever publishes to the default exchange with that address as key reaches the channel directly.
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
    """A channel that waits for answers, in the shape of a queue that never holds anything.

    Its name is the address. It cannot be guessed: whoever knows it was given it.
    """

    __slots__ = ("_channel", "_deferred", "_wire_tag", "tag")

    def __init__(self, channel: Channel, tag: str) -> None:
        address = ADDRESS_PREFIX + secrets.token_urlsafe(24)
        super().__init__(
            channel.vhost.name, address, False, False, None, {}, channel.stats, channel.turn, NOTHING, channel.events
        )
        self._channel = channel
        self._deferred: list[Message] = []  # came in the middle of a settlement
        self.tag = tag
        encoded = tag.encode()
        self._wire_tag = bytes((len(encoded),)) + encoded

    def enqueue(self, message: Message) -> int:
        """Send the answer; one that finds the peer's socket full is dropped, as nothing may wait without bound."""
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
        """Send what came in the middle of a settlement."""
        deferred, self._deferred = self._deferred, []
        if not self.is_deleted:
            for message in deferred:
                self.enqueue(message)


def _first_delivery(message: Message) -> QueuedMessage:
    entry = QueuedMessage(message, 0)
    entry.attempts = 1
    return entry
