"""The backlog of a queue: its waiting messages, in memory and on disk, by position.

Messages move by a few transitions: append, take, remove, settle, requeue, drop. The durable ones are records of the
commit log (docs/formats/log.md), which the store writes and recovery replays.

A long backlog has three parts: the window at the head (window.py), the messages that are only on disk (`paged`), and
the tail after them that waits to be written. Consumers with filters take
messages out of order from any part (`remove`, `take_paged`); one that returns between those on disk stays in memory
(`ahead.py`).

Owned by the loop thread. Compiled when the package is built (backlog.pxd).
"""

from collections.abc import Callable, Iterator
from typing import Any

from warrenmq.core.ahead import Ahead
from warrenmq.core.message import Message, QueuedMessage, enqueue_as
from warrenmq.core.ports import NOTHING, MessageStore, PageSizes, Recovered
from warrenmq.core.stats import Stats
from warrenmq.core.window import COMPACT_FROM, NO_ENTRY, REMOVED, Window


class Backlog(Window):
    """`waiting` messages wait, with `body_bytes` bytes of bodies; `paged` of them are only on disk.

    `next_position` is that of the next message; no position is used twice. `is_durable`: persistent messages are stored
    durably. `counts_attempts`: how often they were delivered, too. `on_page` is called after a page was read back.
    """

    __slots__ = (
        "_ahead",
        "_on_page",
        "_page_out_at",
        "_page_waiters",
        "_parent",
        "_redelivered_up_to",
        "_sizes",
        "_tail",
        "_tail_bytes",
        "_tail_out_at",
        "_window_bytes",
        "body_bytes",
        "counts_attempts",
        "expiry",
        "is_durable",
        "last_delivered",
        "next_position",
        "paged",
        "restored_position",
        "stats",
        "store",
        "waiting",
    )

    def __init__(
        self,
        stats: Stats,
        store: MessageStore | None = None,
        is_durable: bool = False,
        on_page: Callable[[], object] | None = None,
        parent: "Backlog | None" = None,
    ) -> None:
        super().__init__()
        self.stats = stats
        self.store = store
        self.is_durable = is_durable and store is not None
        self.counts_attempts = False
        self.next_position = 0
        self.restored_position = 0  # the first since the start
        self.last_delivered = -1  # the highest position that was delivered in order
        self._redelivered_up_to = -1  # requeued messages up to here left memory again
        self.waiting = 0
        self.body_bytes = 0
        self.paged = 0
        self._ahead: Ahead | None = None  # from the first message on that filters take from between those on disk
        self._tail: list[QueuedMessage] = []
        self._window_bytes = 0  # memory of the window
        self._tail_bytes = 0  # memory of the tail
        self._sizes = store.sizes if store is not None else None
        self._page_out_at = self._sizes.small_window if self._sizes is not None else 0
        self._tail_out_at = self._sizes.page if self._sizes is not None else 0
        self._page_waiters: list[Callable[[], None]] | None = None
        self._on_page = on_page
        self._parent = parent  # of one priority level (priority.py)
        self.expiry: Any = None  # what removes expired messages (expiry.py), where some may expire

    # -- what waits --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.waiting

    def bytes_in_memory(self) -> int:
        """Return the memory of the messages that wait."""
        size = self._window_bytes + self._tail_bytes
        return size if self._ahead is None else size + self._ahead.size

    def __iter__(self) -> Iterator[QueuedMessage]:
        """Iterate over the messages in memory."""
        self._compact()
        yield from self._entries[self._head :]
        if self._ahead is not None:
            yield from self._ahead
        yield from self._tail

    def in_memory(self, first: int, last: int, most: int) -> list[QueuedMessage]:
        """Return waiting messages in memory, in order, from position `first` to `last`, about `most` at most."""
        if self._requeued is not None:
            self._merge()
        found: list[QueuedMessage] = []
        for entries, head in ((self._entries, self._head), (self._tail, 0)):
            for at in range(self._index_of(entries, head, first), len(entries)):
                entry = entries[at]
                if entry.position > last or len(found) >= most:
                    break
                if entry.message is not REMOVED:
                    found.append(entry)
            if entries is not self._tail and self._ahead is not None and len(found) < most:
                found += self._ahead.between(first, last)
        return found

    # -- transitions -------------------------------------------------------------------------------------------------

    def persist(self, entry: QueuedMessage) -> int:
        """Store a persistent message in the open epoch. Return what its confirm waits for.

        Called before the message is delivered or confirmed, so both are in the same epoch or a later one.
        """
        if self.is_durable and entry.message.is_persistent():
            self.store.append(entry)  # type: ignore[union-attr]
            if entry.attempts != 0:
                self.store.save_attempts(entry)  # type: ignore[union-attr]
            return self.store.durability_level  # type: ignore[union-attr]
        return NOTHING

    def count_delivered(self, entry: QueuedMessage) -> None:
        """Count a message that goes straight to a consumer: append and take in one."""
        self.stats.held_bytes += entry.message.footprint()
        self._hold(entry.message)
        if self.waiting == 0:  # else a filter took it out of order
            self.last_delivered = entry.position

    def append(self, entry: QueuedMessage) -> None:
        """Add a message at the end."""
        size = entry.message.footprint()
        self.stats.held_bytes += size
        self._hold(entry.message)
        self.stats.ready += 1
        self.waiting += 1
        self.body_bytes += entry.message.size
        if self.paged == 0:
            self._entries.append(entry)
            self._window_bytes += size
            if (
                self._sizes is not None
                and self._window_bytes >= self._page_out_at
                and self._window_bytes >= self._memory_limit(0)
            ):
                self._page_out_window(self._sizes)
            return
        self._tail.append(entry)
        self._tail_bytes += size
        if self._tail_bytes >= self._tail_out_at:
            self._page_out_tail(2 * self._sizes.page)  # type: ignore[union-attr]

    def take(self) -> QueuedMessage | None:
        """Remove the first message for delivery; None if none is in memory."""
        if self._requeued is not None:
            self._merge()
        head = self._head
        entries = self._entries
        if head >= len(entries):
            return None
        entry: QueuedMessage = entries[head]
        entries[head] = None
        head += 1
        if self._gaps != 0:
            head = self._skip_gaps(head)
        if head == len(entries):
            entries.clear()
            head = 0
        elif head >= COMPACT_FROM and 2 * head >= len(entries):
            del entries[:head]
            head = 0
        self._head = head
        self.stats.ready -= 1
        self.waiting -= 1
        self.body_bytes -= entry.message.size
        self._window_bytes -= entry.message.footprint()
        if entry.position > self.last_delivered:
            self.last_delivered = entry.position
        return entry

    def remove(self, position: int) -> QueuedMessage | None:
        """Remove the message at this position; None if it does not wait or is only on disk."""
        if self._requeued is not None:
            self._merge()
        entries = self._entries
        index = self._index_of(entries, self._head, position)
        entry: QueuedMessage = entries[index] if index < len(entries) else NO_ENTRY
        if entry.position == position and entry.message is not REMOVED:
            entries[index] = enqueue_as(REMOVED, position)
            self._gaps += 1
            self._window_bytes -= entry.message.footprint()
            self._close_gaps(index)
        else:
            found = None if self._ahead is None else self._ahead.remove(position)
            if found is None:
                index = self._index_of(self._tail, 0, position)
                if index == len(self._tail) or self._tail[index].position != position:
                    return None
                found = self._tail.pop(index)
                self._set_tail_bytes(self._tail_bytes - found.message.footprint())
            entry = found
        self._count_removed(1, entry.message.size)
        return entry

    def _count_removed(self, count: int, size: int) -> None:
        """Count messages that were removed other than by `take`, here and in the parent."""
        self.stats.ready -= count
        self.waiting -= count
        self.body_bytes -= size
        if self._parent is not None:
            self._parent.waiting -= count
            self._parent.body_bytes -= size

    def first_position(self) -> int:
        """Return a position that is not after any waiting message."""
        entry = self.first()
        if entry is not None:
            return entry.position
        if self.paged != 0 and self.store is not None:
            return self.store.last_read + 1
        return self.next_position

    def settle(self, entry: QueuedMessage) -> None:
        """Forget a message that left the backlog for good: it was acked or dropped, or needs no ack."""
        self.stats.held_bytes -= entry.message.footprint()
        self._release(entry.message)
        if entry.epoch != 0 and self.store is not None:
            self.store.forget(entry)

    def requeue(self, entries: list[QueuedMessage]) -> None:
        """Return taken messages to their old positions."""
        self.stats.ready += len(entries)
        self.waiting += len(entries)
        for entry in entries:
            if self.counts_attempts and entry.epoch > 0:
                self.store.save_attempts(entry)  # type: ignore[union-attr]
            self.body_bytes += entry.message.size
            if self.paged != 0 and entry.position > self.store.last_read:  # type: ignore[union-attr]
                self._return_ahead(entry)
                continue
            self._window_bytes += entry.message.footprint()
            if self._gaps == 0 or not self._fill_gap(entry):
                self._return(entry)

    def _return_ahead(self, entry: QueuedMessage) -> None:
        """Put a message back that waits after messages that are only on disk."""
        if entry.position > self.store.last_position:  # type: ignore[union-attr]
            self._tail.insert(self._index_of(self._tail, 0, entry.position), entry)
            self._tail_bytes += entry.message.footprint()
            return
        if self._ahead is None:
            self._ahead = Ahead()
        self._ahead.add(entry)

    def _merge_ahead(self) -> None:
        """Move messages into the window that no message on disk precedes any more."""
        ahead = self._ahead
        if ahead is not None and ahead.entries:
            last = self.next_position if self.paged == 0 else self.store.last_read  # type: ignore[union-attr]
            size = ahead.size
            for entry in ahead.take_up_to(last):
                self._return(entry)
            self._window_bytes += size - ahead.size

    def drop_all(self) -> None:
        """Remove all waiting messages, in memory and on disk."""
        self.stats.ready -= self.waiting
        for entry in self:
            self.settle(entry)
        if self.paged != 0:
            assert self.store is not None
            self.store.forget_pages()
        self._entries.clear()
        self._requeued = None
        self._tail.clear()
        self._ahead = None
        self._head = 0
        self._gaps = 0
        self.waiting = 0
        self._count_paged(-self.paged)
        self.body_bytes = 0
        self._window_bytes = 0
        self._set_tail_bytes(0)
        self._notify_page_waiters()

    def delete(self) -> None:
        """Drop all messages and delete the store. Unacked messages are later settled without it."""
        self.drop_all()
        self.is_durable = False
        if self.store is not None:
            self.store.delete()
            self.store = None
        self._on_page = None  # the queue: a reference cycle

    def restore(self) -> list["tuple[Backlog, Recovered]"]:
        """Restore the messages in the store; called once, before the first message. Return them by part."""
        if self.store is None:
            return []
        recovered = self.store.open(self)
        size = self._count_held(recovered.entries)
        self.waiting = recovered.paged + len(recovered.entries)
        self.stats.ready += self.waiting
        self.body_bytes = recovered.paged_bytes
        self.next_position = self.restored_position = recovered.next_position
        self._count_paged(recovered.paged)
        for entry in recovered.entries:
            entry.redelivered = True  # it may have been delivered before the stop
            self.body_bytes += entry.message.size
        if recovered.paged:
            self._tail.extend(recovered.entries)
            self._tail_bytes = size
        else:
            self._entries.extend(recovered.entries)
            self._window_bytes = size
        return [(self, recovered)]

    def parts(self) -> "list[Backlog]":
        """Return the backlogs that this one consists of."""
        return [self]

    def part_of(self, message: Message) -> "Backlog":
        """Return the part that the message belongs to."""
        return self

    # -- paging: of a long backlog only the first messages stay in memory --------------------------------------------

    def _memory_limit(self, coming: int) -> int:
        """Return the memory limit of the window if `coming` more bytes are held.

        It is the free part of the budget, so some of the budget stays free however many long backlogs there are.
        """
        sizes = self._sizes
        assert sizes is not None
        left = sizes.budget - self.stats.held_bytes - coming
        return min(sizes.window, max(sizes.small_window, left))

    def _page_out_window(self, sizes: PageSizes) -> None:
        """Keep in memory the head, and messages that were delivered before or are already on disk.

        The rest becomes the tail, which is written in chunks as messages arrive, so that the loop does not stall.
        """
        assert self.store is not None
        self._compact()
        keep = min(sizes.resident, self._memory_limit(0) // 2)
        behind = max(self.store.last_position, self.last_delivered)
        entries = self._entries
        at = self._head
        kept = 0
        while at < len(entries):
            entry = entries[at]
            if kept >= keep and entry.position > behind:
                break
            kept += entry.message.footprint()
            at += 1
        if at == len(entries):
            self._page_out_at = kept + sizes.page  # do not try again with every message
            return
        self._page_out_at = sizes.small_window
        self._tail = entries[at:]
        del entries[at:]
        self._tail_bytes = self._window_bytes - kept
        self._window_bytes = kept
        self._page_out_tail(sizes.page)

    def page_out_requeued(self) -> None:
        """Page out requeued messages. The queue must have no unacked messages.

        Those already on disk only leave memory; the others become the tail, as always.
        """
        sizes = self._sizes
        if sizes is None:
            return
        if self._ahead is not None and self._ahead.size >= self._memory_limit(0):
            self._page_out_ahead(self._ahead)
        if self._window_bytes < self._memory_limit(0):
            return
        assert self.store is not None
        self._compact()
        keep = min(sizes.resident, self._memory_limit(0) // 2)
        on_disk = self.store.last_position
        entries = self._entries
        at = end = self._head
        kept = size = 0
        while end < len(entries):
            entry = entries[end]
            if entry.position > on_disk:
                break
            # A transient message, and all before it, stay if it was never written or its page lacks its delivery count.
            if kept < keep or entry.epoch == 0 or (self.counts_attempts and entry.epoch < 0):
                kept += size + entry.message.footprint()
                size = 0
                at = end + 1
            else:
                size += entry.message.footprint()
            end += 1
        if at == end or (self.paged != 0 and end < len(entries)):
            return
        leaving = entries[at:end]
        if self.paged == 0:
            self._tail = entries[end:]
            self._set_tail_bytes(self._window_bytes - kept - size)
        del entries[at:]
        self._window_bytes = kept
        self._count_left(leaving)
        self.store.page_out(leaving)

    def _page_out_ahead(self, ahead: Ahead) -> None:
        """Drop messages from memory that are on disk, too, and will be read in order."""
        assert self.store is not None
        leaving: list[QueuedMessage] = []
        for entry in list(ahead):
            # A transient message stays if it was never written or its page lacks its delivery count.
            if entry.epoch > 0 or (entry.epoch < 0 and not self.counts_attempts):
                ahead.remove(entry.position)
                leaving.append(entry)
        if leaving:
            self._count_left(leaving)
            self.store.return_paged(leaving)

    def _count_left(self, leaving: list[QueuedMessage]) -> None:
        """Count messages that leave memory and wait on disk only."""
        self._count_paged(len(leaving))
        for left in leaving:
            self.stats.held_bytes -= left.message.footprint()
            self._release(left.message)
            if left.redelivered and left.position > self._redelivered_up_to:
                self._redelivered_up_to = left.position

    def _page_out_tail(self, limit: int) -> None:
        """Write about `limit` bytes of the tail: more than was appended since the last time, so that it shrinks."""
        assert self.store is not None
        tail = self._tail
        at = 0
        size = 0
        while at < len(tail) and size < limit:
            entry = tail[at]
            size += entry.message.footprint()
            self._release(entry.message)
            at += 1
        leaving = tail[:at]
        del tail[:at]
        self._count_paged(at)
        self._set_tail_bytes(self._tail_bytes - size)
        self.stats.held_bytes -= size
        self.store.page_out(leaving)

    def _set_tail_bytes(self, size: int) -> None:
        """Record the size of the tail, and the size at which the next chunk is written."""
        self._tail_bytes = size
        if self._sizes is not None:
            self._tail_out_at = size + self._sizes.page

    def page_out_tail(self) -> None:
        """Write the whole tail; called when the store is about to write everything that is only in the log."""
        if self._tail_bytes:
            self._page_out_tail(self._tail_bytes)

    def add_page(self, entries: list[QueuedMessage], lost: int = 0, lost_bytes: int = 0) -> None:
        """Take the next page from the store; `lost` messages could not be read, `lost_bytes` in all."""
        size = self._count_held(entries)
        for entry in entries:
            self.mark_redelivered(entry)
        self._window_bytes += size
        self._entries.extend(entries)
        self._count_paged(-len(entries))
        self.remove_paged(lost, lost_bytes)
        self._merge_ahead()
        if self.expiry is not None:
            self.expiry.page_arrived(entries)
        if self._on_page is not None:
            self._on_page()
        self._notify_page_waiters()

    def remove_paged(self, count: int, size: int) -> None:
        """Count messages that the store removed from disk, with `size` bytes of bodies."""
        self._count_removed(count, size)
        self._count_paged(-count)
        if self.paged == 0:
            self._entries.extend(self._tail)
            self._tail.clear()
            self._window_bytes += self._tail_bytes
            self._set_tail_bytes(0)
            self._merge_ahead()
            if count:
                self._notify_page_waiters()

    def _count_paged(self, count: int) -> None:
        self.paged += count
        if self._parent is not None:
            self._parent.paged += count

    def take_paged(self, entry: QueuedMessage) -> bool:
        """Take a message out of order that `MessageStore.read_page` has read; False if it is not only on disk now."""
        if self.paged == 0 or not self.store.take_paged(entry.position, entry.message.size):  # type: ignore[union-attr]
            return False
        self.remove_paged(1, entry.message.size)
        self.stats.held_bytes += entry.message.footprint()
        self._hold(entry.message)
        self.mark_redelivered(entry)
        return True

    def mark_redelivered(self, entry: QueuedMessage) -> None:
        """Set what a page does not have of a message that was delivered, requeued and paged out again."""
        if entry.position <= self.last_delivered:
            entry.redelivered = True
            entry.attempts = max(1, entry.attempts)
        elif entry.attempts != 0 or entry.position <= self._redelivered_up_to:
            entry.redelivered = True

    def forget_paged(self, position: int, size: int) -> bool:
        """Remove one message that is only on disk, with a body of `size` bytes; False if there is none."""
        if self.paged == 0 or not self.store.forget_paged(position, size):  # type: ignore[union-attr]
            return False
        self.remove_paged(1, size)
        return True

    def forget_first_pages(self, is_due: Callable[[int, int, int], bool]) -> tuple[int, int]:
        """Remove pages that are only on disk; see `MessageStore.forget_first_pages`."""
        if self.paged == 0:
            return 0, 0
        assert self.store is not None
        count, size = self.store.forget_first_pages(is_due)
        if count:
            self.remove_paged(count, size)
        return count, size

    def needs_page(self) -> bool:
        """Return True if messages wait and none of them is in memory."""
        return self.paged != 0 and not self.has_first()

    def await_page(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` when the next page has been read, or nothing is left on disk."""
        if self._page_waiters is None:
            self._page_waiters = []
        self._page_waiters.append(waiter)
        self.read_ahead()

    def _notify_page_waiters(self) -> None:
        if self._page_waiters is not None:
            waiters, self._page_waiters = self._page_waiters, None
            for waiter in waiters:
                waiter()

    def read_ahead(self) -> None:
        """Request the next page from the store if the window is short."""
        store = self.store
        if store is None or store.is_reading or self.paged == 0:
            return
        if self._window_bytes < self._sizes.read_below or self._fits_in_memory():  # type: ignore[union-attr]
            store.page_in()

    def _fits_in_memory(self) -> bool:
        """Return True if the whole backlog would fit in memory, assuming equal message sizes.

        Otherwise a busy backlog that was long once would go through the disk forever.
        """
        in_memory = self._window_bytes + self._tail_bytes
        paged = in_memory * self.paged // (self.waiting - self.paged)
        return in_memory + paged < self._memory_limit(paged) * 3 // 4

    def _count_held(self, entries: list[QueuedMessage]) -> int:
        """Count messages read from the store as held. Return their footprint."""
        size = 0
        for entry in entries:
            size += entry.message.footprint()
            self._hold(entry.message)
        self.stats.held_bytes += size
        return size

    # -- a message in several queues is in memory once ---------------------------------------------------------------

    def _hold(self, message: Message) -> None:
        """Count one more queue that holds the message."""
        if message.queue_count != 0:
            self.stats.shared_bytes += message.shared_size()
        message.queue_count += 1

    def _release(self, message: Message) -> None:
        """Count one queue less that holds the message."""
        message.queue_count -= 1
        if message.queue_count != 0:
            self.stats.shared_bytes -= message.shared_size()
