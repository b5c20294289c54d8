"""The store of one stream: an open page, pages being written, and segments.

A message goes into the open epoch of the log and into the open page. A page is closed when it is full, a second after
its first message, or when the log is about to be trimmed; then it is written to the newest segment. Until then it is
read from memory, afterwards from disk, in blocks that all readers share.

Owned by the loop thread. Compiled when the package is built (stream_store.pxd).
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.options import QueueOptions
from warrenmq.core.ports import SYNCED, OffsetStore, StreamStore
from warrenmq.core.timers import Timer
from warrenmq.journal.record import PERSISTENT
from warrenmq.journal.segment_file import PAGE_HEAD_SIZE
from warrenmq.storage.codec import decode_records, encode_record_head, encode_records
from warrenmq.storage.commit_log import LocalLog
from warrenmq.storage.stream_blocks import Block, find_page_of_time, load_index, read_block, stamp_all
from warrenmq.storage.stream_context import StreamContext
from warrenmq.storage.stream_limits import PAGE_SPAN_MS, StreamLimits
from warrenmq.storage.stream_segments import BlockIndex, StreamSegment, StreamSegments
from warrenmq.storage.stream_writing import PageHeadEncoder, PageLost, PageWritten

if TYPE_CHECKING:
    from warrenmq.core.stream import Stream

log = logging.getLogger("warrenmq.storage")

Receive = Callable[[int, list[Message]], None]
Needles = tuple[bytes, ...] | None
BlockKey = tuple[int, int, int]  # first position of the segment; start and end offset of the block

_PERSISTENT = PERSISTENT
_PAGE_SPAN_MS = PAGE_SPAN_MS
_RECORD_OVERHEAD = 24


class OpenPage:
    """Messages in memory until they are written: as `entries`, or as `payload` once the page is closed."""

    __slots__ = ("entries", "first", "payload", "size", "time_first", "time_last")

    def __init__(self, first: int, time_first: int) -> None:
        self.first = first
        self.time_first = time_first
        self.time_last = time_first
        self.entries: list[QueuedMessage] = []
        self.payload: Any = None  # encoded, waiting to be written
        self.size = 0

    def messages(self) -> list[Message]:
        """Return the messages with their offsets, for readers."""
        if self.payload is None:
            return stamp_all(self.entries)
        return stamp_all(decode_records(bytes(self.payload), -1, 0, None, 0))


class FileStreamStore(StreamStore):
    """`number` identifies the stream in the log."""

    __slots__ = (
        "_age_timer",
        "_end",
        "_epoch",
        "_limits",
        "_log",
        "_now_ms",
        "_open",
        "_page_bytes",
        "_page_timer",
        "_pages",
        "_pending_epochs",
        "_reading",
        "_recovery_clock",
        "_removed_below",
        "_stream",
        "context",
        "folder",
        "is_deleted",
        "is_expendable",
        "last_position",
        "next_position",
        "number",
        "segments",
    )

    def __init__(
        self,
        context: StreamContext,
        folder: str,
        number: int,
        durability_level: int,
        options: QueueOptions,
        offsets: OffsetStore,
    ) -> None:
        super().__init__(offsets, durability_level)
        self.context = context
        self.folder = folder
        self.number = number
        self.segments = StreamSegments()
        self.is_deleted = False
        self.is_expendable = False  # a failed write does not stop the node
        self.next_position = 0
        self._log: LocalLog = context.stores.log
        self._limits = StreamLimits.of(options)
        self._stream: Stream | None = None
        self._now_ms = 0  # time of the last epoch appended to; never goes back
        self._recovery_clock: Callable[[], int] | None = None
        self._removed_below = 0  # by retention, according to the log
        self._page_bytes = context.stores.page_size
        self.last_position = -1  # submitted to the writer
        self._pages: list[OpenPage] = []  # not written yet, the open one last
        self._open: OpenPage | None = None
        self._epoch = 0  # the last epoch appended to, up to position `_end`
        self._end = 0
        self._pending_epochs: deque[tuple[int, int]] = deque()  # earlier epochs with their end, not readable yet
        self._reading: dict[tuple[BlockKey, Needles], list[tuple[int, Receive]]] = {}  # requests by block
        self._page_timer: Timer | None = None
        self._age_timer: Timer | None = None

    def apply(self, options: QueueOptions) -> None:
        self._limits = StreamLimits.of(options)
        if self._age_timer is not None:
            self.context.timers.cancel(self._age_timer)
            self._age_timer = None
        self.expire(self._log.turn.now_ms)
        self._watch_age()

    def open(self, stream: "Stream") -> int:
        self._stream = stream
        self._watch_page()
        self._watch_age()
        return self.next_position

    def last_append_ms(self) -> int:
        return self._now_ms

    # -- the log -----------------------------------------------------------------------------------------------------

    def append(self, entry: QueuedMessage) -> None:
        log = self._log
        log.buffer.put_append(self.number, entry, _PERSISTENT)
        log.note_work(self.durability_level)
        entry.epoch = log.epoch
        if entry.epoch != self._epoch:
            self._begin_epoch(entry.epoch)
        self._end = entry.position + 1
        self._add(entry)

    def _begin_epoch(self, epoch: int) -> None:
        if self._epoch:
            self._pending_epochs.append((self._epoch, self._end))
        self._epoch = epoch
        self._now_ms = max(self._now_ms, self._log.epoch_time_ms)
        self.context.pending[self] = None

    def on_log_progress(self) -> None:
        """Make messages readable whose epoch has reached the stream's durability level."""
        safe = self._log.durable if self.durability_level == SYNCED else self._log.written
        end = 0
        while self._pending_epochs and self._pending_epochs[0][0] <= safe:
            end = self._pending_epochs.popleft()[1]
        if self._epoch <= safe:
            end = self._end
            self._epoch = 0
            self.context.pending.pop(self, None)
        if end and self._stream is not None:
            self._stream.make_readable(end)

    # -- pages -------------------------------------------------------------------------------------------------------

    def _add(self, entry: QueuedMessage) -> None:
        page = self._open
        if (
            page is None
            or page.size >= self._page_bytes
            or self._now_ms - page.time_first >= _PAGE_SPAN_MS
            or entry.position != self.next_position  # a damaged log has lost some
        ):
            page = self._begin_page(entry.position)
        message = entry.message
        page.entries.append(entry)
        page.size += len(message.address) + len(message.header) + len(message.body) + _RECORD_OVERHEAD
        page.time_last = self._now_ms
        self.next_position = entry.position + 1

    def _begin_page(self, first: int) -> OpenPage:
        if self._open is not None:
            self._close_page(self._open)
        page = self._open = OpenPage(first, self._now_ms)
        self._pages.append(page)
        self.context.stores.unflushed[self] = None
        self._watch_page()
        return page

    def _watch_page(self) -> None:
        """Schedule the closing of the open page, in case nothing is added to it."""
        if self._open is not None and self._page_timer is None and self._stream is not None:
            due_ms = self._log.turn.now_ms + _PAGE_SPAN_MS
            self._page_timer = self.context.timers.schedule(due_ms, self._close_old_page)

    def _close_old_page(self) -> None:
        self._page_timer = None
        if self._open is not None:
            # After the clock was set back a page may be in the future: it is closed, too.
            if 0 <= self._log.turn.now_ms - self._open.time_first < _PAGE_SPAN_MS:
                self._watch_page()  # a newer page
            else:
                self._close_page(self._open)

    def _close_page(self, page: OpenPage) -> None:
        payload = encode_records(page.entries)
        count = len(page.entries)
        last = page.entries[-1].position
        page.payload = payload
        page.entries = []
        self._open = None
        self._write_page(page, last, count, [payload], None)

    def _write_page(
        self, page: OpenPage, last: int, count: int, payload: list[Any], done: Callable[[], None] | None
    ) -> None:
        segment = self._segment_for(page)
        offset = segment.size
        assert segment.index is not None
        segment.index.add_page(segment.size, page.first, page.time_first)
        segment.time_last = page.time_last
        segment.pages += 1
        segment.last = last
        segment.count += count
        self.context.stores.manifest.unrecorded[segment] = self.number
        segment.size += PAGE_HEAD_SIZE + sum(map(len, payload))
        self.last_position = last
        path = os.path.join(self.folder, segment.name)
        head = PageHeadEncoder(page, last, count, payload, path if segment.is_new else "")
        is_new, segment.is_new = segment.is_new, False
        lost = PageLost(segment) if self.is_expendable else None
        written = PageWritten(self, segment, segment.size, last + 1, done)
        self.context.stores.pager.write(
            path, 0 if is_new else offset, payload, is_new, written, on_lost=lost, head=head
        )

    def _segment_for(self, page: OpenPage) -> StreamSegment:
        """Return the newest segment, or a new one if it is full; old ones may be removed then."""
        segments = self.segments.all
        if segments:
            newest = segments[-1]
            if not newest.is_closed and not self._limits.is_full(
                newest.size, newest.pages, page.time_first - newest.time_first
            ):
                return newest
            self.context.indexes.use(newest)
            if not self.is_expendable:
                self.context.stores.manifest.record_segment(self.number, newest)  # before the next one is written
        segment = StreamSegment(page.first, page.time_first)
        segment.index = BlockIndex()
        segments.append(segment)
        self.expire(page.time_first)
        self._watch_age()
        return segment

    def written(self, segment: StreamSegment, size: int) -> None:
        """Note that the oldest page in memory is in its file and can be read there."""
        segment.written = size
        if self._pages:
            del self._pages[0]

    def append_unlogged(self, entry: QueuedMessage, done: Callable[[], None]) -> None:
        """As a page of its own. The pager keeps the order, and waits for the epochs of what was said before."""
        if self._open is not None:
            self._close_page(self._open)
        self._now_ms = max(self._now_ms, self._log.turn.now_ms)
        page = OpenPage(entry.position, self._now_ms)
        page.entries.append(entry)
        self._pages.append(page)
        self.next_position = entry.position + 1
        self._write_page(page, entry.position, 1, [encode_record_head(entry), entry.message.body], done)

    def on_apart_written(self, end: int, done: Callable[[], None]) -> None:
        """Make everything before this position readable: it is in files."""
        if self._stream is not None:
            self._stream.make_readable(end)
        done()

    def _watch_age(self) -> None:
        """Schedule the removal of the oldest segment by age; the newest stays."""
        segments = self.segments.all
        if (
            self._limits.max_age_ms is not None
            and len(segments) > 1
            and self._age_timer is None
            and self._stream is not None
        ):
            due_ms = segments[0].time_last + self._limits.max_age_ms + 1
            self._age_timer = self.context.timers.schedule(due_ms, self._expire_old)

    def _expire_old(self) -> None:
        self._age_timer = None
        self.expire(self._log.turn.now_ms)
        self._watch_age()

    def expire(self, now_ms: int) -> None:
        """Remove the segments that exceed the limits."""
        segments = self.segments.all
        if not self._limits.has_any or len(segments) < 2:
            return
        total = sum([segment.size for segment in segments])
        gone = segments[: self._limits.count_expired(segments[:-1], total, now_ms)]
        if not gone:
            return
        del segments[: len(gone)]
        for segment in gone:
            self.context.indexes.drop(segment)
            self.context.stores.manifest.forget_segment(self.number, segment)
        if not self.is_expendable:  # else its messages are not in the log, either
            self._log.buffer.put_forget_range(self.number, gone[0].first, segments[0].first - 1)
            self._log.note_work(0)
        self.context.stores.pager.remove(self.folder, [segment.name for segment in gone])
        if self._stream is not None:
            self._stream.forget_before(segments[0].first)
        else:
            self.first_position = segments[0].first

    # -- what a checkpoint asks --------------------------------------------------------------------------------------

    def has_unflushed(self) -> bool:
        return self._open is not None

    def flush(self, epoch: int, relog_below: int) -> int:
        """Write what only the log has up to this epoch; nothing is relogged."""
        if self._open is not None and self._open.entries[0].epoch <= epoch:
            self._close_page(self._open)
        return 0

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, position: int, receive: Receive, needles: Needles = None) -> None:
        if self.is_deleted:
            return
        pages = self._pages
        if position >= self.next_position:
            receive(position, [])  # also if the last pages are damaged: nothing follows them
        elif pages and position >= pages[0].first:
            self._read_memory(position, receive)
        elif self.segments.all and self.segments.all[0].written:
            self._read_disk(self.segments.find(position), position, receive, needles)
        elif pages:
            self._read_memory(pages[0].first, receive)
        else:
            receive(self.next_position, [])

    def _read_memory(self, position: int, receive: Receive) -> None:
        for page in reversed(self._pages):
            if page.first <= position:
                receive(page.first, page.messages())
                return

    def _read_disk(self, segment: StreamSegment, position: int, receive: Receive, needles: Needles) -> None:
        index = segment.index
        if index is None:
            self._load_index(segment, lambda: self.read(position, receive, needles))
            return
        self._use(segment)
        number = index.find(position)
        offset, end = index.span(number, segment.written)
        following = index.first_after(number)
        if following is None:
            following = self._first_after(segment)  # now: more pages may be written while these are read
        key = (segment.first, offset, end)
        block = self.context.blocks.find((self.number, key))
        if block is not None:
            self._deliver(block, following, position, receive)
        elif (key, needles) in self._reading:
            self._reading[key, needles].append((position, receive))
        else:
            self._reading[key, needles] = [(position, receive)]
            path = os.path.join(self.folder, segment.name)
            self.context.stores.pager.read(
                lambda files: read_block(files, path, offset, end, needles),
                lambda result: self._on_block_read(key, needles, segment, following, result),
            )

    def _on_block_read(
        self, key: BlockKey, needles: Needles, segment: StreamSegment, following: int, result: Any
    ) -> None:
        waiting = self._reading.pop((key, needles), [])
        if self.is_deleted:
            return
        if isinstance(result, Exception):
            if self._is_gone(segment):
                for position, receive in waiting:
                    self.read(position, receive, needles)
                return
            block = Block()
            block.problems.append(f"{segment.name}: {result}")
            block.is_cut = True
        elif result.is_filtered_out:
            for _, receive in waiting:
                receive(following, [])
            return
        else:
            block = result
            self.context.blocks.add((self.number, key), block, block.size)
        if block.problems:
            self.context.note_damage(self.number, os.path.join(self.folder, segment.name), key, block)
        for position, receive in waiting:
            self._deliver(block, following, position, receive)

    def _deliver(self, block: Block, following: int, position: int, receive: Receive) -> None:
        """Deliver the run with this position, or read on after the block, at `following`."""
        found = block.find(position)
        if found is not None:
            receive(found.first, found.messages)
        else:
            self.read(max(position + 1, following), receive)

    def _first_after(self, segment: StreamSegment) -> int:
        """Return the first position after the written part of this segment."""
        pages = self._pages
        following = self.segments.after(segment)
        if following is not None and following.written and not self._is_gone(following):
            return following.first
        return pages[0].first if pages else self.next_position

    def _is_gone(self, segment: StreamSegment) -> bool:
        return not self.segments.all or segment.first < self.segments.all[0].first

    def read_backwards(self) -> Iterator[Message]:
        for page in reversed(self._pages):
            yield from reversed(page.messages())
        files = self.context.stores.pager.files
        for segment in reversed(self.segments.all):
            path = os.path.join(self.folder, segment.name)
            index = segment.index or load_index(files, path, segment.written)
            for number in reversed(range(len(index))):
                for run in reversed(read_block(files, path, *index.span(number, segment.written)).runs):
                    yield from reversed(run.messages)

    # -- finding a time ----------------------------------------------------------------------------------------------

    def find_time(self, time_ms: int, receive: Callable[[int], None]) -> None:
        if self.is_deleted:
            return
        pages = self._pages
        segments = self.segments.all
        if not segments or not segments[0].written or (pages and time_ms > pages[0].time_first):
            receive(self._find_time_in_memory(time_ms))
            return
        segment = self.segments.find_time(time_ms)
        index = segment.index
        if index is None:
            self._load_index(segment, lambda: self.find_time(time_ms, receive))
            return
        self._use(segment)
        number = index.find_time(time_ms)
        offset, end = index.span(number, segment.written)
        path = os.path.join(self.folder, segment.name)
        self.context.stores.pager.read(
            lambda files: find_page_of_time(files, path, offset, end, time_ms),
            lambda result: self._on_time_found(segment, number, time_ms, result, receive),
        )

    def _find_time_in_memory(self, time_ms: int) -> int:
        for page in self._pages:
            if page.time_last >= time_ms:
                return page.first
        return self.next_position

    def _on_time_found(
        self, segment: StreamSegment, number: int, time_ms: int, result: Any, receive: Callable[[int], None]
    ) -> None:
        if self.is_deleted:
            return
        if self._is_gone(segment):
            self.find_time(time_ms, receive)
            return
        if isinstance(result, Exception):
            log.error("%s: %s cannot be read: %s", self.folder, segment.name, result)
        elif result >= 0:
            receive(result)
            return
        following = None if segment.index is None else segment.index.first_after(number)
        receive(self._first_after(segment) if following is None else following)

    # -- indexes -----------------------------------------------------------------------------------------------------

    def _load_index(self, segment: StreamSegment, then: Callable[[], None]) -> None:
        """Build the index from page heads, then continue."""
        path = os.path.join(self.folder, segment.name)
        end = segment.written

        def loaded(result: Any) -> None:
            if self.is_deleted:
                return
            if not self._is_gone(segment) and segment.index is None:
                if isinstance(result, Exception):
                    log.error("%s: %s cannot be read: %s", self.folder, segment.name, result)
                    result = BlockIndex()
                    result.add_page(0, segment.first, segment.time_first)
                segment.index = result
                self.context.indexes.use(segment)
            then()

        self.context.stores.pager.read(lambda files: load_index(files, path, end), loaded)

    def _use(self, segment: StreamSegment) -> None:
        if segment is not self.segments.all[-1]:
            self.context.indexes.use(segment)

    # -- start and end -----------------------------------------------------------------------------------------------

    def restore_segments(
        self, segments: list[StreamSegment], last_position: int, clock: Callable[[], int], removed_below: int
    ) -> None:
        """Take over the segments found by recovery, which calls `restore_message` next for messages in the log only.

        `clock` returns the time of the replayed epoch; retention has removed everything below `removed_below`.
        """
        self.segments.all.extend(segments)
        self.last_position = last_position
        self.next_position = last_position + 1
        self._recovery_clock = clock
        self._removed_below = removed_below
        if segments:
            self.first_position = max(segments[0].first, removed_below)
            self._now_ms = segments[-1].time_last

    def restore_message(self, entry: QueuedMessage) -> None:
        """Take a message from the log that is in no segment."""
        assert self._recovery_clock is not None
        if not self.segments.all and not self._pages:
            self.first_position = max(entry.position, self._removed_below)
        self._now_ms = max(self._now_ms, self._recovery_clock())
        self._add(entry)

    def end_recovery(self, next_position: int) -> None:
        """Finish the recovery; positions below this one are not reused."""
        self._recovery_clock = None
        self.next_position = max(next_position, self.next_position)
        if not self.segments.all and not self._pages:
            self.first_position = self.next_position

    def delete(self) -> None:
        self.is_deleted = True
        for segment in self.segments.all:
            self.context.indexes.drop(segment)
            self.context.stores.manifest.forget_segment(self.number, segment)
        self.segments = StreamSegments()
        self.offsets.delete()
        self._pages = []
        self._open = None
        self._reading.clear()
        self._stream = None
        for timer in (self._page_timer, self._age_timer):
            if timer is not None:
                self.context.timers.cancel(timer)
        for registry in (self.context.pending, self.context.stores.unflushed):
            registry.pop(self, None)
        self.context.stores.pager.remove_tree(self.folder)
