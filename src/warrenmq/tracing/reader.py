"""Answers questions about the event log: the biography of a message, and searches.

The work of an answer is bounded (`ReadLimits`): by events decoded, batches opened, and time. If something is left out,
the answer says so: a biography is `truncated`, a search has a cursor. A few answers run at a time, others wait in order
(an answer takes up to half a second of the interpreter). A cancelled answer stops after its current step.

`Traces` is owned by the loop. An answer is made in a thread, which pauses after each short step (`_Batches.paced`).
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from warrenmq.events import schema
from warrenmq.events.batch import EventBatch, RowFilter
from warrenmq.events.codec import decode
from warrenmq.events.errors import BadEvents
from warrenmq.events.ids import MESSAGE_ID_KEY, key_hash, parse_uid, uid_key
from warrenmq.events.schema import Event
from warrenmq.tracing.biography import Biography, BiographyBuilder
from warrenmq.tracing.follower import STOPPED, LogFollower
from warrenmq.tracing.index import MADE_FROM_ANOTHER, BadIndex
from warrenmq.tracing.search import (
    Cursor,
    EventPosition,
    TracePage,
    TraceQuery,
    TraceSummary,
    TracingBusy,
    TracingUnavailable,
    parse_cursor,
    query_keys,
    row_filters,
    summarize,
)

if TYPE_CHECKING:
    from warrenmq.tracing.index import IndexEntry
    from warrenmq.tracing.log import EventLog

# Decoded batches that one answer keeps at hand.
MAX_HELD_BATCHES = 16
# An answer pauses after that much work, in seconds: the loop may have to wait that long for the interpreter, some times
# per message. Longer steps give no more answers per second.
STEP = 0.00015
ROWS_AT_ONCE = 5_000
KEYS_AT_ONCE = 16

_REMOVALS = frozenset({schema.DROPPED, schema.EXPIRED})
_NO_MESSAGE = frozenset({0})

Result = TypeVar("Result")
Item = TypeVar("Item")
PlacedEvents = list[tuple[EventPosition, Event]]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What one answer may cost, and how many run at a time."""

    events: int = 10_000  # decoded for one answer
    batches: int = 1_000  # opened for one answer
    seconds: float = 10.0  # for a biography
    search_seconds: float = 4.0  # for a page of a search, which continues with a cursor
    readers: int = 2
    waiting: int = 64
    waiting_seconds: float = 10.0


