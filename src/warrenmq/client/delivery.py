"""What comes from the broker: deliveries, and messages that came back.

Properties are decoded when somebody asks for them, by whichever thread asks. A delivery tag as seen here counts on over
reconnects, so a tag of an earlier life of the channel can never be taken for one of the present life.

Compiled when the package is built (delivery.pxd).
"""

from typing import TYPE_CHECKING, Any

from warrenmq.client.errors import MalformedMessage
from warrenmq.protocol.errors import MalformedProperties
from warrenmq.protocol.properties import BasicProperties, decode

if TYPE_CHECKING:
    from warrenmq.client.engine.consumers import EngineConsumer

# Before the property flags a content header has its class, its weight and the size of the body.
_FLAGS_AT = 12


class Settler:
    """Who takes the word on a delivery: the channel it came by (see engine/channel_state.py). Any thread may call."""

    __slots__ = ()

    def ack(self, tag: int, multiple: bool = False) -> bool:
        """True when it was said; False when the tag is of an earlier life."""
        raise NotImplementedError

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> bool:
        raise NotImplementedError

    def reject(self, tag: int, requeue: bool = True) -> bool:
        raise NotImplementedError

    def is_stale(self, tag: int) -> bool:
        raise NotImplementedError

    def is_rolled_back(self, tag: int) -> bool:
        """Whether a rollback undid what was said of the tag."""
        return False

    def facade(self) -> Any:
        """The channel as the user knows it."""
        raise NotImplementedError


class Delivery:
    """A message, and the means to settle it.

    `message_count` (how many are left) is None except for a message fetched by `get`. `is_settled` is set when the word
    on it stands in the output, so who sees it may say "multiple" over it.
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
        """Decoded once; raises MalformedMessage where the publisher wrote what cannot be read."""
        if self._properties is None:
            self._properties = _decode(self._header)
        return self._properties

    @property
    def headers(self) -> dict[str, Any]:
        """The headers table; empty where the message has none."""
        return self.properties.headers or {}

    @property
    def channel(self) -> Any:
        """The channel that it came by."""
        return self._settler.facade()

    @property
    def is_stale(self) -> bool:
        """Whether it came in an earlier life of its channel: the broker has taken it back and delivers it again."""
        return self._settler.is_stale(self.delivery_tag)

    @property
    def is_settled(self) -> bool:
        """Whether it was acked, nacked or rejected; False again when that was in a transaction that was rolled back."""
        return self._is_settled and not self._settler.is_rolled_back(self.delivery_tag)

    def ack(self, multiple: bool = False) -> bool:
        """Done with it. False: nothing was said, because the link it came by was lost meanwhile."""
        said = self._settler.ack(self.delivery_tag, multiple)
        self._is_settled = True
        return said

    def nack(self, multiple: bool = False, requeue: bool = True) -> bool:
        """Give it back, or drop it (it is dead-lettered where the queue says so)."""
        said = self._settler.nack(self.delivery_tag, multiple, requeue)
        self._is_settled = True
        return said

    def reject(self, requeue: bool = True) -> bool:
        """As `nack`, for one message and any broker."""
        said = self._settler.reject(self.delivery_tag, requeue)
        self._is_settled = True
        return said

    def is_of(self, settler: Settler) -> bool:
        """Whether it came by this channel."""
        return self._settler is settler

    def run(self) -> Any:
        """Call the consumer's callback; gives what it gives."""
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
    """As Delivery(...), without the detour over a Python call when compiled."""
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
    """A mandatory message that reached no queue and came back."""

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
        raise MalformedMessage(f"the message's properties cannot be read: {malformed.text}") from malformed
