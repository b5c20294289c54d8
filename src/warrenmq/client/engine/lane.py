"""The half of a connection that any thread may use: publish, ack, nack, reject, and what comes once per message.

    Gate   one per connection: its lock, and the link's protocol while there is a link
    Lane   one per channel: outlives links; numbers publishes, and offsets delivery tags so that none is seen twice
    Ear    one per link: collects what the server says while the lock is held
    Inbox  what was collected for one sink, to be handed over when the lock is released

Whoever touches the ClientConnection or any state here holds `gate.lock`. Nothing here waits, runs user code, or calls
out while holding it. The other half, engine/channel.py, belongs to the loop alone.

Compiled when the package is built (lane.pxd).
"""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from warrenmq.client.confirms import Confirmation, Message, Unconfirmed, make_unconfirmed
from warrenmq.client.delivery import Delivery, Returned, Settler, make_delivery
from warrenmq.client.errors import CloseReason, ConnectionClosed, ConnectionLost, Misuse, PublishLost, channel_error
from warrenmq.protocol import events, spec
from warrenmq.protocol.connection import ClientConnection, ContentHandler
from warrenmq.protocol.errors import LocalMisuse
from warrenmq.protocol.properties import BasicProperties, content_header

if TYPE_CHECKING:
    from warrenmq.client.engine.consumers import EngineConsumer, Item, Sink
    from warrenmq.client.engine.waiting import Patience
    from warrenmq.client.metrics import MetricsCollector

Body: TypeAlias = bytes | str | bytearray | memoryview

# What a kept publish is taken to weigh beside its body, so that empty ones do not gather without end.
_MESSAGE_OVERHEAD = 256

_NOT_CONFIRMED = make_unconfirmed()
_PLAIN = BasicProperties()

_OUTSIDE_TRANSACTION = (
    "this channel is transactional: publish and settle inside `channel.transaction()`, or use another channel"
)


class Gate:
    """What all channels of a connection share: the lock, and the way out."""

    __slots__ = (
        "direct",
        "final_reason",
        "is_abandoned",
        "is_awake",
        "is_blocked",
        "keeps",
        "kept_bytes",
        "lanes",
        "lock",
        "lost_reason",
        "metrics",
        "output_limit",
        "protocol",
        "room_waiters",
        "waited",
        "wake",
    )

    def __init__(
        self, output_limit: int, keeps: bool, wake: Callable[[], None], metrics: "MetricsCollector | None"
    ) -> None:
        self.lock = Lock()
        self.protocol: ClientConnection | None = None  # while there is a link that is open
        self.lanes: dict[int, Lane] = {}
        self.output_limit = output_limit
        self.keeps = keeps  # publishes without the broker's word are sent again on the next link
        self.kept_bytes = 0  # of what was published while there was no link
        self.is_awake = False  # the loop is going to write
        # The link's way to write at once, under the lock; gives whether it did.
        self.direct: Callable[[], bool] | None = None
        self.wake = wake
        self.room_waiters: list[Callable[[], None]] = []
        self.waited = 0  # confirmations that somebody waits for
        self.is_blocked = False
        self.lost_reason: CloseReason | None = None
        self.final_reason: CloseReason | None = None
        self.is_abandoned = False
        self.metrics = metrics

    def abandon(self) -> None:
        """In a child process after a fork: the connection is the parent's, one of whose threads may hold the lock."""
        self.lock = Lock()
        self.is_abandoned = True
        self.protocol = None
        self.direct = None
        for lane in self.lanes.values():
            lane.go_down()

    def go_down(self, reason: CloseReason) -> None:
        """The link has ended; lanes outlive it. Under the lock."""
        self.protocol = None
        self.direct = None
        self.lost_reason = reason
        self.is_blocked = False
        for lane in self.lanes.values():
            lane.go_down()

    def not_open(self) -> Exception:
        """What to raise for a connection that has no link now."""
        if self.final_reason is not None:
            return ConnectionClosed(self.final_reason)
        return ConnectionLost(f"the connection is being recovered: {self.lost_reason}", self.lost_reason)


class Inbox:
    """Where the deliveries of some consumers gather until the lock is released. `sink` None: made at first need."""

    __slots__ = ("items", "lane", "sink")

    def __init__(self, lane: "Lane", sink: "Sink | None" = None) -> None:
        self.lane = lane
        self.sink = sink
        self.items: list[Item] = []


