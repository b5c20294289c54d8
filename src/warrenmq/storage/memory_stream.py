"""A stream in memory: everything is durable at once, and lost with the process.

Pages, segments and limits are those of a stream on disk, so that the same code runs on both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.number_header import NumberHeader
from warrenmq.core.options import QueueOptions
from warrenmq.core.ports import CommitLog, OffsetStore, StreamStore
from warrenmq.storage.page_cache import Page, PageCache
from warrenmq.storage.stream_limits import PAGE_BYTES, PAGE_SPAN_MS, StreamLimits

if TYPE_CHECKING:
    from warrenmq.core.stream import Stream

_first = attrgetter("first")


@dataclass(eq=False)
class MemoryPage:
    first: int
    time_first: int
    time_last: int
    size: int = 0
    messages: list[Message] = field(default_factory=list)

    def is_closed(self, now_ms: int) -> bool:
        return self.size >= PAGE_BYTES or now_ms - self.time_first >= PAGE_SPAN_MS


@dataclass(eq=False)
class MemorySegment:
    pages: list[MemoryPage]
    size: int = 0

    @property
    def time_last(self) -> int:
        return self.pages[-1].time_last

    def is_full(self, limits: StreamLimits, now_ms: int) -> bool:
        return limits.is_full(self.size, len(self.pages), now_ms - self.pages[0].time_first)


@dataclass(eq=False)
class MemoryStream:
    """The content of a stream; outlives the broker."""

    segments: list[MemorySegment] = field(default_factory=list)
    first_position: int = 0
    next_position: int = 0
    generation: int = 0  # number of earlier streams of this name
    offsets: dict[str, int] = field(default_factory=dict)  # of tracked consumers


class MemoryOffsets(OffsetStore):
    """Offsets in a dictionary that outlives the broker and that the core changes itself."""

    __slots__ = ("_stored",)

    def __init__(self, kept: MemoryStream) -> None:
        self._stored = kept

    def open(self) -> dict[str, int]:
        return self._stored.offsets

    def save(self, tag: str, position: int) -> None:
        """The dictionary has it."""

    def forget(self, tag: str) -> None:
        """The core has removed it."""

    def delete(self) -> None:
        self._stored.offsets = {}


class MemoryStreamStore(StreamStore):
    """The messages of one stream."""

    __slots__ = ("_cache", "_limits", "_log", "_offset_header", "_stored", "_stream")

    def __init__(self, kept: MemoryStream, options: QueueOptions, cache: PageCache[Page], log: CommitLog) -> None:
        super().__init__(MemoryOffsets(kept))
        self._stored = kept
        self._limits = StreamLimits.of(options)
        self._cache = cache
        self._log = log
        self._offset_header = NumberHeader()
        self._stream: Stream | None = None
        self.first_position = kept.first_position

    def apply(self, options: QueueOptions) -> None:
        self._limits = StreamLimits.of(options)
        self.expire(self._log.turn.now_ms)

    def open(self, stream: Stream) -> int:
        self._stream = stream
        return self._stored.next_position

    def last_append_ms(self) -> int:
        return self._stored.segments[-1].time_last if self._stored.segments else 0

    def append(self, entry: QueuedMessage) -> None:
        now = self._log.turn.now_ms
        message = entry.message
        segments = self._stored.segments
        page = segments[-1].pages[-1] if segments else None
        if page is None or page.is_closed(now):
            page = MemoryPage(entry.position, now, now)
            if not segments or segments[-1].is_full(self._limits, now):
                segments.append(MemorySegment([page]))
                self.expire(now)
            else:
                segments[-1].pages.append(page)
        size = len(message.address) + len(message.header) + len(message.body)
        page.messages.append(message)
        page.size += size
        page.time_last = now
        segments[-1].size += size
        self._stored.next_position = entry.position + 1

    def read_backwards(self) -> Iterator[Message]:
        for segment in reversed(self._stored.segments):
            for page in reversed(segment.pages):
                yield from reversed(page.messages)

    def expire(self, now_ms: int) -> None:
        """Remove the segments that exceed the limits."""
        segments = self._stored.segments
        total = sum(segment.size for segment in segments)
        count = self._limits.count_expired(segments[:-1], total, now_ms) if self._limits.has_any else 0
        if count:
            del segments[:count]
            self._stored.first_position = segments[0].pages[0].first
            if self._stream is not None:
                self._stream.forget_before(self._stored.first_position)

    def read(
        self,
        position: int,
        receive: Callable[[int, list[Message]], None],
        needles: tuple[bytes, ...] | None = None,
    ) -> None:
        page = self._find_page(position)
        if page is None:
            receive(self._stored.next_position, [])
            return
        key = (self._stored, self._stored.generation, page.first, len(page.messages))
        found = self._cache.find(key)
        if found is None:
            stamp = self._offset_header.stamp
            found = Page(page.first, [stamp(message, page.first + at) for at, message in enumerate(page.messages)])
            self._cache.add(key, found, sum(message.footprint() for message in found.messages))
        receive(found.first, found.messages)

    def _find_page(self, position: int) -> MemoryPage | None:
        """Return the page with this position, or the oldest if it is gone; None if there is none yet."""
        pages = [page for segment in self._stored.segments for page in segment.pages]
        if not pages or position >= self._stored.next_position:
            return None
        return pages[max(0, bisect_right(pages, position, key=_first) - 1)]

    def find_time(self, time_ms: int, receive: Callable[[int], None]) -> None:
        for segment in self._stored.segments:
            for page in segment.pages:
                if page.time_last >= time_ms:
                    receive(page.first)
                    return
        receive(self._stored.next_position)

    def delete(self) -> None:
        """Clear the stream, for a later one of the same name; readers may still have pages in memory."""
        self._stored.segments.clear()
        self._stored.first_position = self._stored.next_position = 0
        self._stored.generation += 1
        self.offsets.delete()
