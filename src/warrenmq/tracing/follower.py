"""Keeps the index of the event log up to date, and fetches batches through it.

Each new batch comes with its index entry; entries are added a few at a time. What is missing (after a crash, or
when the index was lost) is read from the log again. Readers wait until the index covers all that happened before
their question.

Owned by the loop, except the index: it belongs to a thread that runs one short step at a time, so neither the loop nor
the index waits for a long search.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from warrenmq.tracing.index import BadIndex, Index
from warrenmq.tracing.index_entry import IndexEntry, IndexQuery, checksum_of, entry_of_stored
from warrenmq.tracing.search import TracingUnavailable

log = logging.getLogger("warrenmq.tracing")

# How long readers wait for an index that lags.
INDEX_TIMEOUT = 10.0
# Bytes of the newest batches that are kept: one that was just appended cannot be read from the log at once.
RECENT_BYTES = 32 * 1024 * 1024
# New entries wait until there are this many, or until somebody asks: a step costs more than its work.
ENTRIES_PER_STEP = 16
# Entries in memory have at most this many keys, each entry counted as some; beyond that the log is read again.
MAX_WAITING_KEYS = 4_000_000
KEYS_PER_ENTRY = 128
# How often, in seconds, and how many times a batch that is still being written is looked for.
READ_INTERVAL = 0.05
READ_ATTEMPTS = 40

STOPPED = "the broker is stopping"

Result = TypeVar("Result")


class Stored(Protocol):
    """One batch in the log."""

    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes: ...


class BatchSource(Protocol):
    """The event log. If it is deleted and declared again, `identity` is another object and offsets begin at 0."""

    @property
    def identity(self) -> object: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...

    async def read(self, offset: int) -> Sequence[Stored]:
        """Return some batches from this offset (or the oldest one) on, in order; none at the end."""


class LogFollower:
    """`flush` returns when all events so far are in batches."""

    def __init__(self, source: BatchSource, flush: Callable[[], Awaitable[None]], folder: str | None) -> None:
        self.source = source
        self.index = Index(folder)
        self.failure: str | None = None  # why the index does not follow
        self._flush = flush
        self._thread: ThreadPoolExecutor | None = None
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._progress = asyncio.Condition()
        self._has_work = asyncio.Event()
        self._recent = _RecentBatches(None)
        self._identity: object = None  # of the log that is indexed
        self._indexed = 0  # everything before this offset

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = ThreadPoolExecutor(1, "warren-index")
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="warren-index")

    async def stop(self) -> None:
        """Write the index and release everybody who waits for it."""
        self._is_stopped = True
        await self._notify_progress()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._thread is not None:
            await self._close_index()
            self._thread.shutdown(wait=True)
            self._thread = None

    async def _close_index(self) -> None:
        try:
            if self.failure is None and self.source.identity is self._identity:
                await self._index_recent(self.source.first_offset)
            await self.run_in_thread(self.index.close)
        except (OSError, BadIndex) as error:
            log.warning("the index of the event log is not complete, and will be built again: %s", error)

    def batch_added(self, offset: int, data: bytes, entry: IndexEntry) -> None:
        """The log has appended a batch."""
        if self._recent.identity is not self.source.identity:
            self._recent = _RecentBatches(self.source.identity)
        self._recent.add(offset, data, entry)
        if offset + 1 - self._indexed >= ENTRIES_PER_STEP:
            self._has_work.set()

    # -- the index follows -------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self._load()
            while True:
                self._has_work.clear()
                await self._catch_up()
                await self._has_work.wait()
        except (OSError, BadIndex) as error:
            self.failure = f"the index of the event log cannot be kept: {error}"
            log.warning("%s", self.failure)
        except Exception as error:
            # A bug; only searches suffer from it.
            self.failure = f"internal error in the index of the event log: {error}"
            log.exception("internal error in the index of the event log")
        await self._notify_progress()

    async def _load(self) -> None:
        """Load the index, and clear it if it is that of another log."""
        self._identity = self.source.identity
        await self.run_in_thread(self.index.load)
        newest = await self.run_in_thread(self.index.newest)
        if newest is not None and not await self._is_in_log(*newest):
            log.warning("the index of the event log is of another log, and is built again")
            await self.run_in_thread(self.index.clear)
        self._indexed = self.index.next_offset

    async def _is_in_log(self, offset: int, checksum: int) -> bool:
        if offset >= self.source.next_offset:
            return False
        if offset < self.source.first_offset:
            return True  # retention has removed all of it, so it cannot be asked for
        data = await self.fetch(offset)
        return data is not None and checksum_of(data) == checksum

    async def _catch_up(self) -> None:
        while True:
            if self.source.identity is not self._identity:
                await self._restart()
            end = self.source.next_offset
            await self._index_recent(self.source.first_offset)
            if self._indexed >= end:
                await self._notify_progress()
                return
            for offset, data in await self._read_next():
                await self._index_stored(offset, data)

    async def _restart(self) -> None:
        """The log was deleted, and there is another."""
        self._identity = self.source.identity
        self._indexed = 0  # before the await: who waits for the new log must not see how far the old one was indexed
        await self.run_in_thread(self.index.clear)

    async def _read_next(self) -> list[tuple[int, bytes]]:
        """Return the next batches; an empty one in the place of those that cannot be read."""
        start = self._indexed
        data = self._recent.get(start)
        if data is not None:
            return [(start, data)]
        batches = await self._read(start)
        if batches:
            return [(batch.offset, batch.data) for batch in batches]
        return [(self._recent.first_after(start, self.source.next_offset) - 1, b"")]

    async def _read(self, offset: int) -> Sequence[Stored]:
        """Read from the log; wait a while for a batch that is still being written."""
        for _ in range(READ_ATTEMPTS):
            batches = await self.source.read(offset)
            if batches or offset >= self.source.next_offset:
                return batches
            await asyncio.sleep(READ_INTERVAL)
        return []

    async def _index_stored(self, offset: int, data: bytes) -> None:
        after = self._indexed
        self._indexed = await self.run_in_thread(lambda: self.index.add(entry_of_stored(offset, data), after))
        await self._notify_progress()

    async def _index_recent(self, first: int) -> None:
        """In one step: forget what the log no longer has, and add the entries that wait."""
        entries = self._recent.entries_from(max(self._indexed, first))

        def add_all() -> int:
            end = self.index.forget_before(first)
            for entry in entries:
                end = self.index.add(entry, end)
            return end

        self._indexed = await self.run_in_thread(add_all)
        self._recent.forget_entries(self._indexed)

    async def _notify_progress(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    # -- for readers -------------------------------------------------------------------------------------------------

    async def wait_until_indexed(self) -> None:
        """Return when the index has all that happened until now. Raises TracingUnavailable."""
        try:
            async with asyncio.timeout(INDEX_TIMEOUT):
                await self._flush()
                self._has_work.set()
                target = self.source.next_offset
                async with self._progress:
                    await self._progress.wait_for(lambda: self._has_reached(target))
        except TimeoutError:
            lag = f"it has {self._indexed} of {self.source.next_offset} batches"
            raise TracingUnavailable(f"the index of the event log is being built: {lag}") from None
        if self._is_stopped:
            raise TracingUnavailable(STOPPED)
        if self.failure is not None:
            raise TracingUnavailable(self.failure)

    def _has_reached(self, target: int) -> bool:
        if self.failure is not None or self._is_stopped:
            return True
        is_same = self._identity is self.source.identity
        return is_same and self._indexed >= min(target, self.source.next_offset)

    async def find(self, keys: Iterable[int]) -> list[int]:
        """Return the offsets of batches with one of these keys, in order. BadIndex: it is being rebuilt, ask again."""
        wanted = list(keys)
        first = self.source.first_offset
        return [offset for offset in await self.run_in_thread(lambda: self.index.find(wanted)) if offset >= first]

    async def candidates(self, query: IndexQuery, below: int) -> tuple[list[int], int]:
        """As `Index.candidates`."""
        first = self.source.first_offset
        offsets, below = await self.run_in_thread(lambda: self.index.candidates(query, below))
        return [offset for offset in offsets if offset >= first], below if below > first else 0

    async def fetch(self, offset: int) -> bytes | None:
        """Return the bytes of a batch; None if it is no longer kept."""
        data = self._recent.get(offset)
        if data is not None:
            return data
        return next((batch.data for batch in await self._read(offset) if batch.offset == offset), None)

    async def run_in_thread(self, step: Callable[[], Result]) -> Result:
        if self._thread is None:
            raise TracingUnavailable(STOPPED)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, step)
        except BadIndex:
            self._indexed = self.index.next_offset
            raise


class _RecentBatches:
    """The newest batches of one log."""

    def __init__(self, identity: object) -> None:
        self.identity = identity
        self._batches: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._entries: OrderedDict[int, IndexEntry] = OrderedDict()  # of those that are not indexed yet
        self._keys = 0

    def add(self, offset: int, data: bytes, entry: IndexEntry) -> None:
        if self._keys < MAX_WAITING_KEYS:
            self._entries[offset] = entry.at(offset)
            self._keys += KEYS_PER_ENTRY + len(entry.keys)
        self._batches[offset] = data
        self._bytes += len(data)
        while self._bytes > RECENT_BYTES and len(self._batches) > 1:
            self._bytes -= len(self._batches.popitem(last=False)[1])

    def get(self, offset: int) -> bytes | None:
        return self._batches.get(offset)

    def first_after(self, offset: int, end: int) -> int:
        """Return the first offset after this one that is at hand, or `end`."""
        return next((each for each in self._batches if each > offset), end)

    def entries_from(self, offset: int) -> list[IndexEntry]:
        """Return the entries of the batch at this offset and those that directly follow it."""
        found: list[IndexEntry] = []
        while (entry := self._entries.get(offset)) is not None:
            found.append(entry)
            offset += 1
        return found

    def forget_entries(self, before: int) -> None:
        """They are indexed."""
        while self._entries and next(iter(self._entries)) < before:
            self._keys -= KEYS_PER_ENTRY + len(self._entries.popitem(last=False)[1].keys)
