"""A stream: a queue that forgets nothing when it is read, with as many readers as there are, each at its own pace.

Every message has an offset, and every consumer a cursor. Readers get only what is as safe as its confirm would say, so
an offset that was ever seen means the same message for ever. An ack gives credit back and does nothing else. Limits of
size and age are the store's affair: it says what is gone.

While there are readers, the newest messages are in memory for them, up to a limit; once all of them have had a message
it goes. What is older is read from the store, page by page. So a stream costs no memory per message.

Owned by the loop thread. Compiled when the package is built (stream.pxd).
"""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

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

# Memory that the newest messages of a stream may take; less where all messages together take more than the budget.
TAIL_LIMIT = 1 << 20
SMALL_TAIL_LIMIT = 64 << 10
MEMORY_BUDGET = 96 << 20
# Memory that a reader without credit may hold of the page it was in.
CURSOR_LIMIT = 64 << 10
# A turn looks at this many messages that a filter leaves out; asking the store for a page counts as several.
SCAN_LIMIT = 8192
READ_COST = 64
# The same as C integers.
_SCAN_LIMIT = SCAN_LIMIT
_READ_COST = READ_COST
_TAIL_LIMIT = TAIL_LIMIT
_SMALL_TAIL_LIMIT = SMALL_TAIL_LIMIT
_MEMORY_BUDGET = MEMORY_BUDGET
_CURSOR_LIMIT = CURSOR_LIMIT

_DROPPED = schema.DROPPED
_DUPLICATE = schema.R_DUPLICATE

# What stands in a channel's ledger in place of a message that was delivered: an ack needs no more than that it was.
_NO_MESSAGE = Message(b"", b"", b"")


