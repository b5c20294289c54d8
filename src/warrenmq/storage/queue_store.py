"""The store of one queue: what is kept in the log only, what lies in segments, and how far it has been read back.

A persistent message is put into the open epoch. One that stays is flushed to the queue's segments, with others, when
the line is paged out or the log grows too long; one that is acked before never is. Whoever flushes takes every living
persistent message up to a position, so that segments hold growing positions, and a position up to `last_position()`
that lies in no page is dead.

Owned by the loop thread. Compiled when the package is built (queue_store.pxd).
"""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warrenmq.core.message import QueuedMessage
from warrenmq.core.ports import MessageStore, PageSizes, Recovered
from warrenmq.journal.record import PERSISTENT, RELOGGED
from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    PAGE_HEAD_SIZE,
    SEGMENT_MAGIC,
    UNKNOWN,
    PageHead,
    encode_batch,
    encode_dead_head,
    encode_file_head,
    encode_old_batch,
    encode_page,
    segment_name,
)
from warrenmq.storage.codec import BadPage, decode_records, encode_records
from warrenmq.storage.commit_log import LocalLog
from warrenmq.storage.damaged import keep_copy
from warrenmq.storage.options import StorageOptions
from warrenmq.storage.pages import read_pages
from warrenmq.storage.segments import SEGMENT_SPAN, Segment, Segments

if TYPE_CHECKING:
    from warrenmq.core.backlog import Backlog
    from warrenmq.storage.checkpoint import Participant
    from warrenmq.storage.pager import Pager

log = logging.getLogger("warrenmq.storage")

_PERSISTENT = PERSISTENT
_RELOGGED = RELOGGED


class StoreContext:
    """What the stores of one node share. `unflushed` are those with messages that only the log has."""

    __slots__ = (
        "compact_from",
        "log",
        "marked",
        "on_compactable",
        "page_size",
        "pager",
        "read_size",
        "root",
        "segment_size",
        "sizes",
        "taken_back",
        "unflushed",
    )

    def __init__(self, log: LocalLog, pager: "Pager", options: StorageOptions, root: str = "") -> None:
        self.log = log
        self.pager = pager
        self.root = root  # the data folder
        self.sizes = PageSizes(options.window, options.page, options.memory_budget)
        self.segment_size = options.segment_size
        self.page_size = options.page_size
        self.read_size = options.read_size
        self.compact_from = options.compact_from
        self.unflushed: dict[Participant, None] = {}
        self.marked: dict[QueueStore, None] = {}  # those with deaths that only the log has
        self.taken_back = 0  # bytes that recovery has put into memory
        self.on_compactable: Callable[[QueueStore, Segment], None] | None = None


