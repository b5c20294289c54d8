"""The segments of one queue: which positions lie in which file, which of them are dead, and what is still to be read.

Files are described here, not touched: the store gives the writing and reading to its threads. A segment whose messages
are all gone is removed whole. Of the others every death is noted in a bitmap, and written beside the file (`.dead`)
when the log is about to forget it.

Owned by the loop thread. Compiled when the package is built (segments.pxd): every ack of a message that was paged out
passes here.
"""

from array import array

from warrenmq.core.message import QueuedMessage
from warrenmq.journal.segment_file import FILE_HEAD_SIZE, dead_name, segment_name
from warrenmq.storage.manifest import FileRecord

# A segment is closed when it spans this many positions, however small it is: they are a bit each in memory.
SEGMENT_SPAN = 1 << 20


class Segment:
    """One file: positions `first` to `last`, `count` records, `alive` of them neither acked nor dropped.

    `transient` of the records are of transient messages.

    `unread` of the living have not been paged in yet. `alive_bytes` and `unread_bytes` are those of their bodies, and
    `body_bytes` those of all persistent messages in the file; `is_counted`: the difference is what the marks deleted.
    `size` is what was given to the writer, `written` what it did.
    """

    __slots__ = (
        "alive",
        "alive_bytes",
        "body_bytes",
        "count",
        "dead",
        "dead_size",
        "first",
        "generation",
        "is_compacting",
        "is_counted",
        "is_new",
        "is_old",
        "is_wanted",
        "last",
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
        self.is_counted = True
        self.size = FILE_HEAD_SIZE
        self.written = 0
        self.is_new = True  # the file is made with its first page
        self.record: FileRecord | None = None  # in the manifest, the last time it was made
        self.is_old = False  # of an earlier version of the format: nothing is added to it
        self.is_wanted = False  # by compaction, which comes to it in time
        self.is_compacting = False
        self.dead: bytearray | None = None
        self.dead_size = 0  # of the file of marks
        self.unwritten_marks = array("I")  # positions less the first one, not in the file of marks yet

    @property
    def name(self) -> str:
        return segment_name(self.first, self.generation)

    @property
    def dead_name(self) -> str:
        return dead_name(self.first, self.generation)

    def is_full(self, position: int, max_bytes: int) -> bool:
        """Whether a page that ends there belongs to the next segment."""
        return self.size >= max_bytes or position - self.first >= SEGMENT_SPAN

    def set_dead(self, position: int) -> bool:
        """Note that the message at this position is gone; says whether that is news."""
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

    def kill(self, position: int, is_persistent: bool, body_bytes: int) -> None:
        """One of the living is gone."""
        if self.set_dead(position):
            self.alive -= 1
            self.alive_bytes -= body_bytes
            if is_persistent:
                self.unwritten_marks.append(position - self.first)

    def read_back(self, entries: list[QueuedMessage]) -> None:
        """These are in memory again."""
        self.unread -= len(entries)
        for entry in entries:
            self.unread_bytes -= entry.message.size

    def kill_unread(self, above: int) -> None:
        """All that was not paged in yet is gone: everything behind this position."""
        self.alive -= self.unread
        self.alive_bytes -= self.unread_bytes
        self.unread = 0
        self.unread_bytes = 0
        if self.alive:  # else the file goes, and needs no marks
            is_counted = self.is_counted
            self.bury(above + 1, self.last)
            self.is_counted = is_counted

    def bury(self, first: int, last: int) -> None:
        """Mark everything from here to there as dead, whether it was ever alive or not."""
        self.is_counted = False
        for position in range(max(first, self.first), last + 1):
            if self.set_dead(position):
                self.unwritten_marks.append(position - self.first)


class Segments:
    """All of a queue's, by position. The next page is read from `reading`, None if everything is in memory."""

    __slots__ = ("_hot", "all", "passed", "reading")

    def __init__(self) -> None:
        self.all: list[Segment] = []
        self.reading: Segment | None = None
        self.passed: Segment | None = None  # the one that was read before
        self._hot: Segment | None = None

    def find(self, position: int) -> Segment | None:
        """The segment that this position lies in."""
        hot = self._hot
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
                self._hot = segment
                return segment
        return None

    def remove(self, segment: Segment) -> None:
        self.all.remove(segment)
        if self._hot is segment:
            self._hot = None

    def after(self, segment: Segment) -> Segment | None:
        """The next one, or None."""
        at = self.all.index(segment) + 1
        return self.all[at] if at < len(self.all) else None
