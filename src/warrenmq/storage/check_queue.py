"""Checks the segments of one queue or stream: every page, every deletion mark, and that every recorded file exists.

It shares the formats (`journal`) and the arithmetic of the manifest with recovery, but not its decisions, so that the
two can be tested against each other. What the log still has is not lost, nor is what was deleted.

Owned by the caller, in one thread; files are only read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from warrenmq.journal import segment_file
from warrenmq.journal.errors import DamagedPage
from warrenmq.journal.files import Files
from warrenmq.journal.record import PERSISTENT
from warrenmq.journal.segment_file import FILE_HEAD_SIZE, PageHead, PageWalk
from warrenmq.storage.manifest import FileRecord, Loss, Recorded, count_lost
from warrenmq.storage.positions import LoggedQueue, Positions, record_positions

LEFT_OVER = "left over from a compaction interrupted by a crash"


class Findings(Protocol):
    """Receives the findings."""

    folder: str
    files: Files

    def damage(
        self, kind: str, file: str, text: str, lost: str = "", queue: str = "", messages: int = 0, again: int = 0
    ) -> None: ...

    def remark(self, kind: str, file: str, text: str, queue: str = "") -> None: ...

    def advance(self, size: int) -> None: ...


class QueueFiles:
    """The segments of one queue, read in order. `last` is the last position on disk, -1 if there is none.

    `place` is its folder in the data folder, `name` its name, `records` its records in the manifest.
    """

    def __init__(
        self,
        findings: Findings,
        place: str,
        name: str,
        logged: LoggedQueue | None,
        recorded: Recorded,
        records: Mapping[int, FileRecord],
        is_stream: bool,
    ) -> None:
        self._findings = findings
        self._place = place
        self._name = name
        self._logged = logged
        self._recorded = recorded
        self._records = records
        self._is_stream = is_stream
        self._living = Positions()
        self._marked = Positions()  # by the marks of the current segment
        self.last = -1
        self._has_damage = False  # in the previous segment: explains missing positions
        self._is_torn = False
        self._synced_last = 1 << 63  # of the current segment

    def read(self) -> Positions:
        """Check everything. Return the live positions in pages and in the log."""
        newest, marks = self._find_files()
        firsts = sorted({*newest, *self._records})
        copied_up_to = -1  # the last position of the previous segment, if a compaction wrote it
        for at, first in enumerate(firsts):
            generation = newest.get(first)
            if first <= copied_up_to:
                if generation is not None:
                    file = os.path.join(self._place, segment_file.segment_name(first, generation))
                    self._findings.remark("segment", file, LEFT_OVER, self._name)
                continue
            if generation is None:
                self._check_missing_segment(self._records[first])
            else:
                following = firsts[at + 1] if at + 1 < len(firsts) else None
                self._read_segment(first, generation, (first, generation) in marks, following)
                copied_up_to = self.last if generation else -1
        if self._logged is not None:
            self._logged.remove_deleted(self._living)
            self._living.add_all(self._logged.alive_above(self.last))
        return self._living

    def _find_files(self) -> tuple[dict[int, int], set[tuple[int, int]]]:
        """Return the newest generation of each segment, and which ones have marks; report other files."""
        findings = self._findings
        names = findings.files.list(os.path.join(findings.folder, self._place))
        newest: dict[int, int] = {}
        marks: set[tuple[int, int]] = set()
        for name in names:
            parsed = segment_file.parse_name(name)
            if parsed is None:
                text = LEFT_OVER if name.endswith(".tmp") else "not a WarrenMQ file"
                findings.remark("segment", os.path.join(self._place, name), text)
            elif parsed[2] == "seg":
                newest[parsed[0]] = max(newest.get(parsed[0], -1), parsed[1])
            else:
                marks.add(parsed[:2])
        for name in names:
            parsed = segment_file.parse_name(name)
            if parsed is None or newest.get(parsed[0]) == parsed[1]:
                continue
            if parsed[0] in newest or parsed[0] not in self._records:
                kind = "segment" if parsed[2] == "seg" else "deletion marks"
                file = os.path.join(self._place, name)
                findings.remark(kind, file, LEFT_OVER)
        return newest, marks

    # -- segments ----------------------------------------------------------------------------------------------------

    def _check_missing_segment(self, record: FileRecord) -> None:
        """Report a recorded segment that is missing."""
        if self._is_torn:
            return  # the log has it
        name = segment_file.segment_name(record.first, record.generation)
        self._marked = Positions()
        self._read_marks(record.first, record.generation)
        last, count = self._recorded.synced(record)
        loss = count_lost(record.first, last, count, self._is_safe, record)
        self._is_torn = self._is_in_log(record.last)
        self._has_damage = True
        file = os.path.join(self._place, name)
        if loss.count:
            self._report_loss(file, "the file is missing", record.first, last, loss)
        elif self._recorded.is_binding(record):
            text = "the file is missing; the log still has its content, or all of it was acknowledged"
            self._findings.remark("segment", file, text, self._name)

    def _read_segment(self, first: int, generation: int, has_marks: bool, following: int | None) -> None:
        """Check one segment; `following` is the first position of the next one, if any."""
        file = os.path.join(self._place, segment_file.segment_name(first, generation))
        if self._is_torn:
            self._findings.remark("segment", file, "follows a file torn by a crash: the log has its messages")
            return
        if self._is_stream and 0 <= self.last < first - 1 and not self._has_damage:
            self._report_bad_page(file, None, "the messages before it are missing", self.last + 1, first - 1)
            if self._is_torn:
                return
        self._has_damage = False
        self._synced_last = self._find_synced_last(first, generation)
        found = Positions()
        self._marked = Positions()
        try:
            if has_marks:
                self._read_marks(first, generation)
            self._read_pages(file, first, generation, following, found)
            self._compare_marks(first, generation)
        except OSError as error:
            self._findings.damage("segment", file, f"it cannot be read: {error.strerror}", queue=self._name)
        found.remove_all(self._marked)
        self._living.add_all(found)

    def _find_synced_last(self, first: int, generation: int) -> int:
        """Return up to which position the pages of a segment were certainly synced; the log has the rest."""
        record = self._records.get(first)
        if record is None and self._recorded.is_complete:
            return first - 1
        if record is None or record.generation != generation:
            return 1 << 63
        return self._recorded.synced(record)[0]

    def _read_pages(self, file: str, named: int, generation: int, following: int | None, found: Positions) -> None:
        findings = self._findings
        path = os.path.join(findings.folder, file)
        handle = findings.files.open_read(path)
        try:
            walk = segment_file.walk_pages(findings.files, handle, path)
            if walk.pages and walk.pages[0].first <= self.last:
                text = f"it begins with position {walk.pages[0].first}, but the previous one ends with {self.last}"
                findings.damage("segment", file, text, queue=self._name)
            for page in walk.pages:
                try:
                    payload = segment_file.read_payload(findings.files, handle, page, path)
                    positions = record_positions(page, payload, path)
                except DamagedPage as error:
                    self._report_bad_page(file, page, error.why, page.first, page.last)
                else:
                    self.last = max(self.last, page.last)
                    for position, flags in positions:
                        if flags & PERSISTENT:
                            found.add(position)
                findings.advance(page.end - page.offset)
                if self._is_torn:
                    return
            record = self._records.get(named)
            if record is not None and record.generation == generation and walk.end < record.size:
                self._report_short_file(file, record, walk)
            elif walk.reason is not None:
                beyond = following if following is not None else _first_page_after(findings.files, handle, walk.end)
                self._report_bad_end(file, walk, max(self.last + 1, named), beyond)
        finally:
            findings.files.close(handle)

    def _report_short_file(self, file: str, record: FileRecord, walk: PageWalk) -> None:
        """Report a file that ends before its recorded size."""
        after = walk.pages[-1].last + 1 if walk.pages else record.first
        last, count = self._recorded.synced(record)
        missing = count - sum(page.count - page.transient for page in walk.pages)
        loss = count_lost(after, last, missing, self._is_safe, record)
        self._is_torn = self._is_in_log(record.last)
        self._has_damage = True
        text = f"it ends at offset {walk.end} of {record.size}" + (f" ({walk.reason})" if walk.reason else "")
        if loss.count:
            self._report_loss(file, text, after, last, loss)
        elif walk.reason is not None or self._recorded.is_binding(record):
            text += "; the log still has it, or all of it was acknowledged"
            self._findings.remark("segment", file, text, self._name)

    def _report_bad_end(self, file: str, walk: PageWalk, after: int, beyond: int | None) -> None:
        """Report a file that ends in something other than a page. `beyond` is the first position after it, if any."""
        assert walk.reason is not None
        if walk.end == walk.size >= FILE_HEAD_SIZE:
            text = f"{walk.reason}; all {len(walk.pages)} pages are intact"
            self._findings.damage("segment", file, text, queue=self._name)
        elif self._recorded.is_complete and beyond is None:
            text = f"its end was torn by a crash ({walk.reason}); everything recorded is present"
            self._is_torn = self._is_in_log(after)
            self._findings.remark("segment", file, text, self._name)
        else:
            self._report_bad_page(file, None, walk.reason, after, None if beyond is None else beyond - 1)

    def _report_bad_page(self, file: str, page: PageHead | None, why: str, first: int, last: int | None) -> None:
        """Report a bad page: torn if the log still has everything from there on, otherwise lost.

        Nothing is lost with a page of transient messages: it was never synced and would not survive a stop.
        """
        where = "" if page is None else f"the page at offset {page.offset}: "
        is_transient = page is not None and page.transient == page.count
        logged = self._logged
        if logged is not None and logged.first_append >= 0 and (last is None or last >= logged.first_append):
            self._is_torn = True
            is_in_log = first >= logged.first_append or first in logged.appended or first > self._synced_last
            if page is None or is_transient or is_in_log:
                self._findings.remark("segment", file, f"{where}it was torn by a crash ({why})", self._name)
                return
        elif page is not None and is_transient:
            self.last = max(self.last, page.last)
            self._findings.remark("segment", file, f"{where}{why}; it held transient messages only", self._name)
            return
        self._has_damage = True
        if page is not None:
            if not self._is_torn:
                self.last = max(self.last, page.last)
            loss = count_lost(first, page.last, page.count - page.transient, self._is_safe, None)
            if loss.count:
                self._report_loss(file, f"{where}{why}", first, page.last, loss)
            else:
                text = f"{where}{why}; all of its messages were acknowledged, given up before, or are in the log"
                self._findings.remark("segment", file, text, self._name)
        elif last is not None:
            loss = count_lost(first, last, last - first + 1, self._is_safe, None)
            self._report_loss(file, why, first, last, Loss(loss.count, False))
        else:
            lost = f"messages at positions from {first}, their number is unknown"
            self._findings.damage("segment", file, why, lost, self._name)

    def _report_loss(self, file: str, text: str, first: int, last: int, loss: Loss) -> None:
        lost = f"{loss}, at positions {first} to {last}"
        self._findings.damage("segment", file, text, lost, self._name, loss.count)

    def _is_safe(self, position: int) -> bool:
        """Return True if a message was deleted or is in the log."""
        if position in self._marked:
            return True
        logged = self._logged
        if logged is None:
            return False
        if 0 <= logged.first_append <= position or position in logged.appended or position in logged.forgotten:
            return True
        return any(first <= position <= last for first, last in logged.ranges)

    def _is_in_log(self, position: int) -> bool:
        """Return True if the log has everything from this position on: a start takes the rest of the queue from it."""
        return self._logged is not None and 0 <= self._logged.first_append <= position

    # -- marks -------------------------------------------------------------------------------------------------------

    def _read_marks(self, first: int, generation: int) -> None:
        file = os.path.join(self._place, segment_file.marks_name(first, generation))
        path = os.path.join(self._findings.folder, file)
        if not self._findings.files.exists(path):
            return
        marks = segment_file.read_marks(self._findings.files, path)
        for number in marks.numbers:
            self._marked.add(first + number)
        if marks.reason is not None and marks.is_damaged:
            text = f"at offset {marks.end}: {marks.reason}"
            lost = "marks: messages that were acknowledged may be delivered again"
            self._findings.damage("deletion marks", file, text, lost, self._name)
        elif marks.reason is not None and not self._are_marks_short(first, generation, marks.end):
            text = f"its end was torn by a crash ({marks.reason})"
            self._findings.remark("deletion marks", file, text, self._name)
        self._findings.advance(marks.size)

    def _are_marks_short(self, first: int, generation: int, size: int) -> bool:
        record = self._records.get(first)
        if record is None or record.generation != generation or not self._recorded.is_binding(record):
            return False
        return size < record.marks

    def _compare_marks(self, first: int, generation: int) -> None:
        """Report recorded marks that are missing."""
        findings = self._findings
        file = os.path.join(self._place, segment_file.marks_name(first, generation))
        path = os.path.join(findings.folder, file)
        is_there = findings.files.exists(path)
        marks = segment_file.read_marks(findings.files, path) if is_there else None
        size = 0 if marks is None else marks.size if marks.is_damaged else marks.end
        if not self._are_marks_short(first, generation, size):
            return
        record = self._records[first]
        known = sum(map(self._is_deleted, range(first, record.last + 1)))
        again = Loss(max(0, record.count - record.alive - known), False)
        text = f"it ends at offset {size} of {record.marks}" if is_there else "the file is missing"
        if again.count == 0:
            findings.remark("deletion marks", file, f"{text}; the log still has its content", self._name)
        else:
            lost = f"marks: {again} that were acknowledged may be delivered again"
            findings.damage("deletion marks", file, text, lost, self._name, again=again.count)

    def _is_deleted(self, position: int) -> bool:
        logged = self._logged
        if position in self._marked or logged is None:
            return position in self._marked
        return position in logged.forgotten or any(first <= position <= last for first, last in logged.ranges)


def _first_page_after(files: Files, handle: int, offset: int) -> int | None:
    """Return the first position of the next whole page head; None if this may be the tail that a crash left."""
    data = files.read(handle, files.size(handle) - offset, offset)
    for match in segment_file.PAGE_MAGICS.finditer(data, 1):
        at = match.start()
        page = segment_file.parse_page_head(data[at : at + segment_file.PAGE_HEAD_SIZE], offset + at)
        if not isinstance(page, str):
            return page.first
    return None