class Traces:
    """The port of `management/ports.py`.

    `folder` is that of the index, None for one in memory. `began` is when the broker started, in us; now if None.
    """

    def __init__(
        self,
        log: EventLog,
        folder: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        began: int | None = None,
        limits: ReadLimits | None = None,
    ) -> None:
        self._limits = limits or ReadLimits()
        self._follower = LogFollower(log, folder, self._limits.readers)
        self._clock = clock
        self._began = time.time_ns() // 1000 if began is None else began
        self._turns = asyncio.Semaphore(self._limits.readers)
        self._waiting = 0

    async def start(self) -> None:
        self._follower.start()

    async def stop(self) -> None:
        """Write the index and refuse further questions."""
        await self._follower.stop()

    def batch_added(self, offset: int, data: bytes, entry: IndexEntry) -> None:
        """The log has appended a batch."""
        self._follower.batch_added(offset, data, entry)

    def figures(self) -> dict[str, int]:
        return self._follower.index.figures()

    async def biography(self, key: str) -> Biography | None:
        """Return the biography of the message with this message id or uid; None if none of its events are kept."""
        return await self._answer(lambda batches: _Biographer(batches).find(key, self._began), self._limits.seconds)

    async def search(self, query: TraceQuery) -> TracePage:
        """Return one page. ValueError: the cursor is not valid."""
        return await self._answer(lambda batches: _Searcher(batches, query).run(), self._limits.search_seconds)

    async def _answer(self, ask: Callable[[_Batches], Result], seconds: float) -> Result:
        """Ask, and ask once more if the index proved to be damaged: it has been rebuilt then."""
        async with self._turn():
            for _ in range(2):
                await self._follower.wait_until_indexed()
                batches = _Batches(self._follower, self._limits, self._clock, seconds)
                try:
                    return await self._follower.run(lambda: ask(batches))  # noqa: B023 - awaited here
                except BadIndex:
                    continue
                finally:
                    batches.close()
        raise TracingUnavailable("the index of the event log is damaged repeatedly")

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for a turn, in order; the block releases it. TracingBusy: too many wait, or the wait was too long."""
        if self._turns.locked() and self._waiting >= self._limits.waiting:
            raise self._busy()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.waiting_seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise self._busy() from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    def _busy(self) -> TracingBusy:
        text = f"{self._limits.readers} searches are running and {self._waiting} are waiting; try again later"
        return TracingBusy(text, max(1, round(self._limits.search_seconds)))


class _Batches:
    """Opens batches for one answer, and counts and paces its work. Used in the thread of the answer."""

    def __init__(self, follower: LogFollower, limits: ReadLimits, clock: Callable[[], float], seconds: float) -> None:
        self.follower = follower
        self.limits = limits
        self._clock = clock
        self._deadline = clock() + seconds
        self._resumed_at = time.perf_counter()
        self._opened = 0
        self.events_left = limits.events
        self.is_truncated = False  # events of the answer were left out
        self._is_closed = False
        self.open = lru_cache(MAX_HELD_BATCHES)(self._open)

    def close(self) -> None:
        """The answer is made, or its caller is gone; called on the loop."""
        self._is_closed = True
        self.open.cache_clear()

    @property
    def is_exhausted(self) -> bool:
        """Return True if the answer must end with what it has."""
        return self.events_left <= 0 or self._opened >= self.limits.batches or self._is_late()

    def paced(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, with a pause whenever a step is over. TracingUnavailable: the answer was cancelled."""
        for item in items:
            if time.perf_counter() - self._resumed_at >= STEP:
                if self._is_closed:
                    raise TracingUnavailable(STOPPED)
                self.follower.pause()
                self._resumed_at = time.perf_counter()
            yield item

    def _open(self, offset: int) -> EventBatch | None:
        """Return the batch; None if it is no longer kept, or damaged."""
        self._opened += 1
        data = self.follower.fetch(offset)
        try:
            return None if data is None else decode(data)
        except BadEvents:  # was logged when it was indexed
            return None

    def select(self, offset: int, wanted: Sequence[RowFilter], known: Container[EventPosition] = ()) -> PlacedEvents:
        """Return the events of a batch that match any filter and are not known, in order, within the limit.

        One row more than the limit is selected, to know whether any is left out.
        """
        batch = self.open(offset)
        if batch is None:
            return []
        rows: set[int] = set()
        for number, selection in enumerate(self.paced(wanted)):
            if number and self._is_late():
                self.is_truncated = True
                break
            rows.update(self.rows(batch, selection))
        unknown = [row for row in sorted(rows) if (offset, row) not in known]
        if len(unknown) > self.events_left:
            self.is_truncated = True
        return self.decode(offset, batch, unknown[: self.events_left])

    def rows(self, batch: EventBatch, wanted: RowFilter) -> list[int]:
        return batch.select(wanted, self.limits.events + 1)

    def decode(self, offset: int, batch: EventBatch, rows: Sequence[int]) -> PlacedEvents:
        """Return these rows as events."""
        self.events_left -= len(rows)
        return [(EventPosition(offset, row), _decode(batch, row)) for row in self.paced(rows)]

    def find(self, keys: Iterable[int]) -> list[int]:
        """Return the offsets of batches with one of these keys, in order."""
        found: set[int] = set()
        remaining = iter(keys)
        while some := list(self.paced(islice(remaining, KEYS_AT_ONCE))):
            found.update(self.follower.find(some))
            if self._is_late():
                break
        return sorted(found)

    def candidates(self, wanted: RowFilter, below: int) -> Iterator[int]:
        """Iterate over the offsets below this one of batches that may have such rows, the last first."""
        while below:
            offsets, below = self.follower.candidates(wanted, below)
            yield from self.paced(offsets)

    def _is_late(self) -> bool:
        return self._clock() > self._deadline


def _decode(batch: EventBatch, row: int) -> Event:
    event: Event = batch.event(row)
    return event


