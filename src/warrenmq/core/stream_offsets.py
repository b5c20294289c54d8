"""Server-side offset tracking: the broker stores the offsets of stream consumers, by consumer tag.

A consumer with `x-stream-automatic-offset-tracking` (LavinMQ's name) that reconnects with the same tag resumes after
what it has acked. The offset is the first position that was delivered and not acked, so acks may come in any order;
after a crash messages may be delivered again, but none is skipped. An offset is logged in the epoch of its ack.

At most `MAX_TAGS` are stored for a stream: a new tag replaces the one that was idle the longest. Retention removes
offsets with their messages.

Owned by the loop thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from warrenmq.core.memory import TRACKED_TAG
from warrenmq.core.message import QueuedMessage
from warrenmq.core.routing.erlang_text import field_type

if TYPE_CHECKING:
    from warrenmq.core.consumer import Consumer
    from warrenmq.core.ports import OffsetStore
    from warrenmq.core.stats import Stats
    from warrenmq.core.stream import Cursor

TRACKING = "x-stream-automatic-offset-tracking"
MAX_TAGS = 256


def is_tracked(arguments: dict[str, Any]) -> bool:
    """Return True if a consumer with these checked arguments is tracked."""
    value = arguments.get(TRACKING, False)
    return value is True or value == "true"


def find_fault(arguments: dict[str, Any]) -> tuple[str, str] | None:
    """Return an invalid argument and its fault, or None. Text is accepted from clients that can send nothing else."""
    value = arguments.get(TRACKING, False)
    if isinstance(value, bool) or (isinstance(value, str) and value in ("true", "false")):
        return None
    return TRACKING, f"{{unacceptable_type,{field_type(value)}}}"


class ConsumerOffset:
    """The offset of one tracked consumer."""

    __slots__ = ("_acked", "_cursor", "_unacked", "is_cancelled", "tag")

    def __init__(self, tag: str, cursor: Cursor) -> None:
        self.tag = tag
        self.is_cancelled = False  # it may still ack
        self._cursor = cursor
        self._unacked: deque[int] = deque()  # delivered positions, from the first unacked one on
        self._acked: set[int] = set()  # those among them that are acked

    def deliver(self, position: int) -> None:
        self._unacked.append(position)

    def settle(self, position: int) -> int | None:
        """Ack a delivery. Return the new offset, or None if it is unchanged."""
        unacked, acked = self._unacked, self._acked
        if position != unacked[0]:
            acked.add(position)
            return None
        unacked.popleft()
        while unacked and unacked[0] in acked:
            acked.remove(unacked.popleft())
        return unacked[0] if unacked else self._cursor.position

    def is_idle(self) -> bool:
        return not self._unacked


class StreamOffsets:
    """The offsets of one stream. `stored` has them by tag, most recently used last."""

    def __init__(self, store: OffsetStore, stats: Stats) -> None:
        self._store = store
        self._stats = stats
        self._tracked: dict[Consumer, ConsumerOffset] = {}
        self.stored = store.open()
        self._stats.definition_bytes += sum(map(_size_of, self.stored))

    def restore(self, first: int, end: int) -> None:
        """Fit the stored offsets to the recovered stream, which has positions from `first` to before `end`."""
        self.forget_before(first)
        for tag, position in self.stored.items():
            self.stored[tag] = min(position, end)  # the event log may have lost its newest batches

    def has_room(self) -> bool:
        """Return True if one more consumer can be tracked without evicting an active one."""
        return len(self._tracked) < MAX_TAGS

    def track(self, consumer: Consumer, cursor: Cursor) -> ConsumerOffset:
        """Track this consumer from now on."""
        offset = self._tracked[consumer] = ConsumerOffset(consumer.tag, cursor)
        position = self.stored.pop(consumer.tag, None)
        if position is not None:
            self.stored[consumer.tag] = position
        return offset

    def settle(self, entry: QueuedMessage, first: int) -> None:
        """Ack a delivery to a tracked consumer; the stream begins at `first`."""
        consumer: Consumer = entry.consumer  # type: ignore[assignment]
        offset = self._tracked.get(consumer)
        if offset is None:
            return
        position = offset.settle(entry.position)
        if position is not None and position >= first and position > self.stored.get(offset.tag, 0):
            self._save(offset.tag, position)
        if offset.is_cancelled and offset.is_idle():
            del self._tracked[consumer]

    def _save(self, tag: str, position: int) -> None:
        if tag not in self.stored:
            self._stats.definition_bytes += _size_of(tag)
            if len(self.stored) >= MAX_TAGS:
                self._evict_oldest()
        self.stored[tag] = position
        self._store.save(tag, position)

    def _evict_oldest(self) -> None:
        used = {offset.tag for offset in self._tracked.values()}
        tag = next(tag for tag in self.stored if tag not in used)
        self._drop(tag)
        self._store.forget(tag)

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Stop tracking the consumer once it has acked its deliveries."""
        offset = self._tracked.get(consumer)
        if offset is not None:
            offset.is_cancelled = True
            if offset.is_idle():
                del self._tracked[consumer]

    def channel_closed(self, entries: list[QueuedMessage]) -> None:
        """Stop tracking the consumers of these deliveries, which will not be acked."""
        for entry in entries:
            self._tracked.pop(entry.consumer, None)  # type: ignore[call-overload]

    def forget_before(self, first: int) -> None:
        """Drop offsets before this position, removed by retention. Not logged: `restore` does the same."""
        for tag in [tag for tag, position in self.stored.items() if position < first]:
            self._drop(tag)

    def delete(self) -> None:
        """The stream was deleted."""
        for tag in list(self.stored):
            self._drop(tag)

    def _drop(self, tag: str) -> None:
        del self.stored[tag]
        self._stats.definition_bytes -= _size_of(tag)


def _size_of(tag: str) -> int:
    return TRACKED_TAG + len(tag)
