"""Waiting messages in memory whose positions are after some that are only on disk.

A consumer with a filter takes a message that is only on disk, past those before it. If it is requeued, it waits here
until the backlog has read what precedes it.

Owned by the loop thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from warrenmq.core.message import QueuedMessage

_position = attrgetter("position")


class Ahead:
    """The messages by position; `size` is their memory."""

    __slots__ = ("entries", "size")

    def __init__(self) -> None:
        self.entries: list[QueuedMessage] = []
        self.size = 0

    def __iter__(self) -> Iterator[QueuedMessage]:
        return iter(self.entries)

    def add(self, entry: QueuedMessage) -> None:
        self.entries.insert(self._index_of(entry.position), entry)
        self.size += entry.message.footprint()

    def remove(self, position: int) -> QueuedMessage | None:
        """Remove the message at this position, and return it, or None."""
        index = self._index_of(position)
        if index == len(self.entries) or self.entries[index].position != position:
            return None
        entry = self.entries.pop(index)
        self.size -= entry.message.footprint()
        return entry

    def between(self, first: int, last: int) -> list[QueuedMessage]:
        """Return the messages from one position to another."""
        return self.entries[self._index_of(first) : bisect_right(self.entries, last, key=_position)]

    def take_up_to(self, last: int) -> list[QueuedMessage]:
        """Remove the messages up to this position, and return them."""
        end = bisect_right(self.entries, last, key=_position)
        taken = self.entries[:end]
        del self.entries[:end]
        for entry in taken:
            self.size -= entry.message.footprint()
        return taken

    def _index_of(self, position: int) -> int:
        return bisect_left(self.entries, position, key=_position)
