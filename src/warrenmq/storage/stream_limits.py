"""When a stream's segment is full, and how long segments are kept.

Segments are removed whole, oldest first, and the newest always stays: a stream holds somewhat more than its limits.
Values only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from warrenmq.core.options import QueueOptions

# A page is closed at this size, or this long after its first message, so that a search by time is exact to a second
# even on a slow stream. Small pages are read many at once.
PAGE_BYTES = 256 * 1024
PAGE_SPAN_MS = 1000

SEGMENT_BYTES = 64 * 1024 * 1024
# More pages take too long to scan when the index is rebuilt: 0.1 s.
SEGMENT_PAGES = 16 * 1024
# With a maximum age, a segment spans at most this fraction of it, so that little is kept too long.
AGE_PARTS = 8


class Removable(Protocol):
    """The attributes of a segment that the limits use."""

    @property
    def size(self) -> int: ...

    @property
    def time_last(self) -> int:
        """Time of the last message, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """None: no limit."""

    max_bytes: int | None = None
    max_age_ms: int | None = None
    segment_bytes: int = SEGMENT_BYTES

    @classmethod
    def of(cls, options: QueueOptions) -> StreamLimits:
        segment_bytes = SEGMENT_BYTES if options.segment_bytes is None else options.segment_bytes
        return cls(options.max_length_bytes, options.max_age_ms, segment_bytes)

    @property
    def has_any(self) -> bool:
        return self.max_bytes is not None or self.max_age_ms is not None

    def is_full(self, size: int, pages: int, span_ms: int) -> bool:
        """Return True if the next page begins another segment."""
        if size >= self.segment_bytes or pages >= SEGMENT_PAGES:
            return True
        return self.max_age_ms is not None and span_ms >= self.max_age_ms // AGE_PARTS

    def count_expired(self, closed: Iterable[Removable], total_bytes: int, now_ms: int) -> int:
        """Return how many of the oldest closed segments have to go; `total_bytes` includes the newest one."""
        count = 0
        for segment in closed:
            is_too_much = self.max_bytes is not None and total_bytes > self.max_bytes
            is_too_old = self.max_age_ms is not None and segment.time_last < now_ms - self.max_age_ms
            if not is_too_much and not is_too_old:
                break
            total_bytes -= segment.size
            count += 1
        return count
