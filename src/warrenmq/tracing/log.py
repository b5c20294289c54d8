"""The event log: batches of rows in the stream `warren.events`.

The recorder hands over rows when there are enough, or when the first has waited for a moment. A thread encodes them as
one Arrow record batch, mostly without the interpreter lock. The loop appends it to the stream as one message, past the
commit log, which already has the rows of durable turns; after a crash a start finds those that are in no batch by
their numbers (`rows_without_batch`). Batches are in the order of their rows.

The event log may fail without harm to the broker: events that cannot be kept are dropped, counted and reported.
Publishers wait only when events come faster than they can be written, as they do when memory is short.

Owned by the loop, except the rows that the thread encodes. When `stop` returns, all rows that were handed over are in
the stream or counted as dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
from warrenmq.tracing.index import entry_of_written

if TYPE_CHECKING:
    from warrenmq.core.message import Message
    from warrenmq.tracing.index import IndexEntry
    from warrenmq.tracing.recorder import Recorder

log = logging.getLogger("warrenmq.tracing")

# Seconds that rows wait for more.
BATCH_DELAY = 0.2
# Bytes that wait to be encoded or written before publishers have to wait.
MAX_WAITING_BYTES = 64 * 1024 * 1024
# Dropped events are logged at most once per interval, in seconds.
WARNING_INTERVAL = 60.0
NO_DISK = "the disk is almost full"

_ADDRESS = address_of("", schema.STREAM_NAME)

LoggedRows = tuple[int, int, bytes]  # numbers of the first and the last row, and the rows as they are in the commit log
# Called with a new batch: its offset, its content, and its entry for the index.
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


@dataclass(slots=True)
class PendingBatch:
    """Rows with numbers from `first` to `last`; once encoded, the batch and its index entry, or why there is none.

    `flushes` wait for them.
    """

    rows: Rows
    first: int
    last: int
    encoded: tuple[bytes, IndexEntry] | str = ""
    flushes: list[asyncio.Future[None]] = field(default_factory=list)


class EventLog:
    """Until `start`, which only tests leave out, everything runs on the caller's thread.

    `overloaded` is called when publishers have to wait, and when they may go on. `is_disk_short` returns True while the
    disk has no room for events.
    """

    def __init__(self, broker: Broker, recorder: Recorder, options: EventLogOptions | None = None) -> None:
        self._broker = broker
        self._recorder = recorder
        self._options = options or EventLogOptions()
        self._pending: deque[PendingBatch] = deque()  # oldest first
        self._thread: ThreadPoolExecutor | None = None
        self._writer = ColumnWriter()  # used in the thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_overloaded = False
        self._warned_at = -WARNING_INTERVAL
        self.waiting_bytes = 0  # of rows and batches that are not written yet
        self.kept = 0  # rows, since the start
        self.dropped = 0
        self.failure: str | None = None  # why the last rows were dropped
        self.overloaded: Callable[[bool], None] = lambda _: None
        self.is_disk_short: Callable[[], bool] = lambda: False
        self.schedule_turn: Callable[[], None] = lambda: None
        self.on_batch: list[Listener] = []

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, schedule_turn: Callable[[], None]) -> None:
        """Encode in a thread from now on. `schedule_turn` begins a turn and ends it soon."""
        self._loop = loop
        self.schedule_turn = schedule_turn
        self._thread = ThreadPoolExecutor(1, "warren-events")

    async def flush(self) -> None:
        """Return when all rows so far are in the stream, or dropped."""
        self._recorder.hand_over()
        if self._pending:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._pending[-1].flushes.append(done)
            await done

    async def stop(self) -> None:
        """Write all rows and end the thread."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.flush()
        if self._thread is not None:
            self._thread.shutdown()  # idle after the flush
            self._thread = None

    # -- rows come in ------------------------------------------------------------------------------------------------

    @property
    def is_keeping(self) -> bool:
        """Return False if rows would be dropped anyway."""
        return not self.is_disk_short()

    def expect_rows(self) -> None:
        """Take the rows of the recorder after a short delay."""
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(BATCH_DELAY, self._delay_is_over)

    def _delay_is_over(self) -> None:
        self._timer = None
        self._recorder.hand_over()

    def take(self, rows: Rows, first: int, last: int) -> None:
        """Make a batch of these rows, which have numbers from `first` to `last`."""
        if not rows.count:
            return
        if not self.is_keeping:
            self._drop(rows.count, last, NO_DISK)
            return
        pending = PendingBatch(rows, first, last)
        self._pending.append(pending)
        self._add_waiting(rows.size)
        if self._thread is None or self._loop is None:
            self._encode(pending)
            self._encoded(pending)
        else:
            job = self._loop.run_in_executor(self._thread, self._encode, pending)
            job.add_done_callback(lambda _: self._encoded(pending))

    def _encode(self, pending: PendingBatch) -> None:
        """Runs in the thread. The index entry is made here, while the batch is in the processor's cache.

        Nothing is returned: the future would keep the batch in memory until the next garbage collection.
        """
        try:
            data = encode(pending.rows, self._writer)
            pending.encoded = data, entry_of_written(pending.rows, self._writer, data)
        except (BadEvents, MemoryError, OverflowError) as error:
            pending.encoded = f"events cannot be encoded: {error}"
        except Exception as error:
            # A bug; it costs these events and nothing else.
            log.exception("internal error while encoding events")
            pending.encoded = f"internal error: {error}"

    def _add_waiting(self, size: int) -> None:
        self.waiting_bytes += size
        is_overloaded = self.waiting_bytes > (MAX_WAITING_BYTES // 2 if self._is_overloaded else MAX_WAITING_BYTES)
        if is_overloaded is not self._is_overloaded:
            self._is_overloaded = is_overloaded
            self.overloaded(is_overloaded)

    # -- batches go out ----------------------------------------------------------------------------------------------

    def _encoded(self, pending: PendingBatch) -> None:
        assert pending is self._pending[0]
        self._pending.popleft()
        self._add_waiting(-pending.rows.size)
        failure: str | None = NO_DISK
        if self.is_keeping:
            encoded = pending.encoded
            failure = encoded if isinstance(encoded, str) else self._append(pending, *encoded)
        if failure is not None:
            self._drop(pending.rows.count, pending.last, failure)
        self._recorder.rows.recycle(pending.rows)
        for done in pending.flushes:
            if not done.done():
                done.set_result(None)

    def _append(self, pending: PendingBatch, data: bytes, entry: IndexEntry) -> str | None:
        """Append the batch to the stream; return why that is not possible."""
        try:
            stream = self._find_or_declare()
        except BrokerError as refusal:
            return f"{schema.STREAM_NAME} cannot be declared: {refusal}"
        if stream is None:
            return f"{schema.STREAM_NAME} is a queue, not a stream"
        self.schedule_turn()
        self._add_waiting(len(data))
        message = make_message(_ADDRESS, _header_of(pending, data), data)
        offset = stream.enqueue_unlogged(message, lambda: self._add_waiting(-len(data)))
        self.kept += pending.rows.count
        self.failure = None
        for listener in self.on_batch:
            try:
                listener(offset, data, entry)
            except Exception:
                # A bug of the listener; the events are kept.
                log.exception("internal error in a listener of the event log")
        return None

    def _find_or_declare(self) -> Stream | None:
        """Return the stream, declared again if it was deleted; None if a queue has its name."""
        vhost = self._broker.add_vhost(DEFAULT_VHOST)
        queue = vhost.queues.get(schema.STREAM_NAME)
        if queue is None:
            queue = vhost.declare_queue(
                schema.STREAM_NAME, True, False, False, self._options.arguments(), connection=None
            )
        return queue if isinstance(queue, Stream) else None

    def _drop(self, count: int, last: int, reason: str) -> None:
        self.dropped += count
        self._broker.storage.log.discard_events(last)  # or a start would take them for new ones
        self.failure = reason
        now = time.monotonic()
        if now - self._warned_at >= WARNING_INTERVAL:
            self._warned_at = now
            log.warning("%d events were dropped (%d since the start): %s", count, self.dropped, reason)

    def relog(self) -> None:
        """Log the rows that are in no batch again, as the commit log is about to drop their epochs."""
        if not self.is_keeping:
            return
        for pending in self._pending:
            self._broker.storage.log.put_events(pending.first, pending.last, pending.rows.to_bytes())
        self._recorder.relog()

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Stream | None:
        """The stream. If it is deleted and declared again, this is another object and offsets begin at 0."""
        return self._broker.stream(schema.STREAM_NAME)

    @property
    def first_offset(self) -> int:
        """The offset of the oldest batch."""
        stream = self.identity
        return 0 if stream is None else stream.first_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next batch."""
        stream = self.identity
        return 0 if stream is None else stream.next_position

    async def read(self, offset: int) -> dict[int, bytes]:
        """Return some batches by their offsets, from this one (or the oldest one) on, in order.

        Empty at the end, and while the batch at this offset is still being written. Clients may have published anything
        there.
        """
        stream = self.identity
        if stream is None:
            return {}
        page: asyncio.Future[tuple[int, list[Message]]] = asyncio.get_running_loop().create_future()
        stream.read(offset, lambda *found: None if page.done() else page.set_result(found))
        first, messages = await page
        return {first + number: message.body for number, message in enumerate(messages)}

    @property
    def waiting_rows(self) -> int:
        """Rows that are being encoded."""
        return sum(pending.rows.count for pending in self._pending)

    def state(self) -> dict[str, Any]:
        """Return figures for people."""
        return {
            "kept": self.kept,
            "dropped": self.dropped,
            "waiting_rows": self.waiting_rows + self._recorder.rows.count,
            "failure": self.failure,
        }


def rows_without_batch(found: list[LoggedRows], stream: Stream | None) -> tuple[int, list[LoggedRows]]:
    """Return the highest row number in a batch, and which of the rows in the commit log are in no readable batch.

    Reads batches backwards, as far as the rows in the commit log reach: after a power loss one may be damaged while
    later ones are whole. Rows from before the oldest batch were removed by retention.
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
    """Yield the numbers of the first and the last row of each batch, newest first."""
    if stream is None:
        return
    for message in stream.store.read_backwards():
        headers = properties.headers(message.header) or {}
        first, last = headers.get(schema.HEADER_FROM), headers.get(schema.HEADER_TO)
        if isinstance(first, int) and isinstance(last, int):  # clients may publish anything there
            yield first, last


def parse_logged_rows(raws: list[bytes]) -> Rows:
    """Return the rows that were in no batch when the broker ended, in order."""
    rows = Rows()
    for raw in raws:
        try:
            rows.extend(raw)
        except BadEvents as error:
            log.warning("events in the commit log cannot be read and are lost: %s", error)
    if rows.count:
        log.info("%d events from before the start are added to the event log", rows.count)
    return rows


def _header_of(pending: PendingBatch, data: bytes) -> bytes:
    headers = {
        schema.HEADER_VERSION: schema.VERSION,
        schema.HEADER_ROWS: pending.rows.count,
        schema.HEADER_FIRST: pending.rows.first_time,
        schema.HEADER_LAST: pending.rows.last_time,
        schema.HEADER_FROM: pending.first,
        schema.HEADER_TO: pending.last,
    }
    properties = BasicProperties(content_type=schema.CONTENT_TYPE, headers=headers, delivery_mode=2)
    return content_header(len(data), properties)
