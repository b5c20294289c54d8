"""Answers questions about the event log: the biography of a message, and searches.

The work of an answer is bounded (`ReadLimits`): by events decoded, batches opened, and time. If something is left out,
the answer says so: a biography is `truncated`, a search has a cursor. A few answers run at a time, others wait
(turns.py). A cancelled answer stops after its current step.

Owned by the loop; the follower's thread does the work, in steps of about a millisecond.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from warrenmq.events import schema
from warrenmq.events.batch import EventBatch, RowFilter
from warrenmq.events.codec import decode
from warrenmq.events.errors import BadEvents
from warrenmq.events.ids import MESSAGE_ID_KEY, key_hash, parse_uid, uid_key
from warrenmq.events.schema import Event
from warrenmq.tracing.biography import Biography, BiographyBuilder, Leg
from warrenmq.tracing.follower import BatchSource, LogFollower
from warrenmq.tracing.index import BadIndex
from warrenmq.tracing.index_entry import MADE_FROM_ANOTHER, QUEUE, IndexEntry, IndexQuery
from warrenmq.tracing.search import (
    Cursor,
    EventPosition,
    TracePage,
    TraceQuery,
    TraceSummary,
    TracingUnavailable,
    index_query,
    matching_rows,
    parse_cursor,
    query_keys,
    summarize,
)
from warrenmq.tracing.turns import ReadLimits, Turns

# Decoded batches that one answer keeps at hand.
MAX_HELD_BATCHES = 16
# The work of one step of the thread, about a millisecond, which is how long the loop may wait for the interpreter:
# decoding an event takes 9 us, adding it to a biography 11.
EVENTS_PER_STEP = 100
ROWS_PER_STEP = 5_000
KEYS_PER_STEP = 16

_REMOVALS = frozenset({schema.DROPPED, schema.EXPIRED})
_NO_MESSAGE = frozenset({0})

Result = TypeVar("Result")
Item = TypeVar("Item")
PlacedEvents = list[tuple[EventPosition, Event]]


class Traces:
    """The port of `management/ports.py`.

    `folder` is that of the index, None for one in memory. `began` is when the broker started, in us; now if None.
    """

    def __init__(
        self,
        source: BatchSource,
        flush: Callable[[], Awaitable[None]],
        folder: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        began: int | None = None,
        limits: ReadLimits | None = None,
    ) -> None:
        self._follower = LogFollower(source, flush, folder)
        self._clock = clock
        self._began = time.time_ns() // 1000 if began is None else began
        self._limits = limits or ReadLimits()
        self._turns = Turns(self._limits)

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
        return await self._answer(lambda: _Biographer(self._batches(self._limits.seconds), self._began).find(key))

    async def search(self, query: TraceQuery) -> TracePage:
        """Return one page. ValueError: the cursor is not valid."""
        return await self._answer(lambda: _Searcher(self._batches(self._limits.search_seconds), query).run())

    def _batches(self, seconds: float) -> _Batches:
        return _Batches(self._follower, self._limits, self._clock, seconds)

    async def _answer(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask, and ask once more if the index proved to be damaged: it has been rebuilt then."""
        async with self._turns.turn():
            for _ in range(2):
                await self._follower.wait_until_indexed()
                try:
                    return await ask()
                except BadIndex:
                    continue
        raise TracingUnavailable("the index of the event log is damaged repeatedly")


