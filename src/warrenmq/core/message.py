"""A message, and a message standing in one queue.

A message is what a publisher sent, as it came from the wire: nothing in it is decoded until somebody asks.
One message may stand in many queues; its place in each of them is a `QueuedMessage`.

Compiled when the package is built (message.pxd).
"""

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

from warrenmq.protocol import properties
from warrenmq.protocol.properties import BasicProperties, delivery_mode

# What one waiting message costs beside its header and body: two objects, two bytes headers and a place in the queue.
# Measured with benchmarks/run.py (row "bytes per queued message").
MESSAGE_OVERHEAD = 240

PERSISTENT = 2

# The same as C integers.
_OVERHEAD = MESSAGE_OVERHEAD
_PERSISTENT = PERSISTENT


@cython.freelist(1024)  # in message.pxd these would say nothing, without a word
@cython.cclass
class Message:
    """What a publisher sent. Never changes, but for what the event sink notes on one that is traced.

    `address` is the exchange and routing key as two wire short strings, just as publish, deliver, get-ok and return
    carry them; `header` is the payload of the content header frame. `uid` is 0 unless its events are kept, which is
    decided once, when it is published: then it is the broker's own id of it. `publish_time` and `enqueue_time` are when
    it came to the broker and to its queues, in us since 1970. `places` is the number of queues that hold it in memory,
    which the backlogs count. `size` is that of the body: where many messages wait, the
    processor has to fetch each object anew, and to ask the body for its length would cost more than all else. `ttl_ms`
    is its expiration, -1 if it has none; only the publish sets it. `blind_keys` are the routing keys of its header BCC,
    which was removed, as wire short strings: they count when it is dead-lettered. `has_deaths`: the broker has
    dead-lettered it, and wrote its header `x-death`.
    """

    __slots__ = (
        "_header_size",
        "address",
        "blind_keys",
        "body",
        "enqueue_time",
        "has_deaths",
        "header",
        "places",
        "publish_time",
        "size",
        "ttl_ms",
        "uid",
    )

    def __init__(self, address: bytes, header: bytes, body: bytes) -> None:
        self.address = address
        self.header = header
        self.body = body
        self.size = len(body)
        self._header_size = len(header)
        self.places = 0
        self.blind_keys = b""
        self.has_deaths = False
        self.ttl_ms = -1
        self.uid = 0
        self.publish_time = 0
        self.enqueue_time = 0

    @property
    def exchange(self) -> str:
        return self.address[1 : 1 + self.address[0]].decode("utf-8", "surrogateescape")

    @property
    def routing_key(self) -> str:
        return self.address[2 + self.address[0] :].decode("utf-8", "surrogateescape")

    @property
    def properties(self) -> BasicProperties:
        return properties.decode(self.header, 12)

    def is_persistent(self) -> bool:
        return delivery_mode(self.header) == _PERSISTENT

    def footprint(self) -> int:
        """Bytes of memory that the message takes while it waits."""
        return self.size + self._header_size + _OVERHEAD

    def shared_size(self) -> int:
        """Return the part of its footprint that all its places share: the header and the body."""
        return self.size + self._header_size


@cython.no_gc  # no cycle lasts: queue and consumer are set while it is unacked, and a ledger is emptied on close
@cython.freelist(1024)
@cython.cclass
class QueuedMessage:
    """A message's place in one queue: its position never changes, so a requeue finds the place again.

    `queue` and `consumer` are set only while it is delivered and unacked (consumer None: fetched with basic.get).
    `epoch` is the one of the commit log that keeps it; 0 for what is in memory alone, -1 for a transient message that
    was paged out: its page has to hear when it is gone. `attempts` counts its deliveries. `expires_ms` is when it
    expires, in ms since 1970; 0: never.
    """

    __slots__ = ("attempts", "consumer", "epoch", "expires_ms", "message", "position", "queue", "redelivered")

    def __init__(self, message: Message, position: int) -> None:
        self.message = message
        self.position = position
        self.epoch = 0
        self.redelivered = False
        self.attempts = 0
        self.expires_ms = 0
        self.queue: object = None
        self.consumer: object = None


def make_message(address: bytes, header: bytes, body: bytes) -> Message:
    """As Message(...), without the detour over a Python call when compiled.

    With `enqueue_as`: 0.62 -> 0.57 us of broker CPU per 16 B message, medians of 4 interleaved runs on a busy machine.
    """
    message = Message.__new__(Message)
    message.address = address
    message.header = header
    message.body = body
    message.size = len(body)
    message._header_size = len(header)
    message.places = 0
    message.blind_keys = b""
    message.has_deaths = False
    message.ttl_ms = -1
    message.uid = 0
    message.publish_time = 0
    message.enqueue_time = 0
    return message


def enqueue_as(message: Message, position: int) -> QueuedMessage:
    """As QueuedMessage(...), in the same way."""
    entry = QueuedMessage.__new__(QueuedMessage)
    entry.message = message
    entry.position = position
    entry.epoch = 0
    entry.redelivered = False
    entry.attempts = 0
    entry.expires_ms = 0
    entry.queue = None
    entry.consumer = None
    return entry


def address_of(exchange: str, routing_key: str) -> bytes:
    """The two short strings that publish, deliver, get-ok and return share."""
    name = exchange.encode("utf-8", "surrogateescape")
    key = routing_key.encode("utf-8", "surrogateescape")
    return bytes((len(name),)) + name + bytes((len(key),)) + key
