"""A channel: its publishes, consumers, unacked deliveries, confirms and transaction.

A publish is confirmed at the end of the turn, or when its epoch is durable if it has to be; confirms stay in order.
A transaction holds publishes and acks, and applies them together on commit.

Owned by the loop thread. Compiled when the package is built (channel.pxd).
"""

from typing import TYPE_CHECKING, Any

from warrenmq.core import consumer_timeout, report
from warrenmq.core.channel_confirms import ConfirmingChannel
from warrenmq.core.consumer import Consumer, wake_channel
from warrenmq.core.errors import NotAllowed, NotImplementedHere, PreconditionFailed
from warrenmq.core.exchange import DEFAULT_EXCHANGE, Exchange, Route
from warrenmq.core.ledger import Ledger
from warrenmq.core.message import Message, QueuedMessage, make_message
from warrenmq.core.notes import Note, parse_note
from warrenmq.core.outcome import REJECTED, WAITS_FOR
from warrenmq.core.publish_rules import (
    MESSAGE_UID,
    due_time,
    encode_blind_keys,
    needs_inspection,
    prepare_header,
    ttl_of,
    wants_report,
)
from warrenmq.core.publishing import (
    DeferredRoute,
    ScheduledRoute,
    Target,
    find_target,
    predict_queues,
    resolve_route,
)
from warrenmq.core.queue import Queue
from warrenmq.core.reserved import NOTES
from warrenmq.core.transaction import Transaction
from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.protocol.properties import with_header

if TYPE_CHECKING:
    from warrenmq.core.connection import Connection
    from warrenmq.core.reply_to import ReplyQueue
    from warrenmq.core.vhost import VHost

NO_ROUTE = 312

# Longer headers are not kept for sharing: a client may have thousands of channels.
_MAX_SHARED_HEADER = 4096

# As C integers.
_ROUTED = schema.ROUTED
_ACKED = schema.ACKED


