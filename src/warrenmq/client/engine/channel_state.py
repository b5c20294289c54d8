"""The half of a connection that any thread may use: publish, ack, nack, reject, and per-message input.

    SharedConnection  one per connection: the lock, and the link's protocol while a link is up
    ChannelState      one per channel: outlives links; numbers publishes, and offsets delivery tags so that none repeats
    LinkListener      one per link: collects the server's messages while the lock is held
    DeliveryBuffer    deliveries for one work queue, handed over when the lock is released

A channel has three layers: the user's Channel (client/aio, client/blocking) wraps an EngineChannel (engine/channel.py),
which owns a ChannelState. The EngineChannel belongs to the event loop: calls and replies, recovery, consumers'
callbacks. The ChannelState holds what a publish, an ack or a delivery reads and writes.

Callers hold `shared.lock` while they touch the ClientConnection or any state here. Nothing here waits, runs user code,
or calls out while holding it.

Compiled when the package is built (channel_state.pxd).
"""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from warrenmq.client.confirms import Confirmation, SentMessage, Unconfirmed, make_unconfirmed
from warrenmq.client.delivery import Delivery, Returned, Settler, make_delivery
from warrenmq.client.errors import CloseReason, ConnectionClosed, ConnectionLost, Misuse, PublishLost, channel_error
from warrenmq.protocol import events, spec
from warrenmq.protocol.connection import ClientConnection, ContentHandler
from warrenmq.protocol.errors import LocalMisuse
from warrenmq.protocol.properties import BasicProperties, content_header

if TYPE_CHECKING:
    from warrenmq.client.engine.consumers import EngineConsumer, Item, WorkQueue
    from warrenmq.client.engine.publish_waits import PublishWaits
    from warrenmq.client.metrics import MetricsCollector

Body: TypeAlias = bytes | str | bytearray | memoryview

_ACK, _NACK, _REJECT, _REQUEUE = range(4)  # ways to settle; _REQUEUE is a reject that the user did not ask for

# Counted per offline publish in addition to its body, so that even empty ones reach the limit.
_MESSAGE_OVERHEAD = 256

_NOT_CONFIRMED = make_unconfirmed()
_PLAIN = BasicProperties()

_NOTES = "warren.notes"  # a routing key of the default exchange
_DELIVERY_TAG = "x-delivery-tag"

_OUTSIDE_TRANSACTION = (
    "this channel is transactional: publish and settle inside `channel.transaction()`, or use another channel"
)


class SharedConnection:
    """What the channels of a connection share: the lock, the output, and the reasons why it is closed."""

    __slots__ = (
        "awaited_confirms",
        "channel_states",
        "final_reason",
        "is_abandoned",
        "is_blocked",
        "is_flush_scheduled",
        "lock",
        "lost_reason",
        "metrics",
        "offline_bytes",
        "output_limit",
        "protocol",
        "resends_unconfirmed",
        "schedule_flush",
        "writable_callbacks",
        "write_directly",
    )

    def __init__(
        self,
        output_limit: int,
        resends_unconfirmed: bool,
        schedule_flush: Callable[[], None],
        metrics: "MetricsCollector | None",
    ) -> None:
        self.lock = Lock()
        self.protocol: ClientConnection | None = None  # while there is a link that is open
        self.channel_states: dict[int, ChannelState] = {}
        self.output_limit = output_limit
        self.resends_unconfirmed = resends_unconfirmed  # on the next link
        self.offline_bytes = 0  # published while there was no link
        self.is_flush_scheduled = False  # the loop will write soon
        # Writes from the calling thread, under the lock; returns False if the loop has to.
        self.write_directly: Callable[[], bool] | None = None
        self.schedule_flush = schedule_flush
        self.writable_callbacks: list[Callable[[], None]] = []
        self.awaited_confirms = 0  # confirmations with a waiting caller
        self.is_blocked = False
        self.lost_reason: CloseReason | None = None
        self.final_reason: CloseReason | None = None
        self.is_abandoned = False
        self.metrics = metrics

    def abandon(self) -> None:
        """Disable it in a forked child: the socket is the parent's, one of whose threads may have held the lock."""
        self.lock = Lock()
        self.is_abandoned = True
        self.protocol = None
        self.write_directly = None
        for state in self.channel_states.values():
            state.detach()

    def detach(self, reason: CloseReason) -> None:
        """Forget the link that ended. Under the lock."""
        self.protocol = None
        self.write_directly = None
        self.lost_reason = reason
        self.is_blocked = False
        for state in self.channel_states.values():
            state.detach()

    def not_open(self) -> Exception:
        """Return the exception for a call that needs a link."""
        if self.final_reason is not None:
            return ConnectionClosed(self.final_reason)
        return ConnectionLost(f"the connection is being recovered: {self.lost_reason}", self.lost_reason)


