"""The messages at the head of a backlog, in memory: a list with a moving head, so that both ends are O(1).

Requeued messages are merged in when the head is next read: thousands of single requeues cost one merge. A message taken
from the middle leaves a gap, to which it may return.

Owned by the loop thread. Compiled when the package is built (window.pxd).
"""

from typing import Any

from warrenmq.core.message import Message, QueuedMessage, enqueue_as

# Free slots are released when there are this many, before or after the head, and they are at least half of the list.
COMPACT_FROM = 1024

# In the slot of a removed message, so that the list stays sorted and keeps its length.
REMOVED = Message(b"", b"", b"")
NO_ENTRY = enqueue_as(REMOVED, -1)

# For C.
_COMPACT_FROM, _REMOVED, _NO_ENTRY = COMPACT_FROM, REMOVED, NO_ENTRY


class Window:
    """The base class of a backlog."""

    __slots__ = ("_entries", "_gaps", "_head", "_requeued")

    def __init__(self) -> None:
        self._entries: list[Any] = []  # QueuedMessage; None before the head
        self._head = 0
        self._gaps = 0  # slots of removed messages after the head; never at the head
        self._requeued: list[QueuedMessage] | None = None  # to be merged in; None: none

    def has_first(self) -> bool:
        """Return True if the first message is in memory."""
        return len(self._entries) > self._head or self._requeued is not None

    def first(self) -> QueuedMessage | None:
        """Return the first message; None if it is not in memory or none waits."""
        if self._requeued is not None:
            self._merge()
        return self._entries[self._head] if self._head < len(self._entries) else None

    def first_from(self, position: int) -> QueuedMessage | None:
        """Return the first message at or after this position; None if it is not in memory."""
        first = self.first()
        if first is None or first.position >= position:
            return first
        entries = self._entries
        for at in range(self._index_of(entries, self._head, position), len(entries)):
            entry: QueuedMessage = entries[at]
            if entry.message is not _REMOVED:
                return entry
        return None

    def _return(self, entry: QueuedMessage) -> None:
        """Add a message that is to be merged into the window."""
        if self._requeued is None:
            self._requeued = [entry]
        else:
            self._requeued.append(entry)

    def _merge(self) -> None:
        """Merge the requeued messages into the window; they nearly always belong at its head."""
        returning = self._requeued
        assert returning is not None
        self._requeued = None
        returning.sort(key=_position_of)
        entries = self._entries
        last = returning[-1].position
        passed = self._head
        while passed < len(entries) and entries[passed].position < last:
            passed += 1
        if passed > self._head:
            returning.extend(entries[self._head : passed])
            returning.sort(key=_position_of)
        # The slots before the head are free; only messages that do not fit there move the others.
        start = max(0, passed - len(returning))
        entries[start:passed] = returning
        self._head = start

    def _fill_gap(self, entry: QueuedMessage) -> bool:
        """Put a message back where `remove` took it from; False if there is no gap any more."""
        entries = self._entries
        index = self._index_of(entries, self._head, entry.position)
        other: QueuedMessage = entries[index] if index < len(entries) else _NO_ENTRY
        if other.position != entry.position:
            return False
        entries[index] = entry
        self._gaps -= 1
        return True

    def _index_of(self, entries: list[Any], low: int, position: int) -> int:
        """Return the first index from `low` on whose position is not lower (binary search)."""
        high = len(entries)
        while low < high:
            middle = (low + high) >> 1
            entry = entries[middle]
            if entry.position < position:
                low = middle + 1
            else:
                high = middle
        return low

    def _skip_gaps(self, at: int) -> int:
        """Clear the gaps from this index on. Return the index of the first message."""
        entries = self._entries
        while at < len(entries):
            entry = entries[at]
            if entry.message is not _REMOVED:
                break
            entries[at] = None
            self._gaps -= 1
            at += 1
        return at

    def _close_gaps(self, index: int) -> None:
        """Remove gaps at the head, and all gaps if they are too many, after a removal at this index."""
        entries = self._entries
        if index == self._head:
            self._head = self._skip_gaps(index)
            if self._head == len(entries):
                entries.clear()
                self._head = 0
        elif self._gaps >= _COMPACT_FROM and 2 * self._gaps >= len(entries) - self._head:
            self._compact()

    def _compact(self) -> None:
        """Merge requeued messages into the window, and remove all gaps."""
        if self._requeued is not None:
            self._merge()
        if self._gaps != 0:
            self._entries = [entry for entry in self._entries[self._head :] if entry.message is not _REMOVED]
            self._head = 0
            self._gaps = 0


def _position_of(entry: QueuedMessage) -> int:
    return entry.position
