"""Dispatch of a queue that has consumers with filters (`x-filter`).

Each message goes to the first consumer in the ring that has credit and wants it; one that no consumer wants waits, in
its place. A cursor per consumer remembers how far it has examined the backlog, so each message is tested once per
consumer: a new one when it arrives, a requeued one again. Messages that are only on disk are read page by page, in the
background, and stay there unless they are delivered. A turn makes SCAN_LIMIT tests at most.

Owned by the loop thread. Compiled when the package is built (filtered.pxd).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from warrenmq.core.backlog import Backlog
from warrenmq.core.consumer import Consumer, ConsumerRing
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.turn import Turn

if TYPE_CHECKING:
    from warrenmq.core.classic_queue import ClassicQueue

SCAN_LIMIT = 2048
# Requeued messages that a cursor remembers one by one; with more it goes back to the first of them.
MAX_RETURNED = 1000

_BATCH = 64  # messages in memory that are examined together
_PAGES = 2  # of the queue in memory to be examined
_END = 1 << 62


class FilterCursor:
    """The progress of one consumer, with or without a filter.

    It has examined everything before position `base`, and in a part of the backlog everything before its `next`.
    `returned` are positions before those, of messages requeued since, in order.
    """

    __slots__ = ("base", "consumer", "next", "returned")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.base = 0
        self.next: dict[Backlog, int] = {}
        self.returned: dict[Backlog, list[int]] = {}

    def wants(self, message: Message) -> bool:
        filter = self.consumer.filter
        return filter is None or filter.accepts(message.header)

    def position_in(self, part: Backlog) -> int:
        return self.next.get(part, self.base)

    def advance(self, part: Backlog, position: int) -> None:
        """Everything before this position has been examined."""
        if position > self.position_in(part):
            self.next[part] = position

    def rewind(self, part: Backlog, position: int) -> None:
        """Examine everything from this position on again."""
        if position < self.position_in(part):
            self.next[part] = position
        if part in self.returned:
            kept = self.returned.pop(part)
            del kept[bisect_left(kept, position) :]
            if kept:
                self.returned[part] = kept

    def note_returned(self, part: Backlog, position: int) -> None:
        """A message was requeued."""
        if position >= self.position_in(part):
            return
        returned = self.returned.setdefault(part, [])
        at = bisect_left(returned, position)
        if at == len(returned) or returned[at] != position:
            insort(returned, position)
        if len(returned) > MAX_RETURNED:
            self.rewind(part, returned[0])

    def forget_returned(self, part: Backlog, position: int) -> None:
        """The requeued message at this position, the first one, has been examined."""
        returned = self.returned.get(part)
        if returned and returned[0] == position:
            del returned[0]
            if not returned:
                del self.returned[part]

    def has_returned(self, part: Backlog, position: int) -> bool:
        returned = self.returned.get(part, ())
        at = bisect_left(returned, position)
        return at < len(returned) and returned[at] == position


class _Page:
    """Messages that are only on disk, from position `first` to `last`."""

    __slots__ = ("entries", "first", "last", "part")

    def __init__(self, part: Backlog, first: int, last: int, entries: list[QueuedMessage]) -> None:
        self.part = part
        self.first = first
        self.last = last
        self.entries = entries

    def size(self) -> int:
        return sum(entry.message.footprint() for entry in self.entries)


class FilteredDispatch:
    """The cursors of all consumers of one queue, while one of them has a filter."""

    __slots__ = ("_backlog", "_cursors", "_end", "_filters", "_left", "_pages", "_queue", "_ring", "_turn", "reading")

    def __init__(self, queue: ClassicQueue) -> None:
        self._queue = queue
        self._backlog: Backlog = queue.backlog
        self._ring: ConsumerRing = queue.ring
        self._turn: Turn = queue.turn
        self._cursors: dict[Consumer, FilterCursor] = {}
        self._filters = 0  # consumers with a filter
        self._end = queue.backlog.next_position  # all waiting messages are before it
        self._left = 0  # tests that this turn may still make
        self._pages: list[_Page] = []  # the last one read is the last
        self.reading: dict[Backlog, None] = {}  # parts of which a page is being read
        for consumer in queue.consumers:
            self.add(consumer)

    def add(self, consumer: Consumer) -> None:
        """A consumer was registered; it may be known already."""
        if consumer not in self._cursors:
            self._cursors[consumer] = FilterCursor(consumer)
            self._filters += consumer.filter is not None

    def remove(self, consumer: Consumer) -> bool:
        """A consumer is gone. Return True if no filter is left."""
        if self._cursors.pop(consumer, None) is not None:
            self._filters -= consumer.filter is not None
        if self._filters == 0:
            self._drop_pages()
        return self._filters == 0

    # -- new and requeued messages -----------------------------------------------------------------------------------

    def choose(self, message: Message, position: int) -> Consumer | None:
        """Return the consumer for a new message, or None: it has to wait.

        Consumers that have not examined all messages before it do not get it yet.
        """
        retry = self._queue.retry
        if retry is not None and retry.held_until_ms > self._turn.now_ms:
            return None
        ring = self._ring
        end = self._end if self._backlog.waiting != 0 else 0
        for consumer in ring.waiting():
            if not consumer.has_credit():
                ring.remove(consumer)
                continue
            cursor = self._cursors[consumer]
            if cursor.base < end or (end != 0 and (cursor.next or cursor.returned)):
                continue  # it will, at the end of the turn or when a page has been read
            if cursor.wants(message):
                ring.move_back(consumer)
                return consumer
            if end == 0:
                cursor.next.clear()
                cursor.returned.clear()
            cursor.base = position + 1
        return None

    def appended(self, position: int) -> None:
        """The message at this position waits."""
        self._end = position + 1

    def requeued(self, entries: list[QueuedMessage]) -> None:
        """These messages wait again."""
        backlog = self._queue.backlog
        for entry in entries:
            if entry.position >= self._end:  # it was delivered when it arrived
                self._end = entry.position + 1
        if len(entries) > MAX_RETURNED:
            firsts: dict[Backlog, int] = {}
            for entry in entries:
                part = backlog.part_of(entry.message)
                firsts[part] = min(entry.position, firsts.get(part, entry.position))
            for cursor in self._cursors.values():
                for part, first in firsts.items():
                    cursor.rewind(part, first)
            return
        for entry in entries:
            part = backlog.part_of(entry.message)
            for cursor in self._cursors.values():
                cursor.note_returned(part, entry.position)

    def paged_out(self) -> None:
        """Requeued messages have left memory: what was read before does not include them."""
        self._drop_pages()

    # -- waiting messages --------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Deliver waiting messages to consumers that want them and have not examined them yet."""
        queue = self._queue
        self._left = SCAN_LIMIT
        for part in list(self._backlog.parts()):
            if not self._serve(part):
                break
        else:
            self._finish()
        if self._left <= 0:
            queue.turn.deferred[queue] = None
            queue.turn.begin()

    def _finish(self) -> None:
        """Note which consumers have examined everything."""
        parts = self._backlog.parts()
        is_done = True
        for cursor in self._cursors.values():
            is_behind = len(cursor.returned) != 0
            for part in parts:
                if cursor.position_in(part) < self._end:
                    is_behind = True
            if is_behind:
                is_done = False
            else:
                cursor.base = self._end
                cursor.next.clear()
        if is_done:
            self._drop_pages()

    def _serve(self, part: Backlog) -> bool:
        """Serve consumers from one part. Return False if it has to wait for a page or for the next turn."""
        if part.waiting == 0:
            for cursor in self._cursors.values():
                cursor.returned.pop(part, None)
                cursor.advance(part, self._end)
            return True
        ready = self._ready(part)
        if not self._serve_returned(part, ready):
            return False
        while ready:
            first = self._end
            for cursor in ready:
                first = min(first, cursor.position_in(part))
            if first >= self._end:
                return True
            if self._left <= 0:
                return False
            page = self._messages_from(part, first)
            if page is None:
                return False
            for entry in page.entries:
                if self._left <= 0:
                    for cursor in ready:
                        cursor.advance(part, entry.position)
                    return False
                candidates = ready if len(ready) == 1 else self._candidates(ready, part, entry.position)
                if not self._offer(part, entry, candidates, ready):
                    break
            else:
                for cursor in ready:
                    cursor.advance(part, page.last + 1)
        return True

    def _candidates(self, ready: list[FilterCursor], part: Backlog, position: int) -> list[FilterCursor]:
        """Return the cursors that have not examined this position yet."""
        return [cursor for cursor in ready if cursor.position_in(part) <= position]

    def _ready(self, part: Backlog) -> list[FilterCursor]:
        """Return the cursors of consumers that can take a message and have some to examine, in order of the ring."""
        ready: list[FilterCursor] = []
        ring = self._ring
        for consumer in ring.waiting():
            cursor = self._cursors[consumer]
            if cursor.position_in(part) >= self._end and part not in cursor.returned:
                continue
            if consumer.has_credit():
                ready.append(cursor)
            else:
                ring.remove(consumer)
        return ready

    def _serve_returned(self, part: Backlog, ready: list[FilterCursor]) -> bool:
        """Offer requeued messages. Return False if the limit is reached."""
        for position in sorted({position for cursor in ready for position in cursor.returned.get(part, ())}):
            if self._left <= 0:
                return False
            candidates = [cursor for cursor in ready if cursor.has_returned(part, position)]
            waiting = part.in_memory(position, position, 1)
            if waiting:
                self._offer(part, waiting[0], candidates, ready)
            elif part.paged != 0 and part.store is not None and part.store.has_paged(position):
                for cursor in candidates:
                    cursor.rewind(part, position)
                self._drop_pages()
            for cursor in candidates:
                cursor.forget_returned(part, position)
        return True

    def _offer(
        self, part: Backlog, entry: QueuedMessage, candidates: list[FilterCursor], ready: list[FilterCursor]
    ) -> bool:
        """Deliver a message to the first of the candidates that wants it.

        Return False if no consumer is `ready` for the next one. A consumer without credit leaves `ready`.
        """
        ring = self._ring
        if entry.expires_ms != 0 and entry.expires_ms < self._turn.now_ms:
            return True  # a timer removes it
        for cursor in candidates:
            self._left -= 1
            if not cursor.wants(entry.message):
                continue
            taken = part.remove(entry.position)
            if taken is None:
                if not part.take_paged(entry):
                    return True  # somebody else has it, or it was removed
                taken = entry
            consumer = cursor.consumer
            self._queue.deliver(taken, consumer)
            if not consumer.has_credit():
                ready.remove(cursor)
                cursor.advance(part, entry.position + 1)
                ring.remove(consumer)
            elif len(ready) > 1:
                ring.move_back(consumer)
                self._move_back(ready, cursor)
            return len(ready) != 0
        return True

    def _move_back(self, ready: list[FilterCursor], cursor: FilterCursor) -> None:
        """Move a cursor behind those of its equals."""
        ready.remove(cursor)
        at = len(ready)
        while at > 0:
            other = ready[at - 1]
            if other.consumer.priority >= cursor.consumer.priority:
                break
            at -= 1
        ready.insert(at, cursor)

    # -- where they are ----------------------------------------------------------------------------------------------

    def _messages_from(self, part: Backlog, first: int) -> _Page | None:
        """Return messages from this position on, and up to where there are no others; None if a page is being read."""
        store = part.store
        if part.paged != 0 and store is not None:
            if first <= store.last_read:
                return self._in_memory(part, first, store.last_read)
            if first <= store.last_position:
                return self._on_disk(part, first)
        return self._in_memory(part, first, self._end - 1)

    def _in_memory(self, part: Backlog, first: int, last: int) -> _Page:
        entries = part.in_memory(first, last, _BATCH)
        if len(entries) >= _BATCH:
            last = entries[-1].position
        return _Page(part, first, last, entries)

    def _on_disk(self, part: Backlog, first: int) -> _Page | None:
        """Return what is in a page on disk, and messages in memory between them."""
        if part in self.reading:
            return None
        for page in self._pages:
            if page.part is part and page.first <= first <= page.last:
                entries = [entry for entry in page.entries if entry.position >= first]
                ahead = part.in_memory(first, page.last, _END)
                if ahead:
                    known = {entry.position: entry for entry in entries}
                    known.update((entry.position, entry) for entry in ahead)
                    entries = [known[position] for position in sorted(known)]
                return _Page(part, first, page.last, entries)
        assert part.store is not None
        self.reading[part] = None
        last = part.store.last_position

        def receive(entries: list[QueuedMessage], read: int, _: int) -> None:
            self._page_was_read(_Page(part, first, last if read < first else read, entries))

        part.store.read_page(first, receive)
        return None

    def _page_was_read(self, page: _Page) -> None:
        queue = self._queue
        del self.reading[page.part]
        if queue.is_deleted or queue.filters is not self:
            return
        while len(self._pages) >= _PAGES:
            queue.stats.held_bytes -= self._pages.pop(0).size()
        self._pages.append(page)
        queue.stats.held_bytes += page.size()
        queue.turn.begin()
        queue.dispatch()

    def _drop_pages(self) -> None:
        for page in self._pages:
            self._queue.stats.held_bytes -= page.size()
        self._pages.clear()
