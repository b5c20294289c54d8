"""The event log: rows of events, in batches, in a stream of the broker itself (`warren.events`).

The recorder hands over its rows when there are enough of them, or when the first has waited for a moment. A thread
makes one Arrow record batch of them, outside of the interpreter for most of the time; then the loop appends that to the
stream as one message, past the commit log: that has the rows of durable turns already, and a start finds by their
numbers which of them are in batches (`rows_without_batch`). Batches come in the order of their rows.

It may fail, and that stops nobody: what cannot be kept is dropped and counted, and the log of the broker says so. Only
where events come faster than they can be written do publishers have to wait, as they do for memory.

Owned by the loop: everything but the rows that the thread is at. Promises: rows that were handed over are in the stream
or counted as dropped when `stop` is over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from warrenmq.core.broker import DEFAULT_VHOST, Broker
from warrenmq.core.errors import BrokerError
from warrenmq.core.message import address_of, make_message
from warrenmq.core.stream import Stream
from warrenmq.events import schema
from warrenmq.events.codec import encode
from warrenmq.events.columns import ColumnWriter
from warrenmq.events.errors import BadEvents
from warrenmq.events.rows import Rows
from warrenmq.protocol import properties
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.tracing.index_entry import entry_of_written

if TYPE_CHECKING:
    from warrenmq.core.message import Message
    from warrenmq.tracing.index_entry import IndexEntry
    from warrenmq.tracing.recorder import Recorder

log = logging.getLogger("warrenmq.tracing")

# Rows wait so long for company, in seconds.
PATIENCE = 0.2
# Bytes of rows that may wait to be written before publishers have to.
WAITING_LIMIT = 64 * 1024 * 1024
# A log that fails is spoken of once in so many seconds.
COMPLAINT_INTERVAL = 60.0

_ADDRESS = address_of("", schema.STREAM_NAME)

LoggedRows = tuple[int, int, bytes]  # number of the first and of the last, and their raw form
# Told of a new batch: its offset, its content, and what the index has to know of it.
Listener: TypeAlias = "Callable[[int, bytes, IndexEntry], None]"


@dataclass(frozen=True, slots=True)
class EventLogOptions:
    """How much of the event log is kept, as arguments of a stream (docs/streams.md)."""

    max_bytes: int = 10 * 1024**3
    max_age: str = "7D"

    def arguments(self) -> dict[str, Any]:
        # Batches go past the commit log anyway; this is for what others publish there.
        found: dict[str, Any] = {"x-queue-type": "stream", "x-durability": "interval=200"}
        if self.max_bytes:
            found["x-max-length-bytes"] = self.max_bytes
        if self.max_age:
            found["x-max-age"] = self.max_age
        return found


class PendingBatch:
    """Rows on their way, with numbers from `first` to `up_to`.

    Encoded, they have `bytes` and a `note`, or a `failure`.
    """

    __slots__ = ("failure", "first", "note", "octets", "rows", "size", "up_to")

    def __init__(self, rows: Rows, first: int, up_to: int) -> None:
        self.rows = rows
        self.first = first
        self.up_to = up_to
        self.size = rows.size
        self.octets: bytes | None = None
        self.note: IndexEntry | None = None
        self.failure: str | None = None

    def encode(self, writer: ColumnWriter) -> None:
        """In the thread, with the note: a batch is cheapest to look through while the processor has it at hand."""
        try:
            octets = encode(self.rows, writer)
            self.note = entry_of_written(self.rows, writer, octets)
            self.octets = octets
        except (BadEvents, MemoryError, OverflowError) as error:
            self.failure = f"events cannot be encoded: {error}"
        except Exception as error:
            # A bug, which must cost these events and nothing else.
            log.exception("internal error while events were encoded")
            self.failure = f"internal error: {error}"


class EventLog:
    """Where events are kept. Without `start` a test has it all done at once, in its own thread.

    `overloaded` is told when publishers have to wait and when they may go on; `is_disk_short` says whether there is so
    little room that what can be done without is not written.
    """

    def __init__(self, broker: Broker, recorder: Recorder, options: EventLogOptions | None = None) -> None:
        self._broker = broker
        self._recorder = recorder
        self._options = options or EventLogOptions()
        self._waiting: deque[PendingBatch] = deque()  # in order, the oldest first
        self._thread: _Encoder | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flush_later: asyncio.TimerHandle | None = None
        self._is_overloaded = False
        self._complained_at = -COMPLAINT_INTERVAL
        self._flushing: deque[tuple[PendingBatch, asyncio.Future[None]]] = deque()  # who waits, and for which rows
        self.waiting_bytes = 0  # of rows and of batches that are not written yet
        self.waiting_rows = 0
        self.kept = 0  # rows, since the start
        self.dropped = 0
        self.failure: str | None = None  # why the last rows could not be kept
        self.overloaded: Callable[[bool], None] = _ignore
        self.is_disk_short: Callable[[], bool] = _never
        self.schedule_turn: Callable[[], None] = _nothing
        self.on_batch: list[Listener] = []

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, schedule_turn: Callable[[], None]) -> None:
        """From now on a thread encodes; `schedule_turn` sees to it that the turn ends."""
        self._loop = loop
        self.schedule_turn = schedule_turn
        self._thread = _Encoder(loop, self._encoded)

    async def flush(self) -> None:
        """Returns when all rows so far are in the stream, or dropped."""
        self._recorder.hand_over()
        if self._waiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushing.append((self._waiting[-1], done))
            await done

    async def stop(self) -> None:
        """Write what is there and end the thread."""
        if self._flush_later is not None:
            self._flush_later.cancel()
            self._flush_later = None
        await self.flush()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)
            self._thread = None

    # -- rows come in ------------------------------------------------------------------------------------------------

    @property
    def is_keeping(self) -> bool:
        """Whether rows are of use, or will be dropped anyway."""
        return not self.is_disk_short()

    def expect_rows(self) -> None:
        """There are some, which wait for more: not for long."""
        if self._flush_later is None and self._loop is not None:
            self._flush_later = self._loop.call_later(PATIENCE, self._patience_is_over)

    def _patience_is_over(self) -> None:
        self._flush_later = None
        self._recorder.hand_over()

    def take(self, rows: Rows, first: int, up_to: int) -> None:
        """Make a batch of these, which have numbers from `first` to `up_to`."""
        if not rows.count:
            return
        if not self.is_keeping:
            self._drop(rows.count, up_to, "the disk is short of room")
            return
        pending = PendingBatch(rows, first, up_to)
        self._waiting.append(pending)
        self.waiting_rows += rows.count
        self.waiting_bytes += pending.size
        self._judge_load()
        if self._thread is not None:
            self._thread.submit(pending)
        else:
            pending.encode(ColumnWriter())
            self._encoded(pending)

    def _judge_load(self) -> None:
        is_overloaded = self.waiting_bytes > (WAITING_LIMIT // 2 if self._is_overloaded else WAITING_LIMIT)
        if is_overloaded is not self._is_overloaded:
            self._is_overloaded = is_overloaded
            self.overloaded(is_overloaded)

    # -- batches go out ----------------------------------------------------------------------------------------------

    def _encoded(self, pending: PendingBatch) -> None:
        """On the loop: the oldest that waits is a batch now."""
        assert pending is self._waiting[0]
        self._waiting.popleft()
        self.waiting_rows -= pending.rows.count
        self.waiting_bytes -= pending.size
        self._judge_load()
        if pending.octets is None or pending.note is None:
            self._drop(pending.rows.count, pending.up_to, pending.failure or "")
        elif not self.is_keeping:
            self._drop(pending.rows.count, pending.up_to, "the disk is short of room")
        else:
            self._publish(pending, pending.octets, pending.note)
        self._recorder.rows.recycle(pending.rows)
        while self._flushing and self._flushing[0][0] is pending:
            done = self._flushing.popleft()[1]
            if not done.done():
                done.set_result(None)

    def _publish(self, pending: PendingBatch, octets: bytes, note: IndexEntry) -> None:
        try:
            stream = self._find_or_declare()
        except BrokerError as refusal:
            self._drop(pending.rows.count, pending.up_to, f"{schema.STREAM_NAME} cannot be declared: {refusal}")
            return
        if stream is None:
            self._drop(pending.rows.count, pending.up_to, f"{schema.STREAM_NAME} is a queue, not a stream")
            return
        self.schedule_turn()
        size = len(octets)
        self.waiting_bytes += size
        offset = stream.enqueue_unlogged(
            make_message(_ADDRESS, _header_of(pending, octets), octets), lambda: self._written(size)
        )
        self.kept += pending.rows.count
        self.failure = None
        for tell in self.on_batch:
            try:
                tell(offset, octets, note)
            except Exception:
                # A bug of who reads along: events are kept all the same.
                log.exception("internal error after a batch of events")

    def _written(self, size: int) -> None:
        self.waiting_bytes -= size
        self._judge_load()

    def _find_or_declare(self) -> Stream | None:
        """The stream; one that somebody has deleted is made anew. None: the name is taken."""
        vhost = self._broker.add_vhost(DEFAULT_VHOST)
        queue = vhost.queues.get(schema.STREAM_NAME)
        if queue is None:
            queue = vhost.declare_queue(
                schema.STREAM_NAME, True, False, False, self._options.arguments(), connection=None
            )
        return queue if isinstance(queue, Stream) else None

    def _drop(self, count: int, up_to: int, reason: str) -> None:
        self.dropped += count
        self._broker.storage.log.discard_events(up_to)  # or a start would find them, and think that they are new
        self._complain(reason, count)

    def _complain(self, reason: str, count: int) -> None:
        self.failure = reason
        now = time.monotonic()
        if now - self._complained_at >= COMPLAINT_INTERVAL:
            self._complained_at = now
            log.warning("%d events were not kept (%d since the start): %s", count, self.dropped, reason)

    # -- what must not be forgotten ----------------------------------------------------------------------------------

    def relog(self) -> None:
        """The commit log is about to forget epochs: what is in no batch yet goes into the open one."""
        if not self.is_keeping:
            return
        commit_log = self._broker.storage.log
        for pending in self._waiting:
            commit_log.put_events(pending.first, pending.up_to, pending.rows.to_bytes())
        self._recorder.relog()

    # -- reading -----------------------------------------------------------------------------------------------------

    def reader(self) -> EventReader:
        return EventReader(self._broker)

    def state(self) -> dict[str, Any]:
        """For people."""
        return {
            "kept": self.kept,
            "dropped": self.dropped,
            "waiting_rows": self.waiting_rows + self._recorder.rows.count,
            "failure": self.failure,
        }


def rows_without_batch(found: list[LoggedRows], stream: Stream | None) -> tuple[int, list[LoggedRows]]:
    """Of the rows that the commit log had (first and last number, bytes), those that are in no batch that can be read.

    And the highest number of a row in a batch. Reads batches, the last first, as far as the log goes: after a power
    loss one may be damaged with whole ones behind it. Where retention has removed batches, rows from before the oldest
    that is left went with them.
    """
    missing = dict.fromkeys([(first, last) for first, last, _ in found])
    oldest = min([first for first, _, _ in found], default=0)
    highest = lowest = 0
    for first, last in _numbers_of_batches(stream):
        highest = max(highest, last)
        lowest = min(lowest or first, first)
        for numbers in [numbers for numbers in missing if first <= numbers[0] and numbers[1] <= last]:
            del missing[numbers]
        if not missing or first <= oldest:
            break
    removed_below = lowest if stream is not None and stream.first_offset > 0 else 0
    return highest, [rows for rows in found if rows[:2] in missing and rows[1] >= removed_below]


def _numbers_of_batches(stream: Stream | None) -> Iterator[tuple[int, int]]:
    """Of the first and the last row of each batch, the newest batch first."""
    if stream is None:
        return
    for message in stream.store.read_backwards():
        headers = properties.headers(message.header) or {}
        first, last = headers.get(schema.HEADER_FROM), headers.get(schema.HEADER_TO)
        if isinstance(first, int) and isinstance(last, int):  # anybody may publish anything there
            yield first, last


def parse_logged_rows(raws: list[bytes]) -> Rows:
    """Rows that were in no batch when the broker ended, in order."""
    rows = Rows()
    for raw in raws:
        try:
            rows.extend(raw)
        except BadEvents as error:
            log.warning("events in the commit log cannot be read and are lost: %s", error)
    if rows.count:
        log.info("%d events of before the start were in no batch yet", rows.count)
    return rows


def _header_of(pending: PendingBatch, octets: bytes) -> bytes:
    headers = {
        schema.HEADER_VERSION: schema.VERSION,
        schema.HEADER_ROWS: pending.rows.count,
        schema.HEADER_FIRST: pending.rows.first_time,
        schema.HEADER_LAST: pending.rows.last_time,
        schema.HEADER_FROM: pending.first,
        schema.HEADER_TO: pending.up_to,
    }
    return content_header(
        len(octets), BasicProperties(content_type=schema.CONTENT_TYPE, headers=headers, delivery_mode=2)
    )


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch as it lies in the stream; somebody may have published anything there."""

    offset: int
    data: bytes


