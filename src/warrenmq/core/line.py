"""The line of messages that wait in a queue, by position.

A list with a moving head: both ends cost the same as a list's end. What comes back is gathered and merged in once, when
somebody next looks at the head: a client that requeues thousands one by one costs one merge.

Compiled when the package is built (line.pxd).
"""

from collections.abc import Iterator

from warrenmq.core.message import QueuedMessage

# The places before the head are given back when they are this many, and at least half of the list.
_COMPACT_FROM = 1024


class Line:
    """Messages in the order of their positions."""

    __slots__ = ("_entries", "_head", "_returned")

    def __init__(self) -> None:
        self._entries: list[QueuedMessage | None] = []
        self._head = 0
        self._returned: list[QueuedMessage] = []

    def __len__(self) -> int:
        return len(self._entries) - self._head + len(self._returned)

    def is_empty(self) -> bool:
        return len(self._entries) == self._head and not self._returned

    def __iter__(self) -> Iterator[QueuedMessage]:
        if self._returned:
            self._merge()
        for entry in self._entries[self._head :]:
            assert entry is not None
            yield entry

    def append(self, entry: QueuedMessage) -> None:
        """Put a message behind all others; its position is higher than theirs."""
        self._entries.append(entry)

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

    def clear(self) -> None:
        self._entries.clear()
        self._returned.clear()
        self._head = 0


def _position_of(entry: QueuedMessage) -> int:
    return entry.position