class _Biographer:
    """Collects the events of a message and its relatives: same message id, its source, messages made from it.

    Also of removals from the queues in which it waits. The requested message comes first, so that its own events are
    complete even if its relatives are too many.
    """

    def __init__(self, batches: _Batches) -> None:
        self._batches = batches
        self._found: dict[EventPosition, Event] = {}
        self._ids: dict[int | str, bool] = {}  # uids and message ids, True once searched for

    def find(self, key: str, began: int) -> Biography | None:
        """Return the biography of the message with this id; `began`: when the broker started."""
        uid = parse_uid(key)
        if uid is not None:
            self._add_matching([uid])
        self._ids.setdefault(key, False)
        while not self._batches.is_exhausted:
            new = [each for each, was_searched in self._ids.items() if not was_searched]
            if not new:
                break
            self._add_matching(new)
        builder = self._build()
        without_removals = len(self._found)
        for (vhost, queue), since in builder.waiting_since().items():
            self._add_removals(vhost, queue, since)
        if len(self._found) > without_removals:
            builder = self._build()
        is_truncated = self._batches.is_truncated or not all(self._ids.values())
        return builder.biography(self._batches.paced(builder.stays), began, is_truncated)

    def _add_matching(self, ids: Sequence[int | str]) -> None:
        self._ids.update(dict.fromkeys(ids, True))
        uids = frozenset(each for each in ids if isinstance(each, int))
        message_ids = [each for each in ids if isinstance(each, str)]
        keys = {uid_key(uid) for uid in uids}
        keys |= {key_hash(MESSAGE_ID_KEY, text.encode("utf-8", "replace")) for text in message_ids}
        wanted = [RowFilter(message_id=text) for text in message_ids]
        if uids:
            wanted.append(RowFilter(uids=uids))
        for offset in self._batches.find(keys):
            if self._batches.is_exhausted:
                self._batches.is_truncated = True
                return
            for position, event in self._batches.select(offset, wanted, self._found):
                self._add(position, event)
            self._add_derived(offset, uids)

    def _add_derived(self, offset: int, uids: frozenset[int]) -> None:
        """Add the uids of messages that were made from these, to be searched for."""
        batch = self._batches.open(offset)
        if uids and batch is not None and len(self._ids) <= self._batches.limits.events:
            rows = self._batches.rows(batch, replace(MADE_FROM_ANOTHER, source_uids=uids))
            for uid in batch.uids(rows):
                self._ids.setdefault(uid, False)

    def _add_removals(self, vhost: str, queue: str, since: int) -> None:
        """Messages on disk are removed by one event for all, which has no uid."""
        wanted = RowFilter(kinds=_REMOVALS, uids=_NO_MESSAGE, vhost=vhost, queue=queue)
        for offset in self._batches.candidates(
            replace(wanted, time_from=since), self._batches.follower.log.next_offset
        ):
            if self._batches.is_exhausted:
                self._batches.is_truncated = True
                return
            self._found.update(self._batches.select(offset, [wanted], self._found))

    def _add(self, position: EventPosition, event: Event) -> None:
        self._found[position] = event
        for related in (event.uid or None, event.source_uid, event.message_id):
            if related is not None:
                self._ids.setdefault(related, False)

    def _build(self) -> BiographyBuilder:
        builder = BiographyBuilder()
        builder.add(self._found[position] for position in self._batches.paced(sorted(self._found)))
        return builder


