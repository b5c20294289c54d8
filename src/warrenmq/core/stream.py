"""A stream: an append-only log that any number of consumers read, each at its own pace.

Every message has an offset, every consumer a cursor. Consumers receive only messages that are as durable as their
confirm requires, so an offset that was seen once always means the same message. An ack only returns credit. The store
applies the retention limits, by size and age, and reports what it removed.

While there are consumers, the newest messages (the tail) are kept in memory up to a limit, until all consumers have
received them. Older messages are read from the store page by page, so a stream costs no memory per message.

Owned by the loop thread. Compiled when the package is built (stream.pxd).
"""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from warrenmq.core import retry_options
from warrenmq.core.arguments import parse_age
from warrenmq.core.consumer import Consumer
from warrenmq.core.errors import NotImplementedHere, PreconditionFailed
from warrenmq.core.message import Message, QueuedMessage, enqueue_as
from warrenmq.core.number_header import NAME as OFFSET_ARGUMENT
from warrenmq.core.number_header import NumberHeader
from warrenmq.core.options import QueueOptions
from warrenmq.core.outcome import DROPPED, QUEUED
from warrenmq.core.ports import NOTHING, EventSink, StreamStore
from warrenmq.core.queue import Queue
from warrenmq.core.routing.erlang_text import field_type, term
from warrenmq.core.stats import Stats
from warrenmq.core.stream_filter import StreamFilter, make_filter
from warrenmq.core.stream_filter import find_fault as find_fault_of_filter
from warrenmq.core.stream_offsets import MAX_TAGS, ConsumerOffset, StreamOffsets, is_tracked
from warrenmq.core.stream_offsets import find_fault as find_fault_of_tracking
from warrenmq.core.stream_read import PendingRead
from warrenmq.core.turn import Turn
from warrenmq.events import schema
from warrenmq.protocol.values import Timestamp

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel

# Memory limit of a stream's tail; the small one applies while all messages together exceed the budget.
TAIL_LIMIT = 1 << 20
SMALL_TAIL_LIMIT = 64 << 10
MEMORY_BUDGET = 96 << 20
# Memory limit of the page held for a consumer without credit.
CURSOR_LIMIT = 64 << 10
# Messages that filters may skip in one turn; reading a page from the store counts as several.
SCAN_LIMIT = 8192
READ_COST = 64
# As C integers.
_SCAN_LIMIT = SCAN_LIMIT
_READ_COST = READ_COST
_TAIL_LIMIT = TAIL_LIMIT
_SMALL_TAIL_LIMIT = SMALL_TAIL_LIMIT
_MEMORY_BUDGET = MEMORY_BUDGET
_CURSOR_LIMIT = CURSOR_LIMIT

_DROPPED = schema.DROPPED
_DUPLICATE = schema.R_DUPLICATE

# In place of a delivered message in the ledger, which needs only its position.
_NO_MESSAGE = Message(b"", b"", b"")


class Cursor:
    """The position of one consumer: `position` is the next one to deliver, -1 while the store searches for it.

    `messages`, from position `first` on, is the page being read, unless the cursor reads the tail. A `filter` skips
    messages without using credit, as does that of the consumer (`x-filter`); `tracked` is set if the stream stores the
    consumer's offset.
    """

    __slots__ = ("consumer", "filter", "first", "is_reading", "is_shrunk", "messages", "position", "stream", "tracked")

    def __init__(self, stream: "Stream", consumer: Consumer) -> None:
        self.stream = stream
        self.consumer = consumer
        self.filter: StreamFilter | None = make_filter(consumer.arguments)
        self.tracked: ConsumerOffset | None = None
        self.position = -1
        self.first = 0
        self.messages: list[Message] | None = None
        self.is_shrunk = False  # the page was cut to its next few messages
        self.is_reading = False  # a read from the store is pending

    def page_arrived(self, first: int, messages: list[Message]) -> None:
        """Take the page that was requested."""
        if self.is_reading:
            self.is_reading = False
            if messages:
                self.first = first
                self.messages = messages
                self.is_shrunk = False
            else:
                first = max(first, self.position + 1)  # skip what cannot be read
            if first > self.position:
                self.position = first
            self.stream.cursor_ready(self)

    def shrink(self) -> None:
        """Keep only the next few messages: many waiting consumers must not hold many pages."""
        messages = self.messages
        assert messages is not None
        begin = end = self.position - self.first
        size = 0
        while end < len(messages) and size < _CURSOR_LIMIT:
            size += messages[end].footprint()
            end += 1
        self.messages = messages[begin:end]
        self.first = self.position
        self.is_shrunk = True

    def start_at(self, position: int) -> None:
        """Take the position that was searched for."""
        if self.is_reading:
            self.is_reading = False
            self.position = position
            self.stream.cursor_ready(self)


