"""Compaction: rewrites segments of a queue without their deleted messages.

It starts when the files of a queue hold more dead bytes than live ones plus `dead_allowance`, and ends when they do
not: a queue takes less than twice its live messages plus one segment on disk. `Segments.choose_run` picks neighbours;
their live messages are copied to one temporary file, which replaces them under the name of the first one with the next
generation. A crash at any byte leaves the old files whole, or the new one and some old ones; the next start then
removes what the new one replaces: lower generations, and files that begin before its last position.

Deletion marks belong to a generation: deletions during the copy are marked in the new file. No checkpoint runs
meanwhile, so the log still has them.

Owned by the loop: which queue is next. The pager's writing thread copies in steps, with other writes and removals in
between.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from warrenmq.journal.errors import DamagedPage, SyncFailed
from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    PAGE_HEAD_SIZE,
    SEGMENT_MAGIC,
    PageHead,
    encode_file_head,
    encode_page_from_parts,
    parse_page_head,
    read_payload,
)
from warrenmq.storage import crash_points
from warrenmq.storage.codec import BadPage, find_living
from warrenmq.storage.full_disk import FULL
from warrenmq.storage.page_index import UNKNOWN, PageIndex
from warrenmq.storage.queue_upkeep import choose_run, end_compaction, end_run, replace_run
from warrenmq.storage.segments import Segment

if TYPE_CHECKING:
    from warrenmq.journal.files import Files
    from warrenmq.storage.checkpoint import Checkpoint
    from warrenmq.storage.pager import Pager
    from warrenmq.storage.queue_store import QueueStore

log = logging.getLogger("warrenmq.storage")

TEMPORARY = "compacting.tmp"

# Results of a step.
_MORE = "more"
_REPLACED = "replaced"
_DAMAGED = "damaged"
_FULL = "full"


@dataclass(frozen=True, slots=True)
class Source:
    """A file to copy up to `end`; `dead` is the bitmap of deletions when the copy began."""

    path: str
    first: int
    end: int
    dead: bytearray | None


class SegmentCopy:
    """A copy of the live messages of some segments, in a temporary file, later renamed to `name`. Used by the writing
    thread.

    The counters cover what was copied so far: records, transient ones, the last position, bytes of all bodies and of
    the persistent ones.
    """

    def __init__(self, files: Files, sources: list[Source], name: str, restored_below: int, page_size: int) -> None:
        folder = os.path.dirname(sources[0].path)
        self.path = os.path.join(folder, TEMPORARY)
        self._final_path = os.path.join(folder, name)
        self.size = 0
        self.count = 0
        self.transient = 0
        self.last = -1
        self.body_bytes = 0
        self.kept_bytes = 0
        self._files = files
        self._restored_below = restored_below  # transient messages below are of an earlier run
        self._page_size = page_size
        self._sources = sources
        self.pages: list[CopiedPage] = []
        self._at = 0
        self._offset = FILE_HEAD_SIZE
        self._page: _OpenPage | None = None

    @property
    def source(self) -> int:
        """The index of the current source."""
        return self._at

    def copy_some(self, size: int) -> bool:
        """Copy about this many more bytes; return True when everything is copied."""
        if self.size == 0:
            self._begin()
        writing = self._files.open(self.path)
        try:
            while self._at < len(self._sources):
                size -= self._copy_pages(self._sources[self._at], writing, size)
                if size <= 0:
                    return False
            self._write_page(writing)
        finally:
            self._files.close(writing)
        return True

    def _begin(self) -> None:
        handle = self._files.create(self.path)
        try:
            self._files.write(handle, encode_file_head(SEGMENT_MAGIC, self._final_path), 0)
        finally:
            self._files.close(handle)
        self.size = FILE_HEAD_SIZE

    def _copy_pages(self, source: Source, writing: int, size: int) -> int:
        """Copy from one source to its end or to the limit of bytes; return the bytes read."""
        done = 0
        dead = int.from_bytes(source.dead or b"", "little")
        try:
            reading = self._files.open_read(source.path)
        except FileNotFoundError as error:
            raise DamagedPage(source.path, self._offset, str(error)) from None
        try:
            while self._offset < source.end and done < size:
                page, payload = self._read_page(source, reading, dead)
                done += PAGE_HEAD_SIZE
                if payload is not None:
                    self._copy(page, payload, source, writing)
                    done += len(payload)
                self._offset = page.end
                crash_points.reach("compaction.mid")
        finally:
            self._files.close(reading)
        if self._offset >= source.end:
            self._at += 1
            self._offset = FILE_HEAD_SIZE
        return done

    def _read_page(self, source: Source, reading: int, dead: int) -> tuple[PageHead, bytes | None]:
        """Return the next page, with None for the payload if it has no live messages. A disk error is damage of this
        file."""
        try:
            page = parse_page_head(self._files.read(reading, PAGE_HEAD_SIZE, self._offset), self._offset)
            if isinstance(page, str):
                raise DamagedPage(source.path, self._offset, page)
            if page.is_stale(self._restored_below) or _is_dead(page, dead, source.first):
                return page, None
            return page, read_payload(self._files, reading, page, source.path)
        except OSError as error:
            raise DamagedPage(source.path, self._offset, str(error)) from None

    def _copy(self, page: PageHead, payload: bytes, source: Source, writing: int) -> None:
        try:
            found = find_living(payload, source.first, source.dead, self._restored_below)
        except BadPage as error:
            raise DamagedPage(source.path, page.offset, str(error), page.first, page.last) from None
        pieces, count, transient, first, last, body_bytes, kept_bytes, earliest, latest = found
        if count == 0:
            return
        if self._page is None:
            self._page = _OpenPage(first, page.time_first)
        self._page.add(pieces, count, transient, last, page.time_last, kept_bytes)
        self._page.note_expiry(earliest, latest)
        self.count += count
        self.transient += transient
        self.body_bytes += body_bytes
        self.kept_bytes += kept_bytes
        if self._page.size >= self._page_size:
            self._write_page(writing)

    def _write_page(self, writing: int) -> None:
        page = self._page
        if page is not None:
            pieces = [page.encode_head(), *page.pieces]
            self._files.writev(writing, pieces, self.size)
            self.pages.append(CopiedPage(page.first, page.last, self.size, page.earliest, page.latest))
            self.size += sum(map(len, pieces))
            self.last = page.last
            self._page = None


class CopiedPage(NamedTuple):
    """A page of the copy, with the live messages of some adjacent pages of the sources."""

    first: int
    last: int
    offset: int
    earliest: int
    latest: int


class _OpenPage:
    """Records collected for one page of the copy."""

    def __init__(self, first: int, time_first: int) -> None:
        self.first = self.last = first
        self.time_first = self.time_last = time_first
        self.pieces: list[bytes] = []
        self.size = 0
        self.count = 0
        self.transient = 0
        self.kept_bytes = 0
        self.earliest = self.latest = 0  # as in `PageHead`
        self._has_lasting = False

    def add(self, pieces: list[bytes], count: int, transient: int, last: int, time_last: int, kept_bytes: int) -> None:
        self.pieces += pieces
        self.size += sum(map(len, pieces))
        self.count += count
        self.transient += transient
        self.last = last
        self.time_last = time_last
        self.kept_bytes += kept_bytes

    def note_expiry(self, earliest: int, latest: int) -> None:
        """Include the expiry of added messages, as in `PageHead`."""
        if earliest:
            self.earliest = min(self.earliest or earliest, earliest)
        self._has_lasting = self._has_lasting or latest == 0
        self.latest = 0 if self._has_lasting else max(self.latest, latest)

    def encode_head(self) -> bytes:
        about = self.first, self.last, self.count, self.time_first, self.time_last
        expiry = self.earliest, self.latest
        return encode_page_from_parts(*about, self.pieces, self.transient, self.kept_bytes, *expiry)


def _is_dead(page: PageHead, dead: int, first: int) -> bool:
    """Return True if all positions of a page are set in the bitmap."""
    every = (1 << page.last - page.first + 1) - 1
    return dead >> page.first - first & every == every


class _Run:
    """The neighbours that are being compacted, as they were at the start, and their copy."""

    def __init__(self, store: QueueStore, segments: list[Segment], files: Files) -> None:
        self.store = store
        self.segments = segments
        self.is_copied = False
        self._marks = [len(segment.unwritten_marks) for segment in segments]
        self._alive_bytes = sum(segment.alive_bytes for segment in segments)
        sources = [
            Source(
                os.path.join(store.folder, segment.name),
                segment.first,
                segment.size,
                None if segment.dead is None else segment.dead[:],
            )
            for segment in segments
        ]
        self.merged = Segment(segments[0].first, segments[0].generation + 1)
        self.copy = SegmentCopy(files, sources, self.merged.name, store.restored_below, store.context.page_size)
        self.old_names = [name for segment in segments for name in (segment.name, segment.marks_name)]
        for segment in segments:
            segment.is_compacting = True

    def is_obsolete(self) -> bool:
        """Return True if a file of the run may be removed before the next step."""
        return self.store.is_deleted or any(segment.is_dropped for segment in self.segments)

    def describe_merged(self) -> Segment:
        """Describe the new file: what was copied, and what was deleted since."""
        copy, merged = self.copy, self.merged
        merged.last = copy.last
        merged.count = copy.count
        merged.transient = copy.transient
        merged.size = merged.written = copy.size
        merged.overhead = (copy.size - FILE_HEAD_SIZE - copy.body_bytes) // copy.count
        merged.body_bytes = copy.kept_bytes
        merged.has_exact_bytes = copy.transient == 0 and copy.kept_bytes == self._alive_bytes
        merged.is_new = False
        dead = 0
        for segment, marks in zip(self.segments, self._marks, strict=True):
            shift = segment.first - merged.first
            dead |= int.from_bytes(segment.dead or b"", "little") << shift
            merged.unwritten_marks += array("I", (number + shift for number in segment.unwritten_marks[marks:]))
            if not segment.is_dropped:
                merged.alive += segment.alive
                merged.alive_bytes += segment.alive_bytes
                merged.unread += segment.unread
                merged.unread_bytes += segment.unread_bytes
        if dead:
            merged.dead = bytearray(dead.to_bytes(dead.bit_length() + 7 >> 3, "little"))
        self._fill_index(merged.pages)
        return merged

    def _fill_index(self, index: PageIndex) -> None:
        """Fill the page index: a page of the copy has unread what the pages that went into it have unread now."""
        sources = [
            (segment.pages.first(page), segment.pages.unread(page), segment.pages.unread_bytes(page))
            for segment in self.segments
            for page in range(len(segment.pages))
        ]
        at = 0
        for page in self.copy.pages:
            unread = size = 0
            while at < len(sources) and sources[at][0] <= page.last:
                unread += sources[at][1]
                size = UNKNOWN if UNKNOWN in (size, sources[at][2]) else size + sources[at][2]
                at += 1
            index.add(page.first, page.last, page.offset, unread, size, page.earliest, page.latest)


class Compaction:
    """One run at a time; queues take turns."""

    def __init__(self, pager: Pager, checkpoint: Checkpoint) -> None:
        self._pager = pager
        self._checkpoint = checkpoint
        self._waiting: deque[QueueStore] = deque()
        self._on_stopped: Callable[[], None] | None = None
        self.is_running = False
        self.is_stopping = True  # until the storage has started
        self.count = 0

    def start(self) -> None:
        self.is_stopping = False
        self.start_next()

    def stop(self, done: Callable[[], None]) -> None:
        """Start no more runs; call `done` when the current one is over."""
        self.is_stopping = True
        if self.is_running:
            self._on_stopped = done
        else:
            done()

    def request(self, store: QueueStore) -> None:
        """Compact segments of this queue when its turn comes."""
        self._waiting.append(store)
        self.start_next()

    def start_next(self) -> None:
        """Start the next run unless a checkpoint runs; called again at its end."""
        while self._waiting and not (self.is_running or self._checkpoint.is_running or self.is_stopping):
            store = self._waiting.popleft()
            segments = [] if store.is_deleted else choose_run(store)
            if segments:
                self.is_running = self._checkpoint.is_blocked = True
                # None: wait until all deletions so far are durable. Later steps need not wait again.
                self._submit(_Run(store, segments, self._pager.files), None)

    def _submit(self, run: _Run, epoch: int | None) -> None:
        self._pager.submit(lambda: self._step(run), lambda result: self._after_step(run, result), epoch)

    def _step(self, run: _Run) -> str:
        """In the writing thread: copy the next part; at the end replace the files."""
        store = run.store
        is_durable = store.number != 0
        if not run.is_copied:  # else this repeats a step that failed after the copy
            try:
                if not run.copy.copy_some(store.context.read_size):
                    return _MORE
                if is_durable:
                    self._pager.sync_written(run.copy.path)
            except DamagedPage as error:
                log.error("segment not compacted: %s", error)
                return _DAMAGED
            except (OSError, SyncFailed) as error:
                # Compaction can wait, but removals that would free space must not wait for it.
                if (error.cause if isinstance(error, SyncFailed) else error).errno not in FULL:
                    raise
                return _FULL
            run.is_copied = True
        self._pager.replace(store.folder, run.old_names, TEMPORARY, run.merged.name, is_durable)
        return _REPLACED

    def _after_step(self, run: _Run, result: str) -> None:
        if result == _REPLACED:
            self.count += 1
            if not run.store.is_deleted:
                replace_run(run.store, run.segments, run.describe_merged())
                run.store.context.log.flush()  # commits the manifest: no turn may be under way to end the epoch
            self._end(run, True)
        elif result == _MORE and not self.is_stopping and not run.is_obsolete():
            self._submit(run, 0)
        else:
            if result == _DAMAGED:
                run.segments[run.copy.source].is_unreadable = True
            may_continue = result != _FULL and not self.is_stopping
            self._pager.submit(lambda: self._pager.unlink(run.copy.path), lambda _: self._end(run, may_continue), 0)

    def _end(self, run: _Run, may_continue: bool) -> None:
        self.is_running = self._checkpoint.is_blocked = False
        if not run.store.is_deleted:
            end_run(run.store, run.segments)
            end_compaction(run.store, may_continue)
        if self._on_stopped is not None:
            self._on_stopped()
        else:
            self._checkpoint.start_if_due()
            self.start_next()
