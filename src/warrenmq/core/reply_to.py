"""Direct reply-to: an answer that goes to the asking channel without waiting anywhere.

A client consumes from `amq.rabbitmq.reply-to`, publishes with that as reply-to, and the broker puts an address in its
place. Whoever publishes to the default exchange with that address as key reaches the channel directly.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import NOTHING
from warrenmq.core.publish_rules import DIRECT_REPLY_TO
from warrenmq.core.queue import Queue

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel

ADDRESS_PREFIX = DIRECT_REPLY_TO + "."


class ReplyQueue(Queue):
    """A channel that waits for answers, in the shape of a queue that never holds anything.

    Its name is the address. It cannot be guessed: whoever knows it was given it.
    """

    __slots__ = ("_channel", "_wire_tag", "tag")

    def __init__(self, channel: Channel, tag: str) -> None:
        address = ADDRESS_PREFIX + secrets.token_urlsafe(24)
        super().__init__(
            channel.vhost.name, address, False, False, None, {}, channel.stats, channel.turn, NOTHING, channel.events
        )
        self._channel = channel
        self.tag = tag
        encoded = tag.encode()
        self._wire_tag = bytes((len(encoded),)) + encoded

    def enqueue(self, message: Message) -> int:
        """Send the answer; one that finds the peer's socket full is dropped, as nothing may wait without bound."""
        outbox = self._channel.outbox
        if not outbox.is_congested:
            self.stats.delivered += 1
            if message.uid != 0:
                self.events.enqueued(message, self, 1)
                self.tell_delivered(_first_delivery(message), self._channel, True)
            outbox.deliver(self._channel.number, self._wire_tag, self._channel.ledger.next_tag(), False, message)
        return NOTHING


def _first_delivery(message: Message) -> QueuedMessage:
    entry = QueuedMessage(message, 0)
    entry.attempts = 1
    return entry
