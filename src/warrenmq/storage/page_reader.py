"""Reads the pages of a queue back, in order, from where the last read ended.

Pages without unread messages are skipped. A page that is still being written, or a segment under compaction, is waited
for. An unreadable page is reported, its file is copied, its messages count as lost and are logged as deleted, and
reading continues after it.

Owned by the loop thread; the pager's thread reads.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from warrenmq.journal.errors import DamagedPage
from warrenmq.journal.files import Files
from warrenmq.journal.segment_file import FILE_HEAD_SIZE, PAGE_HEAD_SIZE, PageHead, parse_page_head, read_payload
from warrenmq.storage.codec import BadPage, decode_records, is_marked
from warrenmq.storage.damaged import keep_copy
from warrenmq.storage.manifest import Loss

if TYPE_CHECKING:
    from warrenmq.core.message import QueuedMessage
    from warrenmq.storage.queue_store import QueueStore
    from warrenmq.storage.segments import Segment

log = logging.getLogger("warrenmq.storage")

Pages = tuple[list[tuple[PageHead, bytes]], str | None, PageHead | None]


class PageReader:
    """The next page is in `Segments.reading`. Everything up to `QueueStore.last_read` is in memory."""

    __slots__ = ("_copied_files", "_generation", "_is_pending", "_offset", "_store")

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._offset = 0
        self._is_pending = False  # a read is in progress
        self._generation = 0  # increased to cancel the read in progress
        self._copied_files: list[str] = []  # damaged ones

    def start_at(self, segment: Segment, offset: int) -> None:
        """Read on from this offset."""
        self._store.segments.reading = segment
        self._offset = offset

    def start_after(self, position: int) -> None:
        """Everything up to this position is in memory; the next page is not written yet."""
        self._store.last_read = position
        self._store.segments.reading = None

    def cancel(self) -> None:
        """Ignore the result of the read in progress."""
        self._generation += 1
        self._is_pending = False

    def restart_at(self, segment: Segment | None) -> None:
        """Read on from the beginning of this segment."""
        self.cancel()
        self._store.segments.reading = segment
        self._offset = FILE_HEAD_SIZE

    def rewind(self, segment: Segment | None, above: int) -> None:
        """Read again what follows this position, in this segment and all later ones."""
        self.restart_at(segment)
        self._store.last_read = above
        if self._store.is_reading:
            self.read()

    def skip_segment(self, segment: Segment) -> None:
        """Read on after this segment, which is about to be removed."""
        segments = self._store.segments
        if segment is segments.reading:
            self.restart_at(segments.after(segment))

    def read(self) -> None:
        """Request the next pages. If they cannot be read yet, the store calls again."""
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
        """Return where the next run of pages with unread messages begins and ends; both the end of the file if there is
        none."""
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
            return  # the compaction may have replaced the file: the store calls again
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
            if store.held:
                read = [entry for entry in found if entry.position not in store.held]
                store.held.difference_update([entry.position for entry in found])
                found = read
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
        """Everything up to this position was read or is lost."""
        self._offset = offset
        if last > self._store.last_read:
            self._store.last_read = last

    def _skip_damage(self, segment: Segment, problem: str, end: int, bad: PageHead | None) -> None:
        """Copy the file, and continue after the bad page; if `bad` is None, after everything up to `end`."""
        pages, first = segment.pages, self._store.last_read + 1
        page = pages.find_offset(self._offset)
        if page < len(pages) and pages.unread(page) == 0:
            return  # deleted, or given up by another read meanwhile
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
        """Log that messages at these positions are unreadable, delete them, and copy the file."""
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
                self._copied_files.append(path)
                root, pager = context.root, context.pager
                pager.submit(lambda: keep_copy(pager.files, root, path), _ignore_result)

    def _count_lost(self, segment: Segment, bad: PageHead | None, last: int) -> Loss:
        """Return how many unread messages up to this position are lost."""
        if bad is None:
            return Loss(segment.unread, last == segment.last)
        first = max(bad.first, self._store.last_read + 1)
        dead = segment.dead or b""
        marked = sum(is_marked(dead, position - segment.first) for position in range(first, last + 1))
        is_dense = bad.count == bad.last - bad.first + 1 and bad.transient == 0
        return Loss(min(segment.unread, bad.count, last - first + 1 - marked), is_dense)

    def _finish_segment(self, segment: Segment) -> int:
        """At the end of a segment continue with the next one; return how many messages were not found."""
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
    """Ignore the result."""


def read_pages(files: Files, path: str, offset: int, end: int, read_size: int, restored_below: int) -> Pages:
    """In the reading thread: return about `read_size` bytes of pages from `offset` on.

    Also return what is wrong with the next page, and its head if that is intact: then reading can continue after it.
    """
    pages: list[tuple[PageHead, bytes]] = []
    handle = files.open_read(path)
    try:
        stop = min(end, offset + read_size)
        while offset < stop:
            try:
                page = parse_page_head(files.read(handle, PAGE_HEAD_SIZE, offset), offset)
            except OSError as error:
                return pages, str(error), None
            if isinstance(page, str):
                return pages, f"at offset {offset}: {page}", None
            try:
                is_stale = page.is_stale(restored_below)
                pages.append((page, b"" if is_stale else read_payload(files, handle, page, path)))
            except (DamagedPage, OSError) as error:
                return pages, str(error), page
            offset = page.end
    finally:
        files.close(handle)
    return pages, None, None
