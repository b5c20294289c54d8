"""The segments of one queue: which positions are in which file, which are deleted, and which are still unread.

This describes files and does no I/O: the store passes reads and writes to its threads. A segment without live messages
is removed. In others each deletion is set in a bitmap, and written to a file of deletion marks (`.dead`) when the log
is about to drop it. `Segments.choose_run` picks what to compact next.

Owned by the loop thread. Compiled when the package is built (segments.pxd): used for each ack of a message that was
paged out.
"""

from array import array

from warrenmq.core.message import QueuedMessage
from warrenmq.journal.segment_file import FILE_HEAD_SIZE, marks_name, segment_name
from warrenmq.storage.manifest import FileRecord
from warrenmq.storage.page_index import PageIndex

# A segment is closed at this span of positions, however small: each takes a bit of memory.
SEGMENT_SPAN = 1 << 20
# The maximum size of a run, in segments: checkpoints are blocked meanwhile.
_MAX_RUN = 8
# More files than this, smaller than a quarter of a segment on average, are merged even if little in them is dead.
_MANY_FILES = 32
_MIN_MERGED = 4  # files; a merge of fewer is not worth the copying


class Segment:
    """One file: positions `first` to `last`, `count` records, `alive` of them neither acked nor dropped.

    `transient` records are of transient messages; `unread` live ones are on disk only. `alive_bytes`, `unread_bytes`,
    `body_bytes` count bodies: of live messages, of unread ones, and of all persistent ones in the file. If
    `has_exact_bytes`, body_bytes - alive_bytes is what the deletion marks removed. `overhead` is the average size of a
    record without its body, so that recovery knows the live bytes without reading them. `size` bytes were submitted to
    the writer, `written` of them are in the file. `pages` counts what is unread in each page.
    """

    __slots__ = (
        "alive",
        "alive_bytes",
        "body_bytes",
        "count",
        "counted_live",
        "counted_size",
        "dead",
        "first",
        "generation",
        "has_exact_bytes",
        "is_compacting",
        "is_dropped",
        "is_new",
        "is_old",
        "is_unreadable",
        "lacks_body_bytes",
        "last",
        "marks_size",
        "overhead",
        "pages",
        "record",
        "size",
        "transient",
        "unread",
        "unread_bytes",
        "unwritten_marks",
        "written",
    )

    def __init__(self, first: int, generation: int = 0) -> None:
        self.first = first
        self.last = first - 1
        self.generation = generation
        self.count = 0
        self.transient = 0
        self.alive = 0
        self.unread = 0
        self.alive_bytes = 0
        self.unread_bytes = 0
        self.body_bytes = 0
        self.has_exact_bytes = True
        self.size = FILE_HEAD_SIZE
        self.written = 0
        self.is_new = True  # created with its first page
        self.record: FileRecord | None = None  # the newest one in the manifest
        self.is_old = False  # of an earlier format version: nothing is appended
        self.lacks_body_bytes = False  # of a version that does not record the bytes of bodies
        self.pages = PageIndex()
        self.is_compacting = False
        self.is_dropped = False
        self.is_unreadable = False  # a compaction met damage: not compacted again
        self.overhead = 0
        self.counted_size = 0  # its part of `Segments.size` and `Segments.live`
        self.counted_live = 0
        self.dead: bytearray | None = None
        self.marks_size = 0  # of the marks file
        self.unwritten_marks = array("I")  # positions relative to the first one, not in the marks file yet

    @property
    def name(self) -> str:
        return segment_name(self.first, self.generation)

    @property
    def marks_name(self) -> str:
        return marks_name(self.first, self.generation)

    def is_full(self, position: int, max_bytes: int) -> bool:
        """Return True if a page ending at this position belongs in the next segment."""
        return self.size >= max_bytes or position - self.first >= SEGMENT_SPAN

    def live_bytes(self) -> int:
        """Return the size of the live records in the file."""
        return self.alive_bytes + self.alive * self.overhead

    def note_page(self, count: int, overhead: int) -> None:
        """Add a page of this many records, with this many bytes beside their bodies."""
        self.overhead = (self.overhead * self.count + overhead) // (self.count + count)
        self.count += count

    def mark_dead(self, position: int) -> bool:
        """Set the deletion bit of a position; return False if it was set already."""
        index = position - self.first
        place = index >> 3
        dead = self.dead
        if dead is None:
            dead = self.dead = bytearray()
        if place >= len(dead):
            dead.extend(bytes(place + 64 - len(dead)))
        if dead[place] >> (index & 7) & 1:
            return False
        dead[place] |= 1 << (index & 7)
        return True

    def delete(self, position: int, is_persistent: bool, body_bytes: int) -> None:
        """Delete a live message."""
        if self.mark_dead(position):
            self.alive -= 1
            self.alive_bytes -= body_bytes
            if is_persistent:
                self.unwritten_marks.append(position - self.first)

    def note_read(self, entries: list[QueuedMessage]) -> None:
        """Note that messages are in memory again."""
        self.unread -= len(entries)
        for entry in entries:
            self.unread_bytes -= entry.message.size

    def note_unread(self, page: int, count: int, body_bytes: int) -> None:
        """Add to the unread messages of a page; negative when they are in memory again or deleted."""
        self.unread += count
        self.unread_bytes += body_bytes
        self.pages.change_unread(page, count, body_bytes)

    def delete_unread(self, above: int, held: set[int]) -> None:
        """Delete all unread messages, which are those after this position that are not held."""
        self.alive -= self.unread
        self.alive_bytes -= self.unread_bytes
        self.unread = 0
        self.unread_bytes = 0
        self.pages.clear_all()
        if self.alive or self.is_compacting:  # else the file is removed and needs no marks
            first = above + 1
            for position in sorted(held):
                if first <= position <= self.last:
                    self.mark(first, position - 1, True)
                    first = position + 1
            self.mark(first, self.last, True)

    def mark_inexact(self, first: int, last: int) -> None:
        """Mark a range as deleted, whether or not its positions hold live messages."""
        self.has_exact_bytes = False
        self.mark(first, last, True)

    def mark(self, first: int, last: int, is_durable: bool) -> None:
        """Mark a range as deleted whose bytes are counted; if not durable, do not write the marks."""
        for position in range(max(first, self.first), last + 1):
            if self.mark_dead(position) and is_durable:
                self.unwritten_marks.append(position - self.first)


