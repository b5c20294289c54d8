"""Reads the segments of a queue at a start: which files exist, which messages are deleted, and how many are alive.

For most segments only page heads are read. Every segment but the last was synced before the next one began
(queue_store.py), so only the last one can be torn by a crash, and the log still has what it held. Anything else that is
not whole, or is recorded in the manifest but missing, is damage: the file is copied, the rest stays in use, and the
report has the number of lost messages.

Runs before the threads.
"""

from __future__ import annotations

import os
from functools import partial

from warrenmq.journal.errors import DamagedPage
from warrenmq.journal.files import Files
from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    PAGE_HEAD_SIZE,
    SEGMENT_MAGIC,
    UNKNOWN,
    PageHead,
    PageWalk,
    encode_file_head,
    marks_name,
    parse_name,
    read_marks,
    read_payload,
    segment_name,
    walk_pages,
)
from warrenmq.storage.codec import is_marked
from warrenmq.storage.damaged import copy_aside
from warrenmq.storage.manifest import FileRecord, Loss, Recorded, count_lost
from warrenmq.storage.page_index import PageIndex
from warrenmq.storage.replay import QueueReplay, count_alive
from warrenmq.storage.segments import Segment

# Maximum average overhead, if the bodies of transient messages make it unknown.
_TYPICAL_OVERHEAD = 128


