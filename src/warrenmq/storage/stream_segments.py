"""The segments of one stream: which positions and times are in which file, and where to start reading.

This describes files and does no I/O. The index of a segment is sparse: it locates blocks, about 64 KiB of pages each,
which are read at once. It is built while a segment is written, or from its page heads at the first read; indexes of
closed segments are cached.

Owned by the loop thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from operator import attrgetter

from warrenmq.journal.segment_file import FILE_HEAD_SIZE, segment_name
from warrenmq.storage.manifest import FileRecord

BLOCK_BYTES = 64 * 1024
MAX_CACHED_INDEXES = 64

_first = attrgetter("first")
_time_first = attrgetter("time_first")


class BlockIndex:
    """Where the blocks of one file begin: offset, first position, and its time."""

    __slots__ = ("_firsts", "_offsets", "_times")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._firsts = array("Q")
        self._times = array("Q")

    def add_page(self, offset: int, first: int, time_first: int) -> None:
        """Add the next page of the file to the last block, or to a new one."""
        if not self._offsets or offset - self._offsets[-1] >= BLOCK_BYTES:
            self._offsets.append(offset)
            self._firsts.append(first)
            self._times.append(time_first)

    def find(self, position: int) -> int:
        """Return the number of the block that would hold this position."""
        return max(0, bisect_right(self._firsts, position) - 1)

    def find_time(self, time_ms: int) -> int:
        """Return the number of the block in or after which the first page of that time or later lies."""
        return max(0, bisect_left(self._times, time_ms) - 1)

    def span(self, number: int, end: int) -> tuple[int, int]:
        """Return the start and end offset of a block, in a file with pages up to `end`."""
        if number + 1 < len(self._offsets):
            end = min(end, self._offsets[number + 1])
        return self._offsets[number], end

    def first_after(self, number: int) -> int | None:
        """Return the first position of the next block; None if there is none."""
        return self._firsts[number + 1] if number + 1 < len(self._firsts) else None

    def __len__(self) -> int:
        return len(self._offsets)


class StreamSegment:
    """One file: positions `first` to `last`, `count` messages.

    `size` bytes were submitted to the writer, `written` of them are in the file.
    """

    __slots__ = (
        "count",
        "first",
        "index",
        "is_closed",
        "is_new",
        "last",
        "pages",
        "record",
        "size",
        "time_first",
        "time_last",
        "written",
    )

    def __init__(self, first: int, time_first: int) -> None:
        self.first = first
        self.last = first - 1
        self.count = 0
        self.time_first = time_first
        self.time_last = time_first
        self.pages = 0
        self.size = FILE_HEAD_SIZE
        self.written = 0
        self.is_new = True  # created with its first page
        self.record: FileRecord | None = None  # the newest one in the manifest
        self.is_closed = False  # nothing more may be written: older format, or a failed write
        self.index: BlockIndex | None = None

    # Attributes of queue segments: a stream is not compacted, and its messages are not deleted one by one.
    generation = 0
    transient = 0
    marks_size = 0

    @property
    def alive(self) -> int:
        return self.count

    @property
    def name(self) -> str:
        return segment_name(self.first, 0)


class StreamSegments:
    """All segments of a stream, by position and time."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: list[StreamSegment] = []

    def find(self, position: int) -> StreamSegment:
        """Return the segment that holds this position, or the oldest; there must be one."""
        return self.all[max(0, bisect_right(self.all, position, key=_first) - 1)]

    def find_time(self, time_ms: int) -> StreamSegment:
        """Return the segment in or after which the first page of that time or later lies; there must be one."""
        return self.all[max(0, bisect_left(self.all, time_ms, key=_time_first) - 1)]

    def after(self, segment: StreamSegment) -> StreamSegment | None:
        """Return the next segment, or None."""
        at = bisect_right(self.all, segment.first, key=_first)
        return self.all[at] if at < len(self.all) else None


class IndexCache:
    """The closed segments with an index in memory, of all streams, least recently used first."""

    def __init__(self, limit: int = MAX_CACHED_INDEXES) -> None:
        self._limit = limit
        self._segments: dict[StreamSegment, None] = {}

    def use(self, segment: StreamSegment) -> None:
        """Keep this index, and drop the least recently used one beyond the limit."""
        self._segments.pop(segment, None)
        self._segments[segment] = None
        while len(self._segments) > self._limit:
            oldest = next(iter(self._segments))
            del self._segments[oldest]
            oldest.index = None

    def drop(self, segment: StreamSegment) -> None:
        self._segments.pop(segment, None)

    def __len__(self) -> int:
        return len(self._segments)
