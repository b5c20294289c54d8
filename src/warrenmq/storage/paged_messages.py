"""Deletes messages of a queue that are on disk only, without reading them.

Pages are deleted from the first one on, by their index (page_index.py), single messages by position. Both are recorded
in the commit log and as deletion marks, and a segment without live messages is removed. A read in progress does not
bring deleted messages back: it skips marked ones, and a read of a removed segment is cancelled.

Functions over one store, which owns the state; called by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from warrenmq.storage.codec import is_marked
from warrenmq.storage.page_index import UNKNOWN

if TYPE_CHECKING:
    from warrenmq.core.message import QueuedMessage
    from warrenmq.storage.queue_store import QueueStore
    from warrenmq.storage.segments import Segment


class _Chosen(NamedTuple):
    """Pages of one segment to delete: from `first` to before `end`."""

    segment: Segment
    first: int
    end: int


def forget_first_pages(store: QueueStore, is_due: Callable[[int, int, int], bool]) -> tuple[int, int]:
    """See `MessageStore.forget_first_pages`."""
    chosen = _choose(store, is_due)
    if not chosen:
        return 0, 0
    segment, _, end = chosen[-1]
    first, last = store.last_read + 1, segment.pages.last(end - 1)
    if store.number:  # before any file is removed
        store.context.log.buffer.put_forget_range(store.number, first, last)
        store.context.log.note_work(0)
    count = size = 0
    for each in chosen:
        forgotten = _forget_pages_of(store, *each)
        count += forgotten[0]
        size += forgotten[1]
    store.forget_attempts(first, last)
    resume_reader(store)
    return count, size


def _choose(store: QueueStore, is_due: Callable[[int, int, int], bool]) -> list[_Chosen]:
    """Return the pages that are due, in order."""
    chosen: list[_Chosen] = []
    reading = store.segments.reading
    if reading is None:
        return chosen
    first_held = min([position for position in store.held if position > store.last_read], default=1 << 62)
    segments = store.segments.all
    for segment in segments[segments.index(reading) :]:
        pages = segment.pages
        page = first = pages.next_unread(0)
        while page < len(pages):
            unread, size = pages.unread(page), pages.unread_bytes(page)
            if size == UNKNOWN or not is_due(unread, size, pages.latest(page)):
                break
            if pages.last(page) >= first_held:
                break  # the caller reads it, and removes messages one by one
            page = pages.next_unread(page + 1)
        if page > first:
            chosen.append(_Chosen(segment, first, page))
        if page < len(pages):
            break
    return chosen


def forget_pages(store: QueueStore) -> None:
    """Delete everything that is on disk only; there is something."""
    if store.number:
        first = store.last_read + 1
        for held in sorted(position for position in store.held if first <= position):  # in memory: they stay
            if first < held:
                store.context.log.buffer.put_forget_range(store.number, first, held - 1)
            first = held + 1
        if first <= store.last_position:
            store.context.log.buffer.put_forget_range(store.number, first, store.last_position)
        store.context.log.note_work(store.context.log.reply_level)
        store.context.marked_stores[store] = None
    for segment in list(store.segments.all):
        if segment.unread:
            segment.delete_unread(store.last_read, store.held)
            store.reclaim_segment(segment)
    store.forget_attempts(store.last_read + 1, store.last_position)
    resume_reader(store)


def _forget_pages_of(store: QueueStore, segment: Segment, first: int, end: int) -> tuple[int, int]:
    pages = segment.pages
    count = sum(pages.unread(page) for page in range(first, end))
    size = sum(pages.unread_bytes(page) for page in range(first, end))
    marked = max(pages.first(first), store.last_read + 1), pages.last(end - 1)
    for page in range(first, end):
        pages.clear(page)
    if end == len(pages) and segment.unread > count:
        # Messages of damaged pages, which would have counted as lost at the end of the segment.
        store.context.lost_messages += segment.unread - count
        count, size = segment.unread, segment.unread_bytes
    segment.unread -= count
    segment.unread_bytes -= size
    segment.alive -= count
    segment.alive_bytes -= size
    if segment.alive or segment.is_compacting:  # else the file is removed and needs no marks
        segment.mark(*marked, store.number != 0)
        if segment.unwritten_marks:
            store.context.marked_stores[store] = None
    store.reclaim_segment(segment)
    return count, size


def forget_paged(store: QueueStore, position: int, size: int) -> bool:
    """See `MessageStore.forget_paged`."""
    segment = find_unread(store, position)
    if segment is None:
        return False
    is_durable = store.number != 0
    if is_durable:
        store.context.log.buffer.put_forget(store.number, position)
        store.context.log.note_work(0)
        store.context.marked_stores[store] = None
    segment.note_unread(segment.pages.find(position), -1, -size)
    segment.delete(position, is_durable, size)
    store.forget_attempts(position, position)
    store.reclaim_segment(segment)
    if segment.unread == 0:
        resume_reader(store)
    return True


def take_paged(store: QueueStore, position: int, size: int) -> bool:
    """See `MessageStore.take_paged`."""
    segment = find_unread(store, position)
    if segment is None:
        return False
    segment.note_unread(segment.pages.find(position), -1, -size)
    store.hold([position])
    if segment.unread == 0:
        resume_reader(store)
    return True


def return_paged(store: QueueStore, entries: list[QueuedMessage]) -> None:
    """See `MessageStore.return_paged`."""
    for entry in entries:
        segment = store.segments.find(entry.position)
        assert segment is not None
        store.held.discard(entry.position)
        segment.note_unread(segment.pages.find(entry.position), 1, entry.message.size)
    # The reader may have skipped their pages.
    store.reader.rewind(next(segment for segment in store.segments.all if segment.unread), store.last_read)


def find_unread(store: QueueStore, position: int) -> Segment | None:
    """Return the segment of a live message that is on disk only; None if the message is not."""
    is_behind = position > store.last_read and position not in store.held
    segment = store.segments.find(position) if is_behind else None
    if segment is None or is_marked(segment.dead, position - segment.first):
        return None
    pages = segment.pages
    page = pages.find(position)
    is_found = page < len(pages) and pages.first(page) <= position and pages.unread(page) > 0
    return segment if is_found else None


def resume_reader(store: QueueStore) -> None:
    """After a deletion: continue a waiting read, or end it if nothing is unread."""
    if not store.has_unread():
        store.reader.cancel()
        store.is_reading = False
        store.reader.start_after(store.last_read)
    elif store.is_reading:
        store.reader.read()


def expiring_pages(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    """See `Recovered.expiring`."""
    return [
        (segment.pages.earliest(page), segment.pages.first(page))
        for segment in segments
        for page in range(len(segment.pages))
        if segment.pages.unread(page) and segment.pages.earliest(page)
    ]