class Channel(ConfirmingChannel):
    """One channel; virtual host, user and outbox are those of its connection."""

    __slots__ = (
        "acked",
        "connection",
        "connection_name",
        "consumers",
        "default_prefetch",
        "has_timed_out",
        "ledger",
        "published",
        "reply_queue",
        "shared_header",
        "transaction",
        "unroutable",
        "user",
        "vhost",
        "vhost_name",
        "writable_exchange",
        "writable_revision",
    )

    def __init__(self, connection: "Connection", number: int) -> None:
        vhost = connection.vhost
        super().__init__(vhost.broker, connection.outbox, number)
        self.vhost: VHost = vhost
        self.vhost_name = vhost.name
        self.connection = connection
        self.connection_name = connection.name
        self.user = connection.user
        self.ledger = Ledger(self.turn)
        self.consumers: dict[str, Consumer] = {}
        self.default_prefetch = 0
        self.has_timed_out = False
        # The last exchange that the user may publish to, and the permission revision of that check.
        self.writable_exchange: Exchange | None = None
        self.writable_revision = 0
        self.shared_header = b""  # the last header that needed no inspection: the next is often equal
        self.transaction: Transaction | None = None
        self.reply_queue: ReplyQueue | None = None
        self.published = self.unroutable = self.acked = 0  # core/snapshot.py derives other counters from the tags

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(self, route: Route, header: bytes, body: bytes) -> None:
        """Route a message to its queues, or hold it for the transaction."""
        self.stats.published += 1
        self.published += 1
        queues = route.queues
        if queues is None or (header != self.shared_header and not self._share_header(header)):
            self._publish_inspected(route, header, body)
            return
        # Messages with equal headers share one bytes object, which stays in the CPU cache.
        message = make_message(route.address, self.shared_header, body)
        if self.events.is_watching and not route.sampler.skips(header):
            self.events.published(self, route, message, queues)
        if self.transaction is not None:
            self.transaction.hold_publish(message, queues, route.is_mandatory, self.stats)
            return
        self._deliver_to(message, queues, route.is_mandatory)

    def _share_header(self, header: bytes) -> bool:
        """Return False if the header needs inspection; otherwise share it with the publishes that follow."""
        if len(header) > _MAX_SHARED_HEADER or needs_inspection(header):
            return False
        self.shared_header = header
        return True

    def _publish_inspected(self, route: Route, header: bytes, body: bytes) -> None:
        """Publish a message whose properties affect routing or acceptance (CC, reply-to, user-id, ...), or a note."""
        if route.routing_key == NOTES and route.exchange.name == DEFAULT_EXCHANGE:
            self._hold_or_deliver(Message(route.address, header, body), parse_note(header, body, self), False)
            return
        header, extra_keys, headers = prepare_header(header, self)
        message = Message(route.address, header, body)
        message.ttl_ms = ttl_of(header)
        message.wants_report = wants_report(header)
        message.blind_keys = encode_blind_keys(headers)
        found = find_target(self.vhost, route, extra_keys, header, headers)
        target: Target = found
        due_ms = due_time(headers, self.turn.now_ms) if headers else 0
        if due_ms and (not route.is_mandatory or predict_queues(self.vhost, found)):
            target = ScheduledRoute(due_ms)
        if self.events.is_watching:
            queues = predict_queues(self.vhost, found)
            self.events.published(self, route, message, queues if target is found else list(queues))
            if message.uid != 0 and headers and headers.get(MESSAGE_UID) == "":
                message = message.with_header(with_header(message.header, MESSAGE_UID, uid_text(message.uid)))
        self._hold_or_deliver(message, target, route.is_mandatory)

    def _hold_or_deliver(self, message: Message, target: Target, is_mandatory: bool) -> None:
        if self.transaction is not None:
            self.transaction.hold_publish(message, target, is_mandatory, self.stats)
        else:
            self.deliver(message, target, is_mandatory)

    def deliver(self, message: Message, target: Target, is_mandatory: bool) -> None:
        """Deliver a message to its queues, unless it is scheduled or a note, or an exchange drops it as a duplicate."""
        if isinstance(target, ScheduledRoute | Note):
            if isinstance(target, ScheduledRoute):
                self.turn_level |= self.vhost.schedule.add(message, target.due_ms, self)
            else:
                target.write(self)
            if self.is_confirming:
                self.await_confirm(message)
            return
        if not isinstance(target, DeferredRoute):
            self._deliver_to(message, target, is_mandatory)
            return
        queues, path = resolve_route(self.vhost, message, target)
        if queues or not path.was_dropped:
            is_rejected = self._deliver_to(message, queues, is_mandatory)
            level = path.record(len(queues) > 0 and not is_rejected)
        else:
            level = path.record(False) | path.outcome() & WAITS_FOR
            if message.uid != 0:
                self.events.message_event(schema.DROPPED, message, self, schema.R_DUPLICATE)
            if message.wants_report:
                level |= self._report(message, report.DROPPED, schema.R_DUPLICATE)
            if self.is_confirming:
                self.await_confirm(message)
        self.turn_level |= level

    def _deliver_to(self, message: Message, queues: list[Queue], is_mandatory: bool) -> int:
        """Enqueue the message. Return non-zero if a queue rejected it."""
        outcome = 0
        if queues:
            if message.uid != 0 and message.uid != self.events.routed_uid:
                self.events.message_event(_ROUTED, message, self, 0)
            for queue in queues:
                outcome |= queue.enqueue(message)
            self.turn_level |= outcome & WAITS_FOR
            if outcome & REJECTED:
                self._record_rejected()
        else:
            self._return_unroutable(message, is_mandatory)
        if self.is_confirming:
            self.await_confirm(message)
        return outcome & REJECTED

    def _record_rejected(self) -> None:
        """A queue rejected the current publish: nack it in order, or fail the commit it is part of."""
        if self.is_confirming or self.transaction is not None:
            if self.rejected is None:
                self.rejected = []
            self.rejected.append(self.published_tag + 1)

    def _return_unroutable(self, message: Message, is_mandatory: bool) -> None:
        """Count an unroutable message, and return it if it is mandatory."""
        self.stats.unroutable += 1
        self.unroutable += 1
        if message.uid != 0:
            self.events.message_event(schema.UNROUTABLE, message, self, schema.R_NO_ROUTE)
        if message.wants_report:
            self.turn_level |= self._report(message, report.UNROUTABLE, schema.R_NO_ROUTE)
        if is_mandatory:
            self.stats.returned += 1
            if message.uid != 0:
                self.events.message_event(schema.RETURNED, message, self, schema.R_NO_ROUTE)
            self.outbox.return_message(self.number, NO_ROUTE, "NO_ROUTE", message)

    def _report(self, message: Message, outcome: str, reason: int) -> int:
        return self.vhost.reports.add(message, outcome, schema.reason_name(reason), None, 0)

    def select_confirms(self) -> None:
        if self.transaction is not None:
            raise PreconditionFailed("cannot switch from tx to confirm mode")
        self.start_confirms()

    # -- consuming ---------------------------------------------------------------------------------------------------

    def consume(
        self, queue: Queue, tag: str, no_ack: bool, is_exclusive: bool, priority: int, arguments: dict[str, Any]
    ) -> Consumer:
        """Register a consumer. The caller replies consume-ok, then calls `start`."""
        if tag in self.consumers or (self.reply_queue is not None and self.reply_queue.tag == tag):
            raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
        self._require_room_for_consumer()
        queue.validate_consumer(self, no_ack, is_exclusive, arguments)
        consumer = Consumer(tag, self, queue, no_ack, is_exclusive, self.default_prefetch, priority, arguments)
        consumer_timeout.watch(self, queue, consumer)
        self.consumers[tag] = consumer
        return consumer

    def _require_room_for_consumer(self) -> None:
        limit = self.vhost.limits.consumer_max_per_channel
        if limit and len(self.consumers) >= limit:
            raise NotAllowed(f"reached maximum ({limit}) of consumers per channel")

    def start(self, consumer: Consumer) -> None:
        """Start deliveries to the consumer."""
        consumer.queue.add_consumer(consumer)
        self._emit_consumer(schema.CONSUMER_OPENED, consumer, 0)

    def cancel(self, tag: str) -> None:
        """Cancel a consumer; its deliveries stay unacked. An unknown tag is ignored."""
        if self.reply_queue is not None and self.reply_queue.tag == tag:
            self._stop_replies()
            return
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self._detach(consumer, schema.R_CLIENT)

    def start_replies(self, reply_queue: "ReplyQueue") -> None:
        """Receive replies published to the queue's address from now on."""
        if reply_queue.tag in self.consumers:
            raise NotAllowed(f"attempt to reuse consumer tag '{reply_queue.tag}'")
        self._require_room_for_consumer()
        self.reply_queue = reply_queue
        self.broker.reply_queues[reply_queue.name] = reply_queue

    def _stop_replies(self) -> None:
        if self.reply_queue is not None:
            del self.broker.reply_queues[self.reply_queue.name]
            self.reply_queue.delete()  # a transaction may still hold a reply to it
            self.reply_queue = None

    def cancel_consumer(self, consumer: Consumer) -> None:
        """Cancel a consumer whose queue was deleted, and notify the client."""
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
            consumer.unpark()
            self.outbox.cancel_consumer(self.number, consumer.tag)
            self._emit_consumer(schema.CONSUMER_CLOSED, consumer, schema.R_QUEUE_DELETED)

    def _detach(self, consumer: Consumer, reason: int) -> None:
        consumer.unpark()
        self.vhost.remove_consumer(consumer.queue, consumer)
        self._emit_consumer(schema.CONSUMER_CLOSED, consumer, reason)

    def _emit_consumer(self, kind: int, consumer: Consumer, reason: int) -> None:
        self.broker.emit(
            kind,
            self.vhost.name,
            queue=consumer.queue.name,
            consumer=consumer.tag,
            connection=self.connection_name,
            channel=self.number,
            reason=reason,
        )

    def get(self, queue: Queue, no_ack: bool) -> bool:
        """Send the first waiting message as get-ok. Return False if there is none."""
        queue.touch()
        entry = queue.get()
        if entry is None:
            return False
        self.stats.delivered += 1
        if entry.redelivered:
            self.stats.redelivered += 1
            queue.redelivered += 1
        entry.attempts += 1
        if entry.message.uid != 0 or queue.is_tapped:
            queue.emit_delivered(entry, self, no_ack)
        message = queue.as_delivered(entry)
        if no_ack:
            queue.settle_sent(entry)
            tag = self.ledger.next_tag()
        else:
            consumer_timeout.watch(self, queue)
            entry.queue = queue
            queue.count_unacked()
            tag = self.ledger.add(entry)
        self.outbox.get_ok(self.number, tag, entry.redelivered, message, queue.message_count())
        return True

    def limit_prefetch(self, count: int, is_global: bool) -> None:
        """Apply basic.qos: to the whole channel, or to each consumer started from now on."""
        if is_global:
            self.ledger.prefetch = count
            wake_channel(self.ledger)
        else:
            self.default_prefetch = count

    # -- settling ----------------------------------------------------------------------------------------------------

    def ack(self, tag: int, multiple: bool) -> None:
        """Settle one delivery, or all up to the tag (0: all)."""
        if not multiple and self.transaction is None:
            entry = self.ledger.take(tag)
            if entry is None:
                raise PreconditionFailed(f"unknown delivery tag {tag}")
            self.stats.acked += 1
            self.acked += 1
            queue: Queue = entry.queue  # type: ignore[assignment]
            if entry.message.uid != 0:
                self.events.queue_event(_ACKED, entry, queue, self, 0)
            queue.settle(entry)
            if self.ledger.parked:
                wake_channel(self.ledger)
            return
        if self.transaction is not None:
            self.transaction.hold(self.ledger.take_known(tag, multiple), _ACKED, False)
            return
        if tag == 0:
            tag = self.ledger.last_tag
        elif tag not in self.ledger.unacked:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        self.settle_all(self.ledger.take_entries_up_to(tag))

    def reject(self, tag: int, multiple: bool, requeue: bool, kind: int = schema.REJECTED) -> None:
        """Handle basic.nack and basic.reject; `kind` says which."""
        taken = self.ledger.take_known(tag, multiple)
        if self.transaction is not None:
            self.transaction.hold(taken, kind, requeue)
            return
        self._require_requeueable(taken, taken)
        self.refuse_all([entry for _, entry in taken], kind, requeue)

    def recover(self) -> None:
        """Requeue everything that is unacked."""
        out = list(self.ledger.unacked.items())
        self._require_requeueable(out, [])
        self._requeue_all(self.ledger.take_all(), schema.R_RECOVERED)

    def _require_requeueable(
        self, returning: list[tuple[int, QueuedMessage]], taken: list[tuple[int, QueuedMessage]]
    ) -> None:
        """Check before anything is changed; on refusal put `taken` back into the ledger."""
        try:
            for _, entry in returning:
                queue: Queue = entry.queue  # type: ignore[assignment]
                queue.require_requeueable()
        except NotImplementedHere:
            self.ledger.put_back(taken)
            raise

    def settle_all(self, entries: list[QueuedMessage]) -> None:
        """Settle acked deliveries."""
        self.stats.acked += len(entries)
        self.acked += len(entries)
        for entry in entries:
            queue: Queue = entry.queue  # type: ignore[assignment]
            if entry.message.uid != 0:
                self.events.queue_event(_ACKED, entry, queue, self, 0)
            queue.settle(entry)
        wake_channel(self.ledger)

    def refuse_all(self, entries: list[QueuedMessage], kind: int, requeue: bool) -> None:
        """Requeue or drop nacked or rejected deliveries."""
        for entry in entries:
            if entry.message.uid != 0:
                queue: Queue = entry.queue  # type: ignore[assignment]
                self.events.queue_event(kind, entry, queue, self, 0)
        if requeue:
            self._requeue_all(entries, schema.R_CLIENT)
        else:
            self._drop_all(entries)

    def _drop_all(self, entries: list[QueuedMessage]) -> None:
        for entry in entries:
            queue: Queue = entry.queue  # type: ignore[assignment]
            queue.reject(entry, self)
        wake_channel(self.ledger)

    def _requeue_all(self, entries: list[QueuedMessage], reason: int) -> None:
        by_queue: dict[Queue, list[QueuedMessage]] = {}
        for entry in entries:
            queue: Queue = entry.queue  # type: ignore[assignment]
            by_queue.setdefault(queue, []).append(entry)
        for queue, returning in by_queue.items():
            queue.requeue(returning, self, reason)
        for queue in by_queue:
            queue.make_due()
        wake_channel(self.ledger)

    # -- transactions ------------------------------------------------------------------------------------------------

    def select_transactions(self) -> None:
        if self.is_confirming:
            raise PreconditionFailed("cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = Transaction()

    def commit(self) -> int:
        """Apply everything held in one epoch. Return the durability level that commit-ok waits for at least."""
        transaction = self._end_transaction()
        self._require_requeueable(transaction.refused_deliveries(), transaction.held_deliveries())
        self.turn_level = transaction.settled_level()
        transaction.apply(self)
        self.broker.storage.log.end_transaction()
        if self.rejected:
            self.rejected = None
            raise PreconditionFailed("partial tx completion")  # as RabbitMQ; the rest stays committed
        return self.turn_level

    def rollback(self) -> None:
        """Drop the held publishes and acks; the deliveries are unacked again."""
        self._end_transaction().undo(self, schema.R_CLIENT)

    def _open_transaction(self) -> Transaction:
        if self.transaction is None:
            raise PreconditionFailed("channel is not transactional")
        transaction: Transaction = self.transaction
        return transaction

    def _end_transaction(self) -> Transaction:
        """Begin the next transaction. Return the one that ends."""
        transaction = self._open_transaction()
        self.stats.uncommitted_bytes -= transaction.size
        self.transaction = Transaction()
        return transaction

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, reason: int = schema.R_CHANNEL_CLOSED) -> None:
        """Stop the consumers and requeue unacked deliveries; publishes of an open transaction are dropped."""
        if not self.is_open:
            return
        self.is_open = False
        if self.has_timed_out:
            reason = schema.R_CONSUMER_TIMEOUT
        consumer_timeout.unwatch(self)
        if self.transaction is not None:
            self._end_transaction().undo(self, reason)
            self.transaction = None
        self._stop_replies()
        consumers = list(self.consumers.values())
        self.consumers.clear()
        for consumer in consumers:
            consumer.queue.remove_consumer(consumer)
        self._requeue_all(self.ledger.take_all(), reason)
        for consumer in consumers:
            self._detach(consumer, reason)
        self.traced = self.traced_tags = None
        self.ledger.last_served = None  # a consumer, and so a reference cycle
        self.broker.awaiting_epoch.pop(self, None)
