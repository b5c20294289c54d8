"""Keeps the index of the event log up to date, and fetches batches by it.

Each batch comes with its note, and a few of these are added at a time; what is behind (a start, a crash, an index that
was lost) is read from the log again. Who asks waits until the index has all that happened before the question.

Owned by the loop, but for the index: that belongs to a thread, in which everything is done that takes long, one step
at a time. So neither the loop nor the index waits for a long search.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from warrenmq.journal.files import Files
from warrenmq.tracing.index import Index, checksum_of, note_of_stored
from warrenmq.tracing.index_file import BadIndex, BatchNote, IndexQuery
from warrenmq.tracing.search import TracingUnavailable

log = logging.getLogger("warrenmq.tracing")

# Who asks waits so many seconds for an index that is behind.
INDEX_PATIENCE = 10.0
# The newest batches are kept, up to so many bytes: one that was just appended cannot be read from the log at once.
RECENT_BYTES = 32 * 1024 * 1024
# Notes of new batches wait for so many, or for somebody who asks: a step costs more than what it does.
NOTES_AT_ONCE = 16
# And they wait in memory as long as they have no more keys together, each note counted as some; of what is behind that
# the log has to be read.
MOST_KEYS = 4_000_000
KEYS_OF_A_NOTE = 128
# Whether it can be read is asked so often, in seconds, and so many times.
READ_AGAIN = 0.05
READ_TIMES = 40

STOPPED = "the broker is being stopped"

Result = TypeVar("Result")


class Stored(Protocol):
    """One batch as it lies in the log."""

    @property
    def offset(self) -> int: ...
    @property
    def octets(self) -> bytes: ...


class BatchSource(Protocol):
    """The event log. `identity` is another object when it was made anew, and begins at offset 0 again."""

    @property
    def identity(self) -> object: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...

    async def read(self, offset: int) -> Sequence[Stored]:
        """Some batches from there on, in order, or from the oldest that is kept; none at the end."""


class LogFollower:
    """`flush` returns when all that happened so far is in batches."""

    def __init__(
        self, source: BatchSource, flush: Callable[[], Awaitable[None]], folder: str | None, files: Files
    ) -> None:
        self.source = source
        self.index = Index(folder, files)
        self.failure: str | None = None  # why the index does not follow
        self._flush = flush
        self._thread: ThreadPoolExecutor | None = None
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._progress = asyncio.Condition()
        self._news = asyncio.Event()
        self._recent = _Recent()
        self._identity: object = None  # of the log that the index is of
        self._indexed = 0  # everything before this offset

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the log."""
        self._thread = ThreadPoolExecutor(1, "warren-index")
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="warren-index")

    async def stop(self) -> None:
        """Write what was indexed. The log is not read any more, and who waits for the index need not."""
        self._is_stopped = True
        await self._tell_progress()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._thread is not None:
            await self._seal()
            self._thread.shutdown(wait=True)
            self._thread = None

    async def _seal(self) -> None:
        try:
            if self.failure is None and self.source.identity is self._identity:
                await self._note_recent(self.source.first_offset)
            await self.do(self.index.seal)
        except (OSError, BadIndex) as problem:
            log.warning("the index of the event log is not complete, and will be built again: %s", problem)

    def batch_was_added(self, offset: int, octets: bytes, note: BatchNote) -> None:
        """On the loop, right after it was appended."""
        self._recent.put(self.source.identity, offset, octets, note)
        if offset + 1 - self._indexed >= NOTES_AT_ONCE:
            self._news.set()

    # -- the index follows -------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self._load()
            while True:
                self._news.clear()
                await self._catch_up()
                await self._news.wait()
        except (OSError, BadIndex) as problem:
            self.failure = f"the index of the event log cannot be kept: {problem}"
            log.warning("%s", self.failure)
        except Exception as problem:
            # A bug, which must cost the searches and nothing else.
            self.failure = f"internal error in the index of the event log: {problem}"
            log.exception("internal error in the index of the event log")
        await self._tell_progress()

    async def _load(self) -> None:
        """Take the index that is there, if it is one of this log."""
        self._identity = self.source.identity
        await self.do(self.index.load)
        newest = await self.do(self.index.newest)
        if newest is not None and not await self._is_in_log(*newest):
            log.warning("the index of the event log is of another log, and is built again")
            await self.do(self.index.clear)
        self._indexed = self.index.next_offset

    async def _is_in_log(self, offset: int, checksum: int) -> bool:
        if offset >= self.source.next_offset:
            return False
        if offset < self.source.first_offset:
            return True  # nothing of it is kept, and nothing of it will be asked for
        octets = await self.fetch(offset)
        return octets is not None and checksum_of(octets) == checksum

    async def _catch_up(self) -> None:
        while True:
            if self.source.identity is not self._identity:
                await self._begin_anew()
            end = self.source.next_offset
            await self._note_recent(self.source.first_offset)
            if self._indexed >= end:
                await self._tell_progress()
                return
            for offset, octets in await self._read_on():
                await self._note(offset, octets)

    async def _begin_anew(self) -> None:
        """The log was deleted, and there is another."""
        self._identity = self.source.identity
        self._indexed = 0  # at once: who waits for the new log must not be told how far the old one was indexed
        await self.do(self.index.clear)

    async def _read_on(self) -> list[tuple[int, bytes]]:
        """The next batches; what cannot be had in time is left out: from there on the log has nothing to read."""
        start = self._indexed
        octets = self._recent.get(start)
        if octets is not None:
            return [(start, octets)]
        batches = await self._read(start)
        if batches:
            return [(batch.offset, batch.octets) for batch in batches]
        return [(self._recent.first_behind(start, self.source.next_offset) - 1, b"")]

    async def _read(self, offset: int) -> Sequence[Stored]:
        """Read from the log; wait a while for a batch that is still being written."""
        for _ in range(READ_TIMES):
            batches = await self.source.read(offset)
            if batches or offset >= self.source.next_offset:
                return batches
            await asyncio.sleep(READ_AGAIN)
        return []

    async def _note(self, offset: int, octets: bytes) -> None:
        after = self._indexed
        self._indexed = await self.do(lambda: self.index.add(note_of_stored(offset, octets), after))
        await self._tell_progress()

    async def _note_recent(self, first: int) -> None:
        """What the log keeps no longer goes from the index, and what is noted already joins it: in one step."""
        notes = self._recent.notes_from(max(self._indexed, first))

        def add_all() -> int:
            end = self.index.forget_before(first)
            for note in notes:
                end = self.index.add(note, end)
            return end

        self._indexed = await self.do(add_all)
        self._recent.forget_notes(self._indexed)

    async def _tell_progress(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    # -- for those who ask -------------------------------------------------------------------------------------------

    async def be_up_to_date(self) -> None:
        """Return when the index has all that happened until now."""
        try:
            async with asyncio.timeout(INDEX_PATIENCE):
                await self._flush()
                self._news.set()
                await self._reach(self.source.next_offset)
        except TimeoutError:
            behind = f"it has {self._indexed} of {self.source.next_offset} batches"
            raise TracingUnavailable(f"the index of the event log is being built: {behind}") from None
        if self._is_stopped:
            raise TracingUnavailable(STOPPED)
        if self.failure is not None:
            raise TracingUnavailable(self.failure)

    async def _reach(self, target: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: self._has_reached(target))

    def _has_reached(self, target: int) -> bool:
        if self.failure is not None or self._is_stopped:
            return True
        is_same = self._identity is self.source.identity
        return is_same and self._indexed >= min(target, self.source.next_offset)

    async def find(self, keys: Iterable[int]) -> list[int]:
        """The offsets of batches that have one of these keys, in order. BadIndex: it is built again, ask again."""
        wanted = list(keys)
        first = self.source.first_offset
        return [offset for offset in await self.do(lambda: self.index.find(wanted)) if offset >= first]

    async def candidates(self, wanted: IndexQuery, below: int) -> tuple[list[int], int]:
        """As `Index.candidates`."""
        first = self.source.first_offset
        offsets, below = await self.do(lambda: self.index.candidates(wanted, below))
        return [offset for offset in offsets if offset >= first], below if below > first else 0

    async def fetch(self, offset: int) -> bytes | None:
        """The bytes of a batch; None if it is no longer kept."""
        octets = self._recent.get(offset)
        if octets is not None:
            return octets
        for batch in await self._read(offset):
            if batch.offset == offset:
                return batch.octets
        return None

    async def do(self, step: Callable[[], Result]) -> Result:
        """In the thread."""
        if self._thread is None:
            raise TracingUnavailable(STOPPED)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, step)
        except BadIndex:
            self._indexed = self.index.next_offset
            raise


