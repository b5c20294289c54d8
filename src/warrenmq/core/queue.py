"""The base class of all queue types: name, consumers, credit and events.

Subclasses handle messages: a classic queue delivers each one once (classic_queue.py), a stream retains them for every
consumer (stream.py), a reply queue stores nothing (reply_to.py).

Owned by the loop thread. Compiled when the package is built (queue.pxd).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warrenmq.core.consumer import Consumer
from warrenmq.core.deduplication import Deduplication
from warrenmq.core.memory import size_of_consumer
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.options import QueueOptions
from warrenmq.core.ports import EventSink
from warrenmq.core.queue_expiry import QueueExpiry
from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.connection import Connection

_NO_ARGUMENTS: dict[str, Any] = {}  # arguments do not change after the declaration

# As C integers.
_DELIVERED = schema.DELIVERED
_AUTO_ACK = schema.R_AUTO_ACK


class Queue:
    """A destination of messages, with consumers. The confirm of a stored message waits for `durability_level`.

    `owner` is the connection of an exclusive queue, else None. `is_tapped`: deliveries are reported to the firehose.
    `is_due`: it will be dispatched at the end of the turn.
    """

    __slots__ = (
        "arguments",
        "consumers",
        "deduplication",
        "delivered",
        "delivered_no_ack",
        "durability_level",
        "events",
        "expiry",
        "is_auto_delete",
        "is_deleted",
        "is_due",
        "is_durable",
        "is_tapped",
        "name",
        "options",
        "owner",
        "redelivered",
        "rejected",
        "requeued",
        "stats",
        "turn",
        "unacked_count",
        "vhost",
    )

    def __init__(
        self,
        vhost: str,
        name: str,
        is_durable: bool,
        is_auto_delete: bool,
        owner: "Connection | None",
        arguments: dict[str, Any],
        stats: Stats,
        turn: Turn,
        durability_level: int,
        events: EventSink | None,
        options: QueueOptions | None = None,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.is_durable = is_durable
        self.is_auto_delete = is_auto_delete
        self.owner = owner
        self.arguments = arguments or _NO_ARGUMENTS
        self.options = options or QueueOptions(is_durable=is_durable)
        self.stats = stats
        self.turn = turn
        self.durability_level = durability_level
        self.events = events or EventSink()
        self.is_tapped = False
        self.consumers: dict[Consumer, None] = {}
        self.is_deleted = False
        self.is_due = False
        self.unacked_count = 0
        self.deduplication: Deduplication | None = None
        self.expiry: QueueExpiry | None = None
        # Counters since the start; `core/snapshot.py` derives others from them.
        self.delivered = 0  # with acks
        self.delivered_no_ack = 0
        self.redelivered = 0
        self.requeued = 0
        self.rejected = 0  # without requeue

    def apply(self, options: QueueOptions) -> None:
        """Apply these options from now on."""
        self.options = options

    # -- messages ----------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> int:
        """Accept or refuse the message. Return its outcome (core/outcome.py).

        During a settlement nothing is delivered before the end of the turn.
        """
        raise NotImplementedError

    def dispatch(self) -> None:
        """Deliver waiting messages while there are consumers with credit."""
        raise NotImplementedError

    def get(self) -> QueuedMessage | None:
        """Remove the first message for basic.get; the caller settles it or counts it as unacked."""
        raise NotImplementedError

    def discard(self, entry: QueuedMessage) -> None:
        """Remove a message that was delivered without acks."""
        raise NotImplementedError

    def settle_sent(self, entry: QueuedMessage) -> None:
        """Remove a message that is settled by being sent."""
        self.delivered_no_ack += 1
        self.discard(entry)

    def settle(self, entry: QueuedMessage) -> None:
        """Remove an acked message."""
        raise NotImplementedError

    def reject(self, entry: QueuedMessage, actor: object) -> None:
        """Remove a message that was rejected without requeue."""
        self.rejected += 1
        self.settle(entry)

    def requeue(self, entries: list[QueuedMessage], actor: object = None, reason: int = 0) -> None:
        """Return unacked messages, marked as redelivered, without delivering them yet."""
        raise NotImplementedError

    def as_delivered(self, entry: QueuedMessage) -> Message:
        """Return the message with the headers that the broker adds at delivery."""
        return entry.message

    def touch(self) -> None:
        """Restart the time after which the unused queue expires."""
        if self.expiry is not None:
            self.expiry.touch()

    def require_requeueable(self) -> None:
        """Refuse with 540 if deliveries cannot be requeued."""

    def message_count(self) -> int:
        """Return the number of waiting messages; of a stream, of all messages."""
        return 0

    def retrying(self) -> int:
        """Return the number of messages that wait for their next attempt (retry.py)."""
        return 0

    def waiting_bytes(self) -> int:
        """Return the memory of the waiting messages; part of `Stats.held_bytes`."""
        return 0

    def published(self) -> int:
        """Return the number of messages enqueued since the start."""
        return 0

    def delivered_directly(self) -> int:
        """Return how many of those went straight to a consumer without acks; not in `delivered_no_ack`."""
        return 0

    def purge(self, reason: int = schema.R_PURGED) -> int:
        """Drop all waiting messages; unacked ones stay. Return the number dropped."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the messages in the store; called once, before the first message."""

    def needs_page(self) -> bool:
        """Return True if unexpired messages wait and none of them is in memory."""
        return False

    def await_page(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` when a message is in memory again, or none is left."""
        waiter()

    def count_unacked(self) -> None:
        """Count a delivery with acks."""
        self.delivered += 1
        self.unacked_count += 1
        self.stats.unacked += 1

    def emit_delivered(self, entry: QueuedMessage, actor: object, is_settled: bool) -> None:
        """Emit the event of a delivery to a consumer, or to the channel of a basic.get."""
        if entry.message.uid != 0:
            self.events.queue_event(_DELIVERED, entry, self, actor, _AUTO_ACK if is_settled else 0)
        if self.is_tapped:
            self.events.firehose_delivery(entry, self, actor)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def validate_consumer(
        self, channel: "Channel", no_ack: bool, is_exclusive: bool, arguments: dict[str, Any]
    ) -> None:
        """Refuse a consumer that this queue cannot serve."""
        raise NotImplementedError

    def add_consumer(self, consumer: Consumer) -> None:
        """Start delivering to the consumer."""
        self.consumers[consumer] = None
        self.stats.consumers += 1
        self.stats.definition_bytes += size_of_consumer(consumer)

    def wake(self, consumer: Consumer) -> None:
        """The consumer may have credit again."""
        raise NotImplementedError

    def make_due(self) -> None:
        """Dispatch before the turn ends, if anything can be delivered."""
        raise NotImplementedError

    def remove_consumer(self, consumer: Consumer) -> None:
        """Stop delivering to the consumer; its unacked deliveries stay with its channel."""
        if consumer in self.consumers:
            del self.consumers[consumer]
            self.stats.consumers -= 1
            self.stats.definition_bytes -= size_of_consumer(consumer)
            if self.expiry is not None and not self.consumers:
                self.expiry.touch()

    def release(self, entry: QueuedMessage) -> None:
        """Return the credit of a delivery to its consumer and channel."""
        entry.queue = None
        if entry.consumer is not None:
            consumer: Consumer = entry.consumer  # type: ignore[assignment]
            entry.consumer = None
            if consumer.return_credit():
                self.wake(consumer)

    # -- the end -----------------------------------------------------------------------------------------------------

    def delete(self) -> tuple[int, list[Consumer]]:
        """Drop everything. Return the number of messages dropped, and the consumers to notify."""
        self.is_deleted = True
        if self.expiry is not None:
            self.expiry.stop()
            self.expiry = None
        dropped = self.drop_everything()
        consumers = list(self.consumers)
        for consumer in consumers:
            self.remove_consumer(consumer)
        if self.deduplication is not None:
            self.deduplication.delete()
            self.deduplication = None
        return dropped, consumers

    def drop_everything(self) -> int:
        """Drop all messages and the store. Return the number of messages dropped."""
        return 0
