"""A consumer and the ring of consumers that wait at a queue.

A consumer stands in its queue's ring only while it has credit: so the cost of a message does not grow with the number
of consumers that are busy. `has_credit` takes it out and parks it where its credit comes back from:

    limit                               parked in          woken by
    its own prefetch                    nowhere            its next settlement: `return_credit`
    the prefetch of its channel         Ledger.parked      the channel's next settlement or basic.qos: `wake_channel`
    what its connection may buffer      Outbox.parked      the end of the turn or a drained socket: `wake_parked`

Nothing else changes credit. Waking puts the consumer into the ring again and makes its queue due.

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
        """Whether it can take one more message; if not, park it where its credit comes back from."""
        if self.outbox.is_congested:
            self.outbox.parked[self] = None
            return False
        if self.ledger.is_full():
            # Holds back consumers without acks too, though theirs do not count (as in RabbitMQ).
            self.ledger.parked[self] = None
            return False
        # Its own next ack brings it back.
        return self.no_ack or self.prefetch == 0 or self.unacked < self.prefetch

    def return_credit(self) -> bool:
        """A delivery to it was settled. Return whether its queue has to wake it."""
        self.unacked -= 1
        self.ledger.outstanding -= 1
        if self.is_waiting:
            return False
        if self.ledger.prefetch == 0:
            return True
        self.ledger.parked[self] = None  # the channel's consumers take turns
        return False

    def unpark(self) -> None:
        """It wants nothing more."""
        self.ledger.parked.pop(self, None)
        self.outbox.parked.pop(self, None)

    def deliver_no_ack(self, message: Message, redelivered: bool) -> None:
        """Send a message that is settled by being sent."""
        self.outbox.deliver(self.channel_number, self.wire_tag, self.ledger.next_tag(), redelivered, message)

    def deliver(self, entry: QueuedMessage, message: Message) -> None:
        """Send a message and note it in the ledger until it is acked; `message` is what is sent of it."""
        entry.consumer = self
        entry.queue = self.queue
        self.unacked += 1
        tag = self.ledger.add(entry)
        self.outbox.deliver(self.channel_number, self.wire_tag, tag, entry.redelivered, message)


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

    def next_ready(self, message: Message) -> Consumer | None:
        """Return the consumer that gets this message, or None; those without credit leave the ring on the way.

        So far every consumer takes every message.
        """
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


def wake_parked(parked: dict[Consumer, None]) -> None:
    """Wake all that wait for this credit; who finds none parks again."""
    waiting = list(parked)
    parked.clear()
    for consumer in waiting:
        consumer.queue.wake(consumer)


def wake_channel(ledger: Ledger) -> None:
    """Wake those that wait for the channel's credit if it has any; the one that was served last comes last."""
    parked = ledger.parked
    if parked and not ledger.is_full():
        last_served = ledger.last_served
        if last_served in parked:
            del parked[last_served]
            parked[last_served] = None
        wake_parked(parked)
