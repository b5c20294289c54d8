"""The backlog of a queue with priorities (x-max-priority): one backlog per level, highest level first.

Each level is paged and stored like any other backlog, and created with the first message of its priority. Positions
are unique in the queue, so they still define the order of arrival. A message without a priority has priority 0; a
priority above the highest level is lowered to it.

Owned by the loop thread. Compiled when the package is built (priority.pxd).
"""

from collections.abc import Callable, Iterator, Sequence

from warrenmq.core.backlog import Backlog
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import NOTHING, MessageStore, Recovered
from warrenmq.core.stats import Stats
from warrenmq.protocol.properties import priority as priority_of


class PriorityBacklog(Backlog):
    """`waiting`, `body_bytes` and `paged` are sums over all levels.

    `open_store` returns the store of a level, None for an in-memory level. `known_levels` are those above 0 that
    recovery found.
    """

    __slots__ = ("_levels", "_open", "_open_store")

    def __init__(
        self,
        stats: Stats,
        is_durable: bool,
        on_page: Callable[[], object],
        max_priority: int,
        open_store: Callable[[int], MessageStore | None],
        known_levels: Sequence[int] = (),
    ) -> None:
        super().__init__(stats, None, False, on_page)
        self._open_store: Callable[[int], MessageStore | None] | None = open_store
        self._levels: list[Backlog | None] = [None] * (max_priority + 1)
        self._open: list[Backlog] = []  # those that exist, highest first
        self.is_durable = is_durable
        self.is_durable = self._make_level(0).is_durable
        for priority in known_levels:
            self._make_level(priority)

    def _make_level(self, priority: int) -> Backlog:
        assert self._open_store is not None
        level = Backlog(self.stats, self._open_store(priority), self.is_durable, self._on_page, self)
        self._levels[priority] = level
        self._open = [each for each in reversed(self._levels) if each is not None]
        return level

    def part_of(self, message: Message) -> Backlog:
        """Return the level of the message's priority."""
        priority = priority_of(message.header)
        if priority < 0:
            priority = 0
        elif priority >= len(self._levels):
            priority = len(self._levels) - 1
        level = self._levels[priority]
        if level is None:
            level = self._make_level(priority)
            level.restore()  # opens its store, which is empty
        return level

    def parts(self) -> list[Backlog]:
        """Return the levels that exist, highest first."""
        return self._open

    def levels(self) -> list[tuple[int, Backlog]]:
        """Return the levels that exist with their priorities, highest first."""
        levels = [(priority, level) for priority, level in enumerate(self._levels) if level is not None]
        return levels[::-1]

    def _leave_out(self, level: Backlog) -> None:
        """Subtract a level's counters before it changes."""
        self.waiting -= level.waiting
        self.body_bytes -= level.body_bytes

    def _count_in(self, level: Backlog) -> None:
        self.waiting += level.waiting
        self.body_bytes += level.body_bytes

    # -- what waits --------------------------------------------------------------------------------------------------

    def bytes_in_memory(self) -> int:
        size = 0
        for level in self._open:
            size += level.bytes_in_memory()
        return size

    def has_first(self) -> bool:
        for level in self._open:
            if level.waiting != 0:
                return level.has_first()
        return False

    def first(self) -> QueuedMessage | None:
        for level in self._open:
            if level.waiting != 0:
                return level.first()
        return None

    def __iter__(self) -> Iterator[QueuedMessage]:
        for level in self._open:
            yield from level

    # -- transitions -------------------------------------------------------------------------------------------------

    def persist(self, entry: QueuedMessage) -> int:
        if not self.is_durable:
            return NOTHING
        level = self.part_of(entry.message)
        level.next_position = entry.position + 1
        return level.persist(entry)

    def count_delivered(self, entry: QueuedMessage) -> None:
        self.part_of(entry.message).count_delivered(entry)

    def append(self, entry: QueuedMessage) -> None:
        level = self.part_of(entry.message)
        self._leave_out(level)
        level.next_position = entry.position + 1
        level.append(entry)
        self._count_in(level)

    def take(self) -> QueuedMessage | None:
        for level in self._open:
            if level.waiting != 0:
                self._leave_out(level)
                entry = level.take()
                self._count_in(level)
                return entry
        return None

    def settle(self, entry: QueuedMessage) -> None:
        self.part_of(entry.message).settle(entry)

    def requeue(self, entries: list[QueuedMessage]) -> None:
        by_level: dict[Backlog, list[QueuedMessage]] = {}
        for entry in entries:
            by_level.setdefault(self.part_of(entry.message), []).append(entry)
        for level, returning in by_level.items():
            self._leave_out(level)
            level.requeue(returning)
            self._count_in(level)

    def drop_all(self) -> None:
        for level in self._open:
            level.drop_all()
        self.waiting = 0
        self.body_bytes = 0
        self._notify_page_waiters()

    def delete(self) -> None:
        for level in self._open:
            level.delete()
        self.waiting = 0
        self.body_bytes = 0
        self.is_durable = False
        self._on_page = None
        self._open_store = None

    def restore(self) -> list[tuple[Backlog, Recovered]]:
        found: list[tuple[Backlog, Recovered]] = []
        for level in self._open:
            found += level.restore()
            self._count_in(level)
            self.next_position = max(self.next_position, level.next_position)
        self.restored_position = self.next_position
        return found

    # -- paging ------------------------------------------------------------------------------------------------------

    def page_out_requeued(self) -> None:
        for level in self._open:
            level.page_out_requeued()

    def page_out_tail(self) -> None:
        for level in self._open:
            level.page_out_tail()

    def needs_page(self) -> bool:
        return self.paged != 0 and not self.has_first()

    def read_ahead(self) -> None:
        for level in self._open:
            level.read_ahead()

    def await_page(self, waiter: Callable[[], None]) -> None:
        for level in self._open:
            if level.waiting != 0:
                level.await_page(waiter)
                return
        waiter()

    def forget_first_pages(self, is_due: Callable[[int, int, int], bool]) -> tuple[int, int]:
        for level in self._open:
            if level.waiting != 0:
                return level.forget_first_pages(is_due)
        return 0, 0
