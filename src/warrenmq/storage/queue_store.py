"""The store of one queue: messages in the log only, messages in segments, and how far segments were read back.

A persistent message goes into the open epoch. If it stays, it is flushed to the queue's segments with others, when the
queue is paged out or the log is too long; if it is acked before, it never is. Every flush takes all live persistent
messages up to a position, so that positions in segments increase, and a position up to `last_position` that is in no
page is deleted.

Cold parts are in queue_upkeep.py and paged_messages.py. Owned by the loop thread. Compiled when the package is built
(queue_store.pxd).
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warrenmq.core.message import QueuedMessage, ended_attempts
from warrenmq.core.ports import MessageStore, Recovered
from warrenmq.journal.record import PERSISTENT, RELOGGED
from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    PAGE_HEAD_SIZE,
    SEGMENT_MAGIC,
    encode_file_head,
    encode_page,
)
from warrenmq.storage.codec import encode_records
from warrenmq.storage.manifest import folder_of
from warrenmq.storage.page_fetcher import PageFetcher
from warrenmq.storage.page_reader import PageReader
from warrenmq.storage.paged_messages import (
    expiring_pages,
    find_unread,
    forget_first_pages,
    forget_paged,
    forget_pages,
    return_paged,
    take_paged,
)
from warrenmq.storage.queue_upkeep import consider_compaction, request_compaction
from warrenmq.storage.segments import NO_SEGMENTS, SEGMENT_SPAN, Segment, Segments
from warrenmq.storage.store_context import StoreContext

if TYPE_CHECKING:
    from warrenmq.core.backlog import Backlog

_PERSISTENT = PERSISTENT
_RELOGGED = RELOGGED
# Of all stores that have none of their own.
_NO_SEGMENTS = NO_SEGMENTS
_NOTHING_HELD: set[int] = set()


class QueueStore(MessageStore):
    """`number` identifies the queue in the log; 0 for a transient queue, which is paged out only."""

    __slots__ = (
        "_attempts",
        "_backlog",
        "_fetcher",
        "_folder",
        "_log",
        "_reader",
        "_restored_bytes",
        "_unflushed",
        "compact_above",
        "context",
        "held",
        "is_deleted",
        "number",
        "open_segment",
        "recovered",
        "restored_below",
        "segments",
    )

    def __init__(self, context: StoreContext, number: int, durability_level: int, folder: str = "") -> None:
        super().__init__(durability_level, context.sizes)
        self.context = context
        self._folder = folder  # "": that of the number
        self.number = number
        self.segments = _NO_SEGMENTS
        self.is_deleted = False
        self.restored_below = 0  # positions below were written in an earlier run
        self.recovered: Recovered | None = None
        self._log = context.log
        self._backlog: Backlog | None = None
        self._unflushed: dict[int, QueuedMessage] = {}  # live persistent messages in the log only
        self.open_segment: Segment | None = None  # the one being written; None: the next page begins a new one
        self._reader: PageReader | None = None
        self._fetcher: PageFetcher | None = None  # while messages are read that stay on disk
        self.compact_above = context.dead_allowance  # request compaction if `Segments.excess` is more
        self._attempts: dict[int, int] = {}  # delivery counts by position, where no page has them
        self._restored_bytes = 0  # during recovery
        # Positions after `last_read`, up to `last_position`, of messages that are in memory nevertheless: filters took
        # them out of order. May have others that were read since.
        self.held = _NOTHING_HELD

    @property
    def folder(self) -> str:
        return self._folder or os.path.join(self.context.root, folder_of(self.number))

    @property
    def reader(self) -> PageReader:
        if self._reader is None:
            self._reader = PageReader(self)
        return self._reader

    def open(self, backlog: "Backlog") -> Recovered:
        self._backlog = backlog
        if self.number:
            self.context.stores[self] = None
        recovered = self.recovered
        self.recovered = None
        return recovered if recovered is not None else Recovered([])

    # -- the log: a live call logs a record and applies it; a restart applies APPEND and ATTEMPTS as it reads them -----

    def append(self, entry: QueuedMessage) -> None:
        log = self._log
        log.buffer.put_append(self.number, entry, _PERSISTENT)
        log.note_work(self.durability_level)
        entry.epoch = log.epoch
        self._track_unflushed(entry)

    def _track_unflushed(self, entry: QueuedMessage) -> None:
        """Apply APPEND: only the log has the message."""
        if not self._unflushed:
            self.context.unflushed[self] = None
        self._unflushed[entry.position] = entry

    def forget(self, entry: QueuedMessage) -> None:
        position = entry.position
        if entry.epoch > 0:
            self._log.buffer.put_forget(self.number, position)
            self._log.note_work(0)
            if position > self.last_position or position in self._unflushed:
                del self._unflushed[position]
                return
        if self._attempts:
            self._attempts.pop(position, None)
        if self.held:
            self.held.discard(position)
        segment = self.segments.find(position)
        if segment is not None:
            if entry.epoch > 0 and not segment.unwritten_marks:
                self.context.marked_stores[self] = None
            segment.delete(position, entry.epoch > 0, entry.message.size)
            self.reclaim_segment(segment)

    def save_attempts(self, entry: QueuedMessage) -> None:
        self._log.buffer.put_attempts(self.number, entry.position, entry.attempts)
        self._log.note_work(0)
        self._set_attempts(entry.position, entry.attempts)

    def _set_attempts(self, position: int, attempts: int) -> None:
        """Apply ATTEMPTS; a message in the log only knows its own count, a page does not."""
        if position <= self.last_position and position not in self._unflushed:
            self._attempts[position] = attempts
            self.context.unflushed[self] = None

    def log_position(self) -> bool:
        """Log the next position before the log is trimmed. Return False if none was ever used."""
        if self._backlog is None or self._backlog.next_position == 0:
            return False
        self._log.buffer.put_position(self.number, self._backlog.next_position)
        self._log.note_relogged()
        return True

    def log_deleted_range(self, first: int, last: int) -> None:
        """Log lost messages as deleted, so that a restart agrees."""
        self._log.buffer.put_forget_range(self.number, first, last)
        self._log.note_work(0)

    def reclaim_segment(self, segment: Segment) -> None:
        """After deletions: remove the segment if it is empty; request compaction if too much is dead."""
        if segment.alive == 0:
            self._drop_segment(segment)
        else:
            self.segments.note(segment)
        if self.segments.excess() > self.compact_above:
            request_compaction(self)

    def _drop_segment(self, segment: Segment) -> None:
        self.context.manifest.forget_segment(self.number, segment)
        self.context.pager.remove(self.folder, [segment.name, segment.marks_name], self.number != 0)
        if segment is self.open_segment:
            self.open_segment = None
        was_read = segment is self.segments.reading
        segment.is_dropped = True
        self.reader.skip_segment(segment)
        self.segments.remove(segment)
        if was_read and self.is_reading:
            self.reader.read()

    # -- out of memory -----------------------------------------------------------------------------------------------

    def page_out(self, entries: list[QueuedMessage]) -> None:
        first = entries[0].position
        if first <= self.last_position:
            self._mark_unread(entries)
            return
        for entry in entries:
            if entry.epoch > 0:
                del self._unflushed[entry.position]
        # Messages before them and between them that are in the log only are written with them.
        batch = self._take_unflushed(entries[-1].position)
        if not self.has_unread():
            self.held.clear()
            self.reader.start_after(first - 1)
        if batch and batch[-1].position > self.last_read:
            self.hold([entry.position for entry in batch])
        if batch and batch[-1].position > first:
            entries = sorted(batch + entries, key=_position_of)
        elif batch:
            entries = batch + entries
        self._write(entries, first)

    def hold(self, positions: list[int]) -> None:
        """Note that messages are in memory after those that are only on disk."""
        if self.held is _NOTHING_HELD:
            self.held = set()
        self.held.update([position for position in positions if position > self.last_read])

    def _mark_unread(self, entries: list[QueuedMessage]) -> None:
        """Mark messages that are on disk already as unread."""
        segment: Segment | None = None
        count = size = page = page_last = 0
        for entry in entries:
            if segment is None or entry.position > page_last:
                if segment is not None:
                    segment.note_unread(page, count, size)
                if segment is None or entry.position > segment.last:
                    segment = self.segments.find(entry.position)
                    assert segment is not None
                page = segment.pages.find(entry.position)
                page_last = segment.pages.last(page)
                count = size = 0
            count += 1
            size += entry.message.size
            if self.held:
                self.held.discard(entry.position)
        if segment is not None:
            segment.note_unread(page, count, size)
        first = entries[0].position
        self.reader.rewind(self.segments.find(first), first - 1)

    def flush(self, epoch: int, relog_below: int) -> int:
        """Write what only the log has up to this epoch, and keep it in memory. See `Participant.flush`."""
        for position, attempts in self._attempts.items():
            self._log.buffer.put_attempts(self.number, position, attempts)
            self._log.note_relogged()
        size = 20 * len(self._attempts)
        if not self.segments.all and self._unflushed_bytes(relog_below) < relog_below:
            return size + self._relog(epoch)
        boundary = self.boundary(epoch)
        if boundary < 0:
            return size
        if self._backlog is not None:
            self._backlog.page_out_tail()
        batch = self._take_unflushed(boundary)
        if batch:
            if self.has_unread():
                self.hold([entry.position for entry in batch])
            self._write(batch, boundary + 1)
        return size

    def boundary(self, epoch: int) -> int:
        """Return the highest position that only epochs up to this one hold; -1 if there is none."""
        for position in reversed(self._unflushed):
            if self._unflushed[position].epoch <= epoch:
                return position
        return -1

    def _relog(self, epoch: int) -> int:
        """Log messages again that the log is about to drop; return their bytes."""
        size = 0
        open_epoch = self._log.epoch
        for entry in self._unflushed.values():
            if entry.epoch <= epoch:
                self._log.buffer.put_append(self.number, entry, _PERSISTENT | _RELOGGED)
                if ended_attempts(entry):
                    self._log.buffer.put_attempts(self.number, entry.position, ended_attempts(entry))
                self._log.note_work(0)
                entry.epoch = open_epoch
                size += len(entry.message.header) + len(entry.message.body) + 64
        return size

    def _unflushed_bytes(self, limit: int) -> int:
        """Return the memory of messages in the log only, counted up to the limit."""
        size = 0
        for entry in self._unflushed.values():
            size += entry.message.footprint()
            if size >= limit:
                break
        return size

    def has_unflushed(self) -> bool:
        return len(self._unflushed) > 0 or len(self._attempts) > 0

    def _take_unflushed(self, up_to: int) -> list[QueuedMessage]:
        """Remove and return messages in the log only up to a position, which is the order they arrived in."""
        taken: list[QueuedMessage] = []
        for entry in self._unflushed.values():
            if entry.position > up_to:
                break
            taken.append(entry)
        for entry in taken:
            del self._unflushed[entry.position]
        return taken

    def _write(self, entries: list[QueuedMessage], unread_from: int) -> None:
        """Write pages. Messages from `unread_from` on leave memory."""
        page_size = self.context.page_size
        start = 0
        size = 0
        first = entries[0].position
        for index, entry in enumerate(entries):
            if size and entry.position - first >= SEGMENT_SPAN:
                self._write_page(entries[start:index], unread_from)
                start = index
                size = 0
            if size == 0:
                first = entry.position
            size += len(entry.message.header) + len(entry.message.body) + 64
            if size >= page_size:
                self._write_page(entries[start : index + 1], unread_from)
                start = index + 1
                size = 0
        if start < len(entries):
            self._write_page(entries[start:], unread_from)

    def _write_page(self, entries: list[QueuedMessage], unread_from: int) -> None:
        first = entries[0].position
        last = entries[-1].position
        segment = self.open_segment
        if segment is None or segment.is_full(last, self.context.segment_size):
            segment = self._begin_segment(first)
        payload = encode_records(entries)
        held = self.held
        now = self._log.epoch_time_ms
        transient = 0
        unread = 0
        unread_bytes = 0
        kept_bytes = 0
        earliest = 0
        latest = 0
        has_lasting = False  # a message that never expires
        overhead = PAGE_HEAD_SIZE + len(payload)
        for entry in entries:
            size = entry.message.size
            overhead -= size
            if entry.epoch > 0:
                kept_bytes += size
            else:
                transient += 1
                segment.has_exact_bytes = False
            if entry.position >= unread_from and (not held or entry.position not in held):
                unread += 1
                unread_bytes += size
            segment.alive_bytes += size
            expires_ms = entry.expires_ms
            if expires_ms == 0:
                has_lasting = True
            else:
                if earliest == 0 or expires_ms < earliest:
                    earliest = expires_ms
                if expires_ms > latest:
                    latest = expires_ms
        if has_lasting:
            latest = 0
        head = encode_page(first, last, len(entries), now, now, payload, transient, kept_bytes, earliest, latest)
        pieces: list[Any] = [head, payload]
        offset = segment.size
        if segment.is_new:
            pieces.insert(0, encode_file_head(SEGMENT_MAGIC, os.path.join(self.folder, segment.name)))
            offset = 0
        if unread and self.segments.reading is None:
            self.reader.start_at(segment, segment.size)
        segment.last = last
        segment.note_page(len(entries), overhead)
        segment.transient += transient
        segment.alive += len(entries)
        segment.body_bytes += kept_bytes
        segment.unread += unread
        segment.unread_bytes += unread_bytes
        segment.pages.add(first, last, segment.size, unread, unread_bytes, earliest, latest)
        segment.size += PAGE_HEAD_SIZE + len(payload)
        self.segments.note(segment)
        self.last_position = last
        if self.number:
            self.context.manifest.unrecorded[segment] = self.number
        written = _Written(self, segment, segment.size)
        self.context.pager.write(
            os.path.join(self.folder, segment.name), offset, pieces, segment.is_new, written, self.number != 0
        )
        segment.is_new = False

    def _begin_segment(self, first: int) -> Segment:
        closed = self.open_segment
        self.open_segment = Segment(first)
        if self.segments is _NO_SEGMENTS:
            self.segments = Segments()
        self.segments.all.append(self.open_segment)
        if closed is not None:
            self.close_segment(closed)
            consider_compaction(self)
        return self.open_segment

    def close_segment(self, segment: Segment) -> None:
        """Finish a segment that is full.

        Only the last segment may be torn by a crash, so this record is durable before the next segment is written: a
        start must not take missing messages for deleted ones.
        """
        if self.number:
            self.context.manifest.record_segment(self.number, segment)
            self.context.pager.sync_file(os.path.join(self.folder, segment.name))

    def written(self, segment: Segment, size: int) -> None:
        """Note that a page is in its file and can be read."""
        segment.written = size
        if self.is_reading and segment is self.segments.reading:
            self.reader.read()
        self.resume_fetches()

    # -- back into memory --------------------------------------------------------------------------------------------

    def page_in(self) -> None:
        self.is_reading = True
        self.reader.read()

    def pages_read(self, entries: list[QueuedMessage], lost: int, lost_bytes: int) -> None:
        """Take the reader's result: messages, and how many are lost."""
        self.is_reading = False
        if not entries and lost == 0 and self.has_unread():
            self.page_in()  # everything read was deleted
            return
        self.set_attempts(entries)
        if self._backlog is not None:
            self._backlog.add_page(entries, lost, lost_bytes)

    def set_attempts(self, entries: list[QueuedMessage]) -> None:
        """Set the delivery counts that pages do not have."""
        if self._attempts:
            for entry in entries:
                if entry.position in self._attempts:
                    entry.attempts = self._attempts[entry.position]

    def forget_attempts(self, first: int, last: int) -> None:
        """Drop the delivery counts of deleted messages."""
        if self._attempts and first < last:
            self._attempts = {at: count for at, count in self._attempts.items() if not first <= at <= last}
        self._attempts.pop(first, None)

    def pages_lost(self, lost: int, lost_bytes: int) -> None:
        """Report messages that are on disk only and unreadable."""
        if self._backlog is not None:
            self._backlog.add_page([], lost, lost_bytes)

    def has_unread(self) -> bool:
        """Return True if messages are on disk only."""
        return any(segment.unread for segment in self.segments.all)

    def forget_pages(self) -> None:
        """Delete everything that is on disk only, after a purge."""
        if not self.has_unread():
            self.reader.cancel()
            self.is_reading = False
            return
        forget_pages(self)

    # -- on disk only ------------------------------------------------------------------------------------------------

    def forget_first_pages(self, is_due: Callable[[int, int, int], bool]) -> tuple[int, int]:
        return forget_first_pages(self, is_due)

    def forget_paged(self, position: int, size: int) -> bool:
        return forget_paged(self, position, size)

    def take_paged(self, position: int, size: int) -> bool:
        return take_paged(self, position, size)

    def has_paged(self, position: int) -> bool:
        return find_unread(self, position) is not None

    def return_paged(self, entries: list[QueuedMessage]) -> None:
        return_paged(self, entries)

    def fetch(self, positions: list[int], receive: Callable[[list[QueuedMessage]], None]) -> None:
        self._get_fetcher().fetch(positions, receive)

    def read_expiries(self, first: int, receive: Callable[[list[tuple[int, int, int]]], None]) -> None:
        self._get_fetcher().read_expiries(first, receive)

    def read_page(self, position: int, receive: Callable[[list[QueuedMessage], int, int], None]) -> None:
        self._get_fetcher().read_page(position, receive)

    def _get_fetcher(self) -> PageFetcher:
        if self._fetcher is None:
            self._fetcher = PageFetcher(self)
        return self._fetcher

    def resume_fetches(self) -> None:
        """Continue reads that waited for pages to be written or replaced."""
        if self._fetcher is not None:
            self._fetcher.resume()

    # -- start and end -----------------------------------------------------------------------------------------------

    def restore_segments(self, segments: list[Segment], next_position: int, attempts: Mapping[int, int]) -> None:
        """Take over the segments found by recovery, which calls `restore_message` next for messages in the log only.

        `attempts` are the delivery counts in the log.
        """
        if segments:
            self.segments = Segments()
            self.segments.all.extend(segments)
        self.restored_below = next_position
        self.open_segment = segments[-1] if segments and not segments[-1].is_old else None
        for segment in segments:
            self.segments.note(segment)
            self.last_position = segment.last
            if segment.unwritten_marks:
                self.context.marked_stores[self] = None
        if segments:
            self.reader.start_at(segments[0], FILE_HEAD_SIZE)
        for position, count in attempts.items():
            self._set_attempts(position, count)

    def restore_message(self, entry: QueuedMessage) -> None:
        """Take a live message from the log; page out at once if there are too many."""
        if entry.position in self._unflushed:
            return
        self._track_unflushed(entry)
        size = entry.message.footprint()
        self._restored_bytes += size
        context = self.context
        context.restored_bytes += size
        sizes = context.sizes
        if self._restored_bytes >= (sizes.resident if context.restored_bytes < sizes.budget else sizes.small_window):
            self._reset_restored_bytes()
            self.page_out(list(self._unflushed.values()))

    def _reset_restored_bytes(self) -> None:
        self.context.restored_bytes -= self._restored_bytes
        self._restored_bytes = 0

    def end_recovery(self) -> None:
        """Finish the recovery: the queue may open."""
        segments = self.segments.all
        paged = sum([segment.unread for segment in segments])
        paged_bytes = sum([segment.unread_bytes for segment in segments])
        entries = list(self._unflushed.values())
        self.recovered = Recovered(entries, paged, self.restored_below, paged_bytes, expiring_pages(segments))
        self._reset_restored_bytes()
        for segment in list(self.segments.all):
            self.reclaim_segment(segment)
        consider_compaction(self)

    def delete(self) -> None:
        self.is_deleted = True
        self.reader.restart_at(None)
        self._fetcher = None
        self._unflushed.clear()
        self._attempts.clear()
        self.context.stores.pop(self, None)
        self.context.unflushed.pop(self, None)
        self.context.marked_stores.pop(self, None)
        for segment in self.segments.all:
            self.context.manifest.forget_segment(self.number, segment)
        self.segments = _NO_SEGMENTS
        self.open_segment = None
        if self.number:
            # Logged in this turn at the latest; until that is durable the queue may come back.
            self.context.pager.remove_tree(self.folder, self._log.epoch)
        elif self.last_position >= 0:
            self.context.pager.remove_tree(self.folder, 0)
        self._backlog = None


def _position_of(entry: QueuedMessage) -> int:
    return entry.position


class _Written:
    """Callback for a page in its file; compiled methods cannot contain closures."""

    __slots__ = ("segment", "size", "store")

    def __init__(self, store: QueueStore, segment: Segment, size: int) -> None:
        self.store = store
        self.segment = segment
        self.size = size

    def __call__(self) -> None:
        self.store.written(self.segment, self.size)