class Cursor:
    """How far one consumer has read: `position` is what it gets next, -1 while the store looks for it.

    `messages`, from position `first` on, are the page that it reads, unless it reads the newest. With a `filter` it
    passes over messages without spending credit; with `tracked` the stream remembers how far it has come.
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
        self.is_shrunk = False  # of the page only the next few messages are left
        self.is_reading = False  # the store was asked and has not answered yet

    def page_arrived(self, first: int, messages: list[Message]) -> None:
        """The page that was asked for."""
        if self.is_reading:
            self.is_reading = False
            if messages:
                self.first = first
                self.messages = messages
                self.is_shrunk = False
            else:
                first = max(first, self.position + 1)  # pass over what cannot be read
            if first > self.position:
                self.position = first
            self.stream.cursor_ready(self)

    def shrink(self) -> None:
        """Hold on to the next few messages only: many who wait must not hold many pages."""
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
        """The place that was looked for."""
        if self.is_reading:
            self.is_reading = False
            self.position = position
            self.stream.cursor_ready(self)


class Stream(Queue):
    """One stream. `readable` is the first position that readers may not have yet."""

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
        self.reads: dict[PendingRead, None] = {}  # those that the store has not answered yet
        self._ready: dict[Cursor, None] = {}  # to be served before the turn ends
        self._caught_up: dict[Cursor, None] = {}  # have had all that there is
        self._last_served: Cursor | None = None
        self._scan_left = 0  # how many more messages filters may leave out in this dispatch
        self._over_limit: dict[Cursor, None] = {}  # go on in the next turn: the limit is reached
        self._reading_for: Cursor | None = None  # for whom the store is being asked right now
        self._tail: list[Message] = []  # the newest, from this position on:
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
        """Append a message past the commit log (StreamStore.append_unlogged). Gives its offset."""
        position = self.next_position
        self.next_position = position + 1
        self.stats.ready += 1
        if self.cursors:  # before the store has it: that may say at once that it is readable
            self._add_to_tail(message, position)
        else:
            self._tail_first = position + 1
        self.store.append_unlogged(enqueue_as(message, position), done)
        if self.durability_level == NOTHING:
            self.make_readable(position + 1)
        return position

    def make_readable(self, end: int) -> None:
        """The store's word: what stands before this position is as safe as was promised."""
        if end > self.readable:
            self.readable = end
            if self._caught_up:
                self._wake_caught_up()
                self.dispatch()

    def forget_before(self, first: int) -> None:
        """The store's word: what stood before this position is gone. Readers that were there go on behind it."""
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
        """Let the older half go: who has not read it reads it from the store."""
        excess = self._tail_bytes // 2
        count = 0
        for message in self._tail:
            if excess <= 0:
                break
            excess -= message.footprint()
            count += 1
        self._trim_tail(count)

    def _trim_tail(self, count: int) -> None:
        """Let the oldest go. What stays is a new list: a reader may be in the middle of the old one."""
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
        """Serve everyone who waits, as far as there is credit and the pages are here."""
        self.is_due = False
        self._scan_left = _SCAN_LIMIT
        while self._ready:
            ready, self._ready = self._ready, {}
            if len(ready) > 1 and self._last_served in ready:
                # Those behind the same socket take turns.
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
        """Go on in the next turn; the cursor that reached the limit in this one comes last."""
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
                consumer.is_waiting = False  # whoever gives it credit wakes it
                if cursor.messages is not None and not cursor.is_shrunk:
                    cursor.shrink()
                return
            if cursor.filter is not None and self._scan_left <= 0:
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
                if cursor.filter is None:
                    self.store.read(position, cursor.page_arrived)
                else:
                    self._scan_left -= _READ_COST
                    self.store.read(position, cursor.page_arrived, cursor.filter.needles)
                self._reading_for = None
                if cursor.is_reading:
                    return

    def _send(self, cursor: Cursor, messages: list[Message], first: int) -> None:
        """Send what is in this list, as far as there is credit; there is for one."""
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
            if filter is not None and not filter.accepts(message.header):
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
                entry.epoch = 1  # its ack is work for the log
            consumer.unacked += 1
            self.count_unacked()
            self.stats.delivered += 1
            consumer.outbox.deliver(consumer.channel_number, consumer.wire_tag, ledger.add(entry), False, message)
            if not consumer.has_credit():
                return

    def cursor_ready(self, cursor: Cursor) -> None:
        """The store has answered."""
        if cursor is not self._reading_for:  # or else `_serve` goes on by itself
            self._ready[cursor] = None
            self.dispatch()

    def get(self) -> QueuedMessage | None:
        raise NotImplementedHere(f"basic.get not supported by stream queues {self._named()}")

    # -- readers inside the broker -----------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """The offset of the oldest message that is kept, or of the next one if there is none."""
        return self.store.first_position

    def read(self, offset: int, receive: Callable[[int, list[Message]], None]) -> None:
        """Call `receive` once, now or later, with the readable messages from this offset on: one page at most.

        What retention removed and what cannot be read is skipped, so `receive` may get a higher offset. If it gets no
        messages, nothing before that offset can be read, and there may be more from there on. Messages carry their
        offsets in a header. A stream that is deleted answers without messages.
        """
        if self.is_deleted or offset >= self.readable:
            receive(offset, [])
            return
        read = PendingRead(self, offset, receive)
        self.reads[read] = None
        self.store.read(offset, read.page_arrived)

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, entry: QueuedMessage) -> None:
        """A delivery was acked: the reader may have one more."""
        self.unacked_count -= 1
        self.stats.unacked -= 1
        if entry.epoch != 0 and self.offsets is not None:
            self.offsets.settle(entry, self.store.first_position)
        self.release(entry)

    def requeue(self, entries: list[QueuedMessage], actor: object = None, reason: int = 0) -> None:
        """Deliveries of a channel that is closed: there is nothing to put back."""
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
        """Refuse what RabbitMQ refuses; who asks for a stream of its own gets it like everybody else."""
        for name in ("x-priority", "x-cancel-on-ha-failover", "x-consumer-timeout"):
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
        """Let it read from where it asked to."""
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
        """Where a consumer begins, as `parse_offset` has it; a tracked one that comes back goes on where it was."""
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
        """There is more."""
        if self._ready:
            self._ready.update(self._caught_up)
        else:
            self._ready = self._caught_up
        self._caught_up = {}

    def remove_consumer(self, consumer: Consumer) -> None:
        consumer.is_waiting = False  # it never stood in the ring
        cursor = self.cursors.pop(consumer, None)
        if cursor is not None:
            cursor.is_reading = False  # what comes for it now comes too late
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
    """Where to read from: "first", "last", "next", a "number", a "time" or an "age" in ms. None: this is no offset."""
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
