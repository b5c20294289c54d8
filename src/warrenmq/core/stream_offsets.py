"""How far tracked consumers of one stream have come: the broker remembers it for them, by consumer tag.

A consumer with `x-stream-automatic-offset-tracking` (LavinMQ's name) that comes back with its tag goes on behind what
it has acked. What counts is the first position that was delivered and not acked: acks may come in any order, and after
a crash some messages may come again, but none is left out. Each step is in the epoch of its ack.

`MAX_TAGS` are remembered for a stream: a further one takes the place of the tag that was idle the longest. Retention
takes the offsets with their messages.

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
    """Whether a consumer with these arguments, which were checked, is tracked."""
    value = arguments.get(TRACKING, False)
    return value is True or value == "true"


def find_fault(arguments: dict[str, Any]) -> tuple[str, str] | None:
    """The argument and what is wrong with it, if anything is; texts are for clients that can send nothing else."""
    value = arguments.get(TRACKING, False)
    if isinstance(value, bool) or (isinstance(value, str) and value in ("true", "false")):
        return None
    return TRACKING, f"{{unacceptable_type,{field_type(value)}}}"


class ConsumerOffset:
    """How far one tracked consumer has come."""

    __slots__ = ("_acked", "_cursor", "_unacked", "is_over", "tag")

    def __init__(self, tag: str, cursor: Cursor) -> None:
        self.tag = tag
        self.is_over = False  # the consumer was cancelled, and may still ack
        self._cursor = cursor
        self._unacked: deque[int] = deque()  # delivered, the first of them not acked
        self._acked: set[int] = set()  # those behind the first one that are

    def deliver(self, position: int) -> None:
        self._unacked.append(position)

    def settle(self, position: int) -> int | None:
        """A delivery was acked. Return the first position that is still to be dealt with, or None if it is the same."""
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
    """The offsets of one stream. `stored` are the positions to go on with, by tag, the one used last at the end."""

    def __init__(self, store: OffsetStore, stats: Stats) -> None:
        self._store = store
        self._stats = stats
        self._progress: dict[Consumer, ConsumerOffset] = {}
        self.stored = store.open()
        self._stats.definition_bytes += sum(map(_size_of, self.stored))

    def restore(self, first: int, end: int) -> None:
        """The stream begins with what it kept, from `first` to before `end`."""
        self.forget_before(first)
        for tag, position in self.stored.items():
            self.stored[tag] = min(position, end)  # the event log may have lost its newest batches

    def has_room(self) -> bool:
        """Whether one more consumer can be tracked without forgetting another one."""
        return len(self._progress) < MAX_TAGS

    def begin(self, consumer: Consumer, cursor: Cursor) -> ConsumerOffset:
        """Track this consumer from now on."""
        progress = self._progress[consumer] = ConsumerOffset(consumer.tag, cursor)
        position = self.stored.pop(consumer.tag, None)
        if position is not None:
            self.stored[consumer.tag] = position
        return progress

    def settle(self, entry: QueuedMessage, first: int) -> None:
        """A tracked consumer has acked a delivery; the stream begins at `first`."""
        consumer: Consumer = entry.consumer  # type: ignore[assignment]
        progress = self._progress.get(consumer)
        if progress is None:
            return
        position = progress.settle(entry.position)
        if position is not None and position >= first and position > self.stored.get(progress.tag, 0):
            self._keep(progress.tag, position)
        if progress.is_over and progress.is_idle():
            del self._progress[consumer]

    def _keep(self, tag: str, position: int) -> None:
        if tag not in self.stored:
            self._stats.definition_bytes += _size_of(tag)
            if len(self.stored) >= MAX_TAGS:
                self._forget_oldest()
        self.stored[tag] = position
        self._store.save(tag, position)

    def _forget_oldest(self) -> None:
        used = {progress.tag for progress in self._progress.values()}
        tag = next(tag for tag in self.stored if tag not in used)
        self._drop(tag)
        self._store.forget(tag)

    def leave(self, consumer: Consumer) -> None:
        """The consumer is cancelled: what it holds can still be acked."""
        progress = self._progress.get(consumer)
        if progress is not None:
            progress.is_over = True
            if progress.is_idle():
                del self._progress[consumer]

    def give_up(self, entries: list[QueuedMessage]) -> None:
        """The channel of these deliveries is closed: they will not be acked."""
        for entry in entries:
            self._progress.pop(entry.consumer, None)  # type: ignore[call-overload]

    def forget_before(self, first: int) -> None:
        """Retention has removed what stood before this position; a start comes to the same without being told."""
        for tag in [tag for tag, position in self.stored.items() if position < first]:
            self._drop(tag)

    def delete(self) -> None:
        """The stream is gone."""
        for tag in list(self.stored):
            self._drop(tag)

    def _drop(self, tag: str) -> None:
        del self.stored[tag]
        self._stats.definition_bytes -= _size_of(tag)


def _size_of(tag: str) -> int:
    return TRACKED_TAG + len(tag)
