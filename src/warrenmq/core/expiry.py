"""Expiry of the messages of one queue.

Messages in a queue with a fixed TTL expire in queue order, so only the first one is checked. All others (those that
expire before an earlier message, or in a queue without a TTL) are in an index: positions in buckets by expiry time, 12
bytes each. Consumed messages stay in the index until their time comes, or until they are the majority. Expired messages
that are only on disk are removed without being read, unless they are dead-lettered or their ids must be forgotten:
those are read before they expire.

Only queues with a TTL or with messages that have an expiration, and delayed messages (delayed.py), have one. Owned by
the loop thread. Compiled when the package is built (expiry.pxd).
"""

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush, nsmallest
from typing import TYPE_CHECKING

from warrenmq.core.backlog import Backlog
from warrenmq.core.message import MESSAGE_OVERHEAD, QueuedMessage
from warrenmq.core.timers import RESOLUTION_MS, Timer, Timers
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.classic_queue import ClassicQueue
    from warrenmq.core.delayed import DelayedMessages

# At most this many messages expire in one turn, so that a turn stays short.
MAX_PER_TURN = 2000

# The index is pruned when it has this many positions more than twice the messages that wait.
_PRUNE_FROM = 4096

INDEX_ENTRY = 12  # bytes

# Messages only on disk that will be dead-lettered are read this long before they expire, into this much memory, so that
# one pass over their pages reads many of them.
_AHEAD_MS = 5_000
_AHEAD_BYTES = 8 << 20

_NEVER = 1 << 62
_RESOLUTION_MS = RESOLUTION_MS
_EXPIRED = schema.R_EXPIRED


