"""Recovery at a start: definitions from the catalog, messages from segments, and newer changes from the log.

The time is bounded by the log, not by the backlog: only page heads of segments are read, and those pages that may not
have been synced. Damaged files are moved aside and reported, and everything else starts.

Runs before the threads, in the caller's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from warrenmq.journal.errors import BadRecord, DamagedPage
from warrenmq.journal.files import Files
from warrenmq.journal.log_file import LogFile
from warrenmq.journal.log_scan import LogScan, cut_torn_tail, read_log
from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    SEGMENT_MAGIC,
    PageHead,
    count_messages,
    encode_file_head,
    marks_name,
    parse_name,
    read_payload,
    segment_name,
    walk_pages,
)
from warrenmq.storage.catalog import CatalogFile
from warrenmq.storage.damaged import DAMAGED, copy_aside, move_aside
from warrenmq.storage.definition_records import CatalogError, Operation, decode_operation
from warrenmq.storage.log_loss import LostEpochs, find_missing_epochs
from warrenmq.storage.manifest import FILE, FileRecord, Loss, Recorded, folder_of
from warrenmq.storage.replay import LogReader, LogReplay, QueueReplay
from warrenmq.storage.segment_reader import SegmentReader
from warrenmq.storage.segments import Segment

Progress = Callable[[str, int, int], None]

LOG = "log"
QUEUES = "queues"


class FoundPages(NamedTuple):
    """The usable pages of a stream's segment."""

    pages: list[PageHead]
    end: int
    is_cut: bool  # the log has everything after them
    is_old: bool  # nothing may be appended


class FoundSegments(NamedTuple):
    """The segments of a queue; `dead` have no live message and are removed once the manifest has forgotten them."""

    segments: list[Segment]
    dead: list[Segment]
    has_damage: bool


