"""A classic queue: hands each message to one consumer, in order of position.

A message that meets a waiting consumer never enters the backlog. Whatever comes back (nack, reject, recover, a closed
channel) returns to its old place.

Owned by the loop thread. Compiled when the package is built (classic_queue.pxd).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warrenmq.core.backlog import Backlog
from warrenmq.core.consumer import Consumer, ConsumerRing
from warrenmq.core.delivery_limit import DeliveryLimit
from warrenmq.core.errors import AccessRefused, PreconditionFailed, ResourceLocked
from warrenmq.core.message import Message, QueuedMessage, enqueue_as
from warrenmq.core.options import QUORUM, QueueOptions
from warrenmq.core.outcome import DELIVERED, DROPPED, QUEUED
from warrenmq.core.ports import NOTHING, EventSink, MessageStore
from warrenmq.core.queue import Queue
from warrenmq.core.single_active import SingleActive
from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.connection import Connection

# As C integers.
_REQUEUED = schema.REQUEUED
_DROPPED = schema.DROPPED
_DUPLICATE = schema.R_DUPLICATE


class ClassicQueue(Queue):
    """Consumers and dispatch; the messages are in its backlog."""

    __slots__ = ("backlog", "delivery_limit", "exclusive_consumer", "kept", "ring", "single_active")

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
        store: MessageStore | None = None,
        events: EventSink | None = None,
        options: QueueOptions | None = None,
    ) -> None:
        promise = store.promise if store is not None else NOTHING
        super().__init__(
            vhost, name, is_durable, is_auto_delete, owner, arguments, stats, turn, promise, events, options
        )
        self.backlog = Backlog(stats, store, is_durable, self.dispatch)
        is_quorum = self.options.type == QUORUM
        self.backlog.counts_attempts = is_quorum
        self.delivery_limit = DeliveryLimit(self.options.delivery_limit) if is_quorum else None
        self.ring = ConsumerRing()
        self.single_active = SingleActive(self.consumers, self.ring) if self.options.is_single_active else None
        self.exclusive_consumer: Consumer | None = None
        self.kept = 0  # messages that were not settled at once by being sent

    def apply(self, options: QueueOptions) -> None:
        self.options = options
        if self.delivery_limit is not None:
            self.delivery_limit.limit = options.delivery_limit

    # -- messages in -------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> int:
        """Deliver the message to a waiting consumer, or keep it; never waits. Return its outcome (core/outcome.py).

        In the middle of a settlement it is kept, and the queue is due.
        """
        if self.deduplication is not None and self.deduplication.has_seen(message.header):
            return self._drop_duplicate(message)
        backlog = self.backlog
        position = backlog.next_position
        backlog.next_position = position + 1
        is_first = backlog.waiting == 0
        consumer = self.ring.next_ready(message) if is_first and not self.turn.is_settling else None
        if consumer is not None and consumer.no_ack:
            # Settled by being sent: there is nothing to keep.
            self.stats.delivered += 1
            if message.uid != 0:
                self.events.passed(message, self, consumer)
            if self.is_tapped:
                self.events.tapped(enqueue_as(message, position), self, consumer)
            consumer.deliver_no_ack(message, False)
            if self.deduplication is not None:
                return DELIVERED | self.deduplication.note_passed(backlog.keeps and message.is_persistent())
            return DELIVERED
        self.kept += 1
        if message.uid != 0:
            self.events.enqueued(message, self, 1 if is_first else backlog.waiting + 1)
        entry = enqueue_as(message, position)
        promise = backlog.keep(entry)
        if self.deduplication is not None:
            self.deduplication.note(position, entry.epoch > 0)
        if consumer is not None:
            backlog.pass_on(entry)
            self._hand_over(entry, consumer)
            return DELIVERED | promise
        backlog.append(entry)
        if self.turn.is_settling:
            self.make_due()
        return QUEUED | promise

    def _drop_duplicate(self, message: Message) -> int:
        """Drop a message whose id was here before; its confirm waits until that one is safe."""
        self.stats.deduplicated += 1
        if message.uid != 0:
            self.events.place_event(_DROPPED, enqueue_as(message, self.backlog.next_position), self, None, _DUPLICATE)
        return DROPPED | (self.promise if self.backlog.keeps and message.is_persistent() else NOTHING)

    def restore(self) -> None:
        self.backlog.restore()
        if self.deduplication is not None and self.backlog.waiting == 0:
            self.deduplication.left_behind(-1)

    def needs_page(self) -> bool:
        return self.backlog.needs_page()

    def await_page(self, waiter: Callable[[], None]) -> None:
        self.backlog.await_page(waiter)

    # -- messages out ------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        self.is_due = False
        if self.single_active is not None:
            self.single_active.elect()
        backlog = self.backlog
        while True:
            entry = backlog.first()
            if entry is None:
                break
            consumer = self.ring.next_ready(entry.message)
            if consumer is None:
                break
            backlog.take()
            self._hand_over(entry, consumer)
        if backlog.paged != 0:
            backlog.read_ahead()

    def get(self) -> QueuedMessage | None:
        if self.single_active is not None and self.options.type == QUORUM:
            raise ResourceLocked(
                f"cannot obtain access to locked queue '{self.name}' in vhost '{self.vhost}'. basic.get operations are "
                "not supported by quorum queues with single active consumer"
            )
        entry = self.backlog.take()
        if self.backlog.paged != 0:
            self.backlog.read_ahead()
        return entry

    def _hand_over(self, entry: QueuedMessage, consumer: Consumer) -> None:
        self.stats.delivered += 1
        if entry.redelivered:
            self.stats.redelivered += 1
            self.redelivered += 1
        entry.attempts += 1
        message = entry.message
        if self.delivery_limit is not None and entry.attempts > 1:
            message = self.delivery_limit.stamp(entry)
        if entry.message.uid != 0 or self.is_tapped:
            self.tell_delivered(entry, consumer, consumer.no_ack)
        if consumer.no_ack:
            self.delivered_no_ack += 1
            self.discard(entry)
            consumer.deliver_no_ack(message, entry.redelivered)
        else:
            self.delivered += 1
            self.unacked_count += 1
            self.stats.unacked += 1
            consumer.deliver(entry, message)

    def as_delivered(self, entry: QueuedMessage) -> Message:
        return entry.message if self.delivery_limit is None else self.delivery_limit.stamp(entry)

    def published(self) -> int:
        return self.backlog.next_position - self.backlog.restored_position  # each takes one position

    def passed(self) -> int:
        return self.published() - self.kept

    def message_count(self) -> int:
        return self.backlog.waiting

    def waiting_bytes(self) -> int:
        return self.backlog.bytes_in_memory()

    # -- settling ----------------------------------------------------------------------------------------------------

    def discard(self, entry: QueuedMessage) -> None:
        if self.deduplication is not None:
            self.deduplication.left(entry.message.header, entry.position)
        self.backlog.settle(entry)

    def drop(self, entry: QueuedMessage, reason: int) -> None:
        """Remove a message that was taken from the backlog and is with no consumer, for this reason."""
        if entry.message.uid != 0:
            self.events.place_event(_DROPPED, entry, self, None, reason)
        self.discard(entry)

    def settle(self, entry: QueuedMessage) -> None:
        self.unacked_count -= 1
        self.stats.unacked -= 1
        self.discard(entry)
        self.release(entry)
        if self.single_active is not None and self.single_active.is_drained():
            self._elect_soon()

    def requeue(self, entries: list[QueuedMessage], who: object = None, reason: int = 0) -> None:
        """Put unacked messages back at their old places, marked as redelivered, without delivering them yet.

        Those that came back too often are dropped.
        """
        self.unacked_count -= len(entries)
        self.stats.unacked -= len(entries)
        if self.delivery_limit is not None and not self.is_deleted:
            entries = self._drop_over_limit(self.delivery_limit, entries)
        self.requeued += len(entries)
        for entry in entries:
            if entry.message.uid != 0:
                self.events.place_event(_REQUEUED, entry, self, who, reason)
            entry.redelivered = True
        if self.is_deleted:
            for entry in entries:
                self.backlog.settle(entry)
        else:
            self.backlog.give_back(entries)
            if self.unacked_count == 0:
                self.backlog.page_out_returned()
        for entry in entries:
            self.release(entry)
        if self.single_active is not None and self.single_active.is_drained():
            self._elect_soon()

    def _drop_over_limit(self, limit: DeliveryLimit, entries: list[QueuedMessage]) -> list[QueuedMessage]:
        """Drop those that came back more often than they may; return the others."""
        entries, over = limit.divide(entries)
        for entry in over:
            self.rejected += 1
            self.release(entry)
            self.drop(entry, schema.R_DELIVERY_LIMIT)
        return entries

    def purge(self, reason: int = schema.R_PURGED) -> int:
        dropped = self.backlog.waiting
        for entry in self.backlog:
            if entry.message.uid != 0:
                self.events.place_event(_DROPPED, entry, self, None, reason)
            if self.deduplication is not None:
                self.deduplication.left(entry.message.header, entry.position)
        if self.backlog.paged != 0 and self.events.is_watching:
            # Reading them back for their events would be too slow: one event stands for all of them.
            fields = {"queue": self.name, "reason": reason, "depth": self.backlog.paged}
            self.events.resource_event(_DROPPED, self.vhost, fields)
        store = self.backlog.store
        if self.deduplication is not None and store is not None and self.backlog.paged != 0:
            # What is unacked stays: it stands before all that was on disk only.
            self.deduplication.left_behind(store.last_read if self.unacked_count else -1)
        self.backlog.drop_all()
        return dropped

    def drop_everything(self) -> int:
        dropped = self.purge(schema.R_QUEUE_DELETED)
        self.backlog.delete()
        return dropped

    # -- consumers ---------------------------------------------------------------------------------------------------

    def require_admissible(
        self, channel: "Channel", no_ack: bool, is_exclusive: bool, arguments: dict[str, Any]
    ) -> None:
        if self.exclusive_consumer is not None or (is_exclusive and (self.consumers or self.single_active is not None)):
            raise AccessRefused(f"queue '{self.name}' in vhost '{self.vhost}' in exclusive use")
        if "x-stream-offset" in arguments:
            raise PreconditionFailed(
                f"invalid arg 'x-stream-offset' for queue '{self.name}' in vhost '{self.vhost}' "
                f"of queue type rabbit_{self.options.type}_queue"
            )

    def add_consumer(self, consumer: Consumer) -> None:
        Queue.add_consumer(self, consumer)
        if consumer.is_exclusive:
            self.exclusive_consumer = consumer
        if self.single_active is not None and self.single_active.added(consumer):
            self._elect_soon()
        self.wake(consumer)

    def wake(self, consumer: Consumer) -> None:
        if consumer in self.consumers and (self.single_active is None or self.single_active.may_take(consumer)):
            self.ring.add(consumer)
            self.make_due()

    def _elect_soon(self) -> None:
        """Choose the active consumer before the turn ends, also if no message waits for it."""
        if not self.is_due:
            self.is_due = True
            self.turn.due.append(self)

    def make_due(self) -> None:
        if not self.is_due and self.backlog.waiting != 0:
            self.is_due = True
            self.turn.due.append(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.ring.remove(consumer)
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None
        Queue.remove_consumer(self, consumer)
        if self.single_active is not None and self.single_active.removed(consumer):
            self._elect_soon()