class _Batches:
    """Opens batches for one answer and counts its work; the last few stay decoded."""

    def __init__(self, follower: LogFollower, limits: ReadLimits, clock: Callable[[], float], seconds: float) -> None:
        self.follower = follower
        self.limits = limits
        self._clock = clock
        self._deadline = clock() + seconds
        self._held: OrderedDict[int, EventBatch | None] = OrderedDict()
        self._opened = 0
        self.events_left = limits.events
        self.is_truncated = False  # events of the answer were left out

    @property
    def is_exhausted(self) -> bool:
        """Return True if the answer must end with what it has."""
        return self.events_left <= 0 or self._opened >= self.limits.batches or self._is_late()

    async def open(self, offset: int) -> EventBatch | None:
        """Return the batch; None if it is no longer kept, or damaged."""
        if offset in self._held:
            self._held.move_to_end(offset)
            return self._held[offset]
        data = await self.follower.fetch(offset)
        batch = None if data is None else await self.follower.run_in_thread(lambda: _decode(data))
        self._held[offset] = batch
        self._opened += 1
        if len(self._held) > MAX_HELD_BATCHES:
            self._held.popitem(last=False)
        return batch

    async def select(
        self, offset: int, wanted: Sequence[RowFilter], known: Container[EventPosition] = ()
    ) -> PlacedEvents:
        """Return the events of a batch that match any filter and are not known, in order, within the limit.

        One row more than the limit is selected, to know whether any is left out.
        """
        batch = await self.open(offset)
        if batch is None:
            return []
        rows: set[int] = set()
        for number, selection in enumerate(wanted):
            if number and self._is_late():
                self.is_truncated = True
                break
            rows.update(await self.rows(batch, selection))
        unknown = [row for row in sorted(rows) if (offset, row) not in known]
        if len(unknown) > self.events_left:
            self.is_truncated = True
        return await self.decode(offset, batch, unknown[: self.events_left])

    async def rows(self, batch: EventBatch, wanted: RowFilter) -> list[int]:
        return await self.follower.run_in_thread(lambda: batch.select(wanted, self.limits.events + 1))

    async def decode(self, offset: int, batch: EventBatch, rows: Sequence[int]) -> PlacedEvents:
        """Return these rows as events."""
        events: PlacedEvents = []
        self.events_left -= len(rows)
        for part in _slices(rows, EVENTS_PER_STEP):
            events += await self.follower.run_in_thread(partial(_events, offset, batch, part))
        return events

    async def find(self, keys: Sequence[int]) -> list[int]:
        """Return the offsets of batches with one of these keys, in order."""
        found: set[int] = set()
        for part in _slices(keys, KEYS_PER_STEP):
            found.update(await self.follower.find(part))
            if self._is_late():
                break
        return sorted(found)

    def _is_late(self) -> bool:
        return self._clock() > self._deadline


def _decode(data: bytes) -> EventBatch | None:
    try:
        return decode(data)
    except BadEvents:  # was logged when it was indexed
        return None


def _events(offset: int, batch: EventBatch, rows: Sequence[int]) -> PlacedEvents:
    return [(EventPosition(offset, row), batch.event(row)) for row in rows]


def _slices(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[at : at + size] for at in range(0, len(items), size))