class DeliveryBuffer:
    """Deliveries for one work queue, until the lock is released. `work_queue` None: created on first use."""

    __slots__ = ("items", "state", "work_queue")

    def __init__(self, state: "ChannelState", work_queue: "WorkQueue | None" = None) -> None:
        self.state = state
        self.work_queue = work_queue
        self.items: list[Item] = []


class ChannelState(Settler):
    """The part of one channel that any thread may use."""

    __slots__ = (
        "buffer",
        "channel",
        "close_reason",
        "consumers",
        "default_consumer",
        "has_confirm_listeners",
        "is_confirming",
        "is_outside_transaction",
        "is_paused",
        "is_publishing",
        "is_ready",
        "is_requeued",
        "is_restoring",
        "is_transactional",
        "last_client_tag",
        "ledger",
        "life",
        "lost_transaction",
        "number",
        "offline_publishes",
        "protocol",
        "rolled_back",
        "settled_up_to",
        "shared",
        "tag_offset",
        "uncommitted",
    )

    def __init__(self, shared: SharedConnection, number: int, waits: "PublishWaits", channel: Any) -> None:
        self.shared = shared
        self.number = number
        self.channel = channel
        self.protocol: ClientConnection | None = None  # while open on a link: acks can be sent
        self.is_ready = False  # open, with its topology and modes restored
        self.is_outside_transaction = False  # transactional, between two blocks: publishes and acks raise
        self.is_paused = False  # by the server's channel.flow
        self.is_publishing = False  # ready, not outside a transaction, not paused
        self.is_restoring = False
        self.is_confirming = False
        self.is_transactional = False
        self.uncommitted: list[tuple[int, bool]] = []  # (tag, multiple) settled by the open transaction
        self.rolled_back: list[tuple[int, bool]] = []  # the same, rolled back and not settled since
        self.is_requeued = False  # those: the broker redelivers them
        self.settled_up_to = 0  # the last tag that was settled with `multiple`
        self.lost_transaction = False  # a transaction may have been open when the link was lost
        self.has_confirm_listeners = False
        self.ledger = Unconfirmed(waits)
        # Published without a link and outside confirm mode; sent on the next link.
        self.offline_publishes: list[SentMessage] = []
        self.tag_offset = 0  # client tag = wire tag + offset
        self.last_client_tag = 0
        self.life = 0
        self.consumers: dict[str, EngineConsumer] = {}
        self.default_consumer: EngineConsumer | None = None  # of deliveries whose consumer is unknown
        self.buffer = DeliveryBuffer(self)
        self.close_reason: CloseReason | None = None

    # -- any thread --------------------------------------------------------------------------------------------------

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None = None,
        mandatory: bool = False,
    ) -> Confirmation | None:
        """Send, or store for the next link if the factory says so; return None if the output is full."""
        data = body if type(body) is bytes else as_bytes(body)
        shared = self.shared
        must_schedule = False
        shared.lock.acquire()
        try:
            protocol = self.protocol
            if not self.is_publishing or protocol is None:
                return self._publish_later(exchange, routing_key, data, properties, mandatory)
            if protocol.output_size > shared.output_limit:
                return None
            if not self.is_confirming:
                protocol.publish(self.number, exchange, routing_key, data, properties, mandatory)
                confirmation = _NOT_CONFIRMED
            elif mandatory or shared.resends_unconfirmed:
                header = content_header(len(data), _PLAIN if properties is None else properties)
                protocol.publish(self.number, exchange, routing_key, data, None, mandatory, header)
                confirmation = self.ledger.add((exchange, routing_key, header, data, mandatory))
            else:
                protocol.publish(self.number, exchange, routing_key, data, properties, mandatory)
                confirmation = self.ledger.add(None)
            # One confirm at a time: the caller will wait for it, so write now rather than when the loop wakes up.
            # 320 -> 253 us for each in the blocking client, medians of 8 interleaved rounds on a busy machine.
            if not shared.is_flush_scheduled and not (
                self.is_confirming
                and shared.write_directly is not None
                and self.ledger.has_one()
                and shared.write_directly()
            ):
                shared.is_flush_scheduled = must_schedule = True
        except LocalMisuse as misuse:
            raise Misuse(str(misuse)) from misuse
        finally:
            shared.lock.release()
        if must_schedule:
            shared.schedule_flush()
        if shared.metrics is not None:
            shared.metrics.published(1, len(data))
        return confirmation

    def ack(self, tag: int, multiple: bool = False) -> bool:
        """Return False for a tag of an earlier link. Tag 0 with multiple: everything delivered so far."""
        return self._settle(_ACK, tag, multiple, False)

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> bool:
        return self._settle(_NACK, tag, multiple, requeue)

    def reject(self, tag: int, requeue: bool = True) -> bool:
        return self._settle(_REJECT, tag, False, requeue)

    def note(self, tag: int, text: bytes, names: BasicProperties | None) -> bool:
        """Publish a note about the delivery, if its tag is still valid, or the message with these names.

        Its confirm is ignored, and it is not sent again: on another link the tag means another message.
        """
        shared = self.shared
        with shared.lock:
            if not self.is_publishing or self.protocol is None:
                self._require_usable()
                return False
            if tag > self.tag_offset and tag > self.settled_up_to:
                names = BasicProperties(headers={_DELIVERY_TAG: tag - self.tag_offset})
            if names is None:
                return False
            self.protocol.publish(self.number, "", _NOTES, text, names)
            if self.is_confirming:
                self.ledger.skip()
            must_schedule = not shared.is_flush_scheduled
            shared.is_flush_scheduled = True
        if must_schedule:
            shared.schedule_flush()
        return True

    def requeue(self, tag: int, multiple: bool = False) -> bool:
        """Return a delivery that the user will not settle, also outside a transaction; EngineChannel commits it."""
        return self._settle(_REQUEUE, tag, multiple, True)

    def tag_of(self, delivery: Delivery | int) -> int:
        """Return the tag of a delivery of this channel, or the number itself if it is a valid tag."""
        if isinstance(delivery, Delivery):
            if delivery.is_of(self):
                return delivery.delivery_tag
            raise Misuse("the delivery came from another channel and can only be settled there")
        if isinstance(delivery, int) and 0 <= delivery < 1 << 64:
            return delivery
        raise Misuse(f"not a delivery, nor a delivery tag: {delivery!r:.80}")

    def is_stale(self, tag: int) -> bool:
        return tag <= self.tag_offset

    def is_rolled_back(self, tag: int) -> bool:
        """Return True if a rollback undid the settlement of this tag, and it was neither settled again nor requeued."""
        return not self.is_requeued and _covers(self.rolled_back, tag) and not _covers(self.uncommitted, tag)

    def facade(self) -> Any:
        return self.channel.facade

    @property
    def next_publish_tag(self) -> int:
        """The tag of the next publish; 0 outside confirm mode."""
        return self.ledger.next_tag if self.is_confirming else 0

    def _settle(self, method: int, tag: int, multiple: bool, requeue: bool) -> bool:
        shared = self.shared
        must_schedule = False
        shared.lock.acquire()
        try:
            protocol = self.protocol
            if self.is_requeued and method != _REQUEUE and not multiple and _covers(self.rolled_back, tag):
                return False
            if (
                (self.is_outside_transaction and method != _REQUEUE)
                or protocol is None
                or (tag <= self.tag_offset and (tag != 0 or not multiple))
            ):
                if method != _REQUEUE:
                    self._require_usable()
                return False
            wire_tag = tag - self.tag_offset if tag != 0 else 0
            if method == _ACK:
                protocol.ack(self.number, wire_tag, multiple)
            elif method == _NACK:
                protocol.nack(self.number, wire_tag, multiple, requeue)
            elif multiple:
                protocol.nack(self.number, wire_tag, True, requeue)
            else:
                protocol.reject(self.number, wire_tag, requeue)
            if multiple:
                self.settled_up_to = max(self.settled_up_to, tag or self.last_client_tag)
            if self.is_transactional:
                self.uncommitted.append((tag, multiple))
            if not shared.is_flush_scheduled:
                shared.is_flush_scheduled = must_schedule = True
        finally:
            shared.lock.release()
        if must_schedule:
            shared.schedule_flush()
        if shared.metrics is not None:
            if method == _ACK:
                shared.metrics.acked(1)
            else:
                shared.metrics.rejected(1)
        return True

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _require_usable(self) -> None:
        if self.shared.is_abandoned:
            raise Misuse("this connection belongs to another process: connect anew after a fork")
        if self.close_reason is not None:
            raise channel_error(self.close_reason)
        if self.shared.final_reason is not None:
            raise ConnectionClosed(self.shared.final_reason)
        if self.is_outside_transaction:
            raise Misuse(_OUTSIDE_TRANSACTION)

    def _publish_later(
        self, exchange: str, routing_key: str, body: bytes, properties: BasicProperties | None, mandatory: bool
    ) -> Confirmation | None:
        """Store a publish that cannot be sent now, or raise. Return None while channel.flow pauses the channel."""
        self._require_usable()
        if self.is_ready and self.is_paused:
            return None
        shared = self.shared
        if not shared.resends_unconfirmed or self.is_transactional:
            raise shared.not_open()
        if shared.offline_bytes > shared.output_limit:
            return None
        shared.offline_bytes += len(body) + _MESSAGE_OVERHEAD
        header = content_header(len(body), _PLAIN if properties is None else properties)
        message = (exchange, routing_key, header, body, mandatory)
        if self.is_confirming:
            return self.ledger.add(message)
        self.offline_publishes.append(message)
        return _NOT_CONFIRMED

    def to_client_tag(self, wire_tag: int) -> int:
        """Translate a delivery tag: the client's tags count on over links."""
        client_tag = wire_tag + self.tag_offset
        if client_tag > self.last_client_tag:
            self.last_client_tag = client_tag
        return client_tag

    def detach(self) -> None:
        """Leave the lost link: all tags so far become stale."""
        self.protocol = None
        self.is_ready = self.is_paused = self.is_publishing = False
        self.uncommitted, self.rolled_back = [], []
        self.is_requeued = False
        self.tag_offset = self.last_client_tag
        self.lost_transaction = self.is_transactional

    def attach(self, protocol: ClientConnection) -> None:
        """Enter a new link, on which the channel is open."""
        self.tag_offset = self.last_client_tag
        self.life += 1
        self.protocol = protocol

    def resume_publishing(self) -> None:
        """Send the stored publishes, then admit publishers: the channel is restored."""
        if self.protocol is None:
            return
        messages, self.offline_publishes = self.offline_publishes, []
        if self.is_confirming:
            for message in messages:  # stored before the channel entered confirm mode
                self.ledger.add(message)
            messages = [each.message for each in self.ledger.renumber() if each.message is not None]
        for exchange, routing_key, header, body, mandatory in messages:
            self.protocol.publish(self.number, exchange, routing_key, body, None, mandatory, header)
        self.is_ready = True
        self._review_publishing()

    def set_outside_transaction(self, is_outside_transaction: bool) -> None:
        """Refuse publishes and acks between two transaction blocks."""
        self.is_outside_transaction = is_outside_transaction
        self._review_publishing()

    def on_flow(self, is_active: bool) -> None:
        """Pause or resume publishing (channel.flow)."""
        self.is_paused = not is_active
        self._review_publishing()

    def _review_publishing(self) -> None:
        self.is_publishing = self.is_ready and not self.is_outside_transaction and not self.is_paused

    def end_transaction(self, is_rolled_back: bool) -> None:
        """Record the server's answer to tx.commit or tx.rollback."""
        settled, self.uncommitted = self.uncommitted, []
        if self.is_requeued:
            self.rolled_back = []
        elif self.rolled_back:
            self.rolled_back = [each for each in self.rolled_back if not each[1] and not _covers(settled, each[0])]
        if is_rolled_back:
            self.rolled_back = self.rolled_back + settled
        self.is_requeued = False

    def end_requeue(self) -> None:
        """Record that the broker will redeliver what was rolled back."""
        self.uncommitted = []
        self.is_requeued = True

    def on_close(self, close: spec.ChannelClose) -> None:
        """Handle the server's close: final, unless recovery is restoring the channel and opens it again."""
        self.detach()
        if not self.is_restoring:
            code, text = close.reply_code, close.reply_text
            self.close(CloseReason("server", code, text, close.class_id, close.method_id))

    def close(self, reason: CloseReason) -> None:
        """Close for good; the first reason counts."""
        if self.close_reason is None:
            self.close_reason = reason
        self.protocol = None
        self.is_ready = self.is_publishing = False

    def fail_unconfirmed(self, error: PublishLost, to_wake: list[Confirmation]) -> int:
        """Fail all publishes without a confirm; return their number."""
        count = self.ledger.fail_all(error, to_wake)
        self.offline_publishes.clear()
        return count


