"""A consumer and the ring of consumers that wait at a queue.

A consumer stands in its queue's ring only while it can take a message. When it cannot, it leaves the ring, and whoever
gives it back its credit (an ack, a larger prefetch, a drained socket) puts it in again: so that the cost of a message
does not grow with the number of consumers that are busy.

Compiled when the package is built (consumer.pxd).
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from warrenmq.core.ledger import Ledger
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import Outbox

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.queue import Queue


class Consumer:
    """One basic.consume. `prefetch` limits what it holds unacked (0: no limit)."""

    __slots__ = (
        "arguments",
        "channel",
        "channel_number",
        "is_exclusive",
        "is_waiting",
        "ledger",
        "no_ack",
        "outbox",
        "prefetch",
        "priority",
        "queue",
        "tag",
        "unacked",
        "wire_tag",
    )

    def __init__(
        self,
        tag: str,
        channel: "Channel",
        queue: "Queue",
        no_ack: bool,
        is_exclusive: bool,
        prefetch: int,
        priority: int,
        arguments: dict[str, Any],
    ) -> None:
        self.tag = tag
        encoded = tag.encode()
        self.wire_tag = bytes((len(encoded),)) + encoded
        self.channel: Channel = channel
        self.channel_number = channel.number
        self.ledger: Ledger = channel.ledger
        self.outbox: Outbox = channel.outbox
        self.queue: Queue = queue
        self.no_ack = no_ack
        self.is_exclusive = is_exclusive
        self.prefetch = 0 if no_ack else prefetch
        self.priority = priority
        self.arguments = arguments
        self.unacked = 0
        self.is_waiting = False

    def has_credit(self) -> bool:
        """Whether it can take one more; if not, it is parked where its credit will come back."""
        if self.outbox.is_congested:
            self.outbox.parked[self] = None
            return False
        if self.ledger.is_full():
            # Holds back consumers without acks too, though theirs do not count (as in RabbitMQ).
            self.ledger.parked[self] = None
            return False
        # Its own next ack brings it back.
        return self.no_ack or self.prefetch == 0 or self.unacked < self.prefetch

    def deliver_no_ack(self, message: Message, redelivered: bool) -> None:
        """Send a message that is settled by being sent."""
        self.outbox.deliver(self.channel_number, self.wire_tag, self.ledger.next_tag(), redelivered, message)

    def deliver(self, entry: QueuedMessage) -> None:
        """Send a message and note it in the ledger until it is acked."""
        entry.consumer = self
        entry.queue = self.queue
        self.unacked += 1
        tag = self.ledger.add(entry)
        self.outbox.deliver(self.channel_number, self.wire_tag, tag, entry.redelivered, entry.message)


class ConsumerRing:
    """The consumers that can take a message now: highest priority first, in turn among equals."""

    __slots__ = ("levels", "priorities")

    def __init__(self) -> None:
        self.priorities: list[int] = []  # descending, beside levels
        self.levels: list[deque[Consumer]] = []

    def add(self, consumer: Consumer) -> None:
        """Put it last among its equals; does nothing if it waits already."""
        if consumer.is_waiting:
            return
        consumer.is_waiting = True
        for index, priority in enumerate(self.priorities):
            if priority == consumer.priority:
                self.levels[index].append(consumer)
                return
            if priority < consumer.priority:
                break
        else:
            index = len(self.priorities)
        self.priorities.insert(index, consumer.priority)
        self.levels.insert(index, deque((consumer,)))

    def remove(self, consumer: Consumer) -> None:
        """Take it out; does nothing if it does not wait."""
        if not consumer.is_waiting:
            return
        consumer.is_waiting = False
        index = self.priorities.index(consumer.priority)
        self.levels[index].remove(consumer)
        if not self.levels[index]:
            del self.levels[index], self.priorities[index]

    def next_ready(self) -> Consumer | None:
        """The consumer whose turn it is, or None; those without credit leave the ring on the way."""
        levels = self.levels
        while levels:
            level = levels[0]
            consumer = level[0]
            if consumer.has_credit():
                if len(level) > 1:
                    level.rotate(-1)
                return consumer
            self.remove(consumer)
        return None
