"""The line of messages that wait in a queue, by position.

A list with a moving head: both ends cost the same as a list's end. What comes back is gathered and merged in once, when
somebody next looks at the head: a client that requeues thousands one by one costs one merge.

A long line has three parts: the window in memory that messages are taken from, the part that is paged out (only its
length is known here), and the tail in memory that waits to follow it.

Compiled when the package is built (line.pxd).
"""

from collections.abc import Iterator

from warrenmq.core.message import QueuedMessage

# The places before the head are given back when they are this many, and at least half of the list.
_COMPACT_FROM = 1024


class Line:
    """Messages in the order of their positions. `paged` of them are not in memory."""

    __slots__ = ("_entries", "_head", "_returned", "_tail", "paged")

    def __init__(self) -> None:
        self._entries: list[QueuedMessage | None] = []
        self._head = 0
        self._returned: list[QueuedMessage] = []
        self._tail: list[QueuedMessage] = []
        self.paged = 0

    def __len__(self) -> int:
        return self.count()

    def count(self) -> int:
        """As len(), by a C call."""
        return len(self._entries) - self._head + len(self._returned) + self.paged + len(self._tail)

    def is_empty(self) -> bool:
        return len(self._entries) == self._head and not self._returned and self.paged == 0

    def has_first(self) -> bool:
        """Whether the message at the head is in memory."""
        return len(self._entries) > self._head or len(self._returned) > 0

    def __iter__(self) -> Iterator[QueuedMessage]:
        """All that are in memory."""
        if self._returned:
            self._merge()
        for entry in self._entries[self._head :]:
            assert entry is not None
            yield entry
        yield from self._tail

    def append(self, entry: QueuedMessage) -> None:
        """Put a message behind all others; its position is higher than theirs."""
        if self.paged == 0:
            self._entries.append(entry)
        else:
            self._tail.append(entry)

    def first(self) -> QueuedMessage | None:
        """Return the message at the head, or None if it is not in memory or nobody waits."""
        if self._returned:
            self._merge()
        return self._entries[self._head] if self._head < len(self._entries) else None

    def take_first(self) -> QueuedMessage | None:
        """Take the message at the head, or None if nobody waits."""
        if self._returned:
            self._merge()
        head = self._head
        entries = self._entries
        if head >= len(entries):
            return None
        entry = entries[head]
        entries[head] = None
        head += 1
        if head == len(entries):
            entries.clear()
            head = 0
        elif head >= _COMPACT_FROM and 2 * head >= len(entries):
            del entries[:head]
            head = 0
        self._head = head
        return entry

    def put_back(self, returning: list[QueuedMessage]) -> None:
        """Put messages back at their old places."""
        self._returned.extend(returning)

    def _merge(self) -> None:
        """Bring the returned ones to their places, which are nearly always at the head."""
        returning = self._returned
        self._returned = []
        returning.sort(key=_position_of)
        entries = self._entries
        last = returning[-1].position
        passed = self._head
        while passed < len(entries) and entries[passed].position < last:  # type: ignore[union-attr]
            passed += 1
        if passed > self._head:
            returning.extend(entries[self._head : passed])  # type: ignore[arg-type]
            returning.sort(key=_position_of)
        # The places before the head are free; only what does not fit there moves the rest.
        start = max(0, passed - len(returning))
        entries[start:passed] = returning
        self._head = start

    # -- paging ------------------------------------------------------------------------------------------------------

    def begin_with(self, paged: int, entries: list[QueuedMessage]) -> None:
        """So many are paged out, and these stand behind them."""
        self.paged = paged
        for entry in entries:
            self.append(entry)

    def cut_window(self, keep_bytes: int, behind: int) -> int:
        """Make what stands behind that position and behind the first so many bytes the tail, which is to be cut next.

        Gives the bytes that stay.
        """
        if self._returned:
            self._merge()
        entries = self._entries
        at = self._head
        kept = 0
        while at < len(entries):
            entry = entries[at]
            assert entry is not None
            if kept >= keep_bytes and entry.position > behind:
                break
            kept += entry.message.footprint()
            at += 1
        self._tail = entries[at:]  # type: ignore[assignment]
        del entries[at:]
        return kept

    def cut_tail(self, limit: int) -> list[QueuedMessage]:
        """Take the first of the tail, some so many bytes, out: they follow what is paged out already."""
        tail = self._tail
        at = 0
        size = 0
        while at < len(tail) and size < limit:
            entry = tail[at]
            size += entry.message.footprint()
            at += 1
        leaving = tail[:at]
        del tail[:at]
        self.paged += at
        return leaving

    def page_in(self, entries: list[QueuedMessage]) -> None:
        """Put the next of those paged out into the window; behind the last of them stands the tail."""
        self._entries.extend(entries)
        self.pages_are_gone(len(entries))

    def pages_are_gone(self, count: int) -> None:
        """So many fewer are paged out."""
        self.paged -= count
        if self.paged == 0:
            self._entries.extend(self._tail)
            self._tail.clear()

    def clear(self) -> None:
        self._entries.clear()
        self._returned.clear()
        self._tail.clear()
        self._head = 0
        self.paged = 0


def _position_of(entry: QueuedMessage) -> int:
    return entry.position
