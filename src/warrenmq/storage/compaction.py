"""Copying compaction: a segment with more than 2,000 records of which under half are alive is written anew.

The living are copied to a temporary file, which takes the place of the old one under the next generation's name; a
crash at any byte leaves either the old one whole or both, and the start takes the higher generation and removes the
rest. Marks belong to a generation: those made while the copy was written are written for the new one. No checkpoint
runs meanwhile, so that the log still has them.

Owned by the loop: which segment is next. The copying is done by the pager's writing thread, page by page.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warrenmq.journal.errors import DamagedPage, JournalError
from warrenmq.journal.record import PERSISTENT, Record, decode_all, encode
from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    PAGE_HEAD_SIZE,
    SEGMENT_MAGIC,
    PageHead,
    encode_file_head,
    encode_page,
    read_page,
    segment_name,
)
from warrenmq.storage import crash_points
from warrenmq.storage.codec import is_marked
from warrenmq.storage.full_disk import FULL

if TYPE_CHECKING:
    from warrenmq.journal.files import Files
    from warrenmq.storage.checkpoint import Checkpoint
    from warrenmq.storage.pager import Pager
    from warrenmq.storage.queue_store import QueueStore
    from warrenmq.storage.segments import Segment

log = logging.getLogger("warrenmq.storage")

TEMPORARY = "compacting.tmp"


@dataclass(frozen=True, slots=True)
class Source:
    """What is copied: the file up to `end`, as it was when `dead` was all that was dead in it."""

    path: str
    first: int
    end: int
    dead: bytes
    restored_below: int  # transient messages before this are of an earlier life

    def is_alive(self, record: Record) -> bool:
        if not record.flags & PERSISTENT and record.position < self.restored_below:
            return False
        return not is_marked(self.dead, record.position - self.first)


@dataclass(frozen=True, slots=True)
class Copy:
    """What a copy came to: its records, its length, and the bytes of its persistent bodies. No records: given up."""

    count: int
    size: int
    body_bytes: int
    transient: int = 0


GIVEN_UP = Copy(0, 0, 0)


class Compaction:
    """One segment at a time."""

    def __init__(self, pager: Pager, checkpoint: Checkpoint) -> None:
        self._pager = pager
        self._checkpoint = checkpoint
        self._waiting: deque[tuple[QueueStore, Segment]] = deque()
        self._when_over: Callable[[], None] | None = None
        self.is_running = False
        self.is_stopping = True  # until the storage has started
        self.count = 0

    def start(self) -> None:
        self.is_stopping = False
        self.go_on()

    def stop(self, done: Callable[[], None]) -> None:
        """Begin no more; call when the one under way is over."""
        self.is_stopping = True
        if self.is_running:
            self._when_over = done
        else:
            done()

    def want(self, store: QueueStore, segment: Segment) -> None:
        """Compact this one when its turn comes."""
        self._waiting.append((store, segment))
        self.go_on()

    def go_on(self) -> None:
        """Begin the next one unless a checkpoint runs; called again when it has ended."""
        while self._waiting and not (self.is_running or self._checkpoint.is_running or self.is_stopping):
            store, segment = self._waiting.popleft()
            if store.is_deleted or segment not in store.segments.all or not store.may_compact(segment):
                segment.is_wanted = False
            else:
                self._begin(store, segment)

    def _begin(self, store: QueueStore, segment: Segment) -> None:
        segment.is_compacting = True
        self.is_running = self._checkpoint.is_held = True
        source = Source(
            os.path.join(store.folder, segment.name),
            segment.first,
            segment.size,
            bytes(segment.dead or b""),
            store.restored_below,
        )
        old = [segment.name, segment.dead_name]
        new = segment_name(segment.first, segment.generation + 1)
        marks = len(segment.unwritten_marks)

        def job() -> Copy:
            try:
                copy = copy_living(self._pager.files, source, lambda: self.is_stopping)
                if copy.count:
                    self._pager.replace(store.folder, old, TEMPORARY, new, store.number != 0)
                    return copy
            except JournalError as error:
                log.error("%s is not compacted: %s", source.path, error)
            except OSError as error:
                # It can do without, and what is to be removed must not wait behind it.
                if error.errno not in FULL:
                    raise
            self._pager.unlink(os.path.join(store.folder, TEMPORARY))
            return GIVEN_UP

        self._pager.later(job, lambda copy: self._finished(store, segment, marks, copy))

    def _finished(self, store: QueueStore, segment: Segment, marks: int, copy: Copy) -> None:
        self.is_running = self._checkpoint.is_held = False
        if copy.count and segment in store.segments.all:
            self.count += 1
            store.compacted(segment, marks, copy.count, copy.size, copy.body_bytes, copy.transient)
        store.compaction_is_over(segment)
        if self._when_over is not None:
            self._when_over()
        else:
            self._checkpoint.judge()
            self.go_on()


def copy_living(files: Files, source: Source, is_stopping: Callable[[], bool]) -> Copy:
    """In the writing thread: write the living records of a segment to the temporary file beside it."""
    reading = files.open_read(source.path)
    try:
        writing = files.create(os.path.join(os.path.dirname(source.path), TEMPORARY))
        try:
            return _copy_pages(files, source, reading, writing, is_stopping)
        finally:
            files.close(writing)
    finally:
        files.close(reading)


def _copy_pages(files: Files, source: Source, reading: int, writing: int, is_stopping: Callable[[], bool]) -> Copy:
    files.write(writing, encode_file_head(SEGMENT_MAGIC), 0)
    size, count, body_bytes, transient = FILE_HEAD_SIZE, 0, 0, 0
    offset = FILE_HEAD_SIZE
    while offset < source.end:
        if is_stopping():
            return GIVEN_UP
        try:
            page, payload = read_page(files, reading, offset, source.path, source.restored_below)
        except OSError as error:  # of the reading alone: the disk can still be written to
            raise DamagedPage(source.path, offset, str(error)) from None
        offset = page.end
        living = [record for record in decode_all(payload) if source.is_alive(record)]
        if living:
            kept_bytes = sum(len(record.body) for record in living if record.flags & PERSISTENT)
            size += _write_page(files, writing, size, page, living, kept_bytes)
            count += len(living)
            transient += sum(not record.flags & PERSISTENT for record in living)
            body_bytes += kept_bytes
        crash_points.reach("compaction.mid")
    return Copy(count, size, body_bytes, transient)


def _write_page(files: Files, target: int, offset: int, page: PageHead, living: list[Record], body_bytes: int) -> int:
    payload = b"".join(encode(*record[:5], record.fields) for record in living)
    transient = sum(not record.flags & PERSISTENT for record in living)
    head = encode_page(
        living[0].position,
        living[-1].position,
        len(living),
        page.time_first,
        page.time_last,
        payload,
        transient,
        body_bytes,
    )
    files.writev(target, (head, payload), offset)
    return PAGE_HEAD_SIZE + len(payload)
