"""Reads a queue's pages back, in order, from where the last page ended.

A page of which nothing is alive and on disk only is passed over. A page that is still being written, or a segment that
is being compacted, is waited for. A page that cannot be read is reported, its file is kept aside, its messages count as
lost and are logged as deleted, and reading goes on behind it.

Owned by the loop thread; the reading is done by the pager's thread.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from warrenmq.journal.segment_file import FILE_HEAD_SIZE, PageHead
from warrenmq.storage.codec import BadPage, decode_records, is_marked
from warrenmq.storage.damaged import keep_copy
from warrenmq.storage.manifest import Loss
from warrenmq.storage.pages import read_pages

if TYPE_CHECKING:
    from warrenmq.core.message import QueuedMessage
    from warrenmq.storage.queue_store import QueueStore
    from warrenmq.storage.segments import Segment

log = logging.getLogger("warrenmq.storage")


class PageReader:
    """The next page is in `Segments.reading`. What is met up to `QueueStore.last_read` is in memory."""

    __slots__ = ("_copied_files", "_generation", "_is_pending", "_offset", "_store")

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._offset = 0
        self._is_pending = False  # a read is in progress
        self._generation = 0  # of reads: those in progress are void after a purge
        self._copied_files: set[str] = set()  # damaged files of which there is a copy

    def start_at(self, segment: Segment, offset: int) -> None:
        """Read on from this place."""
        self._store.segments.reading = segment
        self._offset = offset

    def start_after(self, position: int) -> None:
        """Everything up to this position is in memory; the next page is not written yet."""
        self._store.last_read = position
        self._store.segments.reading = None

    def cancel(self) -> None:
        """Ignore the read in progress."""
        self._generation += 1
        self._is_pending = False

    def restart_at(self, segment: Segment | None) -> None:
        """Read on from the beginning of this segment."""
        self.cancel()
        self._store.segments.reading = segment
        self._offset = FILE_HEAD_SIZE

    def rewind(self, segment: Segment | None, above: int) -> None:
        """Read again what stands behind this position, in this segment and all that follow."""
        self.restart_at(segment)
        self._store.last_read = above
        if self._store.is_reading:
            self.read()

    def skip_segment(self, segment: Segment) -> None:
        """The segment is about to be removed: read on behind it."""
        segments = self._store.segments
        if segment is segments.reading:
            self.restart_at(segments.after(segment))

    def read(self) -> None:
        """Ask for the next pages, unless they cannot be read yet: then the store calls again."""
        store, segment = self._store, self._store.segments.reading
        if segment is None:
            store.is_reading = False
            return
        if self._is_pending or segment.is_compacting:
            return
        self._offset, stop = self._next_run(segment)
        offset, end = self._offset, segment.written
        if end <= offset < segment.size:
            return
        self._is_pending = True
        path = os.path.join(store.folder, segment.name)
        generation = self._generation
        read_size = store.context.read_size
        restored_below = store.restored_below
        store.context.pager.read(
            lambda files: read_pages(files, path, offset, min(stop, end), read_size, restored_below),
            lambda result: self._on_read(generation, segment, end, result),
        )

    def _next_run(self, segment: Segment) -> tuple[int, int]:
        """Where the next pages begin of which something is on disk only, and where they end; both the end if none."""
        pages = segment.pages
        page = stop = pages.next_unread(pages.find_offset(self._offset))
        if page == len(pages):
            return segment.size, segment.size
        limit = pages.offset(page) + self._store.context.read_size
        while stop < len(pages) and pages.unread(stop) and pages.offset(stop) < limit:
            stop += 1
        return pages.offset(page), pages.offset(stop) if stop < len(pages) else segment.size

    def _on_read(self, generation: int, segment: Segment, end: int, result: Any) -> None:
        if generation != self._generation:
            return
        store = self._store
        if isinstance(result, Exception) and not isinstance(result, OSError):
            store.context.pager.on_failed(str(result))
            return
        self._is_pending = False
        if isinstance(result, OSError) and segment.is_compacting:
            return  # its file may have been replaced already: the store calls again
        pages, problem, bad = ([], str(result), None) if isinstance(result, Exception) else result
        entries: list[QueuedMessage] = []
        for page, payload in pages:
            try:
                found = decode_records(
                    payload, self._store.last_read, segment.first, segment.dead, store.restored_below
                )
            except BadPage as error:
                problem, bad = f"the page at offset {page.offset}: {error}", page
                break
            entries += found
            segment.pages.clear(segment.pages.find(page.first))
            self._advance(page.end, page.last)
        segment.note_read(entries)
        lost_bytes = segment.unread_bytes
        if problem is not None:
            self._skip_damage(segment, problem, end, bad)
        self._offset = self._next_run(segment)[0]
        lost = self._finish_segment(segment)
        store.pages_read(entries, lost, lost_bytes if lost else 0)

    def _advance(self, offset: int, last: int) -> None:
        """Everything up to this position was read, or cannot be."""
        self._offset = offset
        if last > self._store.last_read:
            self._store.last_read = last

    def _skip_damage(self, segment: Segment, problem: str, end: int, bad: PageHead | None) -> None:
        """Keep a copy of the file, and go on behind the bad page; if `bad` is None, behind all up to `end`."""
        pages, first = segment.pages, self._store.last_read + 1
        page = pages.find_offset(self._offset)
        if page < len(pages) and pages.unread(page) == 0:
            return  # forgotten, or given up by another read meanwhile
        last = first - 1
        if bad is not None:
            last = bad.last
        elif end == segment.size:
            last = segment.last
        self.report(segment, problem, self._count_lost(segment, bad, last), first, last)
        for given_up in range(page, pages.find_offset(end if bad is None else bad.end)):
            pages.clear(given_up)
        self._advance(end if bad is None else bad.end, last)

    def report(self, segment: Segment, problem: str, loss: Loss, first: int, last: int) -> None:
        """Messages at these positions cannot be read: log that, delete them, and keep a copy of the file."""
        store, context = self._store, self._store.context
        path = os.path.join(store.folder, segment.name)
        log.error("%s: %s: %s of %s lost", path, problem, loss, context.describe_queue(store.number))
        context.damaged_pages += 1
        segment.mark_inexact(first, last)
        if store.number:
            context.marked_stores[store] = None
            if first <= last:
                store.log_deleted_range(first, last)
            if path not in self._copied_files:
                self._copied_files.add(path)
                root, pager = context.root, context.pager
                pager.submit(lambda: keep_copy(pager.files, root, path), _ignore_result)

    def _count_lost(self, segment: Segment, bad: PageHead | None, last: int) -> Loss:
        """How many unread messages cannot be read up to this position; all that were read are no longer unread."""
        if bad is None:
            return Loss(segment.unread, last == segment.last)
        first = max(bad.first, self._store.last_read + 1)
        dead = segment.dead or b""
        marked = sum(is_marked(dead, position - segment.first) for position in range(first, last + 1))
        is_dense = bad.count == bad.last - bad.first + 1 and bad.transient == 0
        return Loss(min(segment.unread, bad.count, last - first + 1 - marked), is_dense)

    def _finish_segment(self, segment: Segment) -> int:
        """Behind the last page of a segment go on to the next one; return how many messages were not found."""
        store = self._store
        if segment is not store.segments.reading or self._offset < segment.size:
            return 0
        lost = segment.unread
        if lost:
            store.context.lost_messages += lost
            segment.alive -= lost
            segment.alive_bytes -= segment.unread_bytes
            segment.unread = segment.unread_bytes = 0
        following = store.segments.after(segment)
        if following is not None or not store.has_unread():
            self.restart_at(following)
        if lost:
            store.reclaim_segment(segment)
        return lost


def _ignore_result(_: Any) -> None:
    """No one waits for it."""