class Segments:
    """All segments of a queue, by position. The next page to read is in `reading`, None if everything is in memory.

    `size` counts the bytes of all files, `live` those of live messages.
    """

    __slots__ = ("_last_found", "all", "live", "reading", "size")

    def __init__(self) -> None:
        self.all: list[Segment] = []
        self.reading: Segment | None = None
        self.size = 0
        self.live = 0
        self._last_found: Segment | None = None

    def find(self, position: int) -> Segment | None:
        """Return the segment that covers this position."""
        hot = self._last_found
        if hot is not None and hot.first <= position and position <= hot.last:
            return hot
        segments = self.all
        low = 0
        high = len(segments)
        while low < high:
            middle = (low + high) // 2
            segment = segments[middle]
            if segment.last < position:
                low = middle + 1
            else:
                high = middle
        if low < len(segments):
            segment = segments[low]
            if segment.first <= position:
                self._last_found = segment
                return segment
        return None

    def note(self, segment: Segment) -> None:
        """Update the sums after a segment has grown or lost messages."""
        size = segment.size + segment.marks_size
        live = segment.live_bytes()
        self.size += size - segment.counted_size
        self.live += live - segment.counted_live
        segment.counted_size = size
        segment.counted_live = live

    def remove(self, segment: Segment) -> None:
        self.all.remove(segment)
        self._subtract(segment)

    def _subtract(self, segment: Segment) -> None:
        self.size -= segment.counted_size
        self.live -= segment.counted_live
        if self._last_found is segment:
            self._last_found = None

    def replace(self, run: list[Segment], merged: Segment) -> None:
        """Replace neighbours by one segment."""
        at = self.all.index(run[0])
        self.all[at : at + len(run)] = [merged]
        for segment in run:
            self._subtract(segment)
        self.note(merged)

    def after(self, segment: Segment) -> Segment | None:
        """Return the next segment, or None."""
        at = self.all.index(segment) + 1
        return self.all[at] if at < len(self.all) else None

    # -- what is compacted -------------------------------------------------------------------------------------------

    def excess(self) -> int:
        """Return the dead bytes minus the live ones."""
        return self.size - 2 * self.live

    def has_many_small(self, max_bytes: int) -> bool:
        """Return True if there are many files, small on average."""
        return len(self.all) > _MANY_FILES and len(self.all) * max_bytes > 4 * self.size

    def choose_run(self, written: Segment | None, max_bytes: int, allowance: int) -> list[Segment]:
        """Return neighbours to compact into one file; empty if there is no need.

        At least half the bytes of a run are dead, so compactions copy no more than they reclaim. It begins with the
        segment with the largest dead share and takes small or mostly dead neighbours along, so that files become fewer
        as well as smaller. The segment being `written` is left out.
        """
        if self.excess() > allowance:
            return self._choose_dead(written, max_bytes)
        if self.has_many_small(max_bytes):
            return self._choose_small(written, max_bytes)
        return []

    def _choose_dead(self, written: Segment | None, max_bytes: int) -> list[Segment]:
        best = -1
        best_live = 0
        best_size = 1
        for index, segment in enumerate(self.all):
            if segment is written or segment.is_unreadable:
                continue
            if segment.counted_live * best_size < best_live * segment.counted_size or best < 0:
                best = index
                best_live = segment.counted_live
                best_size = segment.counted_size
        if best < 0 or 2 * best_live > best_size:
            return []
        low = best
        high = best + 1
        live = best_live
        size = best_size
        while True:
            if low > 0 and self._can_join(self.all[low - 1], written, live, size, max_bytes, low - 1, high):
                low -= 1
                segment = self.all[low]
            elif high < len(self.all) and self._can_join(self.all[high], written, live, size, max_bytes, low, high + 1):
                segment = self.all[high]
                high += 1
            else:
                return self.all[low:high]
            live += segment.counted_live
            size += segment.counted_size

    def _can_join(
        self, segment: Segment, written: Segment | None, live: int, size: int, max_bytes: int, low: int, high: int
    ) -> bool:
        """Return True if the run stays worthwhile and small enough with this segment."""
        if segment is written or segment is self.reading or segment.is_unreadable:
            return False
        if 2 * segment.counted_size > max_bytes and 2 * segment.counted_live > segment.counted_size:
            return False
        live += segment.counted_live
        size += segment.counted_size
        if live > max_bytes or size > _MAX_RUN * max_bytes or 2 * live > size:
            return False
        return self._span(low, high) <= SEGMENT_SPAN

    def _choose_small(self, written: Segment | None, max_bytes: int) -> list[Segment]:
        """Return the most neighbours that fit into one segment."""
        best_low = 0
        best_high = 0
        low = 0
        size = 0
        for high, segment in enumerate(self.all):
            if segment is written or segment is self.reading or segment.is_unreadable:
                low = high + 1
                size = 0
                continue
            size += segment.counted_size
            while low <= high and (size > max_bytes or self._span(low, high + 1) > SEGMENT_SPAN):
                size -= self.all[low].counted_size
                low += 1
            if high + 1 - low > best_high - best_low:
                best_low = low
                best_high = high + 1
        return self.all[best_low:best_high] if best_high - best_low >= _MIN_MERGED else []

    def _span(self, low: int, high: int) -> int:
        """Return the span of positions of the segments from index `low` to before `high`."""
        first = self.all[low]
        last = self.all[high - 1]
        return last.last - first.first + 1


NO_SEGMENTS = Segments()  # stays empty: shared by stores without any