class QueueStore(MessageStore):
    """`number` is the queue's in the log; a transient queue has none and is only paged out."""

    __slots__ = (
        "_above",
        "_backlog",
        "_cursor",
        "_generation",
        "_is_asked",
        "_last_position",
        "_log",
        "_offset",
        "_open",
        "_passed",
        "_taken_back",
        "_unflushed",
        "context",
        "folder",
        "is_deleted",
        "number",
        "recovered",
        "restored_below",
        "segments",
    )

    def __init__(self, context: StoreContext, folder: str, number: int, promise: int) -> None:
        super().__init__(promise, context.sizes)
        self.context = context
        self.folder = folder
        self.number = number
        self.segments = Segments()
        self.is_deleted = False
        self.restored_below = 0  # what stands before was written in an earlier life
        self.recovered: Recovered | None = None
        self._log = context.log
        self._backlog: Backlog | None = None
        self._unflushed: dict[int, QueuedMessage] = {}  # living persistent messages that only the log has
        self._last_position = -1  # on disk
        self._open: Segment | None = None  # which is written; what comes behind a closed one is a new one
        self._cursor: Segment | None = None  # where the next page is read
        self._passed: Segment | None = None  # the one before, which is in memory
        self._offset = 0
        self._above = -1  # what the cursor meets up to here is in memory
        self._is_asked = False  # a read is under way
        self._generation = 0  # of reads: a purge makes those under way void
        self._taken_back = 0  # bytes, during recovery

    def open(self, backlog: "Backlog") -> Recovered:
        self._backlog = backlog
        recovered = self.recovered
        self.recovered = None
        return recovered if recovered is not None else Recovered([])

    # -- the log -----------------------------------------------------------------------------------------------------

    def append(self, entry: QueuedMessage) -> None:
        log = self._log
        log.buffer.put_append(self.number, entry, _PERSISTENT)
        log.note_work(self.promise)
        entry.epoch = log.epoch
        if not self._unflushed:
            self.context.unflushed[self] = None
        self._unflushed[entry.position] = entry

    def forget(self, entry: QueuedMessage) -> None:
        position = entry.position
        if entry.epoch > 0:
            self._log.buffer.put_forget(self.number, position)
            self._log.note_work(0)
            if position > self._last_position or position in self._unflushed:
                del self._unflushed[position]
                return
        segment = self.segments.find(position)
        if segment is not None:
            if entry.epoch > 0 and not segment.unwritten_marks:
                self.context.marked[self] = None
            segment.kill(position, entry.epoch > 0, entry.message.size)
            self._settle_segment(segment)

    def _settle_segment(self, segment: Segment) -> None:
        """A segment has lost messages: remove it when it was the last, or think of compacting it."""
        if segment.alive == 0:
            self._drop_segment(segment)
        elif 2 * segment.alive < segment.count and segment.count > self.context.compact_from and not segment.is_wanted:
            on_compactable = self.context.on_compactable
            if on_compactable is not None and self.may_compact(segment):
                segment.is_wanted = True
                on_compactable(self, segment)

    def _drop_segment(self, segment: Segment) -> None:
        names = [segment.name, segment.dead_name]
        if segment.is_compacting:
            names.append(segment_name(segment.first, segment.generation + 1))
        self.context.pager.remove(self.folder, names, self.number != 0)
        if segment is self._open:
            self._open = None
        if segment is self._passed:
            self._passed = None
        was_read = segment is self._cursor
        if was_read:
            self._enter(self.segments.after(segment))
        self.segments.remove(segment)
        if was_read and self.is_reading:
            self._read()

    # -- compaction --------------------------------------------------------------------------------------------------

    def may_compact(self, segment: Segment) -> bool:
        """Neither the one that is being written, nor the one that is being read, nor the one that was read last.

        A queue that is drained in order will be through with that soon.
        """
        return segment is not self._open and segment is not self._cursor and segment is not self._passed

    def look_for_compactable(self) -> None:
        """Segments that could not be compacted when they lost most of their messages may be now."""
        for segment in list(self.segments.all):
            self._settle_segment(segment)

    def compacted(self, segment: Segment, marks: int, count: int, size: int, body_bytes: int) -> None:
        """The next generation of a segment has only what was alive at the start, when so many marks were unwritten."""
        segment.generation += 1
        segment.is_old = False
        segment.count = count
        segment.body_bytes = body_bytes
        segment.size = segment.written = size
        segment.dead_size = 0
        segment.unwritten_marks = segment.unwritten_marks[marks:]
        segment.is_wanted = False

    def compaction_is_over(self, segment: Segment) -> None:
        """Done, or given up for good: the segment can be read again."""
        segment.is_compacting = False
        if self.is_reading and segment is self._cursor:
            self._read()

    # -- out of memory -----------------------------------------------------------------------------------------------

    def last_position(self) -> int:
        return self._last_position

    def page_out(self, entries: list[QueuedMessage]) -> None:
        """Everything before these that only the log has goes with them."""
        first = entries[0].position
        batch = self._take_unflushed(first - 1)
        for entry in entries:
            if entry.epoch > 0:
                del self._unflushed[entry.position]
        if not self._has_unread():
            self._above = first - 1
            self._cursor = None
        self._write(batch + entries, first)

    def flush(self, epoch: int, relog_below: int) -> int:
        """Write what only the log has, up to this epoch; it stays in memory, too. See `Participant.flush`."""
        if not self.segments.all and self._unflushed_bytes(relog_below) < relog_below:
            return self._carry(epoch)
        boundary = self.boundary(epoch)
        if boundary < 0:
            return 0
        if self._backlog is not None:
            self._backlog.page_out_tail()
        batch = self._take_unflushed(boundary)
        if batch:
            self._write(batch, boundary + 1)
        return 0

    def boundary(self, epoch: int) -> int:
        """The highest position that this epoch or one before it keeps, and nothing else does; -1 if there is none."""
        for position in reversed(self._unflushed):
            if self._unflushed[position].epoch <= epoch:
                return position
        return -1

    def _carry(self, epoch: int) -> int:
        """Say what the log is about to forget again, in the open epoch; gives its bytes."""
        size = 0
        open_epoch = self._log.epoch
        for entry in self._unflushed.values():
            if entry.epoch <= epoch:
                self._log.buffer.put_append(self.number, entry, _PERSISTENT | _RELOGGED)
                self._log.note_work(0)
                entry.epoch = open_epoch
                size += len(entry.message.header) + len(entry.message.body) + 64
        return size

    def _unflushed_bytes(self, limit: int) -> int:
        """Memory of what only the log has; counts no further than the limit."""
        size = 0
        for entry in self._unflushed.values():
            size += entry.message.footprint()
            if size >= limit:
                break
        return size

    def has_unflushed(self) -> bool:
        return len(self._unflushed) > 0

    def _take_unflushed(self, up_to: int) -> list[QueuedMessage]:
        """By position, which is the order they came in."""
        taken: list[QueuedMessage] = []
        for entry in self._unflushed.values():
            if entry.position > up_to:
                break
            taken.append(entry)
        for entry in taken:
            del self._unflushed[entry.position]
        return taken

    def _write(self, entries: list[QueuedMessage], unread_from: int) -> None:
        """Write pages. Those from `unread_from` on are in memory no longer."""
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
        segment = self._open
        if segment is None or segment.is_full(last, self.context.segment_size):
            segment = self._begin_segment(first)
        payload = encode_records(entries)
        now = self._log.epoch_time_ms
        transient = 0
        unread = 0
        kept_bytes = 0
        for entry in entries:
            size = entry.message.size
            if entry.epoch > 0:
                kept_bytes += size
            else:
                transient += 1
                segment.is_counted = False
            if entry.position >= unread_from:
                unread += 1
                segment.unread_bytes += size
            segment.alive_bytes += size
        head = encode_page(first, last, len(entries), now, now, payload, transient, kept_bytes)
        pieces: list[Any] = [head, payload]
        offset = segment.size
        if segment.is_new:
            pieces.insert(0, encode_file_head(SEGMENT_MAGIC))
            offset = 0
        if unread and self._cursor is None:
            self._cursor = segment
            self._offset = segment.size
        segment.last = last
        segment.count += len(entries)
        segment.alive += len(entries)
        segment.body_bytes += kept_bytes
        segment.unread += unread
        segment.size += PAGE_HEAD_SIZE + len(payload)
        self._last_position = last
        written = _Written(self, segment, segment.size)
        self.context.pager.write(
            os.path.join(self.folder, segment.name), offset, pieces, segment.is_new, written, self.number != 0
        )
        segment.is_new = False

    def _begin_segment(self, first: int) -> Segment:
        closed = self._open
        self._open = Segment(first)
        self.segments.all.append(self._open)
        if closed is not None:
            if self.number:
                # Only the last segment may be torn by a crash; what lies in it the log still has.
                self.context.pager.settle(os.path.join(self.folder, closed.name))
            self._settle_segment(closed)
        return self._open

    def written(self, segment: Segment, size: int) -> None:
        """A page is in its file, and can be read."""
        segment.written = size
        if self.is_reading and segment is self._cursor:
            self._read()

    # -- back into memory --------------------------------------------------------------------------------------------

    def page_in(self) -> None:
        self.is_reading = True
        self._read()

    def _read(self) -> None:
        """Ask for the next pages, unless they are still being written: then `written` asks."""
        segment = self._cursor
        if segment is None:
            self.is_reading = False
            return
        end = segment.written
        if self._is_asked or self._offset >= end or segment.is_compacting:
            return
        self._is_asked = True
        path = os.path.join(self.folder, segment.name)
        offset = self._offset
        generation = self._generation
        read_size = self.context.read_size
        restored_below = self.restored_below
        self.context.pager.read(
            lambda files: read_pages(files, path, offset, end, read_size, restored_below),
            lambda result: self._arrived(generation, segment, end, result),
        )

    def _arrived(self, generation: int, segment: Segment, end: int, result: Any) -> None:
        if generation != self._generation:
            return
        if isinstance(result, Exception) and not isinstance(result, FileNotFoundError):
            self.context.pager.on_failed(str(result))
            return
        self._is_asked = False
        pages, problem, bad = ([], str(result), None) if isinstance(result, Exception) else result
        entries: list[QueuedMessage] = []
        for page, payload in pages:
            try:
                found = decode_records(payload, self._above, segment.first, segment.dead, self.restored_below)
            except BadPage as error:
                problem, bad = f"the page at offset {page.offset}: {error}", page
                break
            entries += found
            self._pass(page.end, page.last)
        segment.unread -= len(entries)
        for entry in entries:
            segment.unread_bytes -= entry.message.size
        lost_bytes = segment.unread_bytes
        if problem is not None:
            self._pass_damage(segment, problem, end, bad)
        lost = self._pass_end(segment)
        self.is_reading = False
        if not entries and lost == 0 and self._has_unread():
            self.page_in()  # all of it was dead
        elif self._backlog is not None:
            self._backlog.paged_in(entries, lost, lost_bytes if lost else 0)

    def _has_unread(self) -> bool:
        """Return True if messages are on disk only."""
        return any(segment.unread for segment in self.segments.all)

    def _enter(self, segment: Segment | None) -> None:
        """Read on from the beginning of a segment; what is being read of another one does not count."""
        self._void_read()
        self._cursor = segment
        self._offset = FILE_HEAD_SIZE

    def _void_read(self) -> None:
        self._generation += 1
        self._is_asked = False

    def _pass(self, offset: int, last: int) -> None:
        """Everything up to this position was read, or cannot be."""
        self._offset = offset
        if last > self._above:
            self._above = last

    def _pass_damage(self, segment: Segment, problem: str, end: int, bad: PageHead | None) -> None:
        """A page cannot be read, or (`bad` is None) nothing can up to `end`: keep the file, and go on behind it."""
        log.error("%s in %s: %s", segment.name, self.folder, problem)
        last = self._above
        if bad is not None:
            last = bad.last
        elif end == segment.size:
            last = segment.last
        segment.bury(self._above + 1, last)
        if self.number:
            self.context.marked[self] = None
            path, root = os.path.join(self.folder, segment.name), self.context.root
            self.context.pager.later(lambda: keep_copy(self.context.pager.files, root, path), _ignore_result)
        self._pass(end if bad is None else bad.end, last)

    def _pass_end(self, segment: Segment) -> int:
        """Behind the last page of a segment comes the next segment. Gives how many of its messages were not found."""
        if segment is not self._cursor or self._offset < segment.size:
            return 0
        lost = segment.unread
        if lost:
            log.error("%s in %s: %d messages are lost", segment.name, self.folder, lost)
            segment.alive -= lost
            segment.alive_bytes -= segment.unread_bytes
            segment.unread = segment.unread_bytes = 0
        following = self.segments.after(segment)
        if following is not None or not self._has_unread():
            self._passed = segment
            self._enter(following)
        if lost:
            self._settle_segment(segment)
        return lost

    def forget_pages(self) -> None:
        """The queue was purged: what is on disk only is gone."""
        self._void_read()
        self.is_reading = False
        if not self._has_unread():
            return
        if self.number:
            self._log.buffer.put_forget_range(self.number, self._above + 1, self._last_position)
            self._log.note_work(self._log.reply_level)
            self.context.marked[self] = None
        for segment in list(self.segments.all):
            if segment.unread:
                segment.kill_unread(self._above)
                self._settle_segment(segment)
        self._cursor = None

    # -- start and end -----------------------------------------------------------------------------------------------

    def begin_with(self, segments: list[Segment], next_position: int) -> None:
        """Take over the segments that recovery found; `take_back` gives what only the log has."""
        self.segments.all.extend(segments)
        self.restored_below = next_position
        self._open = segments[-1] if segments and not segments[-1].is_old else None
        for segment in segments:
            self._last_position = segment.last
            if segment.unwritten_marks:
                self.context.marked[self] = None
        if segments:
            self._cursor = segments[0]
            self._offset = FILE_HEAD_SIZE

    def take_back(self, entry: QueuedMessage) -> None:
        """A living message of the log; too many of them are paged out at once."""
        if entry.position in self._unflushed:
            return
        if not self._unflushed:
            self.context.unflushed[self] = None
        self._unflushed[entry.position] = entry
        size = entry.message.footprint()
        self._taken_back += size
        context = self.context
        context.taken_back += size
        sizes = context.sizes
        if self._taken_back >= (sizes.kept if context.taken_back < sizes.budget else sizes.small_window):
            self._forget_taken_back()
            self.page_out(list(self._unflushed.values()))

    def _forget_taken_back(self) -> None:
        self.context.taken_back -= self._taken_back
        self._taken_back = 0

    def recovery_is_over(self) -> None:
        """Everything was taken back: the queue may begin."""
        segments = self.segments.all
        paged = sum([segment.unread for segment in segments])
        paged_bytes = sum([segment.unread_bytes for segment in segments])
        self.recovered = Recovered(list(self._unflushed.values()), paged, self.restored_below, paged_bytes)
        self._forget_taken_back()
        for segment in list(self.segments.all):
            self._settle_segment(segment)

    def write_marks(self) -> None:
        """Put the deaths that only the log has beside their segments."""
        for segment in self.segments.all:
            if segment.unwritten_marks and not segment.is_new:
                deleted = segment.body_bytes - segment.alive_bytes if segment.is_counted else UNKNOWN
                marks = segment.unwritten_marks
                batch = encode_old_batch(marks) if segment.is_old else encode_batch(marks, deleted)
                is_new = segment.dead_size == 0
                pieces: list[Any] = [encode_dead_head(segment.is_old), batch] if is_new else [batch]
                path = os.path.join(self.folder, segment.dead_name)
                self.context.pager.write(path, segment.dead_size, pieces, is_new, _ignore_written, True)
                segment.dead_size += sum(map(len, pieces))
                segment.unwritten_marks = type(segment.unwritten_marks)("I")

    def delete(self) -> None:
        self.is_deleted = True
        self._enter(None)
        self._unflushed.clear()
        self.context.unflushed.pop(self, None)
        self.context.marked.pop(self, None)
        self.segments = Segments()
        self._open = self._passed = None
        if self.number:
            # Said in this turn, if not yet: until it is durable the queue may come back.
            self.context.pager.remove_tree(self.folder, self._log.epoch)
        elif self._last_position >= 0:
            self.context.pager.remove_tree(self.folder, 0)
        self._backlog = None


class _Written:
    """Called when a page is in its file: a closure would do, were it not for compiled methods."""

    __slots__ = ("segment", "size", "store")

    def __init__(self, store: QueueStore, segment: Segment, size: int) -> None:
        self.store = store
        self.segment = segment
        self.size = size

    def __call__(self) -> None:
        self.store.written(self.segment, self.size)


def _ignore_written() -> None:
    """Marks are only read at the next start."""


def _ignore_result(_: Any) -> None:
    """Nobody waits for it."""