class LinkListener(ContentHandler):
    """Collects the input of one link. Called by the ClientConnection, under the lock; the loop empties it later."""

    __slots__ = (
        "confirm_notifications",
        "confirmed",
        "events",
        "filled_buffers",
        "nacked",
        "orphans",
        "returns",
        "shared",
        "to_wake",
    )

    def __init__(self, shared: SharedConnection) -> None:
        self.shared = shared
        self.filled_buffers: list[DeliveryBuffer] = []
        self.to_wake: list[Confirmation] = []
        self.events: list[events.Event] = []
        self.returns: list[tuple[ChannelState, Returned]] = []
        self.confirm_notifications: list[tuple[ChannelState, int, bool, bool]] = []
        self.orphans: list[tuple[ChannelState, int]] = []  # deliveries whose consumer is gone
        self.confirmed = 0
        self.nacked = 0

    def on_deliver(
        self,
        channel: int,
        consumer_tag: str,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
    ) -> None:
        state = self.shared.channel_states.get(channel)
        if state is None:
            return
        client_tag = state.to_client_tag(delivery_tag)
        consumer = state.consumers.get(consumer_tag)
        if consumer is None:
            consumer = state.default_consumer
            if consumer is None:
                return
        buffer = consumer.buffer
        if buffer is None:
            self.orphans.append((state, client_tag))
            return
        if not buffer.items:
            self.filled_buffers.append(buffer)
        buffer.items.append(
            make_delivery(state, consumer, consumer_tag, client_tag, redelivered, exchange, routing_key, header, body)
        )

    def on_confirm(self, channel: int, delivery_tag: int, multiple: bool, is_ack: bool) -> None:
        state = self.shared.channel_states.get(channel)
        if state is None:
            return
        if state.has_confirm_listeners:
            for tag, is_multiple in state.ledger.listener_tags(delivery_tag, multiple):
                self.confirm_notifications.append((state, tag, is_multiple, is_ack))
        count = state.ledger.settle(delivery_tag, multiple, is_ack, self.to_wake)
        if is_ack:
            self.confirmed += count
        else:
            self.nacked += count

    def on_event(self, event: events.Event) -> None:
        """Apply closes and flow at once, so that no thread uses a closed channel; leave the rest to the loop."""
        if isinstance(event, events.ContentReceived) and isinstance(event.method, spec.BasicReturn):
            self._on_return(event.channel, event.method, event.header, event.body)
            return
        if isinstance(event, events.ConnectionClosed):
            self.shared.detach(close_reason_of(event))
        elif isinstance(event, events.MethodReceived) and isinstance(event.method, spec.ChannelClose):
            state = self.shared.channel_states.get(event.channel)
            if state is not None:
                state.on_close(event.method)
        elif isinstance(event, events.MethodReceived) and isinstance(event.method, spec.ChannelFlow):
            state = self.shared.channel_states.get(event.channel)
            if state is not None:
                state.on_flow(event.method.active)
        self.events.append(event)

    def _on_return(self, channel: int, method: spec.BasicReturn, header: bytes, body: bytes) -> None:
        state = self.shared.channel_states.get(channel)
        if state is None:
            return
        exchange, routing_key = method.exchange, method.routing_key
        returned = Returned(method.reply_code, method.reply_text, exchange, routing_key, header, body)
        state.ledger.fail_returned(returned, header, self.to_wake)
        self.returns.append((state, returned))


def close_reason_of(event: events.ConnectionClosed) -> CloseReason:
    """Return the event as a CloseReason that recovery may follow."""
    return CloseReason(event.by.value, event.reply_code, event.reply_text, event.class_id, event.method_id, False)


def _covers(settled: list[tuple[int, bool]], tag: int) -> bool:
    return any(tag == upto or (is_multiple and (tag <= upto or upto == 0)) for upto, is_multiple in settled)


def as_bytes(body: Body) -> bytes:
    """Return a body as bytes; text is encoded as UTF-8."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise Misuse(f"a body is bytes, str, bytearray or memoryview, not {type(body).__name__}")


__all__ = ["ChannelState", "DeliveryBuffer", "LinkListener", "SharedConnection", "as_bytes", "close_reason_of"]
