"""Messages from the broker: deliveries and returned messages.

Properties are decoded on first access, by the accessing thread. Delivery tags continue over reconnects, so the tag of
an earlier link cannot be mistaken for a current one.

Compiled when the package is built (delivery.pxd).
"""

from typing import TYPE_CHECKING, Any

from warrenmq.client.errors import MalformedMessage
from warrenmq.client.notes import CAPABILITY, encode_note, names_of
from warrenmq.protocol.errors import MalformedProperties
from warrenmq.protocol.properties import BasicProperties, decode

if TYPE_CHECKING:
    from warrenmq.client.engine.consumers import EngineConsumer

# The property flags of a content header come after class, weight and body size (AMQP 0-9-1 §4.2.6.1).
_FLAGS_AT = 12


class Settler:
    """Acks and rejects deliveries: the channel that received them (see engine/channel_state.py). Thread-safe."""

    __slots__ = ()

    def ack(self, tag: int, multiple: bool = False) -> bool:
        """Return False, without sending anything, if the tag is stale."""
        raise NotImplementedError

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> bool:
        raise NotImplementedError

    def reject(self, tag: int, requeue: bool = True) -> bool:
        raise NotImplementedError

    def is_stale(self, tag: int) -> bool:
        raise NotImplementedError

    def is_rolled_back(self, tag: int) -> bool:
        """Whether the ack or reject of the tag was rolled back."""
        return False

    def note(self, tag: int, text: bytes, names: BasicProperties | None) -> bool:
        """Publish a note about this delivery or, if it is settled or stale, about the message with these names.

        Return False, without sending anything, if it has none.
        """
        raise NotImplementedError

    def facade(self) -> Any:
        """Return the channel as users see it."""
        raise NotImplementedError


class Delivery:
    """A message, and the methods to settle it.

    `message_count` (the messages left in the queue) is set only by `get`. `is_settled` is set after the ack is in the
    output, so that it may be covered by a later multiple ack.
    """

    __slots__ = (
        "_header",
        "_is_settled",
        "_properties",
        "_settler",
        "body",
        "consumer",
        "consumer_tag",
        "delivery_tag",
        "exchange",
        "message_count",
        "redelivered",
        "routing_key",
    )

    context = "consumer callback"

    def __init__(
        self,
        settler: Settler,
        consumer: "EngineConsumer | None",
        consumer_tag: str,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
        message_count: int | None = None,
    ) -> None:
        self._settler = settler
        self._header = header
        self._properties: BasicProperties | None = None
        self.consumer = consumer
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.body = body
        self.message_count = message_count
        self._is_settled = False

    @property
    def properties(self) -> BasicProperties:
        """The properties, decoded once; raises MalformedMessage if they cannot be decoded."""
        if self._properties is None:
            self._properties = _decode(self._header)
        return self._properties

    @property
    def headers(self) -> dict[str, Any]:
        """The headers table; empty if the message has none."""
        return self.properties.headers or {}

    @property
    def channel(self) -> Any:
        """The channel that received it."""
        return self._settler.facade()

    @property
    def is_stale(self) -> bool:
        """Whether it came over an earlier connection: the broker has requeued it and redelivers it."""
        return self._settler.is_stale(self.delivery_tag)

    @property
    def is_settled(self) -> bool:
        """Whether it was acked, nacked or rejected, and not rolled back with a transaction."""
        return self._is_settled and not self._settler.is_rolled_back(self.delivery_tag)

    def ack(self, multiple: bool = False) -> bool:
        """Acknowledge it. Return False, without sending anything, if its connection was lost meanwhile."""
        was_sent = self._settler.ack(self.delivery_tag, multiple)
        self._is_settled = True
        return was_sent

    def nack(self, multiple: bool = False, requeue: bool = True) -> bool:
        """Requeue it, or drop it (dead-lettered if the queue is configured so)."""
        was_sent = self._settler.nack(self.delivery_tag, multiple, requeue)
        self._is_settled = True
        return was_sent

    def reject(self, requeue: bool = True) -> bool:
        """Like `nack` for one message, with the method of the AMQP standard."""
        was_sent = self._settler.reject(self.delivery_tag, requeue)
        self._is_settled = True
        return was_sent

    def note(self, text: str) -> bool:
        """Add a line of at most 1,000 bytes to the biography of the message, which `warren trace` shows.

        Return False, without sending anything, if the broker keeps no notes. After the message is settled, or its
        connection was lost, the note needs its header `x-message-uid` or its message_id: False without them.
        """
        body = encode_note(text)
        if not self.channel.connection.has_capability(CAPABILITY):
            return False
        is_over = self.is_settled or (self.consumer is not None and self.consumer.auto_ack)
        return self._settler.note(0 if is_over else self.delivery_tag, body, names_of(self))

    def removed_by_broker(self) -> None:
        """Record that the broker sent it with auto_ack."""
        self._is_settled = True

    def is_of(self, settler: Settler) -> bool:
        """Whether this channel received it."""
        return self._settler is settler

    def run(self) -> Any:
        """Call the consumer's callback and return its result."""
        return self.consumer.callback(self)  # type: ignore[union-attr,misc]

    def __repr__(self) -> str:
        where = f"exchange={self.exchange!r}, routing_key={self.routing_key!r}"
        return f"<Delivery {self.delivery_tag}: {where}, {len(self.body)} bytes>"


def make_delivery(
    settler: Settler,
    consumer: "EngineConsumer | None",
    consumer_tag: str,
    delivery_tag: int,
    redelivered: bool,
    exchange: str,
    routing_key: str,
    header: bytes,
    body: bytes,
) -> Delivery:
    """Like Delivery(...), but a C call when compiled."""
    delivery = Delivery.__new__(Delivery)
    delivery._settler = settler
    delivery._header = header
    delivery._properties = None
    delivery.consumer = consumer
    delivery.consumer_tag = consumer_tag
    delivery.delivery_tag = delivery_tag
    delivery.redelivered = redelivered
    delivery.exchange = exchange
    delivery.routing_key = routing_key
    delivery.body = body
    delivery.message_count = None
    delivery._is_settled = False
    return delivery


class Returned:
    """A mandatory message that reached no queue and was returned."""

    __slots__ = ("_header", "_properties", "body", "exchange", "reply_code", "reply_text", "routing_key")

    def __init__(
        self, reply_code: int, reply_text: str, exchange: str, routing_key: str, header: bytes, body: bytes
    ) -> None:
        self._header = header
        self._properties: BasicProperties | None = None
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key
        self.body = body

    @property
    def properties(self) -> BasicProperties:
        if self._properties is None:
            self._properties = _decode(self._header)
        return self._properties

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}

    def __repr__(self) -> str:
        where = f"exchange={self.exchange!r}, routing_key={self.routing_key!r}"
        return f"<Returned {self.reply_code} {self.reply_text}: {where}, {len(self.body)} bytes>"


def _decode(header: bytes) -> BasicProperties:
    try:
        return decode(header, _FLAGS_AT)
    except MalformedProperties as malformed:
        raise MalformedMessage(f"the properties of the message cannot be decoded: {malformed.text}") from malformed
