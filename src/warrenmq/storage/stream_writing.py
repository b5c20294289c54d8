"""Callbacks of the pager for a page of a stream: encode its head, page written, page lost.

The writing thread calls `PageHeadEncoder`, the loop calls the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warrenmq.journal.segment_file import SEGMENT_MAGIC, encode_file_head, encode_page_from_parts

if TYPE_CHECKING:
    from warrenmq.storage.stream_segments import StreamSegment
    from warrenmq.storage.stream_store import FileStreamStore, OpenPage

log = logging.getLogger("warrenmq.storage")


class PageHeadEncoder:
    """Encodes the head of a page in the writing thread, which computes the checksum."""

    __slots__ = ("count", "last", "page", "path", "payload")

    def __init__(self, page: OpenPage, last: int, count: int, payload: list[Any], path: str) -> None:
        self.page = page
        self.last = last
        self.count = count
        self.payload = payload
        self.path = path  # of a new file, else empty

    def __call__(self) -> bytes:
        page = self.page
        times = page.time_first, page.time_last
        head = encode_page_from_parts(page.first, self.last, self.count, *times, self.payload)
        return encode_file_head(SEGMENT_MAGIC, self.path) + head if self.path else head


class PageWritten:
    """Called when a page is in its file; `done` is set for a page that bypassed the log."""

    __slots__ = ("done", "end", "segment", "size", "store")

    def __init__(
        self, store: FileStreamStore, segment: StreamSegment, size: int, end: int, done: Callable[[], None] | None
    ) -> None:
        self.store = store
        self.segment = segment
        self.size = size
        self.end = end
        self.done = done

    def __call__(self) -> None:
        self.store.written(self.segment, self.size)
        if self.done is not None:
            self.store.on_apart_written(self.end, self.done)


class PageLost:
    """Called when a page could not be written: the next one goes to another segment."""

    __slots__ = ("segment",)

    def __init__(self, segment: StreamSegment) -> None:
        self.segment = segment

    def __call__(self, reason: str) -> None:
        if not self.segment.is_closed:
            self.segment.is_closed = True
            log.error("event-log segment lost: %s: %s", self.segment.name, reason)
