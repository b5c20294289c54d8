"""The schema of events, version 2: kinds, reasons, columns.

One event is one row. Codes of kinds and reasons are numbers on disk and names everywhere else. A new kind or reason is
appended to its list and needs no new version: readers show a code that they do not know as a number. A new or changed
column does, with a fixture of the old one (docs/formats/events.md).
"""

from dataclasses import dataclass

VERSION = 2

STREAM_NAME = "warren.events"
CONTENT_TYPE = "application/vnd.apache.arrow.stream"

# Headers of the message that carries a batch.
HEADER_VERSION = "x-warren-events-version"
HEADER_ROWS = "x-warren-events-rows"
HEADER_FIRST = "x-warren-events-first"  # least and greatest time, us since 1970
HEADER_LAST = "x-warren-events-last"
# The broker counts its rows, also over a start. In no other batch are those from this number to that.
HEADER_FROM = "x-warren-events-from"
HEADER_TO = "x-warren-events-to"

PUBLISHED = 1
ROUTED = 2
UNROUTABLE = 3
RETURNED = 4
ENQUEUED = 5
DELIVERED = 6
ACKED = 7
NACKED = 8
REJECTED = 9
REQUEUED = 10
RETRIED = 11
EXPIRED = 12
DROPPED = 13
DEAD_LETTERED = 14
SCHEDULED = 15
CONFIRMED = 16
TX_COMMITTED = 17
TX_ROLLED_BACK = 18
CONNECTION_OPENED = 19
CONNECTION_CLOSED = 20
CHANNEL_OPENED = 21
CHANNEL_CLOSED = 22
CONSUMER_OPENED = 23
CONSUMER_CLOSED = 24
QUEUE_DECLARED = 25
QUEUE_DELETED = 26
EXCHANGE_DECLARED = 27
EXCHANGE_DELETED = 28
REPUBLISHED = 29

KIND_NAMES = {
    PUBLISHED: "published",
    ROUTED: "routed",
    UNROUTABLE: "unroutable",
    RETURNED: "returned",
    ENQUEUED: "enqueued",
    DELIVERED: "delivered",
    ACKED: "acked",
    NACKED: "nacked",
    REJECTED: "rejected",
    REQUEUED: "requeued",
    RETRIED: "retried",
    EXPIRED: "expired",
    DROPPED: "dropped",
    DEAD_LETTERED: "dead_lettered",
    SCHEDULED: "scheduled",
    CONFIRMED: "confirmed",
    TX_COMMITTED: "tx_committed",
    TX_ROLLED_BACK: "tx_rolled_back",
    CONNECTION_OPENED: "connection_opened",
    CONNECTION_CLOSED: "connection_closed",
    CHANNEL_OPENED: "channel_opened",
    CHANNEL_CLOSED: "channel_closed",
    CONSUMER_OPENED: "consumer_opened",
    CONSUMER_CLOSED: "consumer_closed",
    QUEUE_DECLARED: "queue_declared",
    QUEUE_DELETED: "queue_deleted",
    EXCHANGE_DECLARED: "exchange_declared",
    EXCHANGE_DELETED: "exchange_deleted",
    REPUBLISHED: "republished",
}
KIND_CODES = {name: code for code, name in KIND_NAMES.items()}

# Why it happened, where the kind alone does not say it.
R_REJECTED = 1  # by a consumer, not to be requeued
R_EXPIRED = 2  # its time to live was over
R_MAXLEN = 3  # the queue was too long
R_DELIVERY_LIMIT = 4  # delivered too often
R_NO_ROUTE = 5  # no queue was bound to the key
R_NO_CONSUMERS = 6  # nobody was there to take it at once
R_PURGED = 7
R_QUEUE_DELETED = 8
R_CONSUMER_CANCELLED = 9
R_CHANNEL_CLOSED = 10
R_CONNECTION_CLOSED = 11
R_RECOVERED = 12  # basic.recover
R_RESTARTED = 13  # the broker started anew
R_CLIENT = 14  # as the client asked
R_ERROR = 15  # the client broke a rule
R_HEARTBEAT = 16  # the client was silent for too long
R_SHUTDOWN = 17  # the broker was stopped
R_AUTO_DELETE = 18  # the last one that used it is gone
R_UNUSED = 19  # nobody used it for too long
R_AUTO_ACK = 20  # delivered to a consumer that does not ack
R_DUPLICATE = 21  # seen before
R_RETRIES_EXHAUSTED = 22
R_REFUSED = 23  # a full queue rejected the publish
R_CYCLE = 24  # a dead letter that would go around endlessly

