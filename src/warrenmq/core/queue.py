"""A queue: what waits, who waits for it, and what is out unacked.

Messages stand in order of their position. A message that meets a waiting consumer never enters the line. Whatever
comes back (nack, reject, recover, a closed channel) returns to its old place. Of a long line only the head is in
memory.

Owned by the loop thread. Compiled when the package is built (queue.pxd).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warrenmq.core.consumer import Consumer, ConsumerRing
from warrenmq.core.deduplication import Deduplication
from warrenmq.core.errors import AccessRefused, PreconditionFailed
from warrenmq.core.line import Line
from warrenmq.core.message import Message, QueuedMessage, enqueue_as
from warrenmq.core.options import QueueOptions
from warrenmq.core.outcome import DELIVERED, DROPPED, QUEUED
from warrenmq.core.ports import NOTHING, EventSink, MessageStore, PageSizes, Recovered
from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel

# As C integers.
_DELIVERED = schema.DELIVERED
_REQUEUED = schema.REQUEUED
_DROPPED = schema.DROPPED
_AUTO_ACK = schema.R_AUTO_ACK
_DUPLICATE = schema.R_DUPLICATE


class Queue:
    """One classic queue. Names, ownership and lifetime are the virtual host's; the messages are the queue's."""

    __slots__ = (
        "_handed_out",
        "_page_out_at",
        "_page_waiters",
        "_sizes",
        "_tail_bytes",
        "_tail_out_at",
        "_window_bytes",
        "arguments",
        "consumers",
        "deduplication",
        "delivered",
        "delivered_no_ack",
        "events",
        "exclusive_consumer",
        "is_auto_delete",
        "is_deleted",
        "is_due",
        "is_durable",
        "is_tapped",
        "keeps",
        "name",
        "next_position",
        "options",
        "owner",
        "ready",
        "redelivered",
        "rejected",
        "requeued",
        "restored_position",
        "ring",
        "stats",
        "store",
        "turn",
        "unacked_count",
        "vhost",
    )

    def __init__(
        self,
        vhost: str,
        name: str,
        is_durable: bool,
        is_auto_delete: bool,
        owner: object,
        arguments: dict[str, Any],
        stats: Stats,
        turn: Turn,
        store: MessageStore | None = None,
        events: EventSink | None = None,
        options: QueueOptions | None = None,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.is_durable = is_durable
        self.is_auto_delete = is_auto_delete
        self.owner = owner  # the connection of an exclusive queue, else None
        self.arguments = arguments
        self.options = options or QueueOptions(is_durable=is_durable)
        self.stats = stats
        self.turn = turn
        self.store = store
        self.events = events or EventSink()
        self.is_tapped = False  # the firehose wants to hear of deliveries, whether the message is traced or not
        self.ready = Line()
        self.ring = ConsumerRing()
        self.consumers: dict[Consumer, None] = {}
        self.exclusive_consumer: Consumer | None = None
        self.is_deleted = False
        self.is_due = False  # will be dispatched at the end of the turn
        self.unacked_count = 0
        self.next_position = 0
        # Counters since the start; `core/snapshot.py` derives others from them.
        self.restored_position = 0  # the first that came since
        self.delivered = 0  # to be acked
        self.delivered_no_ack = 0
        self.redelivered = 0
        self.requeued = 0
        self.rejected = 0  # for good
        self.keeps = is_durable and store is not None  # its persistent messages
        self.deduplication: Deduplication | None = None
        self._handed_out = -1  # the highest position that was ever delivered
        self._window_bytes = 0  # of the part of the line that messages are taken from
        self._tail_bytes = 0  # of the part that stands behind what is paged out
        self._sizes = store.sizes if store is not None else None
        self._page_out_at = self._sizes.small_window if self._sizes is not None else 0  # no shorter line is looked at
        self._tail_out_at = self._sizes.page if self._sizes is not None else 0
        self._page_waiters: list[Callable[[], None]] = []
        if store is not None:
            store.attach(self)

    def apply(self, options: QueueOptions) -> None:
        """Keep to these options from now on."""
        self.options = options

    # -- messages in -------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> int:
        """Hand the message to a waiting consumer, or keep it; never waits. Return its outcome (core/outcome.py).

        In the middle of a settlement it is kept, and the queue is due.
        """
        if self.deduplication is not None and self.deduplication.has_seen(message.header):
            return self.drop_duplicate(message)
        position = self.next_position
        self.next_position = position + 1
        is_first = self.ready.is_empty()
        consumer = self.ring.next_ready(message) if is_first and not self.turn.is_settling else None
        if consumer is not None and consumer.no_ack:
            # Settled by being sent: there is nothing to keep.
            self.stats.delivered += 1
            self.delivered_no_ack += 1
            if message.uid != 0:
                self.events.passed(message, self, consumer)
            if self.is_tapped:
                self.events.tapped(enqueue_as(message, position), self, consumer)
            consumer.deliver_no_ack(message, False)
            if self.deduplication is not None:
                return DELIVERED | self.deduplication.note_passed(self.keeps and message.is_persistent())
            return DELIVERED
        if message.uid != 0:
            self.events.enqueued(message, self, 1 if is_first else self.ready.count() + 1)
        entry = enqueue_as(message, position)
        promise = NOTHING
        if self.keeps and message.is_persistent():
            # The store hears of it before anybody else: delivery and confirm belong to the same epoch or a later one.
            self.store.append(entry)  # type: ignore[union-attr]
            promise = self.store.promise  # type: ignore[union-attr]
        if self.deduplication is not None:
            self.deduplication.note(position, entry.epoch > 0)
        if consumer is not None:
            self.stats.held_bytes += message.footprint()
            self._hand_over(entry, consumer)
            return DELIVERED | promise
        self._let_wait(entry)
        if self.turn.is_settling:
            self.make_due()
        return QUEUED | promise

    def drop_duplicate(self, message: Message) -> int:
        """A message of this id was here before; the confirm of this one waits until that one is safe."""
        self.stats.deduplicated += 1
        if message.uid != 0:
            self.events.place_event(_DROPPED, enqueue_as(message, self.next_position), self, None, _DUPLICATE)
        return DROPPED | (self.store.promise if self.keeps and message.is_persistent() else NOTHING)  # type: ignore[union-attr]

    def _let_wait(self, entry: QueuedMessage) -> None:
        size = entry.message.footprint()
        self.stats.held_bytes += size
        self.stats.ready += 1
        self.ready.append(entry)
        if self.ready.paged != 0:
            self._tail_bytes += size
            if self._tail_bytes >= self._tail_out_at:
                self._page_out_tail(2 * self._sizes.page)  # type: ignore[union-attr]
            return
        self._window_bytes += size
        if self._sizes is not None and self._window_bytes >= self._page_out_at and self._window_bytes >= self._share(0):
            self._page_out_window(self._sizes)

    def restore(self, recovered: Recovered) -> None:
        """Take back what the store kept, before the first message."""
        for entry in recovered.entries:
            entry.redelivered = True  # it may have been delivered before the stop
        size = self._footprint_of(recovered.entries)
        self.stats.held_bytes += size
        if recovered.paged:
            self._tail_bytes = size
        else:
            self._window_bytes = size
        self.ready.begin_with(recovered.paged, recovered.entries)
        self.stats.ready += len(self.ready)
        self.next_position = self.restored_position = recovered.next_position
        if self.deduplication is not None and len(self.ready) == 0:
            self.deduplication.left_behind(-1)

    # -- paging: a long line is kept on disk but for its head --------------------------------------------------------

    def _share(self, coming: int) -> int:
        """How much of this line may be in memory when so many bytes more are: as much as is left for others.

        So some of the budget is always left, however many long lines there are.
        """
        sizes = self._sizes
        assert sizes is not None
        left = sizes.budget - self.stats.held_bytes - coming
        return min(sizes.window, max(sizes.small_window, left))

    def _page_out_window(self, sizes: PageSizes) -> None:
        """Keep the head of the line in memory, and whatever was delivered before or is on disk already.

        The rest leaves bit by bit as others arrive, so that the loop does not stall.
        """
        assert self.store is not None
        keep = min(sizes.kept, self._share(0) // 2)
        kept = self.ready.cut_window(keep, max(self.store.last_position(), self._handed_out))
        if kept == self._window_bytes:
            self._page_out_at = kept + sizes.page  # do not try again with every message
            return
        self._page_out_at = sizes.small_window
        self._tail_bytes = self._window_bytes - kept
        self._window_bytes = kept
        self._page_out_tail(sizes.page)

    def _page_out_tail(self, limit: int) -> None:
        """More leaves at once than has come since the last time: so the tail gets shorter."""
        assert self.store is not None
        leaving = self.ready.cut_tail(limit)
        size = self._footprint_of(leaving)
        self._note_tail(self._tail_bytes - size)
        self.stats.held_bytes -= size
        self.store.page_out(leaving)

    def _note_tail(self, size: int) -> None:
        """The tail is so long; the next bit leaves when it has grown."""
        self._tail_bytes = size
        if self._sizes is not None:
            self._tail_out_at = size + self._sizes.page

    def page_out_tail(self) -> None:
        """The store is about to write all it has: what stands behind the pages goes with it."""
        if self._tail_bytes:
            self._page_out_tail(self._tail_bytes)

    def paged_in(self, entries: list[QueuedMessage], lost: int = 0) -> None:
        """The next page is here; `lost` messages of it could not be read."""
        size = self._footprint_of(entries)
        self._window_bytes += size
        self.stats.held_bytes += size
        self.ready.page_in(entries)
        if lost:
            self.stats.ready -= lost
            self.ready.pages_are_gone(lost)
        if self.ready.paged == 0:
            self._window_bytes += self._tail_bytes
            self._note_tail(0)
        self.dispatch()
        if self._page_waiters:
            waiters, self._page_waiters = self._page_waiters, []
            for waiter in waiters:
                waiter()

    def needs_page(self) -> bool:
        """Whether messages wait, and none of them is in memory."""
        return self.ready.paged != 0 and not self.ready.has_first()

    def await_page(self, waiter: Callable[[], None]) -> None:
        """Call when the next page is here, or there is none any more."""
        self._page_waiters.append(waiter)
        self._ask_for_page()

    def _ask_for_page(self) -> None:
        store = self.store
        if store is None or store.is_reading or self.ready.paged == 0:
            return
        if self._window_bytes < self._sizes.read_below or self._is_short_again():  # type: ignore[union-attr]
            store.page_in()

    def _is_short_again(self) -> bool:
        """Whether the line would do without the disk, if those on it are as large as those in memory.

        A line that was long once and goes on being used would else take its way over the disk for ever.
        """
        in_memory = self._window_bytes + self._tail_bytes
        paged = in_memory * self.ready.paged // (self.ready.count() - self.ready.paged)
        return in_memory + paged < self._share(paged) * 3 // 4

    def _footprint_of(self, entries: list[QueuedMessage]) -> int:
        size = 0
        for entry in entries:
            size += entry.message.footprint()
        return size

    # -- messages out ------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Hand out what waits, as far as there are consumers with credit."""
        self.is_due = False
        ready = self.ready
        while True:
            entry = ready.first()
            if entry is None:
                break
            consumer = self.ring.next_ready(entry.message)
            if consumer is None:
                break
            ready.take_first()
            self.stats.ready -= 1
            self._window_bytes -= entry.message.footprint()
            self._hand_over(entry, consumer)
        if ready.paged != 0:
            self._ask_for_page()

    def get(self) -> QueuedMessage | None:
        """Take the first message out of the line for basic.get; the caller settles it or notes it as unacked."""
        entry = self.ready.take_first()
        if entry is not None:
            self.stats.ready -= 1
            self._window_bytes -= entry.message.footprint()
            if entry.position > self._handed_out:
                self._handed_out = entry.position
        if self.ready.paged != 0:
            self._ask_for_page()
        return entry

    def _hand_over(self, entry: QueuedMessage, consumer: Consumer) -> None:
        self.stats.delivered += 1
        if entry.redelivered:
            self.stats.redelivered += 1
            self.redelivered += 1
        entry.attempts += 1
        if entry.message.uid != 0 or self.is_tapped:
            self.tell_delivered(entry, consumer, consumer.no_ack)
        if consumer.no_ack:
            self.delivered_no_ack += 1
            self.discard(entry)
            consumer.deliver_no_ack(entry.message, entry.redelivered)
        else:
            if entry.position > self._handed_out:
                self._handed_out = entry.position
            self.note_unacked()
            consumer.deliver(entry)

    def tell_delivered(self, entry: QueuedMessage, who: object, is_settled: bool) -> None:
        """To a consumer, or to the channel that asked for it; settled by that if nobody has to ack it."""
        if entry.message.uid != 0:
            self.events.place_event(_DELIVERED, entry, self, who, _AUTO_ACK if is_settled else 0)
        if self.is_tapped:
            self.events.tapped(entry, self, who)

    def message_count(self) -> int:
        """Messages that wait; those of a stream stay, whoever reads them."""
        return len(self.ready)

    def note_unacked(self) -> None:
        """A delivery that is to be acked."""
        self.delivered += 1
        self.unacked_count += 1
        self.stats.unacked += 1

    # -- settling ----------------------------------------------------------------------------------------------------

    def discard(self, entry: QueuedMessage) -> None:
        """The message left the queue for good."""
        self.stats.held_bytes -= entry.message.footprint()
        if self.deduplication is not None:
            self.deduplication.left(entry.message.header, entry.position)
        if entry.epoch != 0:
            self.store.forget(entry)  # type: ignore[union-attr]

    def settle(self, entry: QueuedMessage) -> None:
        """An unacked message was acked, or rejected for good."""
        self.unacked_count -= 1
        self.stats.unacked -= 1
        if not self.is_deleted:
            self.discard(entry)
        else:
            self.stats.held_bytes -= entry.message.footprint()
        self._release(entry)

    def requeue(self, entries: list[QueuedMessage], who: object = None, reason: int = 0) -> None:
        """Put unacked messages back at their old places, marked as redelivered, without handing them out yet."""
        self.unacked_count -= len(entries)
        self.requeued += len(entries)
        self.stats.unacked -= len(entries)
        for entry in entries:
            if entry.message.uid != 0:
                self.events.place_event(_REQUEUED, entry, self, who, reason)
            entry.redelivered = True
        if self.is_deleted:
            for entry in entries:
                self.stats.held_bytes -= entry.message.footprint()
        else:
            self.ready.put_back(entries)
            self.stats.ready += len(entries)
            self._window_bytes += self._footprint_of(entries)
        for entry in entries:
            self._release(entry)

    def _release(self, entry: QueuedMessage) -> None:
        """The delivery is settled: its consumer may have one more."""
        entry.queue = None
        if entry.consumer is not None:
            consumer: Consumer = entry.consumer  # type: ignore[assignment]
            entry.consumer = None
            if consumer.give_back():
                self.wake(consumer)

    def require_returnable(self) -> None:
        """540 if what was delivered cannot be given back."""

    def purge(self, reason: int = schema.R_PURGED) -> int:
        """Drop all that waits; what is unacked stays. Gives the number dropped."""
        dropped = len(self.ready)
        for entry in self.ready:
            if entry.message.uid != 0:
                self.events.place_event(_DROPPED, entry, self, None, reason)
            self.discard(entry)
        if self.ready.paged != 0:
            assert self.store is not None
            self.store.forget_pages()
            if self.events.is_watching:  # nobody reads them for that: one event stands for all of them
                told = {"queue": self.name, "reason": reason, "depth": self.ready.paged}
                self.events.resource_event(_DROPPED, self.vhost, told)
        self.stats.ready -= dropped
        self.ready.clear()
        if self.deduplication is not None:
            # What is unacked stays, and was handed out: it stands before all that was on disk only.
            self.deduplication.left_behind(self._handed_out if self.unacked_count else -1)
        self._window_bytes = 0
        self._note_tail(0)
        waiters, self._page_waiters = self._page_waiters, []
        for waiter in waiters:
            waiter()
        return dropped

    # -- consumers ---------------------------------------------------------------------------------------------------

    def require_admissible(
        self, channel: "Channel", no_ack: bool, is_exclusive: bool, arguments: dict[str, Any]
    ) -> None:
        """Refuse a consumer that cannot be served as it asks to be."""
        if self.exclusive_consumer is not None or (is_exclusive and self.consumers):
            raise AccessRefused(f"queue '{self.name}' in vhost '{self.vhost}' in exclusive use")
        if "x-stream-offset" in arguments:
            raise PreconditionFailed(
                f"invalid arg 'x-stream-offset' for queue '{self.name}' in vhost '{self.vhost}' "
                f"of queue type rabbit_{self.options.type}_queue"
            )

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.stats.consumers += 1
        if consumer.is_exclusive:
            self.exclusive_consumer = consumer
        self.wake(consumer)

    def wake(self, consumer: Consumer) -> None:
        """The consumer may have credit again: let it wait for messages."""
        if consumer in self.consumers:
            self.ring.add(consumer)
            self.make_due()

    def make_due(self) -> None:
        """See to it that what waits is handed out before the turn ends."""
        if not self.is_due and not self.ready.is_empty():
            self.is_due = True
            self.turn.due.append(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        """It gets nothing more; what it holds unacked stays with its channel."""
        self.ring.remove(consumer)
        if consumer in self.consumers:
            del self.consumers[consumer]
            self.stats.consumers -= 1
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None

    def delete(self) -> tuple[int, list[Consumer]]:
        """Drop everything. Gives the number of messages dropped and the consumers to be told."""
        dropped = self.purge(schema.R_QUEUE_DELETED)
        consumers = list(self.consumers)
        for consumer in consumers:
            self.remove_consumer(consumer)
        self.is_deleted = True
        self.keeps = False
        if self.store is not None:
            self.store.delete()
            self.store = None
        self._forget_ids()
        return dropped, consumers

    def _forget_ids(self) -> None:
        if self.deduplication is not None:
            self.deduplication.delete()
            self.deduplication = None