class _Searcher:
    """Searches the log backwards from its end, or from a cursor, until a page and one more are found.

    If a message has more events than the answer may decode, its summary counts those that were read.
    """

    def __init__(self, batches: _Batches, query: TraceQuery) -> None:
        self._batches = batches
        self._query = query
        self._filters = row_filters(query)
        self._found: list[tuple[EventPosition, TraceSummary]] = []
        self._seen: set[int] = {0}  # rows that concern no message
        end = batches.follower.log.next_offset
        self._begin = Cursor(end, EventPosition(end, 0)) if query.cursor is None else parse_cursor(query.cursor, end)
        self._position = self._begin.position  # everything from there on was searched

    def run(self) -> TracePage:
        for offset in self._offsets() if self._filters else ():
            self._search_batch(offset)
            if self._has_enough:
                return self._page(self._found[self._query.limit - 1][0])
            if self._batches.is_exhausted:
                return self._page(self._position)
        return self._page(None)

    def _offsets(self) -> Iterable[int]:
        """Return the offsets of batches that may match, newest first."""
        offset, row = self._begin.position
        below = offset + (row > 0)
        keys = query_keys(self._query)
        if not keys:
            return self._batches.candidates(self._filters[0], below)
        found = set.intersection(*[set(self._batches.find([key])) for key in keys])
        return sorted((each for each in found if each < below), reverse=True)

    @property
    def _has_enough(self) -> bool:
        return len(self._found) > self._query.limit

    def _page(self, position: EventPosition | None) -> TracePage:
        traces = [summary for _, summary in self._found[: self._query.limit]]
        return TracePage(traces, None if position is None else Cursor(self._begin.top, position).text())

    def _search_batch(self, offset: int) -> None:
        """Add the matching messages of a batch, newest first, until there are enough."""
        batch = self._batches.open(offset)
        rows = [] if batch is None else self._matching(batch, self._filters)
        if offset == self._begin.position.offset:
            del rows[bisect_left(rows, self._begin.position.row) :]
        while batch is not None and rows:
            found = self._newest(batch, rows)
            self._take(offset, batch, found)
            if self._has_enough or self._batches.is_exhausted:
                break
        self._position = EventPosition(offset, rows[-1] + 1 if rows else 0)

    def _matching(self, batch: EventBatch, filters: Iterable[RowFilter]) -> list[int]:
        """Return the rows that match any of the filters, in order."""
        found = [batch.select(wanted) for wanted in self._batches.paced(filters)]
        return found[0] if len(found) == 1 else sorted(chain(*found))

    def _newest(self, batch: EventBatch, rows: list[int]) -> dict[int, int]:
        """Take rows off the end until there are enough messages; return their uids, and the last row of each."""
        most = self._query.limit + 1 - len(self._found)
        uids = batch.uids(rows[-ROWS_AT_ONCE:])
        found: dict[int, int] = {}
        while uids and len(found) < most:
            uid, row = uids.pop(), rows.pop()
            if uid not in self._seen:
                self._seen.add(uid)
                found[uid] = row
        return found

    def _take(self, offset: int, batch: EventBatch, rows: dict[int, int]) -> None:
        """Add these messages, unless an earlier page showed them."""
        shown = self._already_shown(frozenset(rows)) if self._query.cursor is not None else ()
        rows = {uid: row for uid, row in rows.items() if uid not in shown}
        found = self._events_of(offset, batch, rows)
        for uid, row in rows.items():
            events = [event for _, event in sorted(found[uid].items())]
            self._found.append((EventPosition(offset, row), summarize(events)))

    def _already_shown(self, uids: frozenset[int]) -> set[int]:
        """Return those that an earlier page showed: they also match after the cursor."""
        shown: set[int] = set()
        begin, top = self._begin.position, self._begin.top
        filters = [replace(wanted, uids=uids) for wanted in self._filters]
        for offset in self._batches.find({uid_key(uid) for uid in uids}):
            batch = self._batches.open(offset) if begin.offset <= offset < top else None
            if batch is not None:
                rows = self._matching(batch, filters)
                shown.update(batch.uids(rows[bisect_left(rows, begin.row) :] if offset == begin.offset else rows))
        return shown

    def _events_of(self, offset: int, batch: EventBatch, rows: dict[int, int]) -> dict[int, dict[EventPosition, Event]]:
        """Return the events of these messages, at least those of these rows."""
        uids = frozenset(rows)
        found: dict[int, dict[EventPosition, Event]] = {uid: {} for uid in uids}
        placed = self._batches.decode(offset, batch, list(rows.values()))
        for at in self._batches.find({uid_key(uid) for uid in uids}):
            if self._batches.is_exhausted:
                break
            placed += self._batches.select(at, [RowFilter(uids=uids)])
        for position, event in placed:
            found[event.uid][position] = event
        return found
