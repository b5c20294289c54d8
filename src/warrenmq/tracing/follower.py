"""Keeps the index of the event log up to date, and lets answers use it.

Each new batch comes with its index entry; entries are added a few at a time. What is missing (after a crash, or when
the index was lost) is read from the log again. An answer waits until the index covers all that happened before its
question.

Owned by the loop, except the index. Its users are threads, one for indexing and some for answers. One of them works at
a time, and pauses after a short step until the loop has come round: so neither the loop nor the index waits for a long
search.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from warrenmq.events.batch import RowFilter
from warrenmq.tracing.index import BadIndex, Index, IndexEntry, checksum_of, entry_of_stored
from warrenmq.tracing.search import TracingUnavailable

if TYPE_CHECKING:
    from warrenmq.tracing.log import EventLog

log = logging.getLogger("warrenmq.tracing")

# How long answers wait for an index that lags, or for a batch.
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


class LogFollower:
    """`readers` is the number of answers that are made at a time."""

    def __init__(self, event_log: EventLog, folder: str | None, readers: int) -> None:
        self.log = event_log
        self.index = Index(folder)
        self._threads = ThreadPoolExecutor(readers + 1, "warren-index")
        self._working = threading.Lock()  # held by the thread that works, which owns the index
        self._task: asyncio.Task[None] | None = None
        self._failure: str | None = None  # why the index does not follow
        self._is_stopped = False
        self._recent = _RecentBatches(None)
        self._identity: object = self  # of the log that is indexed; none before the index is loaded

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._follow()

    async def stop(self) -> None:
        """Write the index and release everybody who waits for it."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            try:
                if self._failure is None and self.log.identity is self._identity:
                    await self._add_recent()
                await self.run(self.index.close)
            except (OSError, BadIndex) as error:
                log.warning("the index of the event log is not complete, and will be built again: %s", error)
        await asyncio.to_thread(self._threads.shutdown)

    def batch_added(self, offset: int, data: bytes, entry: IndexEntry) -> None:
        """The log has appended a batch."""
        if self._recent.identity is not self.log.identity:
            self._recent = _RecentBatches(self.log.identity)
        self._recent.add(offset, data, entry)
        if offset + 1 - self.index.next_offset >= ENTRIES_PER_STEP:
            self._follow()

    # -- the index follows -------------------------------------------------------------------------------------------

    def _follow(self) -> asyncio.Task[None]:
        """Return the task that adds to the index what is missing; it ends when there is no more."""
        if self._task is None or (self._task.done() and self._failure is None and not self._is_stopped):
            self._task = self._loop.create_task(self._catch_up(), name="warren-index")
        return self._task

    async def _catch_up(self) -> None:
        try:
            while True:
                if self.log.identity is not self._identity:
                    await self._begin()
                end = self.log.next_offset
                await self._add_recent()
                if self.index.next_offset >= end:
                    return
                await self._add_stored()
        except OSError as error:
            self._failure = f"the index of the event log cannot be kept: {error}"
            log.warning("%s", self._failure)
        except Exception as error:
            # A bug; only searches suffer from it.
            self._failure = f"internal error in the index of the event log: {error}"
            log.exception("internal error in the index of the event log")

    async def _begin(self) -> None:
        """Load the index, and clear it if it is that of another log, as it is if the log was deleted meanwhile."""
        identity = self.log.identity
        is_same = False
        if self._identity is self:
            await self.run(self.index.load)
            newest = await self.run(self.index.newest)
            is_same = newest is None or await self._is_in_log(*newest)
            if not is_same:
                log.warning("the index of the event log is of another log, and is built again")
        if not is_same:
            await self.run(self.index.clear)
        self._identity = identity  # from now on an answer may rely on the index

    async def _is_in_log(self, offset: int, checksum: int) -> bool:
        if offset >= self.log.next_offset:
            return False
        if offset < self.log.first_offset:
            return True  # retention has removed all of it, so it cannot be asked for
        data = (await self._read(offset)).get(offset)
        return data is not None and checksum_of(data) == checksum

    async def _add_recent(self) -> None:
        """In one step: forget what the log no longer has, and add the entries that wait."""
        first, after = self.log.first_offset, self.index.next_offset
        entries = self._recent.entries_from(max(after, first))

        def add() -> None:
            end = max(after, first)
            self.index.forget_before(first)
            for entry in entries:
                end = self.index.add(entry, end)

        await self.run(add)
        self._recent.forget_entries(self.index.next_offset)

    async def _add_stored(self) -> None:
        """Add the next batches as they are in the log; an empty one in the place of those that cannot be read."""
        after = self.index.next_offset
        batches = await self._read(after) or {self._recent.first_after(after, self.log.next_offset) - 1: b""}
        for offset, data in batches.items():
            after = await self.run(partial(self._add_batch, offset, data, after))
            if after <= offset:
                return  # the index was damaged, and is empty now

    def _add_batch(self, offset: int, data: bytes, after: int) -> int:
        return self.index.add(entry_of_stored(offset, data), after)

    async def _read(self, offset: int) -> Mapping[int, bytes]:
        """Read some batches from this offset on; wait a while for one that is still being written."""
        data = self._recent.get(offset)
        if data is not None:
            return {offset: data}
        for _ in range(READ_ATTEMPTS):
            batches = await self.log.read(offset)
            if batches or offset >= self.log.next_offset:
                return batches
            await asyncio.sleep(READ_INTERVAL)
        return {}

    # -- answers -----------------------------------------------------------------------------------------------------

    async def wait_until_indexed(self) -> None:
        """Return when the index has all that happened until now. Raises TracingUnavailable."""
        try:
            async with asyncio.timeout(INDEX_TIMEOUT):
                await self.log.flush()
                target = self.log.next_offset
                while not self._has_reached(target):
                    await asyncio.wait([self._follow()])
        except TimeoutError:
            lag = f"it has {self.index.next_offset} of {self.log.next_offset} batches"
            raise TracingUnavailable(f"the index of the event log is being built: {lag}") from None
        if self._is_stopped:
            raise TracingUnavailable(STOPPED)
        if self._failure is not None:
            raise TracingUnavailable(self._failure)

    def _has_reached(self, target: int) -> bool:
        if self._failure is not None or self._is_stopped:
            return True
        is_same = self._identity is self.log.identity
        return is_same and self.index.next_offset >= min(target, self.log.next_offset)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do this in a thread, which owns the index meanwhile."""

        def run() -> Result:
            with self._working:
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def pause(self) -> None:
        """In a thread: let others work until the loop has come round. TracingUnavailable: the broker is stopping."""
        has_come_round = threading.Event()
        self._loop.call_soon_threadsafe(has_come_round.set)
        with self._others_work():
            has_come_round.wait()
        if self._is_stopped:
            raise TracingUnavailable(STOPPED)

    def fetch(self, offset: int) -> bytes | None:
        """In a thread: return the bytes of a batch; None if it is no longer kept."""
        data = self._recent.get(offset)
        if data is None:
            reading = asyncio.run_coroutine_threadsafe(self._read(offset), self._loop)
            with self._others_work():
                data = reading.result(INDEX_TIMEOUT).get(offset)
        return data

    @contextmanager
    def _others_work(self) -> Iterator[None]:
        self._working.release()
        try:
            yield
        finally:
            self._working.acquire()

    def find(self, keys: Sequence[int]) -> list[int]:
        """In a thread: return the offsets of batches with one of these keys, in order."""
        first = self.log.first_offset
        return [offset for offset in self.index.find(keys) if offset >= first]

    def candidates(self, wanted: RowFilter, below: int) -> tuple[list[int], int]:
        """In a thread: as `Index.candidates`."""
        first = self.log.first_offset
        offsets, below = self.index.candidates(wanted, below)
        return [offset for offset in offsets if offset >= first], below if below > first else 0


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
            self._entries[offset] = replace(entry, offset=offset)
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