class Lane(Settler):
    """One channel, as far as any thread may use it."""

    __slots__ = (
        "channel",
        "close_reason",
        "consumers",
        "gate",
        "has_confirm_listeners",
        "inbox",
        "is_confirming",
        "is_fenced",
        "is_paused",
        "is_publishing",
        "is_ready",
        "is_restoring",
        "is_transactional",
        "kept",
        "last_seen",
        "ledger",
        "life",
        "lost_transaction",
        "number",
        "protocol",
        "tag_offset",
        "undecided",
        "undone",
    )

    def __init__(self, gate: Gate, number: int, patience: "Patience", channel: Any) -> None:
        self.gate = gate
        self.number = number
        self.channel = channel
        self.protocol: ClientConnection | None = None  # while the channel is open on a link: acks can be said
        self.is_ready = False  # and its topology and modes are back
        self.is_fenced = False  # between two transaction blocks: nothing may be published or settled
        self.is_paused = False  # by the server's channel.flow
        self.is_publishing = False  # ready, not fenced, not paused: the one thing that a publish asks
        self.is_restoring = False
        self.is_confirming = False
        self.is_transactional = False
        self.undecided: list[tuple[int, bool]] = []  # tag and multiple of what the open transaction settles
        self.undone: list[tuple[int, bool]] = []  # the same of the last one, if it was rolled back
        self.lost_transaction = False  # a link was lost with a transaction that may have been open
        self.has_confirm_listeners = False
        self.ledger = Unconfirmed(patience)
        self.kept: list[Message] = []  # published without a link and without confirms, to be sent on the next
        self.tag_offset = 0  # seen delivery tag = tag on the wire + offset
        self.last_seen = 0
        self.life = 0
        self.consumers: dict[str, EngineConsumer] = {}
        self.inbox = Inbox(self)
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
        """Send, or keep for the next link where that is wanted; None: no room now, and nothing was done."""
        octets = body if type(body) is bytes else as_bytes(body)
        gate = self.gate
        is_asleep = False
        gate.lock.acquire()
        try:
            protocol = self.protocol
            if not self.is_publishing or protocol is None:
                return self._publish_later(exchange, routing_key, octets, properties, mandatory)
            if protocol.output_size > gate.output_limit:
                return None
            if not self.is_confirming:
                protocol.publish(self.number, exchange, routing_key, octets, properties, mandatory)
                confirmation = _NOT_CONFIRMED
            elif mandatory or gate.keeps:
                header = content_header(len(octets), _PLAIN if properties is None else properties)
                protocol.publish(self.number, exchange, routing_key, octets, None, mandatory, header)
                confirmation = self.ledger.add((exchange, routing_key, header, octets, mandatory))
            else:
                protocol.publish(self.number, exchange, routing_key, octets, properties, mandatory)
                confirmation = self.ledger.add(None)
            # One confirm at a time: who waits for this one next need not wait for the loop to wake up and write it.
            # 320 -> 253 us for each in the blocking client, medians of 8 interleaved rounds on a busy machine.
            if not gate.is_awake and not (
                self.is_confirming and gate.direct is not None and self.ledger.has_one() and gate.direct()
            ):
                gate.is_awake = is_asleep = True
        except LocalMisuse as misuse:
            raise Misuse(str(misuse)) from misuse
        finally:
            gate.lock.release()
        if is_asleep:
            gate.wake()
        if gate.metrics is not None:
            gate.metrics.published(1, len(octets))
        return confirmation

    def ack(self, tag: int, multiple: bool = False) -> bool:
        """The tag 0 with multiple means: everything delivered so far."""
        gate = self.gate
        is_asleep = False
        gate.lock.acquire()
        try:
            protocol = self.protocol
            if self.is_fenced or protocol is None or (tag <= self.tag_offset and (tag != 0 or not multiple)):
                self._require_usable()
                return False
            protocol.ack(self.number, tag - self.tag_offset if tag != 0 else 0, multiple)
            if self.is_transactional:
                self.undecided.append((tag, multiple))
            if not gate.is_awake:
                gate.is_awake = is_asleep = True
        finally:
            gate.lock.release()
        if is_asleep:
            gate.wake()
        if gate.metrics is not None:
            gate.metrics.acked(1)
        return True

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> bool:
        return self._refuse(tag, multiple, requeue, False, False)

    def reject(self, tag: int, requeue: bool = True) -> bool:
        return self._refuse(tag, False, requeue, True, False)

    def give_back(self, tag: int) -> bool:
        """Requeue a delivery that the user never saw, also outside a transaction block; EngineChannel commits it."""
        return self._refuse(tag, False, True, True, True)

    def tag_of(self, delivery: Delivery | int) -> int:
        """The tag of a delivery of this channel, or the number itself, if it can be one."""
        if isinstance(delivery, Delivery):
            if delivery.is_of(self):
                return delivery.delivery_tag
            raise Misuse("the delivery came by another channel, and can be settled there only")
        if isinstance(delivery, int) and 0 <= delivery < 1 << 64:
            return delivery
        raise Misuse(f"not a delivery, nor a delivery tag: {delivery!r:.80}")

    def is_stale(self, tag: int) -> bool:
        return tag <= self.tag_offset

    def is_undone(self, tag: int) -> bool:
        """Whether a rollback undid what was said of this tag, and nothing was said since."""
        return _covers(self.undone, tag) and not _covers(self.undecided, tag)

    def face(self) -> Any:
        return self.channel.face

    @property
    def next_publish_tag(self) -> int:
        """The tag that the next publish gets; 0 outside confirm mode."""
        return self.ledger.next_tag if self.is_confirming else 0

    def _refuse(self, tag: int, multiple: bool, requeue: bool, is_reject: bool, ignores_fence: bool) -> bool:
        gate = self.gate
        is_asleep = False
        gate.lock.acquire()
        try:
            protocol = self.protocol
            if (
                (self.is_fenced and not ignores_fence)
                or protocol is None
                or (tag <= self.tag_offset and (tag != 0 or not multiple))
            ):
                if not ignores_fence:
                    self._require_usable()
                return False
            if self.is_transactional:
                self.undecided.append((tag, multiple))
            wire_tag = tag - self.tag_offset if tag != 0 else 0
            if is_reject:
                protocol.reject(self.number, wire_tag, requeue)
            else:
                protocol.nack(self.number, wire_tag, multiple, requeue)
            if not gate.is_awake:
                gate.is_awake = is_asleep = True
        finally:
            gate.lock.release()
        if is_asleep:
            gate.wake()
        if gate.metrics is not None:
            gate.metrics.rejected(1)
        return True

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _require_usable(self) -> None:
        if self.gate.is_abandoned:
            raise Misuse("this connection belongs to another process: connect anew after a fork")
        if self.close_reason is not None:
            raise channel_error(self.close_reason)
        if self.gate.final_reason is not None:
            raise ConnectionClosed(self.gate.final_reason)
        if self.is_fenced:
            raise Misuse(_OUTSIDE_TRANSACTION)

    def _publish_later(
        self, exchange: str, routing_key: str, body: bytes, properties: BasicProperties | None, mandatory: bool
    ) -> Confirmation | None:
        """It cannot be sent now. None while the server has paused the channel; without a link keep it, or raise."""
        self._require_usable()
        if self.is_ready and self.is_paused:
            return None
        gate = self.gate
        if not gate.keeps or self.is_transactional:
            raise gate.not_open()
        if gate.kept_bytes > gate.output_limit:
            return None
        gate.kept_bytes += len(body) + _MESSAGE_OVERHEAD
        header = content_header(len(body), _PLAIN if properties is None else properties)
        message = (exchange, routing_key, header, body, mandatory)
        if self.is_confirming:
            return self.ledger.add(message)
        self.kept.append(message)
        return _NOT_CONFIRMED

    def note_tag(self, wire_tag: int) -> int:
        """The delivery tag as the user sees it."""
        seen_tag = wire_tag + self.tag_offset
        if seen_tag > self.last_seen:
            self.last_seen = seen_tag
        return seen_tag

    def go_down(self) -> None:
        """The link is gone: every tag seen so far is of an earlier life."""
        self.protocol = None
        self.is_ready = self.is_paused = self.is_publishing = False
        self.undecided, self.undone = [], []
        self.tag_offset = self.last_seen
        self.lost_transaction = self.is_transactional

    def go_up(self, protocol: ClientConnection) -> None:
        """The channel is open on a new link."""
        self.tag_offset = self.last_seen
        self.life += 1
        self.protocol = protocol

    def begin_publishing(self) -> None:
        """The channel is as it was before the loss: send what was kept, then let publishers in."""
        if self.protocol is None:
            return
        messages, self.kept = self.kept, []
        if self.is_confirming:
            for message in messages:  # kept before the channel came into confirm mode
                self.ledger.add(message)
            messages = [each.message for each in self.ledger.renumber() if each.message is not None]
        for exchange, routing_key, header, body, mandatory in messages:
            self.protocol.publish(self.number, exchange, routing_key, body, None, mandatory, header)
        self.is_ready = True
        self._review_publishing()

    def set_fence(self, is_fenced: bool) -> None:
        """A transaction block has ended, or begun."""
        self.is_fenced = is_fenced
        self._review_publishing()

    def hear_flow(self, is_active: bool) -> None:
        """The server pauses publishing on this channel, or lets it go on."""
        self.is_paused = not is_active
        self._review_publishing()

    def _review_publishing(self) -> None:
        self.is_publishing = self.is_ready and not self.is_fenced and not self.is_paused

    def end_transaction(self, is_undone: bool) -> None:
        """The server committed, or rolled back, what was settled."""
        self.undone, self.undecided = self.undecided if is_undone else [], []

    def hear_close(self, close: spec.ChannelClose) -> None:
        """The server closed the channel: for good, unless it refused something while the channel was being restored."""
        self.go_down()
        if not self.is_restoring:
            code, text = close.reply_code, close.reply_text
            self.shut(CloseReason("server", code, text, close.class_id, close.method_id))

    def shut(self, reason: CloseReason) -> None:
        """The channel is closed for good."""
        if self.close_reason is None:
            self.close_reason = reason
        self.protocol = None
        self.is_ready = self.is_publishing = False

    def fail_unconfirmed(self, error: PublishLost, woken: list[Confirmation]) -> int:
        """No word will come for what was published."""
        count = self.ledger.fail_all(error, woken)
        self.kept.clear()
        return count