class Stream(Queue):
    """One stream. Positions before `readable` may be delivered."""

    __slots__ = (
        "_caught_up",
        "_last_served",
        "_offset_header",
        "_over_limit",
        "_reading_for",
        "_ready",
        "_restored_position",
        "_scan_left",
        "_tail",
        "_tail_bytes",
        "_tail_first",
        "cursors",
        "next_position",
        "offsets",
        "readable",
        "reads",
        "store",
    )

    def __init__(
        self,
        vhost: str,
        name: str,
        arguments: dict[str, Any],
        stats: Stats,
        turn: Turn,
        store: StreamStore,
        events: EventSink | None = None,
        options: QueueOptions | None = None,
    ) -> None:
        super().__init__(
            vhost, name, True, False, None, arguments, stats, turn, store.durability_level, events, options
        )
        self.store = store
        self.next_position = 0
        self._restored_position = 0
        self.readable = 0
        self.cursors: dict[Consumer, Cursor] = {}
        self.reads: dict[PendingRead, None] = {}
        self._ready: dict[Cursor, None] = {}  # to be served before the turn ends
        self._caught_up: dict[Cursor, None] = {}  # at the end of the stream
        self._last_served: Cursor | None = None
        self._scan_left = 0  # how many more messages filters may skip in this dispatch
        self._over_limit: dict[Cursor, None] = {}  # reached the scan limit; continue in the next turn
        self._reading_for: Cursor | None = None  # the cursor whose `store.read` is on the stack
        self._tail: list[Message] = []  # the newest messages, from this position on:
        self._tail_first = 0
        self._tail_bytes = 0
        self._offset_header = NumberHeader()
        self.offsets: StreamOffsets | None = None  # from the first tracked consumer on

    def apply(self, options: QueueOptions) -> None:
        self.options = options
        self.store.apply(options)

    def published(self) -> int:
        return self.next_position - self._restored_position

    def message_count(self) -> int:
        return self.next_position - self.store.first_position

    # -- messages in -------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> int:
        """Append the message, whatever its delivery mode. Return its outcome (core/outcome.py)."""
        if self.deduplication is not None and self.deduplication.has_seen(message.header):
            self.stats.deduplicated += 1
            if message.uid != 0:
                self.events.queue_event(_DROPPED, enqueue_as(message, self.next_position), self, None, _DUPLICATE)
            return DROPPED | self.durability_level
        position = self.next_position
        self.next_position = position + 1
        if message.uid != 0:
            self.events.enqueued(message, self, self.message_count())
        self.stats.ready += 1
        self.store.append(enqueue_as(message, position))
        if self.deduplication is not None:
            self.deduplication.record(position, True)
        if self.cursors:
            self._add_to_tail(message, position)
        else:
            self._tail_first = position + 1
        if self.durability_level == NOTHING:
            self.readable = position + 1
            if self._caught_up:
                self._wake_caught_up()
                self.make_due()
        return QUEUED | self.durability_level

    def enqueue_unlogged(self, message: Message, done: Callable[[], None]) -> int:
        """Append a message without the commit log (StreamStore.append_unlogged). Return its offset."""
        position = self.next_position
        self.next_position = position + 1
        self.stats.ready += 1
        if self.cursors:  # before the append, which may make it readable immediately
            self._add_to_tail(message, position)
        else:
            self._tail_first = position + 1
        self.store.append_unlogged(enqueue_as(message, position), done)
        if self.durability_level == NOTHING:
            self.make_readable(position + 1)
        return position

    def make_readable(self, end: int) -> None:
        """Deliver positions before `end`; called by the store when they have reached the durability level."""
        if end > self.readable:
            self.readable = end
            if self._caught_up:
                self._wake_caught_up()
                self.dispatch()

    def forget_before(self, first: int) -> None:
        """Record that retention removed everything before this position; cursors there skip ahead."""
        gone = first - self.store.first_position
        self.store.first_position = first
        self.stats.ready -= gone
        if self.offsets is not None:
            self.offsets.forget_before(first)

    def waiting_bytes(self) -> int:
        return self._tail_bytes

    def restore(self) -> None:
        self.next_position = self._restored_position = self.store.open(self)
        self.readable = self.next_position
        self._tail_first = self.next_position
        self.stats.ready += self.message_count()
        offsets = StreamOffsets(self.store.offsets, self.stats)
        offsets.restore(self.store.first_position, self.next_position)
        if offsets.stored:
            self.offsets = offsets

    # -- the newest messages, in memory ------------------------------------------------------------------------------

    def _add_to_tail(self, message: Message, position: int) -> None:
        message = self._offset_header.stamp(message, position)
        size = message.footprint()
        self._tail.append(message)
        self._tail_bytes += size
        self.stats.held_bytes += size
        if self._tail_bytes > _SMALL_TAIL_LIMIT and (
            self._tail_bytes > _TAIL_LIMIT or self.stats.held_bytes > _MEMORY_BUDGET
        ):
            self._halve_tail()

    def _halve_tail(self) -> None:
        """Drop the older half of the tail; consumers that have not read it read it from the store."""
        excess = self._tail_bytes // 2
        count = 0
        for message in self._tail:
            if excess <= 0:
                break
            excess -= message.footprint()
            count += 1
        self._trim_tail(count)

    def _trim_tail(self, count: int) -> None:
        """Drop the oldest messages of the tail. Make a new list: `_send` may be iterating over the old one."""
        tail = self._tail
        self._tail_first += count
        if count == len(tail):
            size = self._tail_bytes
            self._tail = []
        else:
            size = 0
            for index in range(count):
                size += tail[index].footprint()
            self._tail = tail[count:]
        self._tail_bytes -= size
        self.stats.held_bytes -= size

    # -- messages out ------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Serve the ready cursors, as far as they have credit and their pages are in memory."""
        self.is_due = False
        self._scan_left = _SCAN_LIMIT
        while self._ready:
            ready, self._ready = self._ready, {}
            if len(ready) > 1 and self._last_served in ready:
                # Consumers of one socket take turns.
                last_served = self._last_served
                del ready[last_served]
                ready[last_served] = None
            for cursor in ready:
                if cursor.consumer in self.cursors:
                    self._serve(cursor)
        if self._over_limit:
            self._defer()
        if self.readable > self._tail_first and len(self._caught_up) == len(self.cursors):
            self._trim_tail(min(len(self._tail), self.readable - self._tail_first))

    def _defer(self) -> None:
        """Continue in the next turn; the cursor that reached the limit in this one comes last."""
        self._ready, self._over_limit = self._over_limit, {}
        cursor = next(iter(self._ready))
        del self._ready[cursor]
        self._ready[cursor] = None
        self.turn.deferred[self] = None

    def _serve(self, cursor: Cursor) -> None:
        consumer = cursor.consumer
        while True:
            position = cursor.position
            if position >= self.readable:
                cursor.messages = None
                self._caught_up[cursor] = None
                return
            if not consumer.has_credit():
                consumer.is_waiting = False  # woken when it gets credit
                if cursor.messages is not None and not cursor.is_shrunk:
                    cursor.shrink()
                return
            if self._scan_left <= 0 and (cursor.filter is not None or consumer.filter is not None):
                self._over_limit[cursor] = None
                return
            if position >= self._tail_first:
                cursor.messages = None
                self._send(cursor, self._tail, self._tail_first)
            elif cursor.messages is not None and position - cursor.first < len(cursor.messages):
                self._send(cursor, cursor.messages, cursor.first)
            else:
                cursor.messages = None
                cursor.is_reading = True
                self._reading_for = cursor
                if cursor.filter is not None or consumer.filter is not None:
                    self._scan_left -= _READ_COST
                if cursor.filter is None:
                    self.store.read(position, cursor.page_arrived)
                else:
                    self.store.read(position, cursor.page_arrived, cursor.filter.needles)
                self._reading_for = None
                if cursor.is_reading:
                    return

    def _send(self, cursor: Cursor, messages: list[Message], first: int) -> None:
        """Send messages of this list, as far as there is credit; there is for at least one."""
        self._last_served = cursor
        consumer = cursor.consumer
        ledger = consumer.ledger
        filter = cursor.filter
        index = cursor.position - first
        end = min(len(messages), self.readable - first)
        while index < end:
            message = messages[index]
            index += 1
            cursor.position = first + index
            if (filter is not None and not filter.accepts(message.header)) or (
                consumer.filter is not None and not consumer.filter.accepts(message.header)
            ):
                self._scan_left -= 1
                if self._scan_left <= 0:
                    return
                continue
            entry = enqueue_as(_NO_MESSAGE, first + index - 1)
            if message.uid != 0 or self.is_tapped:
                entry = enqueue_as(message, first + index - 1)
                entry.attempts = 1
                self.emit_delivered(entry, consumer, False)
            entry.consumer = consumer
            entry.queue = self
            if cursor.tracked is not None:
                cursor.tracked.deliver(entry.position)
                entry.epoch = 1  # its ack changes the stored offset
            consumer.unacked += 1
            if consumer.pace is not None:
                consumer.pace.use_credit()
            self.count_unacked()
            self.stats.delivered += 1
            consumer.outbox.deliver(consumer.channel_number, consumer.wire_tag, ledger.add(entry), False, message)
            if not consumer.has_credit():
                return

    def cursor_ready(self, cursor: Cursor) -> None:
        """Serve a cursor whose page arrived or whose position was found."""
        if cursor is not self._reading_for:  # otherwise `_serve` is on the stack and continues
            self._ready[cursor] = None
            self.dispatch()

    def get(self) -> QueuedMessage | None:
        raise NotImplementedHere(f"basic.get not supported by stream queues {self._named()}")

    # -- readers inside the broker -----------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """The offset of the oldest stored message, or of the next one if there is none."""
        return self.store.first_position

    def read(self, offset: int, receive: Callable[[int, list[Message]], None]) -> None:
        """Call `receive` once, now or later, with readable messages from this offset on: one page at most.

        Removed and unreadable messages are skipped, so `receive` may get a higher offset. Without messages, nothing
        before that offset is readable, but there may be more after it. Messages carry their offset header. A read of a
        deleted stream returns no messages.
        """
        if self.is_deleted or offset >= self.readable:
            receive(offset, [])
            return
        read = PendingRead(self, offset, receive)
        self.reads[read] = None
        self.store.read(offset, read.page_arrived)

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, entry: QueuedMessage) -> None:
        """Return the credit of an acked delivery, and record the offset of a tracked consumer."""
        self.unacked_count -= 1
        self.stats.unacked -= 1
        if entry.epoch != 0 and self.offsets is not None:
            self.offsets.settle(entry, self.store.first_position)
        self.release(entry)

    def requeue(self, entries: list[QueuedMessage], actor: object = None, reason: int = 0) -> None:
        """Release the deliveries of a closed channel; nothing returns to the stream."""
        self.unacked_count -= len(entries)
        self.requeued += len(entries)
        self.stats.unacked -= len(entries)
        if self.offsets is not None:
            self.offsets.channel_closed(entries)
        for entry in entries:
            self.release(entry)

    def require_requeueable(self) -> None:
        raise NotImplementedHere(f"basic.nack and basic.reject not supported by stream queues {self._named()}")

    def purge(self, reason: int = 0) -> int:
        raise NotImplementedHere(f"queue.purge not supported by stream queues {self._named()}")

    # -- consumers ---------------------------------------------------------------------------------------------------

    def validate_consumer(
        self, channel: "Channel", no_ack: bool, is_exclusive: bool, arguments: dict[str, Any]
    ) -> None:
        """Refuse what RabbitMQ refuses; like there, an exclusive consumer is accepted and not exclusive."""
        for name in ("x-priority", "x-cancel-on-ha-failover", "x-consumer-timeout", *retry_options.ARGUMENTS):
            if name in arguments:
                raise PreconditionFailed(f"invalid arg '{name}' for {self._named()} of queue type rabbit_stream_queue")
        if channel.default_prefetch == 0:
            raise PreconditionFailed(f"consumer prefetch count is not set for '{self._named()}'")
        if no_ack:
            raise NotImplementedHere(f"automatic acknowledgement not supported by stream queues {self._named()}")
        if channel.ledger.prefetch != 0:
            raise NotImplementedHere(f"{self._named()} does not support global qos")
        if OFFSET_ARGUMENT in arguments and parse_offset(arguments[OFFSET_ARGUMENT]) is None:
            value = arguments[OFFSET_ARGUMENT]
            raise PreconditionFailed(
                f"invalid arg '{OFFSET_ARGUMENT}' for {self._named()}: "
                f"{{invalid_stream_offset_arg,{{{field_type(value)},{term(value)}}}}}"
            )
        fault = find_fault_of_filter(arguments) or find_fault_of_tracking(arguments)
        if fault is not None:
            raise PreconditionFailed(f"invalid arg '{fault[0]}' for {self._named()}: {fault[1]}")
        if self.offsets is not None and is_tracked(arguments) and not self.offsets.has_room():
            raise PreconditionFailed(f"{self._named()} tracks the offsets of {MAX_TAGS} consumers at most")

    def add_consumer(self, consumer: Consumer) -> None:
        """Start reading at the offset that the consumer asked for."""
        Queue.add_consumer(self, consumer)
        consumer.is_waiting = True
        cursor = self.cursors[consumer] = Cursor(self, consumer)
        kind, number = self._find_start(consumer, cursor)
        if kind == "time" or kind == "age":
            cursor.is_reading = True
            self.store.find_time(number if kind == "time" else self.turn.now_ms - number, cursor.start_at)
            return
        if kind == "first":
            cursor.position = self.store.first_position
        elif kind == "next":
            cursor.position = self.next_position
        elif kind == "last":
            cursor.position = max(self.store.first_position, self.next_position - 1)
        else:
            cursor.position = max(0, number)
        self._ready[cursor] = None
        self.make_due()

    def _find_start(self, consumer: Consumer, cursor: Cursor) -> tuple[str, int]:
        """Return where a consumer starts, as `parse_offset` does; a tracked one resumes at its stored offset."""
        asked = consumer.arguments.get(OFFSET_ARGUMENT, "next")
        if is_tracked(consumer.arguments):
            if self.offsets is None:
                self.offsets = StreamOffsets(self.store.offsets, self.stats)
            cursor.tracked = self.offsets.track(consumer, cursor)
            if consumer.tag in self.offsets.stored:
                return "number", self.offsets.stored[consumer.tag]
            asked = consumer.arguments.get(OFFSET_ARGUMENT, "first")
        offset = parse_offset(asked)
        assert offset is not None
        return offset

    def wake(self, consumer: Consumer) -> None:
        """The consumer may have credit again."""
        cursor = self.cursors.get(consumer)
        if cursor is not None and not consumer.is_waiting:
            consumer.is_waiting = True
            self._ready[cursor] = None
            self.make_due()

    def make_due(self) -> None:
        if not self.is_due and self._ready:
            self.is_due = True
            self.turn.due.append(self)

    def _wake_caught_up(self) -> None:
        """Make all cursors at the end of the stream ready: there are new messages."""
        if self._ready:
            self._ready.update(self._caught_up)
        else:
            self._ready = self._caught_up
        self._caught_up = {}

    def remove_consumer(self, consumer: Consumer) -> None:
        consumer.is_waiting = False  # streams do not use the ring
        cursor = self.cursors.pop(consumer, None)
        if cursor is not None:
            cursor.is_reading = False  # ignore a page that arrives now
            cursor.messages = None
            self._ready.pop(cursor, None)
            self._caught_up.pop(cursor, None)
            if self._last_served is cursor:
                self._last_served = None
            if self.offsets is not None:
                self.offsets.consumer_cancelled(consumer)
            if not self.cursors:
                self._trim_tail(len(self._tail))
        Queue.remove_consumer(self, consumer)

    def drop_everything(self) -> int:
        dropped = self.message_count()
        self.stats.ready -= dropped
        if self.offsets is not None:
            self.offsets.delete()
            self.offsets = None
        self.store.delete()
        reads, self.reads = self.reads, {}
        for read in reads:
            read.abort()
        return dropped

    def _named(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost}'"


def parse_offset(value: Any) -> tuple[str, int] | None:
    """Return the kind of offset and its value: "first", "last", "next", "number", "time" or "age" in ms; else None."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        if value in ("first", "last", "next"):
            return value, 0
        age = parse_age(value)
        return None if age is None else ("age", age)
    if isinstance(value, datetime):
        return "time", int(value.timestamp() * 1000)
    if isinstance(value, Timestamp):
        return "time", value * 1000
    if isinstance(value, int) and not isinstance(value, bool):
        return "number", value
    return None