class _Biographer:
    """Collects the events of a message and its relatives: same message id, its source, messages made from it.

    Also of removals from the queues in which it waits. The requested message comes first, so that its own events are
    complete even if its relatives are too many.
    """

    def __init__(self, batches: _Batches, began: int) -> None:
        self._began = began
        self._batches = batches
        self._follower = batches.follower
        self._found: dict[EventPosition, Event] = {}
        self._uids: dict[int, bool] = {}  # True once searched for
        self._message_ids: dict[str, bool] = {}

    async def find(self, key: str) -> Biography | None:
        uid = parse_uid(key)
        if uid is not None:
            await self._add_matching(frozenset({uid}), frozenset())
            self._uids[uid] = True
        self._message_ids.setdefault(key, False)
        while not self._batches.is_exhausted:
            uids, message_ids = _take(self._uids), _take(self._message_ids)
            if not uids and not message_ids:
                break
            await self._add_matching(frozenset(uids), frozenset(message_ids))
        builder = await self._build()
        for (vhost, queue), since in builder.waiting_since().items():
            if await self._add_removals(vhost, queue, since):
                builder = await self._build()
        return await self._finish(builder)

    async def _add_matching(self, uids: frozenset[int], message_ids: frozenset[str]) -> None:
        keys = {uid_key(uid) for uid in uids}
        keys |= {key_hash(MESSAGE_ID_KEY, text.encode("utf-8", "replace")) for text in message_ids}
        wanted = [RowFilter(message_id=text) for text in message_ids]
        if uids:
            wanted.append(RowFilter(uids=uids))
        offsets = await self._batches.find(list(keys))
        for offset in offsets:
            if self._batches.is_exhausted:
                self._batches.is_truncated = True
                return
            for position, event in await self._batches.select(offset, wanted, self._found):
                self._add(position, event)
            await self._add_derived(offset, uids)

    async def _add_derived(self, offset: int, uids: frozenset[int]) -> None:
        """Add the uids of messages that were made from these, to be searched for."""
        batch = await self._batches.open(offset)
        if not uids or batch is None or len(self._uids) > self._batches.limits.events:
            return
        rows = await self._batches.rows(batch, replace(MADE_FROM_ANOTHER, source_uids=uids))
        for part in _slices(rows, ROWS_PER_STEP):
            for uid in await self._follower.run_in_thread(partial(batch.uids, part)):
                self._uids.setdefault(uid, False)

    async def _add_removals(self, vhost: str, queue: str, since: int) -> bool:
        """Messages on disk are removed by one event for all, which has no uid. Return True if any was found."""
        before = len(self._found)
        for kind in _REMOVALS:
            await self._add_removals_of_kind(kind, vhost, queue, since)
        return len(self._found) > before

    async def _add_removals_of_kind(self, kind: int, vhost: str, queue: str, since: int) -> None:
        wanted = RowFilter(kinds=frozenset({kind}), uids=_NO_MESSAGE, vhost=vhost, queue=queue)
        batches = IndexQuery(since, None, kind, frozenset({QUEUE + queue}))
        below = self._follower.source.next_offset
        while below:
            offsets, below = await self._follower.candidates(batches, below)
            for offset in offsets:
                if self._batches.is_exhausted:
                    self._batches.is_truncated = True
                    return
                self._found.update(await self._batches.select(offset, [wanted], self._found))

    def _add(self, position: EventPosition, event: Event) -> None:
        self._found[position] = event
        if event.uid:
            self._uids.setdefault(event.uid, False)
        if event.source_uid is not None:
            self._uids.setdefault(event.source_uid, False)
        if event.message_id is not None:
            self._message_ids.setdefault(event.message_id, False)

    async def _build(self) -> BiographyBuilder:
        builder = BiographyBuilder()
        positions = sorted(self._found)
        for part in _slices(positions, EVENTS_PER_STEP):
            events = [self._found[position] for position in part]
            await self._follower.run_in_thread(partial(builder.add, events))
        return builder

    async def _finish(self, builder: BiographyBuilder) -> Biography | None:
        legs: list[Leg] = []
        while len(legs) < builder.leg_count:
            legs += await self._follower.run_in_thread(partial(builder.legs, self._began, len(legs), EVENTS_PER_STEP))
        has_all = all(self._uids.values()) and all(self._message_ids.values())
        is_truncated = self._batches.is_truncated or not has_all
        return await self._follower.run_in_thread(lambda: builder.biography(legs, is_truncated))


def _take(wanted: dict[Item, bool]) -> set[Item]:
    """Return those that were not searched for yet, and mark them."""
    new = {each for each, was_taken in wanted.items() if not was_taken}
    wanted.update(dict.fromkeys(new, True))
    return new


