"""Reads messages that stay on disk: by position, those of one page, or the expiry of those in one page.

Requests are served in order; each is answered once, on the loop, after everything was read, about `read_size` bytes at
a time. A page that is not written yet is waited for, and messages that a compaction moved are located again. Messages
deleted or paged in before their page was read are left out. A damaged page is reported, copied and given up, as in
page_reader.py, unless the request only looks at it.

Owned by the loop thread; the pager's thread reads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from warrenmq.journal.errors import DamagedPage
from warrenmq.journal.files import Files
from warrenmq.journal.segment_file import read_page
from warrenmq.storage.codec import BadPage, decode_records, find_expiring
from warrenmq.storage.manifest import Loss
from warrenmq.storage.page_index import UNKNOWN
from warrenmq.storage.paged_messages import find_unread, resume_reader

if TYPE_CHECKING:
    from warrenmq.core.message import QueuedMessage
    from warrenmq.storage.queue_store import QueueStore
    from warrenmq.storage.segments import Segment

Expiry = tuple[int, int, int]  # position, time in ms, size of the body
ReceivePage = Callable[["list[QueuedMessage]", int, int], None]  # see `MessageStore.read_page`


class PageFetcher:
    """The pending requests of one queue."""

    __slots__ = ("_is_pending", "_requests", "_store")

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._requests: deque[_Request] = deque()
        self._is_pending = False  # a read is in progress

    def fetch(self, positions: list[int], receive: Callable[[list[QueuedMessage]], None]) -> None:
        """See `MessageStore.fetch`."""
        self._requests.append(_Messages(positions, receive))
        self.resume()

    def read_expiries(self, first: int, receive: Callable[[list[Expiry]], None]) -> None:
        """See `MessageStore.read_expiries`."""
        self._requests.append(_Expiries(first, receive))
        self.resume()

    def read_page(self, position: int, receive: ReceivePage) -> None:
        """See `MessageStore.read_page`."""
        self._requests.append(_Page(position, receive))
        self.resume()

    def resume(self) -> None:
        """Continue with the first request. If it has to wait, the store calls again."""
        store = self._store
        if self._is_pending or not self._requests or store.is_deleted:
            return
        request = self._requests[0]
        segment = request.find_segment(store)
        if segment is None:
            self._submit(lambda files: [], None, [])  # everything was read: answer on the loop
            return
        pages = self._choose(segment, request)
        ends = [segment.pages.offset(page + 1) if page + 1 < len(segment.pages) else segment.size for page in pages]
        if ends[-1] > segment.written:
            return
        path = os.path.join(store.folder, segment.name)
        offsets = [segment.pages.offset(page) for page in pages]
        self._submit(lambda files: read_some_pages(files, path, offsets), segment, pages)

    def _choose(self, segment: Segment, request: _Request) -> list[int]:
        """Return the pages of a segment to read next, at least one."""
        pages = segment.pages
        chosen: list[int] = []
        left = self._store.context.read_size
        for page in request.pages_in(segment):
            end = pages.offset(page + 1) if page + 1 < len(pages) else segment.size
            left -= end - pages.offset(page)
            if chosen and (left < 0 or end > segment.written):
                break
            chosen.append(page)
        return chosen

    def _submit(self, job: Callable[[Any], Any], segment: Segment | None, pages: list[int]) -> None:
        self._is_pending = True
        self._store.context.pager.read(job, lambda result: self._on_read(segment, pages, result))

    def _on_read(self, segment: Segment | None, pages: list[int], result: Any) -> None:
        self._is_pending = False
        store = self._store
        if store.is_deleted:
            return
        if isinstance(result, Exception) and not isinstance(result, OSError):
            store.context.pager.on_failed(str(result))
            return
        request = self._requests[0]
        if segment is None:
            if request.find_segment(store) is None:  # else it was paged out meanwhile
                self._requests.popleft()
                request.answer(store)
        elif isinstance(result, OSError) and segment.is_compacting:
            return  # the compaction may have replaced the file: its end calls again
        elif not segment.is_dropped and segment in store.segments.all:  # else another file has its messages, or none
            if isinstance(result, OSError):
                result = [str(result)] * len(pages)
            lost = [self._take(segment, page, found, request) for page, found in zip(pages, result, strict=True)]
            self._report_lost([each for each in lost if each is not None])
        self.resume()

    def _take(self, segment: Segment, page: int, found: bytes | str, request: _Request) -> Any:
        """Add the content of a page to the request. Return the lost messages and bytes if it is damaged, else None."""
        problem = found
        if isinstance(found, bytes):
            try:
                request.take(self._store, segment, page, found)
            except BadPage as error:
                problem = f"the page at offset {segment.pages.offset(page)}: {error}"
            else:
                return None
        request.skip(segment, page)
        return None if isinstance(request, _Page) else self._give_up(segment, page, str(problem))

    def _give_up(self, segment: Segment, page: int, problem: str) -> tuple[int, int] | None:
        store, pages = self._store, segment.pages
        count, size = pages.unread(page), pages.unread_bytes(page)
        if count == 0:
            return None
        first = max(pages.first(page), store.last_read + 1)
        store.reader.report(segment, problem, Loss(count, True), first, pages.last(page))
        pages.clear(page)
        if size == UNKNOWN:
            return None  # counted as lost when the reader reaches the end of the segment
        segment.unread -= count
        segment.unread_bytes -= size
        segment.alive -= count
        segment.alive_bytes -= size
        store.context.lost_messages += count
        store.reclaim_segment(segment)
        return count, size

    def _report_lost(self, lost: list[tuple[int, int]]) -> None:
        """Report lost messages to the backlog."""
        if lost:
            resume_reader(self._store)
            self._store.pages_lost(sum(count for count, _ in lost), sum(size for _, size in lost))


class _Messages:
    """A request for messages by their positions."""

    def __init__(self, positions: list[int], receive: Callable[[list[QueuedMessage]], None]) -> None:
        self._positions = positions
        self._receive = receive
        self._at = 0  # index of the next position to read
        self._found: list[QueuedMessage] = []

    def find_segment(self, store: QueueStore) -> Segment | None:
        """Return the segment to read next; None if everything was read."""
        while self._at < len(self._positions):
            segment = find_unread(store, self._positions[self._at])
            if segment is not None:
                return segment
            self._at += 1
        return None

    def pages_in(self, segment: Segment) -> Iterator[int]:
        """Yield the pages of this segment with messages still to read."""
        pages, last = segment.pages, -1
        for at in range(self._at, len(self._positions)):
            if self._positions[at] > segment.last:
                break
            page = pages.find(self._positions[at])
            if page > last and pages.unread(page):
                last = page
                yield page

    def take(self, store: QueueStore, segment: Segment, page: int, payload: bytes) -> None:
        last_read, below = store.last_read, store.restored_below
        at = self._at
        wanted = self._skip_to(segment.pages.last(page))
        try:
            found = decode_records(payload, last_read, segment.first, segment.dead, below, wanted)
        except BadPage:
            self._at = at
            raise
        store.set_attempts(found)
        self._found += found

    def skip(self, segment: Segment, page: int) -> None:
        self._skip_to(segment.pages.last(page))

    def _skip_to(self, last: int) -> list[int]:
        start = self._at
        while self._at < len(self._positions) and self._positions[self._at] <= last:
            self._at += 1
        return self._positions[start : self._at]

    def answer(self, store: QueueStore) -> None:
        self._receive(self._found)


class _Page:
    """A request for the messages of the first page at or after a position; a damaged page is not given up."""

    def __init__(self, position: int, receive: ReceivePage) -> None:
        self._position = position
        self._receive = receive
        self._found: list[QueuedMessage] = []
        self._last = -1  # the last position in the page that was read
        self._lost = 0

    def find_segment(self, store: QueueStore) -> Segment | None:
        if self._last >= 0:
            return None
        self._position = max(self._position, store.last_read + 1)
        for segment in store.segments.all:
            if segment.last >= self._position and segment.unread and self._page_in(segment) < len(segment.pages):
                return segment
        return None

    def _page_in(self, segment: Segment) -> int:
        return segment.pages.next_unread(segment.pages.find(self._position))

    def pages_in(self, segment: Segment) -> Iterator[int]:
        yield self._page_in(segment)

    def take(self, store: QueueStore, segment: Segment, page: int, payload: bytes) -> None:
        above = max(self._position - 1, store.last_read)
        found = decode_records(payload, above, segment.first, segment.dead, store.restored_below)
        store.set_attempts(found)
        self._found = [entry for entry in found if entry.position not in store.held]
        self._last = segment.pages.last(page)

    def skip(self, segment: Segment, page: int) -> None:
        self._last = segment.pages.last(page)
        self._lost = segment.pages.unread(page)

    def answer(self, store: QueueStore) -> None:
        self._receive(self._found, self._last, self._lost)


class _Expiries:
    """A request for the expiry of messages in a page."""

    def __init__(self, first: int, receive: Callable[[list[Expiry]], None]) -> None:
        self._first = first
        self._receive = receive
        self._is_read = False
        self._found: list[Expiry] = []

    def find_segment(self, store: QueueStore) -> Segment | None:
        segment = None if self._is_read else store.segments.find(self._first)
        if segment is None:
            return None
        page = segment.pages.find(self._first)
        is_wanted = page < len(segment.pages) and segment.pages.unread(page) and segment.pages.earliest(page)
        return segment if is_wanted else None

    def pages_in(self, segment: Segment) -> Iterator[int]:
        yield segment.pages.find(self._first)

    def take(self, store: QueueStore, segment: Segment, page: int, payload: bytes) -> None:
        self._is_read = True
        self._found = find_expiring(payload, store.last_read, segment.first, segment.dead, store.restored_below)

    def skip(self, segment: Segment, page: int) -> None:
        self._is_read = True

    def answer(self, store: QueueStore) -> None:
        self._receive([found for found in self._found if find_unread(store, found[0]) is not None])


_Request = _Messages | _Page | _Expiries


def read_some_pages(files: Files, path: str, offsets: list[int]) -> list[bytes | str]:
    """In the reading thread: return the payloads of the pages at these offsets, or what is wrong with them."""
    found: list[bytes | str] = []
    handle = files.open_read(path)
    try:
        for offset in offsets:
            try:
                found.append(read_page(files, handle, offset, path)[1])
            except (DamagedPage, OSError) as error:
                found.append(str(error))
    finally:
        files.close(handle)
    return found
