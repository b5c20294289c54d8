"""A queue: what waits, who waits for it, and what is out unacked.

Messages stand in order of their position. A message that meets a waiting consumer never enters the line. Whatever
comes back (nack, reject, recover, a closed channel) returns to its old place.

Owned by the loop thread. Compiled when the package is built (queue.pxd).
"""

from collections.abc import Iterable
from typing import Any

from warrenmq.core.consumer import Consumer, ConsumerRing
from warrenmq.core.line import Line
from warrenmq.core.message import Message, QueuedMessage, enqueue_as
from warrenmq.core.ports import EventSink, MessageStore
from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn


class Queue:
    """One classic queue. Names, ownership and lifetime are the virtual host's; the messages are the queue's."""

    __slots__ = (
        "arguments",
        "consumers",
        "events",
        "exclusive_consumer",
        "is_auto_delete",
        "is_deleted",
        "is_due",
        "is_durable",
        "name",
        "next_position",
        "owner",
        "ready",
        "ring",
        "stats",
        "store",
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
        owner: object,
        arguments: dict[str, Any],
        stats: Stats,
        turn: Turn,
        store: MessageStore | None = None,
        events: EventSink | None = None,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.is_durable = is_durable
        self.is_auto_delete = is_auto_delete
        self.owner = owner  # the connection of an exclusive queue, else None
        self.arguments = arguments
        self.stats = stats
        self.turn = turn
        self.store = store
        self.events = events
        self.ready = Line()
        self.ring = ConsumerRing()
        self.consumers: dict[Consumer, None] = {}
        self.exclusive_consumer: Consumer | None = None
        self.is_deleted = False
        self.is_due = False  # will be dispatched at the end of the turn
        self.unacked_count = 0
        self.next_position = 0

    # -- messages in -------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> None:
        """Hand the message to a waiting consumer, or keep it; never waits."""
        position = self.next_position
        self.next_position = position + 1
        if self.events is not None:
            self.events.message_event("enqueued", message, self.vhost, self.name)
        if self.store is not None and message.is_persistent():
            self._enqueue_persistent(enqueue_as(message, position))
            return
        if self.ready.is_empty():
            consumer = self.ring.next_ready()
            if consumer is not None:
                if consumer.no_ack:
                    self.stats.delivered += 1
                    if self.events is not None:
                        self.events.message_event("delivered", message, self.vhost, self.name)
                    consumer.deliver_no_ack(message, False)
                else:
                    self.stats.held_bytes += message.footprint()
                    self._hand_over(enqueue_as(message, position), consumer)
                return
        self.stats.held_bytes += message.footprint()
        self.stats.ready += 1
        self.ready.append(enqueue_as(message, position))

    def _enqueue_persistent(self, entry: QueuedMessage) -> None:
        """The store hears of it before anybody else: delivery and confirm belong to the same epoch or a later one."""
        assert self.store is not None
        self.store.append(entry)
        self.stats.held_bytes += entry.message.footprint()
        self.stats.ready += 1
        self.ready.append(entry)
        self.dispatch()

    def restore(self, entries: Iterable[QueuedMessage]) -> None:
        """Take back what the store kept, before the first message."""
        for entry in entries:
            entry.redelivered = True  # it may have been delivered before the stop
            self.ready.append(entry)
            self.stats.ready += 1
            self.stats.held_bytes += entry.message.footprint()
            self.next_position = entry.position + 1

    # -- messages out ------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Hand out what waits, as far as there are consumers with credit."""
        self.is_due = False
        ready = self.ready
        while not ready.is_empty():
            consumer = self.ring.next_ready()
            if consumer is None:
                return
            entry = ready.take_first()
            assert entry is not None
            self.stats.ready -= 1
            self._hand_over(entry, consumer)

    def get(self) -> QueuedMessage | None:
        """Take the first message out of the line for basic.get; the caller settles it or notes it as unacked."""
        entry = self.ready.take_first()
        if entry is not None:
            self.stats.ready -= 1
        return entry

    def _hand_over(self, entry: QueuedMessage, consumer: Consumer) -> None:
        self.stats.delivered += 1
        if entry.redelivered:
            self.stats.redelivered += 1
        if self.events is not None:
            self.events.message_event("delivered", entry.message, self.vhost, self.name)
        if consumer.no_ack:
            self.discard(entry)
            consumer.deliver_no_ack(entry.message, entry.redelivered)
        else:
            self.note_unacked()
            consumer.deliver(entry)

    def note_unacked(self) -> None:
        self.unacked_count += 1
        self.stats.unacked += 1

    # -- settling ----------------------------------------------------------------------------------------------------

    def discard(self, entry: QueuedMessage) -> None:
        """The message left the queue for good."""
        self.stats.held_bytes -= entry.message.footprint()
        if self.store is not None and entry.message.is_persistent():
            self.store.forget(entry)

    def settle(self, entry: QueuedMessage) -> None:
        """An unacked message was acked, or rejected for good."""
        self.unacked_count -= 1
        self.stats.unacked -= 1
        if self.events is not None:
            self.events.message_event("acked", entry.message, self.vhost, self.name)
        if not self.is_deleted:
            self.discard(entry)
        else:
            self.stats.held_bytes -= entry.message.footprint()
        self._release(entry)

    def requeue(self, entries: list[QueuedMessage]) -> None:
        """Put unacked messages back at their old places, marked as redelivered, without handing them out yet."""
        self.unacked_count -= len(entries)
        self.stats.unacked -= len(entries)
        for entry in entries:
            if self.events is not None:
                self.events.message_event("requeued", entry.message, self.vhost, self.name)
            entry.redelivered = True
        if self.is_deleted:
            for entry in entries:
                self.stats.held_bytes -= entry.message.footprint()
        else:
            self.ready.put_back(entries)
            self.stats.ready += len(entries)
        for entry in entries:
            self._release(entry)

    def _release(self, entry: QueuedMessage) -> None:
        """Give the consumer and its channel their credit back."""
        entry.queue = None
        if entry.consumer is not None:
            consumer: Consumer = entry.consumer  # type: ignore[assignment]
            entry.consumer = None
            consumer.unacked -= 1
            consumer.ledger.outstanding -= 1
            if not consumer.is_waiting:
                if consumer.ledger.prefetch == 0:
                    self.wake(consumer)
                else:  # the channel's consumers take turns
                    consumer.ledger.parked[consumer] = None

    def purge(self) -> int:
        """Drop all that waits; what is unacked stays. Gives the number dropped."""
        dropped = len(self.ready)
        for entry in self.ready:
            self.discard(entry)
        self.stats.ready -= dropped
        self.ready.clear()
        return dropped

    # -- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.stats.consumers += 1
        if consumer.is_exclusive:
            self.exclusive_consumer = consumer
        self.wake(consumer)

    def wake(self, consumer: Consumer) -> None:
        """The consumer may have credit again: let it wait for messages."""
        if consumer in self.consumers:
            self.ring.add(consumer)
            self.make_due()

    def make_due(self) -> None:
        """See to it that what waits is handed out before the turn ends."""
        if not self.is_due and not self.ready.is_empty():
            self.is_due = True
            self.turn.due.append(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        """It gets nothing more; what it holds unacked stays with its channel."""
        self.ring.remove(consumer)
        if consumer in self.consumers:
            del self.consumers[consumer]
            self.stats.consumers -= 1
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None

    def delete(self) -> tuple[int, list[Consumer]]:
        """Drop everything. Gives the number of messages dropped and the consumers to be told."""
        dropped = self.purge()
        consumers = list(self.consumers)
        for consumer in consumers:
            self.remove_consumer(consumer)
        self.is_deleted = True
        if self.store is not None:
            self.store.delete()
            self.store = None
        return dropped, consumers