class Ear(ContentHandler):
    """Hears one link. Called by the ClientConnection, so under the lock; `take` gives what it amounts to."""

    __slots__ = ("confirm_notices", "confirmed", "events", "gate", "inboxes", "nacked", "returns", "strays", "woken")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.inboxes: list[Inbox] = []
        self.woken: list[Confirmation] = []
        self.events: list[events.Event] = []
        self.returns: list[tuple[Lane, Returned]] = []
        self.confirm_notices: list[tuple[Lane, int, bool, bool]] = []
        self.strays: list[tuple[Lane, int]] = []  # deliveries to consumers that nobody has
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
        lane = self.gate.lanes.get(channel)
        if lane is None:
            return
        seen_tag = lane.note_tag(delivery_tag)
        consumer = lane.consumers.get(consumer_tag)
        if consumer is None:
            return
        inbox = consumer.inbox
        if inbox is None:
            self.strays.append((lane, seen_tag))
            return
        if not inbox.items:
            self.inboxes.append(inbox)
        inbox.items.append(
            make_delivery(lane, consumer, consumer_tag, seen_tag, redelivered, exchange, routing_key, header, body)
        )

    def on_confirm(self, channel: int, delivery_tag: int, multiple: bool, is_ack: bool) -> None:
        lane = self.gate.lanes.get(channel)
        if lane is None:
            return
        if lane.has_confirm_listeners:
            for tag, is_multiple in lane.ledger.heard_tags(delivery_tag, multiple):
                self.confirm_notices.append((lane, tag, is_multiple, is_ack))
        count = lane.ledger.settle(delivery_tag, multiple, is_ack, self.woken)
        if is_ack:
            self.confirmed += count
        else:
            self.nacked += count

    def on_event(self, event: events.Event) -> None:
        """What takes effect at once, so that no other thread acts on what is no longer so; the rest is the loop's."""
        if isinstance(event, events.ContentReceived) and isinstance(event.method, spec.BasicReturn):
            self._hear_return(event.channel, event.method, event.header, event.body)
            return
        if isinstance(event, events.ConnectionClosed):
            self.gate.go_down(reason_of(event, False))
        elif isinstance(event, events.MethodReceived) and isinstance(event.method, spec.ChannelClose):
            lane = self.gate.lanes.get(event.channel)
            if lane is not None:
                lane.hear_close(event.method)
        elif isinstance(event, events.MethodReceived) and isinstance(event.method, spec.ChannelFlow):
            lane = self.gate.lanes.get(event.channel)
            if lane is not None:
                lane.hear_flow(event.method.active)
        self.events.append(event)

    def _hear_return(self, channel: int, method: spec.BasicReturn, header: bytes, body: bytes) -> None:
        lane = self.gate.lanes.get(channel)
        if lane is None:
            return
        exchange, routing_key = method.exchange, method.routing_key
        returned = Returned(method.reply_code, method.reply_text, exchange, routing_key, header, body)
        lane.ledger.fail_returned(returned, header, self.woken)
        self.returns.append((lane, returned))


def reason_of(event: events.ConnectionClosed, is_final: bool) -> CloseReason:
    """The event in the user's words."""
    return CloseReason(event.by.value, event.reply_code, event.reply_text, event.class_id, event.method_id, is_final)


def _covers(settled: list[tuple[int, bool]], tag: int) -> bool:
    return any(tag == upto or (is_multiple and (tag <= upto or upto == 0)) for upto, is_multiple in settled)


def as_bytes(body: Body) -> bytes:
    """What a user may publish, as bytes; text is UTF-8."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise Misuse(f"a body is bytes, str, bytearray or memoryview, not {type(body).__name__}")


__all__ = ["Delivery", "Ear", "Gate", "Inbox", "Lane", "as_bytes", "reason_of"]
