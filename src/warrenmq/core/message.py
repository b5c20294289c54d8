"""A message, and its entry in one queue.

A message is stored as it came from the wire; nothing in it is decoded before it is needed. A message in several queues
is one `Message` with one `QueuedMessage` for each queue.

Compiled when the package is built (message.pxd).
"""

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

from warrenmq.protocol import properties
from warrenmq.protocol.properties import BasicProperties, delivery_mode

# Memory of one waiting message besides its header and body: two objects, two bytes headers and a slot in the queue.
# Measured with benchmarks/run.py (row "bytes per queued message").
MESSAGE_OVERHEAD = 240

PERSISTENT = 2

# The same as C integers.
_OVERHEAD = MESSAGE_OVERHEAD
_PERSISTENT = PERSISTENT


@cython.freelist(1024)  # Cython silently ignores these decorators in message.pxd
@cython.cclass
class Message:
    """What a publisher sent. Immutable, except for the tracing fields and `queue_count`.

    `address` is the exchange and the routing key as two wire short strings, as publish, deliver, get-ok and return
    carry them; `header` is the payload of the content header frame. `size` is the length of the body: with many waiting
    messages each object is a cache miss, and `len(body)` would be one more. `queue_count` is the number of queues that
    hold the message in memory. `ttl_ms` is its expiration, -1 for none; only publish sets it. `blind_keys` are the
    routing keys of BCC, a header that is removed, as wire short strings: dead-lettering needs them. `has_deaths`: the
    broker dead-lettered the message and wrote its `x-death` header. `wants_report`: the producer may want a report
    (report.py); only publish sets it.

    Tracing: `uid` is the broker's id of a traced message, assigned at publish, and 0 otherwise. `publish_time` and
    `enqueue_time` are in us since 1970.
    """

    __slots__ = (
        "_header_size",
        "address",
        "blind_keys",
        "body",
        "enqueue_time",
        "has_deaths",
        "header",
        "publish_time",
        "queue_count",
        "size",
        "ttl_ms",
        "uid",
        "wants_report",
    )

    def __init__(self, address: bytes, header: bytes, body: bytes) -> None:
        self.address = address
        self.header = header
        self.body = body
        self.size = len(body)
        self._header_size = len(header)
        self.queue_count = 0
        self.blind_keys = b""
        self.has_deaths = False
        self.wants_report = False
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

    def with_header(self, header: bytes) -> "Message":
        """Return the same message with another content header."""
        copy = make_message(self.address, header, self.body)
        copy.blind_keys = self.blind_keys
        copy.has_deaths = self.has_deaths
        copy.wants_report = self.wants_report
        copy.ttl_ms = self.ttl_ms
        copy.uid = self.uid
        copy.publish_time = self.publish_time
        copy.enqueue_time = self.enqueue_time
        return copy

    def is_persistent(self) -> bool:
        return delivery_mode(self.header) == _PERSISTENT

    def footprint(self) -> int:
        """Return the bytes of memory that the message takes while it waits."""
        return self.size + self._header_size + _OVERHEAD

    def shared_size(self) -> int:
        """Return the part of the footprint that all its queues share: the header and the body."""
        return self.size + self._header_size


@cython.no_gc  # no cycle lasts: queue and consumer are set while it is unacked, and a ledger is emptied on close
@cython.freelist(1024)
@cython.cclass
class QueuedMessage:
    """A message in one queue. Its position never changes, so a requeued message returns to its old position.

    `queue` and `consumer` are set only while it is unacked (consumer None: fetched with basic.get). `epoch` is the
    epoch of the commit log that stores it; 0: in memory only; -1: a transient message that was paged out, whose page
    must be updated when it is removed. `attempts` counts deliveries. `expires_ms` is in ms since 1970; 0: never.
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
    """Create a Message without a Python call when compiled.

    With `enqueue_as`: 0.62 -> 0.57 us of broker CPU per 16 B message, medians of 4 interleaved runs on a busy machine.
    """
    message = Message.__new__(Message)
    message.address = address
    message.header = header
    message.body = body
    message.size = len(body)
    message._header_size = len(header)
    message.queue_count = 0
    message.blind_keys = b""
    message.has_deaths = False
    message.wants_report = False
    message.ttl_ms = -1
    message.uid = 0
    message.publish_time = 0
    message.enqueue_time = 0
    return message


def enqueue_as(message: Message, position: int) -> QueuedMessage:
    """Create a QueuedMessage in the same way."""
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


def ended_attempts(entry: QueuedMessage) -> int:
    """Return the number of deliveries without the one that is unacked now: what is stored.

    Not a method: a table of C methods would make each entry larger, which costs durable messages 4 % of CPU.
    """
    return entry.attempts if entry.queue is None else entry.attempts - 1


def address_of(exchange: str, routing_key: str) -> bytes:
    """Encode exchange and routing key as publish, deliver, get-ok and return carry them."""
    name = exchange.encode("utf-8", "surrogateescape")
    key = routing_key.encode("utf-8", "surrogateescape")
    return bytes((len(name),)) + name + bytes((len(key),)) + key
