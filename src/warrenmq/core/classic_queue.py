"""Classic and quorum queues: each message goes to one consumer, in order of position.

A message that arrives while a consumer waits never enters the backlog. Requeued messages (nack, reject, recover, a
closed channel) return to their old positions.

Owned by the loop thread. Compiled when the package is built (classic_queue.pxd).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warrenmq.core import report
from warrenmq.core.backlog import Backlog
from warrenmq.core.consumer import Consumer, ConsumerRing
from warrenmq.core.dead_letter import DeadLetters
from warrenmq.core.delivery_limit import DeliveryLimit
from warrenmq.core.dropping_queue import DroppingQueue
from warrenmq.core.errors import AccessRefused, PreconditionFailed, ResourceLocked
from warrenmq.core.expiry import MessageExpiry
from warrenmq.core.filtered import FilteredDispatch
from warrenmq.core.length_limit import LengthLimit, length_limit
from warrenmq.core.message import Message, QueuedMessage, enqueue_as
from warrenmq.core.options import QUORUM, QueueOptions
from warrenmq.core.outcome import DELIVERED, DROPPED, QUEUED, REJECTED
from warrenmq.core.ports import NOTHING, EventSink, MessageStore
from warrenmq.core.priority import PriorityBacklog
from warrenmq.core.publish_rules import ttl_of
from warrenmq.core.queue import Queue
from warrenmq.core.retry import Retry
from warrenmq.core.single_active import SingleActive
from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.connection import Connection
    from warrenmq.core.vhost import VHost

# As C integers.
_REQUEUED = schema.REQUEUED
_DROPPED = schema.DROPPED
_DUPLICATE = schema.R_DUPLICATE
_EXPIRED = schema.R_EXPIRED
_MAXLEN = schema.R_MAXLEN
_REJECTED = schema.R_REJECTED
_DELIVERY_LIMIT = schema.R_DELIVERY_LIMIT


class ClassicQueue(DroppingQueue):
    """Consumers and dispatch; the messages are in its backlog."""

    __slots__ = (
        "exclusive_consumer",
        "filters",
        "has_rules",
        "queued",
        "ring",
        "single_active",
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
        store: MessageStore | None = None,
        events: EventSink | None = None,
        options: QueueOptions | None = None,
        host: "VHost | None" = None,
    ) -> None:
        durability_level = store.durability_level if store is not None else NOTHING
        super().__init__(
            vhost, name, is_durable, is_auto_delete, owner, arguments, stats, turn, durability_level, events, options
        )
        self._host = host
        self.backlog = self._make_backlog(store)
        is_quorum = self.options.type == QUORUM
        self.backlog.counts_attempts = is_quorum
        self.delivery_limit = DeliveryLimit(self.options.delivery_limit) if is_quorum else None
        self.ring = ConsumerRing()
        self.single_active = SingleActive(self.consumers, self.ring) if self.options.is_single_active else None
        self.exclusive_consumer: Consumer | None = None
        self.filters: FilteredDispatch | None = None  # while a consumer has a filter
        self.queued = 0  # messages other than those settled by being sent
        self.limit = None
        self.dead_letters = None
        self.retry = None
        self.has_reports = host is not None and host.reports.are_expected_from(name)
        self.has_rules = False  # a length limit or a TTL
        self._is_dropping_excess = False

    def _make_backlog(self, store: MessageStore | None) -> Backlog:
        max_priority = self.options.max_priority
        if max_priority == 0 or self._host is None:
            return Backlog(self.stats, store, self.is_durable, self._page_arrived)
        storage, vhost, name, options = self._host.broker.storage, self.vhost, self.name, self.options

        def open_store(level: int) -> MessageStore | None:
            return storage.message_store(vhost, name, options, level) if level else store

        levels = storage.stored_levels(vhost, name)
        return PriorityBacklog(self.stats, self.is_durable, self._page_arrived, max_priority, open_store, levels)

    def apply(self, options: QueueOptions) -> None:
        Queue.apply(self, options)
        if self.delivery_limit is not None:
            self.delivery_limit.limit = options.delivery_limit
        self._set_rules()
        if self.limit is not None:
            self.drop_excess()

    def _set_rules(self) -> None:
        """Apply the options: length limit, TTL and dead-lettering."""
        if self._host is None:
            return
        options = self.options
        self.limit = length_limit(options)
        ttl_ms = -1 if options.message_ttl_ms is None else options.message_ttl_ms
        for part in self.backlog.parts():
            if part.expiry is not None or ttl_ms >= 0:
                self._expiry_of(part).set_ttl(ttl_ms)
        letters = self.dead_letters
        self.dead_letters = None if options.dead_letter_exchange is None else DeadLetters(self._host, self, options)
        if letters is not None:
            letters.retry_held()
        self.has_rules = self.limit is not None or options.message_ttl_ms is not None
        if options.retry is not None:
            self.start_retries()
        if self.retry is not None:
            self.retry.options = options.retry

    def _expiry_of(self, part: Backlog) -> MessageExpiry:
        """Return the expiry of a part of the backlog, created when a message may expire."""
        if part.expiry is None:
            assert self._host is not None
            part.expiry = MessageExpiry(self, part, self._host.broker.timers)
            ttl_ms = self.options.message_ttl_ms
            if ttl_ms is not None:
                part.expiry.set_ttl(ttl_ms)
        expiry: MessageExpiry = part.expiry
        return expiry

    # -- messages in -------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> int:
        """Deliver the message to a waiting consumer, or queue it. Return its outcome (core/outcome.py).

        During a settlement it is queued, and delivered at the end of the turn.
        """
        if self.deduplication is not None and self.deduplication.has_seen(message.header):
            return self._drop_duplicate(message)
        if self.has_rules or message.ttl_ms >= 0:
            return self._enqueue_by_rules(message)
        return self._enqueue(message, 0)

    def _enqueue_by_rules(self, message: Message) -> int:
        """Enqueue a message that may expire, or in a queue with a length limit."""
        backlog = self.backlog
        limit = self.limit
        if limit is not None and limit.rejects and not limit.has_room_for(message, backlog):
            return self._reject_publish(message, limit)
        part = backlog.part_of(message)
        now_ms = self.turn.now_ms
        expires_ms = 0
        if part.expiry is not None or message.ttl_ms >= 0 or self.options.message_ttl_ms is not None:
            expires_ms = self._expiry_of(part).expires_ms(message.ttl_ms, now_ms)
        outcome = self._enqueue(message, expires_ms)
        if outcome & QUEUED:
            position = backlog.next_position - 1
            if expires_ms != 0:
                expiry: MessageExpiry = part.expiry
                expiry.add(position, message.size, expires_ms)
            if limit is not None and limit.is_exceeded(backlog):
                self.drop_excess()
            if expires_ms != 0 and expires_ms == now_ms and not self.turn.is_settling:
                self._expire_at_once(part, position)
        return outcome

    def _expire_at_once(self, part: Backlog, position: int) -> None:
        """Drop a message with TTL 0 that no consumer took."""
        entry = part.remove(position)
        if entry is not None:
            self.drop(entry, _EXPIRED)

    def _reject_publish(self, message: Message, limit: LengthLimit) -> int:
        self.stats.rejected_publishes += 1
        letters = self.dead_letters if limit.dead_letters else None
        if message.uid != 0:
            kind = _DROPPED if letters is None else schema.DEAD_LETTERED
            self.events.queue_event(kind, enqueue_as(message, 0), self, None, schema.R_REFUSED)
        if letters is not None:
            letters.publish(message, _MAXLEN, 0)
        elif message.wants_report:
            self.report_outcome(message, report.DROPPED, schema.reason_name(schema.R_REFUSED), 0)
        return REJECTED

    def _enqueue(self, message: Message, expires_ms: int) -> int:
        backlog = self.backlog
        position = backlog.next_position
        backlog.next_position = position + 1
        is_first = backlog.waiting == 0
        consumer: Consumer | None = None
        if self.filters is not None:
            if not self.turn.is_settling and not self._is_held():
                consumer = self.filters.choose(message, position)
        elif is_first and not self.turn.is_settling:
            consumer = self.ring.next_ready(message)
        if consumer is not None and consumer.no_ack:
            # Settled by being sent: there is nothing to store.
            self.stats.delivered += 1
            if message.uid != 0:
                self.events.direct_delivery(message, self, consumer)
            if self.is_tapped:
                self.events.firehose_delivery(enqueue_as(message, position), self, consumer)
            consumer.deliver_no_ack(message, False)
            if message.wants_report:
                self.report_outcome(message, report.ACKED, None, 1)
            if self.deduplication is not None:
                return DELIVERED | self.deduplication.record_direct(backlog.is_durable and message.is_persistent())
            return DELIVERED
        self.queued += 1
        if message.wants_report and not self.has_reports:
            self.start_reports()
        if message.uid != 0:
            self.events.enqueued(message, self, 1 if is_first else backlog.waiting + 1)
        entry = enqueue_as(message, position)
        entry.expires_ms = expires_ms
        durability_level = backlog.persist(entry)
        if self.deduplication is not None:
            self.deduplication.record(position, entry.epoch > 0)
        if consumer is not None:
            backlog.count_delivered(entry)
            self._deliver(entry, consumer)
            return DELIVERED | durability_level
        backlog.append(entry)
        if self.filters is not None:
            self.filters.appended(position)
        if self.turn.is_settling:
            self.make_due()
        return QUEUED | durability_level

    def _drop_duplicate(self, message: Message) -> int:
        """Drop a duplicate; its confirm waits until the first message with its id is durable."""
        self.stats.deduplicated += 1
        if message.uid != 0:
            self.events.queue_event(_DROPPED, enqueue_as(message, self.backlog.next_position), self, None, _DUPLICATE)
        if message.wants_report:
            self.report_outcome(message, report.DROPPED, schema.reason_name(_DUPLICATE), 0)
        return DROPPED | (self.durability_level if self.backlog.is_durable and message.is_persistent() else NOTHING)

    def restore(self) -> None:
        found = self.backlog.restore()
        self._set_rules()
        for part, recovered in found:
            if recovered.expiring or any(entry.expires_ms != 0 for entry in recovered.entries):
                self._expiry_of(part).restore(recovered.entries, recovered.expiring)
        if self.limit is not None and self.limit.is_exceeded(self.backlog):
            self.drop_excess_later()  # unacked messages count again; the queues of dead letters are not restored yet
        if self.deduplication is not None and self.backlog.waiting == 0:
            self.deduplication.removed_after(-1)
        if self.retry is not None:
            self.retry.hold_restored(self.backlog.first())

    def restore_retries(self) -> None:
        """Restore the messages that wait for their next attempt."""
        self.start_retries().restore()

    def start_retries(self) -> Retry:
        """Return what retries failed deliveries, and count deliveries from now on."""
        if self.retry is None:
            self.retry = Retry(self._host, self)  # type: ignore[arg-type]
            if self.delivery_limit is None:
                self.delivery_limit = DeliveryLimit(None)  # for the header with the number of deliveries
                self.backlog.counts_attempts = True
        return self.retry

    def needs_page(self) -> bool:
        self._drop_expired()
        return self.backlog.needs_page()

    def await_page(self, waiter: Callable[[], None]) -> None:
        self.backlog.await_page(waiter)

    # -- messages out ------------------------------------------------------------------------------------------------

    def _is_held(self) -> bool:
        """Return True while an ordered queue waits for the next attempt of its first message."""
        return self.retry is not None and self.retry.held_until_ms > self.turn.now_ms

    def dispatch(self) -> None:
        self.is_due = False
        if self.single_active is not None:
            self.single_active.elect()
        if self._is_held():
            return
        backlog = self.backlog
        if self.filters is not None:
            self.filters.dispatch()
            if backlog.paged != 0:
                backlog.read_ahead()
            return
        while True:
            entry = backlog.first()
            if entry is None:
                break
            if entry.expires_ms != 0 and entry.expires_ms < self.turn.now_ms:
                self._drop_expired()
                continue
            consumer = self.ring.next_ready(entry.message)
            if consumer is None:
                break
            backlog.take()
            self._deliver(entry, consumer)
        if backlog.paged != 0:
            backlog.read_ahead()

    def _drop_expired(self) -> None:
        """Drop expired messages at the head, before the timer does."""
        entry = self.backlog.first()
        while entry is not None and entry.expires_ms != 0 and entry.expires_ms < self.turn.now_ms:
            self.backlog.take()
            self.drop(entry, _EXPIRED)
            entry = self.backlog.first()

    def _page_arrived(self) -> None:
        """Deliver messages that were paged in, and remove expired and excess ones."""
        self.dispatch()
        for part in self.backlog.parts():
            if part.expiry is not None:
                part.expiry.run()
        if self.limit is not None and self.limit.is_exceeded(self.backlog):
            self.drop_excess()

    def get(self) -> QueuedMessage | None:
        if self.single_active is not None and self.options.type == QUORUM:
            raise ResourceLocked(
                f"cannot obtain access to locked queue '{self.name}' in vhost '{self.vhost}'. basic.get operations are "
                "not supported by quorum queues with single active consumer"
            )
        self._drop_expired()
        if self._is_held():
            return None
        entry = self.backlog.take()
        if self.backlog.paged != 0:
            self.backlog.read_ahead()
        return entry

    def deliver(self, entry: QueuedMessage, consumer: Consumer) -> None:
        """Deliver a message that was taken from the backlog."""
        self._deliver(entry, consumer)

    def _deliver(self, entry: QueuedMessage, consumer: Consumer) -> None:
        self.stats.delivered += 1
        if entry.redelivered:
            self.stats.redelivered += 1
            self.redelivered += 1
        entry.attempts += 1
        message = entry.message
        if self.delivery_limit is not None and entry.attempts > 1:
            message = self.as_delivered(entry)
        if entry.message.uid != 0 or self.is_tapped:
            self.emit_delivered(entry, consumer, consumer.no_ack)
        if consumer.no_ack:
            self.settle_sent(entry)
            consumer.deliver_no_ack(message, entry.redelivered)
        else:
            self.delivered += 1
            self.unacked_count += 1
            self.stats.unacked += 1
            consumer.deliver(entry, message)

    def as_delivered(self, entry: QueuedMessage) -> Message:
        if self.delivery_limit is None:
            return entry.message
        message = self.delivery_limit.stamp(entry)
        return message if self.retry is None else self.retry.stamp(entry, message)

    def published(self) -> int:
        positions = self.backlog.next_position - self.backlog.restored_position
        return positions if self.retry is None else positions - self.retry.returned

    def retrying(self) -> int:
        return 0 if self.retry is None else len(self.retry)

    def delivered_directly(self) -> int:
        return self.published() - self.queued

    def message_count(self) -> int:
        return self.backlog.waiting

    def waiting_bytes(self) -> int:
        size = self.backlog.bytes_in_memory()
        return size if self.retry is None else size + self.retry.waiting_bytes()

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle_sent(self, entry: QueuedMessage) -> None:
        Queue.settle_sent(self, entry)
        if self.has_reports:
            self.report_outcome(entry.message, report.ACKED, None, entry.attempts)

    def settle(self, entry: QueuedMessage) -> None:
        self.unacked_count -= 1
        self.stats.unacked -= 1
        if self.has_reports and not self.is_deleted:
            self.report_outcome(entry.message, report.ACKED, None, entry.attempts)
        self.discard(entry)
        self.release(entry)
        if self.single_active is not None and self.single_active.is_drained():
            self._elect_soon()

    def reject(self, entry: QueuedMessage, actor: object) -> None:
        self.unacked_count -= 1
        self.stats.unacked -= 1
        if self.retry is not None and not self.is_deleted and self.retry.options_of(entry) is not None:
            self._requeue(self.retry.keep_failed([entry], actor, _REJECTED)[1], actor, _REJECTED)
        else:
            self.rejected += 1
            if self.is_deleted:
                self.discard(entry)
            else:
                self.drop(entry, _REJECTED, actor)
            self.release(entry)
        if self.single_active is not None and self.single_active.is_drained():
            self._elect_soon()

    def requeue(self, entries: list[QueuedMessage], actor: object = None, reason: int = 0) -> None:
        """Return unacked messages to their old positions, marked as redelivered, without delivering them yet.

        Messages above the delivery limit are dropped. With automatic retry they return later, except by basic.recover.
        """
        self.unacked_count -= len(entries)
        self.stats.unacked -= len(entries)
        held: list[QueuedMessage] = []
        if self.retry is not None and not self.is_deleted and reason != schema.R_RECOVERED:
            entries, held = self.retry.keep_failed(entries, actor, reason)
        if self.delivery_limit is not None and not self.is_deleted:
            entries = self.drop_over_limit(self.delivery_limit, entries, None if reason == schema.R_CLIENT else actor)
        self._requeue(entries + held, actor, reason)
        if self.single_active is not None and self.single_active.is_drained():
            self._elect_soon()

    def _requeue(self, entries: list[QueuedMessage], actor: object, reason: int) -> None:
        self.requeued += len(entries)
        for entry in entries:
            if entry.message.uid != 0 and (self.retry is None or not self.retry.is_held(entry)):
                self.events.queue_event(_REQUEUED, entry, self, actor, reason)
            entry.redelivered = True
        if self.is_deleted:
            for entry in entries:
                self.backlog.settle(entry)
        else:
            self.backlog.requeue(entries)
            if self.filters is not None:
                self.filters.requeued(entries)
            self._check_requeued(entries)
        for entry in entries:
            self.release(entry)
        if self.unacked_count == 0:
            paged = self.backlog.paged
            self.backlog.page_out_requeued()
            if self.filters is not None and self.backlog.paged != paged:
                self.filters.paged_out()

    def enqueue_again(self, message: Message, attempts: int) -> None:
        """Queue a message for its next attempt, at the end, whatever limits and deduplication say of new messages."""
        backlog = self.backlog
        entry = enqueue_as(message, backlog.next_position)
        backlog.next_position += 1
        entry.attempts = attempts
        entry.redelivered = True
        message.ttl_ms = ttl_of(message.header)
        part = backlog.part_of(message)
        if part.expiry is not None or message.ttl_ms >= 0 or self.options.message_ttl_ms is not None:
            entry.expires_ms = self._expiry_of(part).expires_ms(message.ttl_ms, self.turn.now_ms)
        if message.uid != 0:
            self.events.advance_clock()
            self.events.enqueued(message, self, backlog.waiting + 1)
        backlog.persist(entry)
        if self.deduplication is not None:
            self.deduplication.has_seen(message.header)
            self.deduplication.record(entry.position, entry.epoch > 0)
        backlog.append(entry)
        if self.filters is not None:
            self.filters.appended(entry.position)
        if entry.expires_ms != 0:
            self._expiry_of(part).add(entry.position, message.size, entry.expires_ms)
        if self.limit is not None and self.limit.is_exceeded(backlog):
            self.drop_excess()
        self.make_due()

    def _check_requeued(self, entries: list[QueuedMessage]) -> None:
        """Check requeued messages: some may have expired, or exceed the length limit."""
        for entry in entries:
            if entry.expires_ms != 0:
                self._expiry_of(self.backlog.part_of(entry.message)).requeued(entry)
        if self.limit is not None and self.limit.is_exceeded(self.backlog):
            self.drop_excess()

    def drop_everything(self) -> int:
        dropped = self.purge(schema.R_QUEUE_DELETED)
        if self.dead_letters is not None:
            self.dead_letters.stop()
            self.dead_letters = None
        if self.retry is not None:
            self.retry.delete()
        for part in self.backlog.parts():
            if part.expiry is not None:
                part.expiry.stop()
                part.expiry = None
        self.backlog.delete()
        return dropped

    # -- consumers ---------------------------------------------------------------------------------------------------

    def validate_consumer(
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
        if consumer.retry is not None:
            self.start_retries()
        if self.filters is not None:
            self.filters.add(consumer)
        elif consumer.filter is not None:
            self.filters = FilteredDispatch(self)
        if self.single_active is not None and self.single_active.added(consumer):
            self._elect_soon()
        self.wake(consumer)

    def wake(self, consumer: Consumer) -> None:
        if consumer in self.consumers and (self.single_active is None or self.single_active.may_take(consumer)):
            self.ring.add(consumer)
            self.make_due()

    def _elect_soon(self) -> None:
        """Elect the active consumer before the turn ends, even if no message waits."""
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
        if self.filters is not None and self.filters.remove(consumer):
            self.filters = None
            self.make_due()
        if self.single_active is not None and self.single_active.removed(consumer):
            self._elect_soon()
