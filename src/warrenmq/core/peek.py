"""Peeks at the waiting messages of a queue or stream, in the order of delivery, without consuming them.

Nothing changes: no message is delivered, marked as redelivered or paged in. Messages that are only on disk are read one
page at a time. The queue goes on between two calls: what leaves or enters it meanwhile may be in the result or not.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warrenmq.core.backlog import Backlog
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.priority import PriorityBacklog
from warrenmq.core.queue import Queue
from warrenmq.core.stream import Stream


@dataclass(frozen=True, slots=True)
class Start:
    """The message at which a peek starts, or the next one after it.

    `position`: in a stream the offset. `priority`: of the level, in a queue with priorities.
    """

    position: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A waiting message. `body` may be truncated; `size` is that of the whole body. `attempts` counts deliveries.

    `publish_time`: in us since 1970, 0 if tracing did not record it.
    """

    start: Start
    exchange: str
    routing_key: str
    header: bytes
    body: bytes
    size: int
    is_redelivered: bool
    attempts: int
    expires_ms: int
    publish_time: int


@dataclass(frozen=True, slots=True)
class Peeked:
    """`next`: where to continue; None after the last message. `unreadable` messages are in a damaged page."""

    messages: list[PeekedMessage]
    next: Start | None
    unreadable: int = 0


Receive = Callable[[Peeked], None]


def has_levels(queue: Queue) -> bool:
    """Return True if the queue delivers by priority."""
    return isinstance(queue, ClassicQueue) and isinstance(queue.backlog, PriorityBacklog)


def peek(queue: Queue, start: Start | None, count: int, truncate: int, receive: Receive) -> None:
    """Pass on some of the next messages, at most `count`, with their bodies cut to `truncate` bytes.

    `start`: None for the first message. `receive` is called once, on the loop, possibly later; not at all if the queue
    is deleted first.
    """
    if isinstance(queue, Stream):
        _peek_stream(queue, 0 if start is None else start.position, count, truncate, receive)
    elif isinstance(queue, ClassicQueue):
        _peek_backlog(queue.backlog, start, count, truncate, receive)


def _peek_stream(stream: Stream, offset: int, count: int, truncate: int, receive: Receive) -> None:
    def page_arrived(first: int, messages: list[Message]) -> None:
        found = [_describe(message, Start(first + at), truncate) for at, message in enumerate(messages[:count])]
        after = first + len(found)
        receive(Peeked(found, Start(after) if after < stream.readable and not stream.is_deleted else None))

    stream.read(max(offset, stream.first_offset), page_arrived)


def _peek_backlog(backlog: Backlog, start: Start | None, count: int, truncate: int, receive: Receive) -> None:
    """Peek at the highest level that `start` has not passed; a backlog without priorities is a single one."""
    levels = backlog.levels() if isinstance(backlog, PriorityBacklog) else [(0, backlog)]
    left = [(priority, level) for priority, level in levels if start is None or priority <= start.priority]
    if not left:
        receive(Peeked([], None))
        return
    priority, level = left[0]
    position = start.position if start is not None and priority == start.priority else 0
    following = Start(0, left[1][0]) if len(left) > 1 else None

    def finish(entries: list[QueuedMessage], after: int, unreadable: int = 0) -> None:
        """Pass on these messages; the next one of this level is at `after` or later, -1: there is none."""
        found = [
            _describe(entry.message, Start(entry.position, priority), truncate, entry) for entry in entries[:count]
        ]
        if len(entries) >= count:
            after = found[-1].start.position + 1
        receive(Peeked(found, following if after < 0 else Start(after, priority), unreadable))

    def page_arrived(on_disk: list[QueuedMessage], last: int, unreadable: int) -> None:
        for entry in on_disk:
            level.mark_redelivered(entry)
        entries = {entry.position: entry for entry in on_disk}
        for entry in level.in_memory(position, level.next_position if last < 0 else last, count):
            entries[entry.position] = entry  # some were not on disk alone, or have been paged in meanwhile
        finish([entries[at] for at in sorted(entries)], -1 if last < 0 else last + 1, unreadable)

    in_memory = level.in_memory(position, level.next_position, count)
    if level.paged == 0:
        finish(in_memory, -1)
        return
    assert level.store is not None
    head = [entry for entry in in_memory if entry.position <= level.store.last_read]
    if head:
        finish(head, head[-1].position + 1)
    else:
        level.store.read_page(position, page_arrived)


def _describe(message: Message, start: Start, truncate: int, entry: QueuedMessage | None = None) -> PeekedMessage:
    return PeekedMessage(
        start,
        message.exchange,
        message.routing_key,
        message.header,
        message.body[:truncate],
        message.size,
        entry is not None and entry.redelivered,
        0 if entry is None else entry.attempts,
        0 if entry is None else entry.expires_ms,
        message.publish_time,
    )