class EventReader:
    """Reads the event log in the broker's own process, beside whoever consumes the stream.

    All calls are on the loop. Offsets are those of the stream; `identity` is another object when it was deleted and
    made anew, with offsets from 0 on.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def identity(self) -> object:
        return self._broker.stream(schema.STREAM_NAME)

    @property
    def first_offset(self) -> int:
        """Of the oldest batch that is kept."""
        stream = self._broker.stream(schema.STREAM_NAME)
        return stream.first_offset if stream is not None else 0

    @property
    def next_offset(self) -> int:
        """That the next batch will have."""
        stream = self._broker.stream(schema.STREAM_NAME)
        return stream.next_position if stream is not None else 0

    async def read(self, offset: int) -> list[StoredBatch]:
        """Return some batches from this offset on (or from the oldest, if it is gone), in order.

        None at the end, and none while the batch at this offset is still being written.
        """
        stream = self._broker.stream(schema.STREAM_NAME)
        if stream is None:
            return []
        page: asyncio.Future[tuple[int, list[Message]]] = asyncio.get_running_loop().create_future()
        stream.read(offset, lambda *found: None if page.done() else page.set_result(found))
        first, messages = await page
        return [StoredBatch(first + at, message.body) for at, message in enumerate(messages)]


class _Encoder:
    """The thread. Owned by the loop; the thread touches nothing but the jobs in its queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[PendingBatch], None]) -> None:
        self._loop = loop
        self._done = done
        self._jobs: SimpleQueue[PendingBatch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="warren-events", daemon=True)
        self._thread.start()

    def submit(self, pending: PendingBatch) -> None:
        self._jobs.put(pending)

    def stop(self) -> None:
        """Blocks until the thread has ended: not for the loop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        writer = ColumnWriter()
        while (pending := self._jobs.get()) is not None:
            pending.encode(writer)
            self._loop.call_soon_threadsafe(self._done, pending)


def _ignore(_: bool) -> None:
    """Nobody listens."""


def _nothing() -> None:
    """Nobody listens."""


def _never() -> bool:
    return False
