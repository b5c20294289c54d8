"""A queue's segments, as the start finds them: what is there, what is dead, and how many are alive.

Of most segments only the heads of pages are read. Every segment but the last was made durable before the next one began
(queue_store.py), so only the last one can be torn by a crash; the log still has what it held. Anything else that is not
whole is damage: the file is kept aside, the rest stays in use, and the report tells what is lost.

Runs before the threads.
"""

from __future__ import annotations

import os

from warrenmq.journal.errors import DamagedPage
from warrenmq.journal.files import Files
from warrenmq.journal.segment_file import (
    PAGE_HEAD_SIZE,
    SEGMENT_MAGIC,
    UNKNOWN,
    PageHead,
    PageWalk,
    dead_name,
    encode_file_head,
    parse_name,
    read_dead,
    read_payload,
    segment_name,
    walk_pages,
)
from warrenmq.storage.damaged import copy_aside
from warrenmq.storage.replay import QueueReplay, count_alive
from warrenmq.storage.segments import Segment

# Taken for the overhead of a record at most, where it cannot be told from the bodies of transient messages.
_TYPICAL_OVERHEAD = 128


class SegmentReader:
    """One folder. `replay` is what the log says about its queue, None if it says nothing."""

    def __init__(self, files: Files, root: str, folder: str, replay: QueueReplay | None) -> None:
        self.files = files
        self.root = root
        self.folder = folder
        self.report: list[str] = []
        self.has_damage = False
        self._replay = replay
        self._firsts: list[int] = []

    def read(self) -> list[Segment]:
        """All that have living messages; the others are removed."""
        generations = self._find_files()
        self._firsts = sorted(generations)
        found: list[Segment] = []
        gone: list[Segment] = []
        replaced: list[Segment] = []
        is_cut = False
        copied_up_to = -1  # the last position of the segment before, if a compaction wrote it
        for first in self._firsts:
            segment = Segment(first, generations[first])
            if first <= copied_up_to:
                replaced.append(segment)
                continue
            if not is_cut:
                pages, is_cut = self._read_pages(segment)
                segment.body_bytes = sum(page.body_bytes for page in pages)
                segment.overhead = _overhead_of(pages)
                segment.alive, segment.alive_bytes = self._count(segment, pages, self._read_marks(segment))
                segment.unread, segment.unread_bytes = segment.alive, segment.alive_bytes
                segment.is_counted = not segment.is_old
                copied_up_to = segment.last if segment.generation else -1
            (found if segment.alive else gone).append(segment)
        if replaced:
            self.files.sync_dir(self.folder)  # first the one that replaces them must be durable
            self._remove(replaced)
        self._remove(gone)
        return found

    def _find_files(self) -> dict[int, int]:
        """The newest generation of each segment. Leftovers are removed: older ones, marks without a segment, copies."""
        generations: dict[int, int] = {}
        names = self.files.list(self.folder)
        for name in names:
            parsed = parse_name(name)
            if parsed is not None and parsed[2] == "seg":
                generations[parsed[0]] = max(parsed[1], generations.get(parsed[0], 0))
        leftovers = [name for name in names if _is_leftover(name, generations)]
        if leftovers:
            self.files.sync_dir(self.folder)  # first the new generation must be durable
            for name in leftovers:
                self.files.remove(os.path.join(self.folder, name))
            self.files.sync_dir(self.folder)  # marks must not meet another segment of the same name
        return generations

    # -- pages -------------------------------------------------------------------------------------------------------

    def _read_pages(self, segment: Segment) -> tuple[list[PageHead], bool]:
        """Fill in the segment what its page heads tell. And whether the queue ends here: the log has all behind it."""
        path = os.path.join(self.folder, segment.name)
        handle = self.files.open(path)
        try:
            walk = walk_pages(self.files, handle, path)
            pages, end, is_cut = self._judge(segment, walk, handle, path)
            if end < walk.size:
                self.files.truncate(handle, end)
                self.files.sync(handle)
        finally:
            self.files.close(handle)
        segment.is_old = walk.is_old
        if pages:
            segment.last = pages[-1].last
            segment.count = sum(page.count for page in pages)
            segment.size = segment.written = end
            segment.is_new = False
        return pages, is_cut

    def _judge(self, segment: Segment, walk: PageWalk, handle: int, path: str) -> tuple[list[PageHead], int, bool]:
        """The pages to use, where they end, and whether the log has all that comes behind."""
        is_last = segment.first == self._firsts[-1]
        for index, page in enumerate(walk.pages):
            if not self._may_be_torn(page) or self._is_whole(handle, page, path):
                continue
            if is_last or page.first >= self._covered_from():
                if not self._is_covered(page):
                    self._damaged(path, f"its page at {page.offset} is damaged: what the log does not have is lost")
                return walk.pages[:index], page.offset, True
        if walk.reason is None:
            return walk.pages, walk.end, False
        if walk.end == walk.size:
            self.report.append(f"{path}: {walk.reason}: it was written anew, nothing is lost")
            self.files.write(handle, encode_file_head(SEGMENT_MAGIC), 0)
            self.files.sync(handle)
            return walk.pages, walk.end, False
        after = walk.pages[-1].last + 1 if walk.pages else segment.first
        what = f"{walk.size - walk.end} bytes at {walk.end} are not readable ({walk.reason})"
        if after >= self._covered_from():
            self.report.append(f"{path}: {what}: the log has what they held")
            return walk.pages, walk.end, True
        if is_last and self._replay is not None:
            # Nearly always torn in a crash; whether there was more in them than the log has cannot be known.
            copy_aside(self.files, self.root, path)
            self.report.append(f"{path}: {what}: what the log has of it is restored")
            return walk.pages, walk.end, True
        following = "" if is_last else f" to {self._firsts[self._firsts.index(segment.first) + 1] - 1}"
        self._damaged(path, f"{what}: messages from {after} on{following} are lost")
        return walk.pages, walk.end, False

    def _covered_from(self) -> int:
        """The log has every living message from this position on."""
        if self._replay is None or self._replay.first_append < 0:
            return 1 << 63
        return self._replay.first_append

    def _may_be_torn(self, page: PageHead) -> bool:
        """Whether the log still has some of it: then it may not have been synced."""
        if self._replay is None:
            return False
        return page.last >= self._covered_from() or self._count_relogged(page) > 0

    def _is_covered(self, page: PageHead) -> bool:
        return page.first >= self._covered_from() or self._count_relogged(page) >= page.count - page.transient

    def _count_relogged(self, page: PageHead) -> int:
        if self._replay is None or self._replay.relogged is None:
            return 0
        return sum(page.first <= position <= page.last for position in self._replay.relogged)

    def _is_whole(self, handle: int, page: PageHead, path: str) -> bool:
        try:
            read_payload(self.files, handle, page, path)
        except DamagedPage:
            return False
        return True

    # -- marks -------------------------------------------------------------------------------------------------------

    def _read_marks(self, segment: Segment) -> int:
        """Mark what is dead; return the bytes of the bodies of all that, or UNKNOWN."""
        deleted_bytes = UNKNOWN
        path = os.path.join(self.folder, segment.dead_name)
        if self.files.exists(path):
            marks = read_dead(self.files, path)
            # Behind a batch that is damaged others are read by their magic; a torn end is cut off.
            segment.dead_size = marks.size if marks.is_damaged else marks.end
            if marks.reason is not None:
                self.report.append(
                    f"{path}: {marks.reason}: unless the log has these marks, messages that were acked come again"
                )
                if marks.is_damaged:
                    self.has_damage = True
                else:
                    self._cut(path, marks.end)
            for number in marks.numbers:
                if number <= segment.last - segment.first:
                    segment.set_dead(segment.first + number)
            if marks.reason is None:
                deleted_bytes = marks.deleted_bytes
        if self._replay is not None:
            self._replay.mark(segment)
            if segment.unwritten_marks:
                deleted_bytes = UNKNOWN
        return deleted_bytes

    def _cut(self, path: str, end: int) -> None:
        handle = self.files.open(path)
        try:
            self.files.truncate(handle, end)
            self.files.sync(handle)
        finally:
            self.files.close(handle)

    # -- the living --------------------------------------------------------------------------------------------------

    def _count(self, segment: Segment, pages: list[PageHead], deleted_bytes: int) -> tuple[int, int]:
        """Return how many are alive, and the bytes of their bodies.

        Marks may name positions that no page holds, and those of the log do not tell bytes: where that matters the
        page is read.
        """
        is_known = deleted_bytes != UNKNOWN and not segment.is_old
        dead = int.from_bytes(segment.dead or b"", "little")
        alive = alive_bytes = 0
        path = os.path.join(self.folder, segment.name)
        handle = self.files.open_read(path)
        try:
            for page in pages:
                span = page.last - page.first + 1
                marked = (dead >> (page.first - segment.first) & (1 << span) - 1).bit_count()
                is_dense = page.count == span and page.transient == 0
                if marked == 0 and page.body_bytes != UNKNOWN:
                    alive += page.count - page.transient
                    alive_bytes += page.body_bytes
                elif is_known and is_dense:
                    alive += page.count - marked
                elif marked < span:
                    count, size = self._count_page(segment, handle, page, path)
                    alive += count
                    alive_bytes += size
        finally:
            self.files.close(handle)
        return alive, segment.body_bytes - deleted_bytes if is_known else alive_bytes

    def _count_page(self, segment: Segment, handle: int, page: PageHead, path: str) -> tuple[int, int]:
        try:
            payload = read_payload(self.files, handle, page, path)
        except DamagedPage:  # reported when it is paged in
            return page.count - page.transient, max(0, page.body_bytes)
        return count_alive(payload, segment.first, segment.dead)

    # -- files -------------------------------------------------------------------------------------------------------

    def _remove(self, segments: list[Segment]) -> None:
        """Segments first: without its marks a segment would be alive again."""
        for name_of in (segment_name, dead_name):
            paths = [os.path.join(self.folder, name_of(segment.first, segment.generation)) for segment in segments]
            for path in paths:
                if self.files.exists(path):
                    self.files.remove(path)
            if paths:
                self.files.sync_dir(self.folder)

    def _damaged(self, path: str, line: str) -> None:
        copy_aside(self.files, self.root, path)
        self.has_damage = True
        self.report.append(f"{path}: {line}")


def _overhead_of(pages: list[PageHead]) -> int:
    """Return what a record of these pages has beside its body, on average.

    It is known of pages that have the bytes of all their bodies; of others it is the same, or taken to be typical.
    """
    known = [page for page in pages if page.transient == 0 and page.body_bytes != UNKNOWN]
    if known:
        overhead = sum(PAGE_HEAD_SIZE + page.length - page.body_bytes for page in known)
        return overhead // sum(page.count for page in known)
    overhead = sum(PAGE_HEAD_SIZE + page.length - max(0, page.body_bytes) for page in pages)
    return min(_TYPICAL_OVERHEAD, overhead // max(1, sum(page.count for page in pages)))


def _is_leftover(name: str, generations: dict[int, int]) -> bool:
    parsed = parse_name(name)
    if parsed is None:
        return name.endswith(".tmp")
    return generations.get(parsed[0]) != parsed[1]