class SegmentReader:
    """One folder. `replay` is what the log says about its queue, None if nothing.

    `queue` describes the queue in the report. `dead` are recorded segments without live messages: their files may be
    removed once the manifest has forgotten them durably.
    """

    def __init__(
        self, files: Files, root: str, folder: str, replay: QueueReplay | None, recorded: Recorded, queue: str
    ) -> None:
        self.files = files
        self.root = root
        self.folder = folder
        self.report: list[str] = []
        self.has_damage = False
        self.lost = 0  # messages
        self.dead: list[Segment] = []
        self._replay = replay
        self._queue = queue
        self._recorded = recorded
        self._records = recorded.segments(os.path.relpath(folder, root))
        self._firsts: list[int] = []

    def read(self) -> list[Segment]:
        """Return the segments with live messages; remove the others."""
        names = self.files.list(self.folder)
        generations = _newest_generations(names)
        self._firsts = sorted(generations)
        orphaned_marks = self._read_orphaned_marks(generations)
        self._remove_leftovers([name for name in names if _is_leftover(name, generations)])
        found: list[Segment] = []
        gone: list[Segment] = []
        replaced: list[Segment] = []
        is_cut = False
        copied_up_to = -1  # the last position of the previous segment, if a compaction wrote it
        for first in sorted({*generations, *self._records}):
            if first <= copied_up_to:
                if first in generations:
                    replaced.append(Segment(first, generations[first]))
                continue
            if first not in generations:
                is_cut = is_cut or self._report_missing(self._records[first], orphaned_marks.get(first))
                continue
            segment = Segment(first, generations[first])
            segment.record = self._records.get(first)
            if not is_cut:
                pages, is_cut = self._read_pages(segment)
                segment.body_bytes = sum(page.body_bytes for page in pages)
                segment.overhead = _overhead_of(pages)
                segment.alive, segment.alive_bytes = self._count(segment, pages, self._read_marks(segment))
                segment.unread, segment.unread_bytes = segment.alive, segment.alive_bytes
                segment.has_exact_bytes = not segment.lacks_body_bytes
                copied_up_to = segment.last if segment.generation else -1
                if segment.record is not None and pages and not segment.alive:
                    self.dead.append(segment)
                    continue
            (found if segment.alive else gone).append(segment)
        if replaced:
            self.files.sync_dir(self.folder)  # first make durable the one that replaces them
            self._remove(replaced)
        self._remove(gone)
        return found

    def _remove_leftovers(self, leftovers: list[str]) -> None:
        """Remove older generations, marks without a segment, and temporary copies."""
        if leftovers:
            self.files.sync_dir(self.folder)  # first make the new generation durable
            for name in leftovers:
                self.files.remove(os.path.join(self.folder, name))
            self.files.sync_dir(self.folder)  # marks must not apply to a later segment of the same name

    # -- what is missing ---------------------------------------------------------------------------------------------

    def _read_orphaned_marks(self, generations: dict[int, int]) -> dict[int, bytearray]:
        """Return the marks of recorded segments that are missing."""
        marks: dict[int, bytearray] = {}
        for first, record in self._records.items():
            path = os.path.join(self.folder, marks_name(first, record.generation))
            if first not in generations and self.files.exists(path):
                segment = Segment(first, record.generation)
                for number in read_marks(self.files, path).numbers:
                    if number <= record.last - first:
                        segment.mark_dead(first + number)
                if segment.dead is not None:
                    marks[first] = segment.dead
        return marks

    def _report_missing(self, record: FileRecord, marks: bytearray | None) -> bool:
        """Report a missing recorded segment. Return True if the log has everything after the loss."""
        path = os.path.join(self.folder, segment_name(record.first, record.generation))
        last, count = self._recorded.synced(record)
        loss = count_lost(record.first, last, count, partial(self._is_safe, record.first, marks), record)
        if loss.count:
            self._report_loss(path, "the file is missing", loss)
        elif self._recorded.is_binding(record):
            self.report.append(f"{path} is missing: the log still has its content, or all of it was acknowledged")
        return self._logged_from() <= record.last

    def _is_safe(self, first: int, marks: bytearray | None, position: int) -> bool:
        """Return True if the message was deleted or is in the log."""
        if position >= self._logged_from() or is_marked(marks or b"", position - first):
            return True
        replay = self._replay
        if replay is None:
            return False
        return replay.is_dead(position) or (replay.relogged is not None and position in replay.relogged)

    def _report_loss(self, path: str, why: str, loss: Loss) -> None:
        self.has_damage = True
        self.lost += loss.count
        self.report.append(f"{path}: {why}: {loss} of {self._queue} lost")

    # -- pages -------------------------------------------------------------------------------------------------------

    def _read_pages(self, segment: Segment) -> tuple[list[PageHead], bool]:
        """Describe the segment by its page heads; also return whether the log has everything after them."""
        path = os.path.join(self.folder, segment.name)
        handle = self.files.open(path)
        try:
            walk = walk_pages(self.files, handle, path)
            pages, end, is_cut = self._select_pages(segment, walk, handle, path)
            if end < walk.size:
                self.files.truncate(handle, end)
                self.files.sync(handle)
        finally:
            self.files.close(handle)
        segment.is_old = walk.is_old
        segment.lacks_body_bytes = walk.lacks_body_bytes
        if pages:
            segment.last = pages[-1].last
            segment.count = sum(page.count for page in pages)
            segment.transient = sum(page.transient for page in pages)
            segment.size = segment.written = end
            segment.is_new = False
        return pages, is_cut

    def _select_pages(
        self, segment: Segment, walk: PageWalk, handle: int, path: str
    ) -> tuple[list[PageHead], int, bool]:
        """Return the usable pages, their end, and whether the log has everything after them."""
        is_last = segment.first == self._firsts[-1]
        for index, page in enumerate(walk.pages):
            if not self._may_be_torn(page) or self._is_whole(handle, page, path):
                continue
            if is_last or page.first >= self._logged_from():
                if not self._is_logged(page) and page.first <= self._synced_last(segment):
                    self._report_lost_pages(
                        segment, walk.pages[index:], path, f"the page at offset {page.offset} is damaged"
                    )
                return walk.pages[:index], page.offset, True
        after = walk.pages[-1].last + 1 if walk.pages else segment.first
        record = self._record_of(segment)
        is_short = record is not None and walk.end < record.size
        if walk.reason is None and not is_short:
            return walk.pages, walk.end, False
        if walk.end == walk.size and walk.size >= FILE_HEAD_SIZE and not is_short:
            self.report.append(f"{path}: {walk.reason}: the head was rewritten, all {len(walk.pages)} pages are intact")
            self.files.write(handle, encode_file_head(SEGMENT_MAGIC, path), 0)
            self.files.sync(handle)
            return walk.pages, walk.end, False
        what = f"{walk.size - walk.end} bytes at offset {walk.end} cannot be read ({walk.reason})"
        if walk.reason is None and record is not None:
            what = f"it ends at offset {walk.end}, but had {record.size} bytes"
        if after >= self._logged_from():
            if walk.reason is not None or (record is not None and self._recorded.is_binding(record)):
                self.report.append(f"{path}: {what}: the log still has their content")
            return walk.pages, walk.end, True
        if record is not None and is_short:
            last, count = self._recorded.synced(record)
            missing = count - sum(page.count - page.transient for page in walk.pages)
            is_safe = partial(self._is_safe, segment.first, self._load_marks(segment))
            loss = count_lost(after, last, missing, is_safe, record)
            if loss.count:
                copy_aside(self.files, self.root, path)
                self._report_loss(path, what, loss)
            elif walk.reason is not None or self._recorded.is_binding(record):
                self.report.append(f"{path}: {what}: the log still has their content, or all of it was acknowledged")
            return walk.pages, walk.end, self._logged_from() <= record.last
        if is_last and (self._recorded.is_complete or self._replay is not None):
            # Everything synced is recorded: the rest was torn in a crash, and the log has it.
            copy_aside(self.files, self.root, path)
            known = "" if self._recorded.is_complete else "; whether there was more is unknown"
            self.report.append(f"{path}: {what}: restored from the log as far as possible{known}")
            return walk.pages, walk.end, True
        following = "" if is_last else f" to {self._firsts[self._firsts.index(segment.first) + 1] - 1}"
        copy_aside(self.files, self.root, path)
        self.has_damage = True
        self.report.append(f"{path}: {what}: messages of {self._queue} at positions from {after}{following} are lost")
        return walk.pages, walk.end, False

    def _record_of(self, segment: Segment) -> FileRecord | None:
        """Return the record of this file; one of another generation does not apply to its size."""
        record = self._records.get(segment.first)
        return record if record is not None and record.generation == segment.generation else None

    def _synced_last(self, segment: Segment) -> int:
        """Return up to which position the pages of a segment were certainly synced; the log has the rest."""
        record = self._records.get(segment.first)
        if record is None and self._recorded.is_complete:
            return segment.first - 1
        if record is None or record.generation != segment.generation:
            return 1 << 63
        return self._recorded.synced(record)[0]

    def _report_lost_pages(self, segment: Segment, pages: list[PageHead], path: str, why: str) -> None:
        """Report pages that are given up; the log may have a part of them."""
        copy_aside(self.files, self.root, path)
        pages = [page for page in pages if page.first <= self._synced_last(segment)]
        count = sum(page.count - page.transient for page in pages)
        is_safe = partial(self._is_safe, segment.first, self._load_marks(segment))
        self._report_loss(path, why, count_lost(pages[0].first, pages[-1].last, count, is_safe, None))

    def _load_marks(self, segment: Segment) -> bytearray | None:
        """Return the marks in a segment's file, before the end of the segment is known."""
        path = os.path.join(self.folder, segment.marks_name)
        if not self.files.exists(path):
            return None
        marked = Segment(segment.first)
        for number in read_marks(self.files, path).numbers:
            marked.mark_dead(segment.first + number)
        return marked.dead

    def _logged_from(self) -> int:
        """Return the position from which on the log has every live message."""
        if self._replay is None or self._replay.first_append < 0:
            return 1 << 63
        return self._replay.first_append

    def _may_be_torn(self, page: PageHead) -> bool:
        """Return True if the log still has some of the page: then it may not have been synced."""
        if self._replay is None:
            return False
        return page.last >= self._logged_from() or self._count_relogged(page) > 0

    def _is_logged(self, page: PageHead) -> bool:
        return page.first >= self._logged_from() or self._count_relogged(page) >= page.count - page.transient

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
        """Mark deleted messages; return the bytes of their bodies, or UNKNOWN."""
        deleted_bytes = UNKNOWN
        path = os.path.join(self.folder, segment.marks_name)
        if self.files.exists(path):
            marks = read_marks(self.files, path)
            # Batches after a damaged one were found by their magic; a torn end is cut off.
            segment.marks_size = marks.size if marks.is_damaged else marks.end
            if marks.reason is not None:
                self.report.append(
                    f"{path}: {marks.reason}: unless the log has them, acknowledged messages may be delivered again"
                )
                if marks.is_damaged:
                    self.has_damage = True
                else:
                    self._cut(path, marks.end)
            for number in marks.numbers:
                if number <= segment.last - segment.first:
                    segment.mark_dead(segment.first + number)
            if marks.reason is None:
                deleted_bytes = marks.deleted_bytes
        if self._replay is not None:
            self._replay.mark(segment)
            if segment.unwritten_marks:
                deleted_bytes = UNKNOWN
        if self._report_lost_marks(segment, path):
            deleted_bytes = UNKNOWN
        return deleted_bytes

    def _report_lost_marks(self, segment: Segment, path: str) -> bool:
        """Report recorded marks that are missing. Return True if any is lost."""
        record = self._record_of(segment)
        if record is None or segment.marks_size >= record.marks or not self._recorded.is_binding(record):
            return False
        why = (
            f"it ends at {segment.marks_size} of {record.marks} bytes" if segment.marks_size else "the file is missing"
        )
        known = int.from_bytes(segment.dead or b"", "little").bit_count()
        again = Loss(max(0, record.count - record.alive - known), False)
        if again.count == 0:
            self.report.append(f"{path}: {why}: the log still has its content")
        else:
            self.has_damage = True
            self.report.append(f"{path}: {why}: {again} of {self._queue}, acknowledged before, may be delivered again")
        return True

    def _cut(self, path: str, end: int) -> None:
        handle = self.files.open(path)
        try:
            self.files.truncate(handle, end)
            self.files.sync(handle)
        finally:
            self.files.close(handle)

    # -- the living --------------------------------------------------------------------------------------------------

    def _count(self, segment: Segment, pages: list[PageHead], deleted_bytes: int) -> tuple[int, int]:
        """Return how many messages are alive, and the bytes of their bodies.

        Marks may name positions that are in no page, and marks in the log have no byte counts: in such cases the page
        is read.
        """
        is_known = deleted_bytes != UNKNOWN and not segment.lacks_body_bytes
        dead = int.from_bytes(segment.dead or b"", "little")
        alive = alive_bytes = 0
        path = os.path.join(self.folder, segment.name)
        handle = self.files.open_read(path)
        try:
            for page in pages:
                span = page.last - page.first + 1
                marked = (dead >> (page.first - segment.first) & (1 << span) - 1).bit_count()
                is_dense = page.count == span and page.transient == 0
                count = size = 0
                if marked == 0 and page.body_bytes != UNKNOWN:
                    count, size = page.count - page.transient, page.body_bytes
                elif is_known and is_dense:
                    count, size = page.count - marked, UNKNOWN if marked < span else 0
                elif marked < span:
                    count, size = self._count_page(segment, handle, page, path)
                alive += count
                alive_bytes += max(0, size)
                segment.pages.add(page.first, page.last, page.offset, count, size, page.earliest, page.latest)
        finally:
            self.files.close(handle)
        if is_known:
            _fill_unknown_bytes(segment.pages, segment.body_bytes - deleted_bytes - alive_bytes)
            alive_bytes = segment.body_bytes - deleted_bytes
        return alive, alive_bytes

    def _count_page(self, segment: Segment, handle: int, page: PageHead, path: str) -> tuple[int, int]:
        try:
            payload = read_payload(self.files, handle, page, path)
        except DamagedPage:  # reported when it is paged in
            return page.count - page.transient, max(0, page.body_bytes)
        return count_alive(payload, segment.first, segment.dead)

    # -- files -------------------------------------------------------------------------------------------------------

    def _remove(self, segments: list[Segment]) -> None:
        """Remove segments before their marks: without marks a segment would be alive again."""
        for name_of in (segment_name, marks_name):
            paths = [os.path.join(self.folder, name_of(segment.first, segment.generation)) for segment in segments]
            for path in paths:
                if self.files.exists(path):
                    self.files.remove(path)
            if paths:
                self.files.sync_dir(self.folder)


def _fill_unknown_bytes(index: PageIndex, rest: int) -> None:
    """If the bytes of only one page are unknown, they are the rest of the segment's."""
    unknown = [page for page in range(len(index)) if index.unread_bytes(page) == UNKNOWN]
    if len(unknown) == 1:
        index.set_bytes(unknown[0], rest)


def _newest_generations(names: list[str]) -> dict[int, int]:
    """Return the newest generation of each segment, by first position."""
    generations: dict[int, int] = {}
    for name in names:
        parsed = parse_name(name)
        if parsed is not None and parsed[2] == "seg":
            generations[parsed[0]] = max(parsed[1], generations.get(parsed[0], 0))
    return generations


def _overhead_of(pages: list[PageHead]) -> int:
    """Return the average size of a record of these pages without its body.

    Pages that record the bytes of all bodies tell it; without such pages a typical value is the maximum.
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