class _Searcher:
    """Searches the log backwards from its end, or from a cursor, until a page and one more are found.

    If a message has more events than the answer may decode, its summary counts those that were read.
    """

    def __init__(self, batches: _Batches, query: TraceQuery) -> None:
        self._batches = batches
        self._follower = batches.follower
        self._query = query
        self._found: list[tuple[EventPosition, TraceSummary]] = []
        self._seen: set[int] = {0}  # rows that concern no message
        end = self._follower.source.next_offset
        self._begin = Cursor(end, EventPosition(end, 0)) if query.cursor is None else parse_cursor(query.cursor, end)
        self._position = self._begin.position  # everything from there on was searched

    async def run(self) -> TracePage:
        keys = query_keys(self._query)
        offsets = await self._offsets_with(keys) if keys else None
        below = self._begin.position.offset + (self._begin.position.row > 0)
        while below or offsets:
            if offsets is None:
                part, below = await self._follower.candidates(index_query(self._query), below)
            else:
                part, offsets, below = offsets, [], 0
            for offset in part:
                if offset > self._begin.position.offset:
                    continue
                await self._search_batch(offset)
                if self._has_enough:
                    return self._page(self._found[self._query.limit - 1][0])
                if self._batches.is_exhausted:
                    return self._page(self._position)
        return self._page(None)

    @property
    def _has_enough(self) -> bool:
        return len(self._found) > self._query.limit

    async def _offsets_with(self, keys: list[int]) -> list[int]:
        """Return the offsets of batches with all of these keys, newest first."""
        found = [set(await self._follower.find([key])) for key in keys]
        return sorted(set.intersection(*found), reverse=True)

    def _page(self, position: EventPosition | None) -> TracePage:
        traces = [summary for _, summary in self._found[: self._query.limit]]
        return TracePage(traces, None if position is None else Cursor(self._begin.top, position).text())

    async def _search_batch(self, offset: int) -> None:
        """Add the matching messages of a batch, newest first, until there are enough."""
        batch = await self._batches.open(offset)
        if batch is not None:
            before = self._begin.position.row if offset == self._begin.position.offset else None
            rows = await self._follower.run_in_thread(lambda: matching_rows(batch, self._query, before))
            while rows:
                found = await self._newest(batch, rows)
                await self._take(offset, batch, found)
                if self._has_enough or self._batches.is_exhausted:
                    break
            self._position = EventPosition(offset, rows[-1] + 1 if rows else 0)
        else:
            self._position = EventPosition(offset, 0)

    async def _newest(self, batch: EventBatch, rows: list[int]) -> list[tuple[int, int]]:
        """Take rows off the end until there are enough messages; return the last row of each, and its uid."""
        most = self._query.limit + 1 - len(self._found)
        part = rows[-ROWS_PER_STEP:]
        uids = await self._follower.run_in_thread(lambda: batch.uids(part))
        found: dict[int, int] = {}
        while uids and len(found) < most:
            uid, row = uids.pop(), rows.pop()
            if uid not in self._seen:
                self._seen.add(uid)
                found[uid] = row
        return [(row, uid) for uid, row in found.items()]

    async def _take(self, offset: int, batch: EventBatch, rows: list[tuple[int, int]]) -> None:
        if self._query.cursor is not None:
            shown = await self._already_shown(frozenset(uid for _, uid in rows))
            rows = [(row, uid) for row, uid in rows if uid not in shown]
        found = await self._events_of(offset, batch, rows)
        for row, uid in rows:
            events = found[uid]
            self._found.append(
                (EventPosition(offset, row), summarize([events[position] for position in sorted(events)]))
            )

    async def _already_shown(self, uids: frozenset[int]) -> set[int]:
        """Return those that an earlier page showed: they also match after the cursor."""
        shown: set[int] = set()
        begin, top = self._begin.position, self._begin.top
        for at in await self._batches.find(list({uid_key(uid) for uid in uids})):
            batch = await self._batches.open(at) if begin.offset <= at < top else None
            if batch is not None:
                rows = await self._follower.run_in_thread(partial(matching_rows, batch, self._query, None, uids))
                if at == begin.offset:
                    rows = rows[bisect_left(rows, begin.row) :]
                for part in _slices(rows, ROWS_PER_STEP):
                    shown.update(await self._follower.run_in_thread(partial(batch.uids, part)))
        return shown

    async def _events_of(
        self, offset: int, batch: EventBatch, rows: list[tuple[int, int]]
    ) -> dict[int, dict[EventPosition, Event]]:
        """Return the events of these messages, at least those of these rows."""
        uids = frozenset(uid for _, uid in rows)
        found: dict[int, dict[EventPosition, Event]] = {uid: {} for uid in uids}
        for position, event in await self._batches.decode(offset, batch, [row for row, _ in rows]):
            found[event.uid][position] = event
        for at in await self._batches.find(list({uid_key(uid) for uid in uids})):
            if self._batches.is_exhausted:
                break
            for position, event in await self._batches.select(at, [RowFilter(uids=uids)]):
                found[event.uid][position] = event
        return found
