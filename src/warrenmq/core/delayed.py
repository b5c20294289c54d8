"""Messages that wait for a time and are then released: scheduled messages (schedule.py) and retries (retry.py).

They are kept as if in a queue without consumers in which each message expires on its own: beyond a memory limit they
are only on disk, with 12 bytes each in the index of times (expiry.py), and are read shortly before they are due. The
owner enqueues a released message in the epoch in which it is removed here, so after a crash it is in one of both.

Owned by the loop thread. Compiled when the package is built (delayed.pxd).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from warrenmq.core.backlog import Backlog
from warrenmq.core.expiry import MessageExpiry
from warrenmq.core.message import Message, QueuedMessage, enqueue_as
from warrenmq.core.ports import MessageStore

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker

# A position in the order of release: the time, rounded up, and the position in the store.
Cursor = tuple[int, int]
FIRST: Cursor = (-1, -1)


class DelayedMessages:
    """`release` is called with each message when it is due; its `attempts` are those it was added with."""

    __slots__ = ("_expiry", "_release", "backlog", "is_deleted", "released", "stats", "turn")

    def __init__(
        self,
        broker: "Broker",
        store: MessageStore | None,
        is_durable: bool,
        release: Callable[[QueuedMessage], None],
    ) -> None:
        self.stats = broker.stats
        self.turn = broker.turn
        self.is_deleted = False
        self.released = 0
        self._release = release
        self.backlog = Backlog(broker.stats, store, is_durable)
        self._expiry = MessageExpiry(self, self.backlog, broker.timers)
        self.backlog.expiry = self._expiry
        for _, recovered in self.backlog.restore():
            self._expiry.restore(recovered.entries, recovered.expiring)

    def __len__(self) -> int:
        return self.backlog.waiting

    def add(self, message: Message, due_ms: int, attempts: int) -> int:
        """Keep a message until this time. Return the durability level that its confirm waits for."""
        backlog = self.backlog
        entry = enqueue_as(message, backlog.next_position)
        backlog.next_position += 1
        entry.expires_ms = due_ms
        entry.attempts = attempts
        level = backlog.persist(entry)
        backlog.append(entry)
        self._expiry.add(entry.position, message.size, due_ms)
        return level

    # -- the owner of the expiry: a message that expires here is due -------------------------------------------------

    def needs_bodies(self) -> bool:
        """Messages are read before they are removed."""
        return True

    def drop(self, entry: QueuedMessage, reason: int) -> None:
        """Release a message that was taken from the backlog."""
        self.finish_drop(entry, reason)
        self.backlog.settle(entry)

    def finish_drop(self, entry: QueuedMessage, reason: int) -> None:
        """Release a message that the store has removed."""
        self.released += 1
        self._release(entry)

    def dropped_on_disk(self, count: int, reason: int) -> None:
        """No message is removed unread."""

    # -- one by one --------------------------------------------------------------------------------------------------

    def list_from(
        self, after: Cursor, count: int, receive: Callable[[list[QueuedMessage], Cursor | None], None]
    ) -> None:
        """Pass on the next `count` messages after this position in the order of release, and where to continue.

        `receive` is called once, on the loop, possibly later; with None as the position after the last message.
        """
        self._expiry.when_indexed(lambda: self._list(after, count, [], receive))

    def _list(
        self,
        after: Cursor,
        count: int,
        found: list[QueuedMessage],
        receive: Callable[[list[QueuedMessage], Cursor | None], None],
    ) -> None:
        wanted = self._expiry.find_after(after, count - len(found))

        def add(entries: list[QueuedMessage]) -> None:
            by_position = {entry.position: entry for entry in entries}
            found.extend(by_position[position] for _, position in wanted if position in by_position)
            if not wanted or len(found) == count:
                receive(found, wanted[-1] if wanted else None)
            else:
                self._list(wanted[-1], count, found, receive)

        self.find([position for _, position in wanted], add)

    def find(self, positions: list[int], receive: Callable[[list[QueuedMessage]], None]) -> None:
        """Pass on the messages at these positions that still wait; called once, on the loop, possibly later."""
        backlog = self.backlog
        wanted = set(positions)
        found = [entry for entry in backlog if entry.position in wanted]
        wanted.difference_update([entry.position for entry in found])
        if not wanted or not backlog.paged:
            receive(found)
            return
        store: MessageStore = backlog.store  # type: ignore[assignment]
        on_disk = [position for position in sorted(wanted) if position > store.last_read]
        store.fetch(on_disk, lambda entries: receive(found + entries))

    def cancel(self, position: int, receive: Callable[[QueuedMessage | None], None]) -> None:
        """Remove the message at this position, and pass it on; None if it does not wait."""

        def remove(entries: list[QueuedMessage]) -> None:
            self.turn.begin()
            entry = entries[0] if entries and not self.is_deleted else None
            if entry is not None and self.backlog.remove(position) is not None:
                self.backlog.settle(entry)
            elif entry is not None and not self.backlog.forget_paged(position, entry.message.size):
                entry = None  # released meanwhile
            receive(entry)

        self.find([position], remove)

    # -- the end -----------------------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Remove all messages. Return their number."""
        count = self.backlog.waiting
        self.backlog.drop_all()
        return count

    def delete(self) -> None:
        """Remove all messages and the store."""
        self.is_deleted = True
        self._expiry.stop()
        self.backlog.expiry = None
        self.backlog.delete()