class MessageExpiry:
    """`ttl_ms` is that of the queue, -1 if it has none."""

    __slots__ = (
        "_backlog",
        "_buckets",
        "_due",
        "_fetching",
        "_index_waiters",
        "_indexed",
        "_is_fetching",
        "_is_reading",
        "_latest",
        "_ordered_from",
        "_pages",
        "_queue",
        "_ready",
        "_ready_bytes",
        "_ready_until",
        "_timer",
        "_timers",
        "_times",
        "ttl_ms",
    )

    def __init__(self, queue: "ClassicQueue | DelayedMessages", backlog: Backlog, timers: Timers) -> None:
        self.ttl_ms = -1
        self._queue = queue
        self._backlog = backlog
        self._timers = timers
        self._timer: Timer | None = None
        self._latest = 0  # when the last message in order expires
        self._ordered_from = _NEVER  # all messages from this position on expire in order, or are in the index
        self._buckets: dict[int, tuple[array[int], array[int]]] = {}  # by expiry time: positions and body sizes
        self._times: list[int] = []  # a heap: the times of the buckets
        self._indexed = 0
        self._pages: list[tuple[int, int]] = []  # a heap of pages on disk: earliest expiry time, first position
        self._is_reading = False  # a page of `_pages`
        self._due: list[int] = []  # expired messages only on disk that must be read and are not yet
        self._fetching: list[int] = []  # those of them being read
        self._ready: dict[int, QueuedMessage] = {}  # messages only on disk, read before they expire
        self._ready_bytes = 0
        self._ready_until = 0  # the expiry time of the last bucket read in advance
        self._is_fetching = False
        self._index_waiters: list[Callable[[], None]] = []

    def set_ttl(self, ttl_ms: int) -> None:
        """Set the TTL of messages from now on; -1: none."""
        if ttl_ms >= 0 and self._ordered_from == _NEVER:
            self._ordered_from = self._backlog.next_position
        elif ttl_ms < 0:
            self._ordered_from = _NEVER
        self.ttl_ms = ttl_ms

    def expires_ms(self, ttl_ms: int, now_ms: int) -> int:
        """Return when a message expires that arrives now with this expiration (-1: none): the lower TTL counts."""
        if ttl_ms < 0 or (0 <= self.ttl_ms < ttl_ms):
            ttl_ms = self.ttl_ms
        return 0 if ttl_ms < 0 else now_ms + ttl_ms

    # -- messages come -----------------------------------------------------------------------------------------------

    def add(self, position: int, size: int, expires_ms: int) -> None:
        """Add a message at the end of the queue."""
        if expires_ms >= self._latest and self._backlog.first_position() >= self._ordered_from:
            self._latest = expires_ms
            if self._timer is None or self._timer.due_ms > expires_ms:  # the timer is for the index or a page
                self._wake_at(expires_ms)
        else:
            self._index(position, size, expires_ms)

    def restore(self, entries: list[QueuedMessage], pages: list[tuple[int, int]]) -> None:
        """Add the recovered messages and pages (`Recovered`)."""
        for entry in entries:
            if entry.expires_ms != 0:
                self._index(entry.position, entry.message.size, entry.expires_ms)
        self._pages = list(pages)
        heapify(self._pages)
        if self._pages:
            self._wake_at(self._pages[0][0])

    def page_arrived(self, entries: list[QueuedMessage]) -> None:
        """Index paged-in messages of recovered pages that are not in the index yet."""
        if self._pages or self._is_reading:
            for entry in entries:
                if entry.expires_ms != 0 and entry.position < self._backlog.restored_position:
                    self._index(entry.position, entry.message.size, entry.expires_ms)

    def requeued(self, entry: QueuedMessage) -> None:
        """Add a requeued message; it may have expired."""
        self._index(entry.position, entry.message.size, entry.expires_ms)

    def _index(self, position: int, size: int, expires_ms: int) -> None:
        time = (expires_ms + _RESOLUTION_MS - 1) // _RESOLUTION_MS * _RESOLUTION_MS
        bucket = self._buckets.get(time)
        if bucket is None:
            bucket = self._buckets[time] = (array("q"), array("I"))
            heappush(self._times, time)
            self._wake_at(time)
        bucket[0].append(position)
        bucket[1].append(size)
        self._count(1)
        if self._indexed > 2 * self._backlog.waiting + _PRUNE_FROM:
            self._prune()

    def _prune(self) -> None:
        """Remove entries before the first waiting message. Requeued messages are added again."""
        first = self._backlog.first_position()
        for time, (positions, sizes) in list(self._buckets.items()):
            kept = [at for at, position in enumerate(positions) if position >= first]
            if len(kept) != len(positions):
                self._count(len(kept) - len(positions))
                self._buckets[time] = (
                    array("q", [positions[at] for at in kept]),
                    array("I", [sizes[at] for at in kept]),
                )

    def _count(self, entries: int) -> None:
        self._indexed += entries
        self._queue.stats.expiry_bytes += entries * INDEX_ENTRY

    # -- their time comes --------------------------------------------------------------------------------------------

    def _wake_at(self, due_ms: int) -> None:
        if self._timer is not None:
            if self._timer.due_ms <= due_ms:
                return
            self._timers.cancel(self._timer)
        self._timer = self._timers.schedule(due_ms, self._run)

    def _run(self) -> None:
        self._timer = None
        self.run()

    def run(self) -> None:
        """Remove expired messages, and set the timer for the next."""
        now_ms = self._queue.turn.now_ms
        left = self._expire_first(now_ms, MAX_PER_TURN)
        if left > 0:
            left = self._expire_indexed(now_ms, left)
        if left <= 0:
            self._wake_at(now_ms - _RESOLUTION_MS)  # there may be more: continue in the next turn
            self._read_ahead(now_ms)
            return
        if self._times:
            self._wake_at(self._times[0])
        self._read_ahead(now_ms)
        if self._pages and not self._is_reading:
            if self._pages[0][0] <= now_ms or self._index_waiters:
                self._read_page()
            else:
                self._wake_at(self._pages[0][0])

    def _expire_first(self, now_ms: int, most: int) -> int:
        """Remove messages that expire in queue order. Return how many more may be removed."""
        queue = self._queue
        backlog = self._backlog
        while most > 0:
            entry = backlog.first_from(self._ordered_from)
            if entry is None:
                if backlog.needs_page() and self._ordered_from != _NEVER:
                    if not queue.needs_bodies():
                        count, _ = backlog.forget_first_pages(lambda _, __, latest_ms: 0 < latest_ms <= now_ms)
                        queue.dropped_on_disk(count, _EXPIRED)
                        if not backlog.needs_page():
                            continue  # with those in memory
                    backlog.read_ahead()  # `run` is called again when the page arrives
                break
            if entry.expires_ms == 0:
                break
            if entry.expires_ms > now_ms:
                self._wake_at(entry.expires_ms)
                break
            backlog.remove(entry.position)
            queue.drop(entry, _EXPIRED)
            most -= 1
        return most

    def _expire_indexed(self, now_ms: int, most: int) -> int:
        """Remove expired messages in the index. Return how many more may be removed."""
        queue = self._queue
        backlog = self._backlog
        forgotten = 0
        while self._times and self._times[0] <= now_ms and most > 0:
            positions, sizes = self._buckets[self._times[0]]
            at = 0
            while at < len(positions) and most > 0:
                position = positions[at]
                size = sizes[at]
                at += 1
                entry = backlog.remove(position)
                ready = self._take_ready(position) if self._ready else None
                if entry is not None:
                    queue.drop(entry, _EXPIRED)
                    most -= 1
                elif backlog.paged != 0:
                    if not queue.needs_bodies():
                        if backlog.forget_paged(position, size):
                            forgotten += 1
                            most -= 1
                    elif ready is None:
                        if position > backlog.store.last_read:  # type: ignore[union-attr]
                            self._due.append(position)
                    elif backlog.forget_paged(position, size):
                        queue.finish_drop(ready, _EXPIRED)
                        most -= 1
            self._count(-at)
            del positions[:at], sizes[:at]
            if not positions:
                del self._buckets[heappop(self._times)]
        queue.dropped_on_disk(forgotten, _EXPIRED)
        return most

    # -- what is on disk only ----------------------------------------------------------------------------------------

    def _read_ahead(self, now_ms: int) -> None:
        """Read messages that will be dead-lettered: those that have expired, and some that soon will."""
        if self._is_fetching:
            return
        if self._backlog.paged == 0:
            due, self._due = self._due, []
            self._drop_waiting(due)
            return
        if not self._due and (2 * self._ready_bytes > _AHEAD_BYTES or not self._queue.needs_bodies()):
            return
        store = self._backlog.store
        assert store is not None
        last_read = store.last_read
        wanted, self._fetching, self._due = list(self._due), self._due, []
        room = _AHEAD_BYTES - self._ready_bytes
        for time in sorted(self._times):
            if time <= self._ready_until:
                continue
            if time > now_ms + _AHEAD_MS:
                self._wake_at(time - _AHEAD_MS)
                break
            if room <= 0:
                break
            for position, size in zip(*self._buckets[time], strict=True):
                if position > last_read:
                    wanted.append(position)
                    room -= size + MESSAGE_OVERHEAD
            self._ready_until = time
        if wanted:
            self._is_fetching = True
            store.fetch(sorted(wanted), self._fetched)

    def _fetched(self, entries: list[QueuedMessage]) -> None:
        self._is_fetching = False
        queue = self._queue
        if queue.is_deleted:
            return
        queue.turn.begin()
        now_ms = queue.turn.now_ms
        for entry in entries:
            if entry.expires_ms > now_ms:
                self._ready[entry.position] = entry
                self._count_ready(entry.message.footprint())
            elif self._backlog.forget_paged(entry.position, entry.message.size):
                queue.finish_drop(entry, _EXPIRED)
            else:
                self._fetching.append(entry.position)
        fetching, self._fetching = self._fetching, []
        self._drop_waiting(fetching)
        self._read_ahead(now_ms)

    def _drop_waiting(self, positions: list[int]) -> None:
        """Drop expired messages that were paged in meanwhile and not delivered."""
        for position in positions:
            entry = self._backlog.remove(position)
            if entry is not None:
                self._queue.drop(entry, _EXPIRED)

    def _take_ready(self, position: int) -> QueuedMessage | None:
        entry = self._ready.pop(position, None)
        if entry is not None:
            self._count_ready(-entry.message.footprint())
        return entry

    def _count_ready(self, size: int) -> None:
        self._ready_bytes += size
        self._queue.stats.expiry_bytes += size

    def _read_page(self) -> None:
        """Index the messages of a recovered page."""
        self._is_reading = True
        _, first = heappop(self._pages)
        store = self._backlog.store
        assert store is not None
        store.read_expiries(first, self._page_was_read)

    def _page_was_read(self, found: list[tuple[int, int, int]]) -> None:
        self._is_reading = False
        if self._queue.is_deleted:
            return
        self._queue.turn.begin()
        for position, expires_ms, size in found:
            self._index(position, size, expires_ms)
        self.run()
        self._notify_index_waiters()

    # -- by time -----------------------------------------------------------------------------------------------------

    def when_indexed(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` when all recovered pages have been indexed: now, or after they were read."""
        self._index_waiters.append(waiter)
        if self._pages and not self._is_reading:
            self._read_page()
        self._notify_index_waiters()

    def _notify_index_waiters(self) -> None:
        if not self._pages and not self._is_reading:
            waiters, self._index_waiters = self._index_waiters, []
            for waiter in waiters:
                waiter()

    def find_after(self, after: tuple[int, int], count: int) -> list[tuple[int, int]]:
        """Return times and positions in the index after these, in order; some may have been removed."""
        found: list[tuple[int, int]] = []
        # Without sorting all of them: there may be a million times, or a million messages at one time.
        times = [time for time in self._times if time >= after[0]]
        heapify(times)
        while times and len(found) < count:
            time = heappop(times)
            # A set: a message of a recovered page may be in the index twice.
            later = {position for position in self._buckets[time][0] if time > after[0] or position > after[1]}
            found += [(time, position) for position in nsmallest(count - len(found), later)]
        return found

    def stop(self) -> None:
        """The queue was deleted."""
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None
        self._count(-self._indexed)
        self._buckets.clear()
        self._times.clear()
        self._pages.clear()
        self._due.clear()
        self._ready.clear()
        self._count_ready(-self._ready_bytes)