class Recovery:
    """One start. `report` lists for the operator what was lost or moved aside."""

    def __init__(self, files: Files, root: str, catalog: CatalogFile, progress: Progress | None = None) -> None:
        self.files = files
        self.root = root
        self.catalog = catalog
        self.report: list[str] = []
        self.has_damage = False
        self.log_files: list[LogFile] = []
        self.first_epoch = 0  # of the log; 0 if it is empty
        self.next_epoch = 1
        self.epochs = 0  # number of epochs in the log
        self.time_ms = 0  # of the epoch that is being restored
        self._replay = LogReplay()
        self._bad_epochs: set[int] = set()
        self._progress = progress
        self._found_folders: set[str] | None = None
        self._is_queues_synced = False
        self.recorded = Recorded()  # the manifest, filled by `scan_log`
        self.lost_messages = 0
        self._lost_epochs = LostEpochs()

    # -- the log -----------------------------------------------------------------------------------------------------

    def scan_log(self) -> None:
        """First pass over the log: update the catalog, and collect what was deleted."""
        scan = read_log(self.files, os.path.join(self.root, LOG), self._progress_of("reading the log"))
        defined: list[tuple[int, list[Operation]]] = []
        for epoch in scan:
            self.epochs += 1
            self.first_epoch = self.first_epoch or epoch.sequence
            payload = bytes(epoch.payload)
            try:
                definitions = self._replay.check(payload)
                is_news = epoch.sequence > self.catalog.applied_epoch
                operations = [decode_operation(record) for record in definitions] if is_news else []
            except (BadRecord, CatalogError) as error:
                self._bad_epochs.add(epoch.sequence)
                self._report_loss(f"epoch {epoch.sequence} in {epoch.file} cannot be decoded and was skipped: {error}")
                continue
            self._replay.scan(payload, epoch.sequence)
            if operations:
                defined.append((epoch.sequence, operations))
        self._report_scan(scan)
        self._report_missing_epochs(scan)
        cut_torn_tail(self.files, scan)
        for sequence, operations in defined:  # after the sync: the catalog must never be ahead of the log
            self.catalog.apply(sequence, operations)
        self.log_files = scan.files_found
        self.next_epoch = max(scan.last_sequence, self.catalog.applied_epoch, self.catalog.released_epoch) + 1
        self.recorded = Recorded.of(self.catalog.load(FILE), self.catalog.released_epoch)

    def _report_scan(self, scan: LogScan) -> None:
        if scan.torn_tail is not None:
            torn = scan.torn_tail
            self.report.append(
                f"the log ends in the middle of an epoch ({torn.reason}): {torn.size} bytes were cut off {torn.file} "
                f"at offset {torn.offset}. After a crash that is normal: nothing in it was confirmed. If there was no "
                "crash while the broker wrote, the file was damaged later, and messages of its last epochs are lost"
            )
        for damage in scan.damage:
            if damage.lost is not None:
                self._lost_epochs.add(*damage.lost)
            lost = f", epochs {damage.lost[0]} to {damage.lost[1]} are lost" if damage.lost else ""
            self._report_loss(f"the log is damaged: {damage.file} at {damage.offset}: {damage.reason}{lost}")
            copy_aside(self.files, self.root, os.path.join(self.root, LOG, damage.file))

    def _report_missing_epochs(self, scan: LogScan) -> None:
        """Compare the first and last epoch of the log with the catalog."""
        for gap in find_missing_epochs(scan, self.catalog.released_epoch, self.catalog.applied_epoch):
            if gap.is_needed:
                self._lost_epochs.add(gap.first, gap.last, is_end_known=gap.is_end_known)
                self._report_loss(gap.text)
            else:
                self.report.append(gap.text)

    def count_lost_in_log(self, queues: Mapping[int, tuple[str, int]]) -> None:
        """Report how many messages of each queue were in lost epochs.

        `queues` are all durable ones by number, with their description and the last position in their segments.
        """
        if not self._lost_epochs:
            return
        self._lost_epochs.read(read_log(self.files, os.path.join(self.root, LOG)), self._bad_epochs)
        for number, (queue, last) in queues.items():
            loss = self._lost_epochs.count(number, last)
            if loss.count:
                self._report_loss(f"{loss} of {queue} were in lost epochs of the log", loss.count)
        self.report.append(self._lost_epochs.consequences())

    @property
    def has_lost_epochs(self) -> bool:
        return bool(self._lost_epochs)

    def restore_messages(self, stores: Mapping[int, LogReader], after_epoch: Callable[[], None]) -> None:
        """Second pass: hand each live message in the log to the store of its queue."""
        for number, queue in self._replay.queues.items():
            queue.store = stores.get(number)
            if queue.store is not None and queue.relogged is not None:
                for position in sorted(queue.relogged):
                    if position > queue.store.last_position and not queue.is_dead(position):
                        entry = queue.relogged[position]
                        if queue.attempts is not None:
                            entry.attempts = queue.attempts.get(position, 0)
                        queue.store.restore_message(entry)
                queue.relogged.clear()
                after_epoch()
        if self.epochs:
            for epoch in read_log(self.files, os.path.join(self.root, LOG), self._progress_of("restoring messages")):
                self.time_ms = epoch.time_ms
                if epoch.sequence not in self._bad_epochs:
                    self._replay.restore_messages(bytes(epoch.payload), epoch.sequence)
                    after_epoch()

    def events(self) -> tuple[int, list[tuple[int, int, bytes]]]:
        """Return the last row number of the event log, and the rows that may be in none of its batches."""
        return self._replay.last_event, self._replay.events

    def ids_of(self, owner: int) -> tuple[bytes, int]:
        """Return the ids that the log has of a queue or exchange, and the epoch before which nothing counts."""
        return bytes(self._replay.seen.pop(owner, b"")), self._replay.reset_epochs.get(owner, 0)

    def offsets_of(self, number: int) -> dict[str, int]:
        """Return the offsets of a stream's tracked consumers by consumer tag."""
        return {tag.decode(): position for tag, position in self._replay.offsets.get(number, {}).items()}

    def is_deleted(self, *numbers: int) -> Callable[[int], bool]:
        """Return a test whether the log has deleted a message; `numbers` are those of a queue and its levels."""
        queues = [self._replay.queues[number] for number in numbers if number in self._replay.queues]
        return lambda position: any(queue.is_dead(position) for queue in queues)

    def next_queue_id(self) -> int:
        """Return an id above all those of folders and of records in the log, whatever the catalog says."""
        folders = [int(name) for name in self._folders() if name.isdecimal()]
        return max([0, *folders, *self._replay.queues]) + 1

    def logged_from(self, number: int) -> int:
        """Return the position from which on the log has all messages of a queue; -1: none."""
        queue: QueueReplay | None = self._replay.queues.get(number)
        return queue.first_append if queue is not None else -1

    def removed_below(self, number: int) -> int:
        """Return the position below which retention has removed all messages of a stream, according to the log."""
        queue: QueueReplay | None = self._replay.queues.get(number)
        return queue.deleted_below() if queue is not None else 0

    def attempts_of(self, number: int) -> dict[int, int]:
        """Return the delivery counts of live messages of a queue, by position, as far as the log has them."""
        queue: QueueReplay | None = self._replay.queues.get(number)
        if queue is None or queue.attempts is None:
            return {}
        return {position: count for position, count in queue.attempts.items() if not queue.is_dead(position)}

    def next_position(self, number: int) -> int:
        queue: QueueReplay | None = self._replay.queues.get(number)
        return queue.next_position if queue is not None else 0

    def is_idle(self, number: int) -> bool:
        """Return True if nothing is known of a queue but its next position."""
        queue: QueueReplay | None = self._replay.queues.get(number)
        if (queue is not None and queue.has_records()) or self.has_lost_epochs:
            return False
        return str(number) not in self._folders() and folder_of(number) not in self.recorded.folders

    # -- segments ----------------------------------------------------------------------------------------------------

    def sync_segments(self, number: int, folder: str, bypasses_log: bool = False) -> None:
        """Sync the segments of a queue that a killed broker may have left unsynced: a power loss could still take them
        away.

        The log has everything of such files, so queues without a record in it are synced already, unless they bypass
        it.
        """
        is_in_doubt = bypasses_log or number in self._replay.queues
        if not is_in_doubt or os.path.basename(folder) not in self._folders():
            return
        for name in self.files.list(folder):
            if parse_name(name) is not None:
                handle = self.files.open(os.path.join(folder, name))
                try:
                    self.files.sync(handle)
                finally:
                    self.files.close(handle)
        self.files.sync_dir(folder)
        if not self._is_queues_synced:
            self._is_queues_synced = True
            self.files.sync_dir(os.path.join(self.root, QUEUES))

    def find_segments(self, number: int, folder: str, queue: str) -> FoundSegments:
        """Read the segments of a queue with their deletion marks, including those in the log; `queue` is its
        description."""
        if os.path.basename(folder) not in self._folders() and folder_of(number) not in self.recorded.folders:
            return FoundSegments([], [], False)
        reader = SegmentReader(self.files, self.root, folder, self._replay.queues.get(number), self.recorded, queue)
        segments = reader.read()
        self.report += reader.report
        self.has_damage = self.has_damage or reader.has_damage
        self.lost_messages += reader.lost
        return FoundSegments(segments, reader.dead, reader.has_damage)

    def _folders(self) -> set[str]:
        """Return the folders of queues that have files."""
        if self._found_folders is None:
            self._found_folders = set(self.files.list(os.path.join(self.root, QUEUES)))
        return self._found_folders

    # -- segments of streams -----------------------------------------------------------------------------------------

    def read_pages(
        self,
        path: str,
        first: int,
        logged_from: int,
        queue: str,
        record: FileRecord | None,
        bypasses_log: bool = False,
    ) -> FoundPages:
        """Return the whole pages of a stream's segment, their end, and whether the log has everything after them.

        Pages with messages that the log still holds may not have been synced: they are checked, and from the first bad
        one on the log has everything. The file is truncated after the last whole page. A file that bypasses the log may
        end anywhere after its recorded size.
        """
        handle = self.files.open(path)
        try:
            walk = walk_pages(self.files, handle, path)
            end, is_cut = walk.end, False
            pages: list[PageHead] = []
            for page in walk.pages:
                if 0 <= logged_from <= page.last and not self._is_whole(handle, page, path):
                    end, is_cut = page.offset, True
                    if page.first < logged_from:
                        copy_aside(self.files, self.root, path)
                        loss = Loss(logged_from - page.first, True)
                        self._report_loss(f"{path}: a page is damaged: {loss} of {queue} lost", loss.count)
                    break
                pages.append(page)
            following = pages[-1].last + 1 if pages else first
            is_short = record is not None and following <= record.last
            if walk.reason is not None and walk.end == walk.size >= FILE_HEAD_SIZE and not is_short and not is_cut:
                self.report.append(f"{path}: {walk.reason}: the head was rewritten, all {len(pages)} pages are intact")
                self.files.write(handle, encode_file_head(SEGMENT_MAGIC, path), 0)
                self.files.sync(handle)
            elif (walk.reason is not None or is_short) and not is_cut:
                is_cut = 0 <= logged_from <= (record.last if record is not None and is_short else following)
                why = walk.reason or f"it ends at offset {walk.end}"
                message = f"{path}: {walk.size - walk.end} bytes at offset {walk.end} cannot be read ({why})"
                if record is not None and is_short:
                    self._report_recorded_loss(message, record, following, logged_from, queue, path)
                elif is_cut:
                    self.report.append(f"{message}: the log still has its content")
                elif bypasses_log or self.recorded.is_complete:
                    self.report.append(f"{message}: everything recorded of this file is present")
                else:
                    copy_aside(self.files, self.root, path)
                    self._report_loss(f"{message}: messages of {queue} from position {following} on may be lost")
            if end < walk.size:
                self.files.truncate(handle, end)
                self.files.sync(handle)
        finally:
            self.files.close(handle)
        return FoundPages(pages, end, is_cut, walk.is_old)

    def _is_whole(self, handle: int, page: PageHead, path: str) -> bool:
        try:
            read_payload(self.files, handle, page, path)
        except DamagedPage:
            return False
        return True

    def report_missing_segment(
        self, folder: str, record: FileRecord, logged_from: int, removed_below: int, queue: str
    ) -> None:
        """Report a recorded segment of a stream that is missing."""
        path = os.path.join(folder, segment_name(record.first, 0))
        first = max(record.first, removed_below)
        self._report_recorded_loss(f"{path}: the file is missing", record, first, logged_from, queue, None)

    def _report_recorded_loss(
        self, message: str, record: FileRecord, first: int, logged_from: int, queue: str, path: str | None
    ) -> None:
        """Report that a segment of a stream is unreadable from `first` on, unless the log has all of it."""
        last = min(record.last, logged_from - 1) if logged_from >= 0 else record.last
        if first > last:
            if path is not None or self.recorded.is_binding(record):
                self.report.append(f"{message}: the log still has its content")
            return
        if path is not None:
            copy_aside(self.files, self.root, path)
        loss = Loss(last - first + 1, record.count == record.last - record.first + 1)
        self._report_loss(f"{message}: {loss} of {queue} lost", loss.count)

    def remove_segment(self, folder: str, first: int, generation: int) -> None:
        for name in (segment_name(first, generation), marks_name(first, generation)):
            path = os.path.join(folder, name)
            if self.files.exists(path):
                self.files.remove(path)
        self.files.sync_dir(folder)

    def remove_unknown_folders(self, known: set[int]) -> None:
        """Remove folders of deleted queues; if definitions were lost, move them aside instead."""
        base = os.path.join(self.root, QUEUES)
        for name in self.files.list(base):
            if not name.isdecimal() or int(name) not in known:
                if self.has_damage and name.isdecimal():
                    count = count_messages(self.files, os.path.join(base, name))
                    move_aside(self.files, self.root, os.path.join(base, name))
                    loss = Loss(count, False)
                    self._report_loss(f"queue folder {name} belongs to no queue: moved to {DAMAGED} with {loss}", count)
                else:
                    self.files.remove_tree(os.path.join(base, name))

    # -- what is wrong -----------------------------------------------------------------------------------------------

    def _report_loss(self, line: str, messages: int = 0) -> None:
        self.has_damage = True
        self.lost_messages += messages
        self.report.append(line)

    def _progress_of(self, what: str) -> Callable[[int, int], None] | None:
        progress = self._progress
        return None if progress is None else lambda done, total: progress(what, done, total)