class _Recent:
    """The newest batches of one log."""

    def __init__(self) -> None:
        self._identity: object = None
        self._batches: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._notes: OrderedDict[int, BatchNote] = OrderedDict()  # of those that are not in the index yet
        self._keys = 0

    def put(self, identity: object, offset: int, octets: bytes, note: BatchNote) -> None:
        if identity is not self._identity:
            self._identity = identity
            self._batches.clear()
            self._bytes = 0
            self._notes.clear()
            self._keys = 0
        if self._keys < MOST_KEYS:
            self._notes[offset] = note.at(offset)
            self._keys += KEYS_OF_A_NOTE + len(note.keys)
        self._batches[offset] = octets
        self._bytes += len(octets)
        while self._bytes > RECENT_BYTES and len(self._batches) > 1:
            self._bytes -= len(self._batches.popitem(last=False)[1])

    def get(self, offset: int) -> bytes | None:
        return self._batches.get(offset)

    def first_behind(self, offset: int, end: int) -> int:
        """The first that is at hand behind this one; `end` if there is none."""
        return next((each for each in self._batches if each > offset), end)

    def notes_from(self, offset: int) -> list[BatchNote]:
        """Of the batch at this offset and those right behind it."""
        found: list[BatchNote] = []
        while (note := self._notes.get(offset)) is not None:
            found.append(note)
            offset += 1
        return found

    def forget_notes(self, before: int) -> None:
        """The index has them."""
        while self._notes and next(iter(self._notes)) < before:
            self._keys -= KEYS_OF_A_NOTE + len(self._notes.popitem(last=False)[1].keys)