REASON_NAMES = {
    R_REJECTED: "rejected",
    R_EXPIRED: "expired",
    R_MAXLEN: "maxlen",
    R_DELIVERY_LIMIT: "delivery_limit",
    R_NO_ROUTE: "no_route",
    R_NO_CONSUMERS: "no_consumers",
    R_PURGED: "purged",
    R_QUEUE_DELETED: "queue_deleted",
    R_CONSUMER_CANCELLED: "consumer_cancelled",
    R_CHANNEL_CLOSED: "channel_closed",
    R_CONNECTION_CLOSED: "connection_closed",
    R_RECOVERED: "recovered",
    R_RESTARTED: "restarted",
    R_CLIENT: "client",
    R_ERROR: "error",
    R_HEARTBEAT: "heartbeat",
    R_SHUTDOWN: "shutdown",
    R_AUTO_DELETE: "auto_delete",
    R_UNUSED: "unused",
    R_AUTO_ACK: "auto_ack",
    R_DUPLICATE: "duplicate",
    R_RETRIES_EXHAUSTED: "retries_exhausted",
    R_REFUSED: "refused",
    R_CYCLE: "cycle",
}
REASON_CODES = {name: code for code, name in REASON_NAMES.items()}

MAX_CODE = 127  # they are int8 on disk


def kind_name(code: int) -> str:
    """As shown; a kind of a later broker is shown by its number."""
    return KIND_NAMES.get(code) or f"kind-{code}"


def reason_name(code: int) -> str:
    return REASON_NAMES.get(code) or f"reason-{code}"


@dataclass(frozen=True, slots=True)
class Event:
    """One row. Times are microseconds since 1970 UTC; None is what is not known or does not apply."""

    time: int
    kind: int
    uid: int  # the broker's id of the message; 0: no message is concerned
    message_id: str | None = None  # the publisher's
    publish_time: int | None = None
    enqueue_time: int | None = None
    vhost: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    queue: str | None = None
    consumer: str | None = None
    connection: str | None = None
    channel: int | None = None
    size: int | None = None
    attempt: int | None = None  # which delivery this is; 1 is the first
    reason: int | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    source_uid: int | None = None  # the message that this one was made from
    depth: int | None = None  # how many wait in the queue after this
    priority: int | None = None  # the property of the message; None also where that is 0


# How a column lies in a batch.
TIME = "timestamp(us, UTC)"
INT8 = "int8"
INT32 = "int32"
INT64 = "int64"
TEXT = "utf8"
NAME = "dictionary(int16, utf8)"  # one dictionary for all of these


@dataclass(frozen=True, slots=True)
class Column:
    """A field of Event as an Arrow column."""

    name: str
    type: str
    is_nullable: bool = True


COLUMNS = (
    Column("time", TIME, is_nullable=False),
    Column("kind", INT8, is_nullable=False),
    Column("uid", INT64, is_nullable=False),
    Column("message_id", TEXT),
    Column("publish_time", TIME),
    Column("enqueue_time", TIME),
    Column("vhost", NAME),
    Column("exchange", NAME),
    Column("routing_key", NAME),
    Column("queue", NAME),
    Column("consumer", NAME),
    Column("connection", NAME),
    Column("channel", INT32),
    Column("size", INT32),
    Column("attempt", INT32),
    Column("reason", INT8),
    Column("correlation_id", TEXT),
    Column("trace_id", TEXT),
    Column("span_id", TEXT),
    Column("source_uid", INT64),
    Column("depth", INT32),
    Column("priority", INT32),
)
# Columns are only appended, so a version is the number of its columns; all of these can be read.
NUMBER_OF_COLUMNS = {1: 21, 2: 22}

_NUMBERS = {column.name: number for number, column in enumerate(COLUMNS)}


def column_number(name: str) -> int:
    return _NUMBERS[name]
