"""A consumer, and a queue's ring of consumers that have credit.

A consumer is in the ring of its queue only while it has credit, so the cost of a message does not grow with the number
of busy consumers. `has_credit` removes it and parks it where its credit will return:

    limit                               parked in          woken by
    its own prefetch                    nowhere            its next settlement: `return_credit`
    its own pace                        a timer            the timer (core/pace.py)
    the prefetch of its channel         Ledger.parked      the channel's next settlement or basic.qos: `wake_channel`
    what its connection may buffer      Outbox.parked      the end of the turn or a drained socket: `wake_parked`

Nothing else changes credit. Waking a consumer returns it to the ring and makes its queue due.

Compiled when the package is built (consumer.pxd).
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from warrenmq.core.consumer_filter import ConsumerFilter, make_filter
from warrenmq.core.ledger import Ledger
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.pace import ARGUMENT as RATE
from warrenmq.core.pace import Pace
from warrenmq.core.ports import Outbox
from warrenmq.core.retry_options import RetryOptions, retry_options

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.queue import Queue


class Consumer:
    """One basic.consume. `prefetch` limits its unacked deliveries (0: no limit)."""

    __slots__ = (
        "arguments",
        "channel",
        "channel_number",
        "filter",
        "is_exclusive",
        "is_waiting",
        "ledger",
        "no_ack",
        "outbox",
        "pace",
        "prefetch",
        "priority",
        "queue",
        "retry",
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
        self.retry: RetryOptions | None = retry_options(arguments, None)
        self.pace: Pace | None = None
        if RATE in arguments:
            self.pace = Pace(arguments[RATE], channel.turn, channel.broker.timers)
        self.filter: ConsumerFilter | None = make_filter(arguments)

    def has_credit(self) -> bool:
        """Return True if the consumer can take one more message; otherwise park it where its credit will return."""
        if self.outbox.is_congested:
            self.outbox.parked[self] = None
            return False
        if self.ledger.is_full():
            # Also blocks consumers without acks, though their deliveries do not count (as in RabbitMQ).
            self.ledger.parked[self] = None
            return False
        if self.prefetch != 0 and self.unacked >= self.prefetch:
            return False  # its own next ack brings it back
        return self.pace is None or self.pace.has_credit(self)

    def return_credit(self) -> bool:
        """Return the credit of a settled delivery. Return True if the queue has to wake the consumer."""
        self.unacked -= 1
        self.ledger.outstanding -= 1
        if self.is_waiting:
            return False
        if self.ledger.prefetch == 0:
            return True
        self.ledger.parked[self] = None  # the channel's consumers take turns
        return False

    def unpark(self) -> None:
        """Remove the consumer from where it is parked."""
        self.ledger.parked.pop(self, None)
        self.outbox.parked.pop(self, None)
        if self.pace is not None:
            self.pace.stop()

    def deliver_no_ack(self, message: Message, redelivered: bool) -> None:
        """Send a message that is settled by being sent."""
        if self.pace is not None:
            self.pace.use_credit()
        self.outbox.deliver(self.channel_number, self.wire_tag, self.ledger.next_tag(), redelivered, message)

    def deliver(self, entry: QueuedMessage, message: Message) -> None:
        """Send a message and add it to the ledger until it is acked; `message` is the form that is sent."""
        entry.consumer = self
        entry.queue = self.queue
        self.unacked += 1
        if self.pace is not None:
            self.pace.use_credit()
        tag = self.ledger.add(entry)
        self.outbox.deliver(self.channel_number, self.wire_tag, tag, entry.redelivered, message)


class ConsumerRing:
    """The consumers that can take a message now: highest priority first, round-robin among equals."""

    __slots__ = ("levels", "priorities")

    def __init__(self) -> None:
        # None: never had a consumer.
        self.priorities: list[int] | None = None  # descending, beside levels
        self.levels: list[deque[Consumer]] | None = None

    def add(self, consumer: Consumer) -> None:
        """Add a consumer after its equals; does nothing if it is in the ring already."""
        if consumer.is_waiting:
            return
        consumer.is_waiting = True
        if self.priorities is None or self.levels is None:
            self.priorities, self.levels = [consumer.priority], [deque((consumer,))]
            return
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
        """Remove a consumer; does nothing if it is not in the ring."""
        if not consumer.is_waiting:
            return
        consumer.is_waiting = False
        assert self.priorities is not None
        assert self.levels is not None
        index = self.priorities.index(consumer.priority)
        self.levels[index].remove(consumer)
        if not self.levels[index]:
            del self.levels[index], self.priorities[index]

    def waiting(self) -> list[Consumer]:
        """Return the consumers in the ring, in their order."""
        consumers: list[Consumer] = []
        for level in self.levels or ():
            consumers.extend(level)
        return consumers

    def move_back(self, consumer: Consumer) -> None:
        """Move a consumer in the ring behind its equals."""
        assert self.priorities is not None
        assert self.levels is not None
        level = self.levels[0] if len(self.levels) == 1 else self.levels[self.priorities.index(consumer.priority)]
        if len(level) > 1:
            level.remove(consumer)
            level.append(consumer)

    def next_ready(self, message: Message) -> Consumer | None:
        """Return the consumer for this message, or None; consumers without credit are removed on the way."""
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
    """Wake all consumers parked here; those without credit park again."""
    waiting = list(parked)
    parked.clear()
    for consumer in waiting:
        consumer.queue.wake(consumer)


def wake_channel(ledger: Ledger) -> None:
    """Wake the consumers that wait for the channel's credit if it has any; the last one served comes last."""
    parked = ledger.parked
    if parked and not ledger.is_full():
        last_served = ledger.last_served
        if last_served in parked:
            del parked[last_served]
            parked[last_served] = None
        wake_parked(parked)
