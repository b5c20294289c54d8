"""The schema of events, version 3: kinds, reasons, columns.

One event is one row. Kinds and reasons are numbers on disk and names everywhere else. A new kind or reason needs no new
version: readers show an unknown code as a number. A new or changed column does, with a fixture of the old version
(docs/formats/events.md).
"""

from dataclasses import dataclass
from typing import Annotated, Any, get_args

# Kinds and reasons: the name of each is that of its constant in lower case.
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
NOTED = 30  # the application's own line

KIND_NAMES = {code: name.lower() for name, code in [*globals().items()] if isinstance(code, int)}
KIND_CODES = {name: code for code, name in KIND_NAMES.items()}

# Why it happened, where the kind alone leaves that open.
R_REJECTED = 1  # by a consumer, without requeue
R_EXPIRED = 2  # its TTL ended
R_MAXLEN = 3  # the queue was full
R_DELIVERY_LIMIT = 4  # delivered too often
R_NO_ROUTE = 5  # no binding matched
R_NO_CONSUMERS = 6  # no consumer could take it at once
R_PURGED = 7
R_QUEUE_DELETED = 8
R_CONSUMER_CANCELLED = 9
R_CHANNEL_CLOSED = 10
R_CONNECTION_CLOSED = 11
R_RECOVERED = 12  # basic.recover
R_RESTARTED = 13  # the broker restarted
R_CLIENT = 14  # the client asked for it
R_ERROR = 15  # a protocol or application error of the client
R_HEARTBEAT = 16  # no heartbeat from the client
R_SHUTDOWN = 17  # the broker stopped
R_AUTO_DELETE = 18  # its last user is gone
R_UNUSED = 19  # x-expires
R_AUTO_ACK = 20  # delivered to a consumer that does not ack
R_DUPLICATE = 21  # deduplicated
R_RETRIES_EXHAUSTED = 22
R_REFUSED = 23  # a full queue rejected the publish
R_CYCLE = 24  # a dead letter would loop
R_CONSUMER_TIMEOUT = 25  # a consumer did not ack in time

REASON_NAMES = {code: name[2:].lower() for name, code in [*globals().items()] if name.startswith("R_")}
REASON_CODES = {name: code for code, name in REASON_NAMES.items()}

MAX_CODE = 127  # of kinds and reasons: int8 on disk

VERSION = 3

STREAM_NAME = "warren.events"
CONTENT_TYPE = "application/vnd.apache.arrow.stream"

# Headers of the message that carries a batch.
HEADER_VERSION = "x-warren-events-version"
HEADER_ROWS = "x-warren-events-rows"
HEADER_FIRST = "x-warren-events-first"  # min and max time, us since 1970
HEADER_LAST = "x-warren-events-last"
# The broker numbers its rows, across restarts too: the range of row numbers in this batch, and in no other.
HEADER_FROM = "x-warren-events-from"
HEADER_TO = "x-warren-events-to"


def kind_name(code: int) -> str:
    """Return the name to show; for a kind of a later version, its number."""
    return KIND_NAMES.get(code) or f"kind-{code}"


def reason_name(code: int) -> str:
    return REASON_NAMES.get(code) or f"reason-{code}"


# Types of columns in a batch.
TIME = "timestamp(us, UTC)"
INT8 = "int8"
INT32 = "int32"
INT64 = "int64"
TEXT = "utf8"
NAME = "dictionary(int16, utf8)"  # one dictionary for all of these

_Time = Annotated[int, TIME]
_Int8 = Annotated[int, INT8]
_Int32 = Annotated[int, INT32]
_Int64 = Annotated[int, INT64]
_Text = Annotated[str, TEXT]
_Name = Annotated[str, NAME]


@dataclass(frozen=True, slots=True)
class Event:
    """One row; its fields are the columns. Times are microseconds since 1970 UTC; None is unknown or not applicable."""

    time: _Time
    kind: _Int8
    uid: _Int64  # the broker's id of the message; 0: no message is concerned
    message_id: _Text | None = None  # the publisher's
    publish_time: _Time | None = None
    enqueue_time: _Time | None = None
    vhost: _Name | None = None
    exchange: _Name | None = None
    routing_key: _Name | None = None
    queue: _Name | None = None
    consumer: _Name | None = None
    connection: _Name | None = None
    channel: _Int32 | None = None
    size: _Int32 | None = None
    attempt: _Int32 | None = None  # the number of this delivery, from 1
    reason: _Int8 | None = None
    correlation_id: _Text | None = None
    trace_id: _Text | None = None
    span_id: _Text | None = None
    source_uid: _Int64 | None = None  # the message that this one was made from
    depth: _Int32 | None = None  # messages waiting in the queue after this event
    priority: _Int32 | None = None  # the message's property; None for 0
    note: _Text | None = None  # of `noted`: the application's text
    due_time: _Time | None = None  # of `scheduled` and `retried`: when the message is due
    retry_max: _Int32 | None = None  # of `retried`: how many retries the message has


@dataclass(frozen=True, slots=True)
class Column:
    """A field of Event as an Arrow column."""

    name: str
    type: str
    is_nullable: bool


def _column(name: str, hint: Any) -> Column:
    is_nullable = type(None) in get_args(hint)
    return Column(name, get_args(get_args(hint)[0] if is_nullable else hint)[1], is_nullable)


COLUMNS = tuple(_column(name, hint) for name, hint in Event.__annotations__.items())
COLUMNS_OF_VERSION = {1: 21, 2: 22, 3: 25}  # how many: columns are only appended, so all versions can be read

_NUMBERS = {column.name: number for number, column in enumerate(COLUMNS)}


def column_number(name: str) -> int:
    return _NUMBERS[name]
