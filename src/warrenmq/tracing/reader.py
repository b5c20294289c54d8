"""Answers what happened: the biography of a message, and searches, read from the event log by its index.

The work of an answer is bounded (`ReadLimits`): by the events that are decoded, in the middle of a batch if need be, by
the batches that are opened, and by time. What is left out is reported: a biography says `truncated`, a search has a
cursor. A few answers are under way at a time, others wait (turns.py). An answer that is cancelled ends with its step.

Owned by the loop; the work is done by the follower's thread, in steps of about a millisecond.
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
    Place,
    TracePage,
    TraceQuery,
    TraceSummary,
    TracingUnavailable,
    fitting_rows,
    parse_cursor,
    summarize,
    wanted_batches,
    wanted_keys,
)
from warrenmq.tracing.turns import ReadLimits, Turns

# So many decoded batches are at hand during one answer.
HELD_BATCHES = 16
# How much is done in one step of the thread, which takes about a millisecond: the loop waits for the interpreter no
# longer than that. Making an event takes 9 us, telling it 11.
EVENTS_AT_ONCE = 100
ROWS_AT_ONCE = 5_000
KEYS_AT_ONCE = 16

_REMOVALS = frozenset({schema.DROPPED, schema.EXPIRED})
_NO_MESSAGE = frozenset({0})

Result = TypeVar("Result")
Item = TypeVar("Item")
Life = list[tuple[Place, Event]]


class Traces:
    """The reader that `management/ports.py` asks for.

    `folder` is that of the index, None for one in memory; `began` is when the broker began, in us, if not now.
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
        """Begin to follow the log; returns at once."""
        self._follower.start()

    async def stop(self) -> None:
        """Write the index; nothing is answered any more."""
        await self._follower.stop()

    def batch_added(self, offset: int, data: bytes, entry: IndexEntry) -> None:
        """The log has a new batch, of which this is to be known."""
        self._follower.batch_added(offset, data, entry)

    def figures(self) -> dict[str, int]:
        return self._follower.index.figures()

    async def biography(self, key: str) -> Biography | None:
        """Of the message with this message-id or uid; None if nothing is kept of it."""
        return await self._answer(lambda: _Biographer(self._batches(self._limits.seconds), self._began).find(key))

    async def search(self, query: TraceQuery) -> TracePage:
        """ValueError for a cursor that is none."""
        return await self._answer(lambda: _Searcher(self._batches(self._limits.search_seconds), query).run())

    def _batches(self, seconds: float) -> _Batches:
        return _Batches(self._follower, self._limits, self._clock, seconds)

    async def _answer(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Where the index turns out to be damaged it is built again, and asked again."""
        async with self._turns.turn():
            for _ in range(2):
                await self._follower.wait_until_indexed()
                try:
                    return await ask()
                except BadIndex:
                    continue
        raise TracingUnavailable("the index of the event log is damaged again and again")


class _Batches:
    """The batches that one answer needs, and how much of its work is done; the last few stay decoded."""

    def __init__(self, follower: LogFollower, limits: ReadLimits, clock: Callable[[], float], seconds: float) -> None:
        self.follower = follower
        self.limits = limits
        self._clock = clock
        self._deadline = clock() + seconds
        self._held: OrderedDict[int, EventBatch | None] = OrderedDict()
        self._opened = 0
        self.events_left = limits.events
        self.has_left_out = False  # events that belong to the answer

    @property
    def is_exhausted(self) -> bool:
        """Whether the answer has to do with what it has."""
        return self.events_left <= 0 or self._opened >= self.limits.batches or self._is_late()

    async def open(self, offset: int) -> EventBatch | None:
        """None if it is no longer kept, or damaged."""
        if offset in self._held:
            self._held.move_to_end(offset)
            return self._held[offset]
        data = await self.follower.fetch(offset)
        batch = None if data is None else await self.follower.run_in_thread(lambda: _decode(data))
        self._held[offset] = batch
        self._opened += 1
        if len(self._held) > HELD_BATCHES:
            self._held.popitem(last=False)
        return batch

    async def select(self, offset: int, wanted: Sequence[RowFilter], known: Container[Place] = ()) -> Life:
        """The events in a batch that one of these wants, in order, as many as may be decoded; not those that are known.

        One more row than that is looked at, to know whether any is left out.
        """
        batch = await self.open(offset)
        if batch is None:
            return []
        rows: set[int] = set()
        for number, selection in enumerate(wanted):
            if number and self._is_late():
                self.has_left_out = True
                break
            rows.update(await self.rows(batch, selection))
        unknown = [row for row in sorted(rows) if (offset, row) not in known]
        if len(unknown) > self.events_left:
            self.has_left_out = True
        return await self.decode(offset, batch, unknown[: self.events_left])

    async def rows(self, batch: EventBatch, wanted: RowFilter) -> list[int]:
        most = self.limits.events + 1
        return await self.follower.run_in_thread(lambda: batch.select(wanted, most))

    async def decode(self, offset: int, batch: EventBatch, rows: Sequence[int]) -> Life:
        """These rows as events."""
        life: Life = []
        self.events_left -= len(rows)
        for some in _slices(rows, EVENTS_AT_ONCE):
            life += await self.follower.run_in_thread(partial(_events, offset, batch, some))
        return life

    async def find(self, keys: Sequence[int]) -> list[int]:
        """The offsets of the batches that have one of these keys, in order."""
        found: set[int] = set()
        for some in _slices(keys, KEYS_AT_ONCE):
            found.update(await self.follower.find(some))
            if self._is_late():
                break
        return sorted(found)

    def _is_late(self) -> bool:
        return self._clock() > self._deadline


def _decode(octets: bytes) -> EventBatch | None:
    try:
        return decode(octets)
    except BadEvents:  # the index has said so when it came by
        return None


def _events(offset: int, batch: EventBatch, rows: Sequence[int]) -> Life:
    return [(Place(offset, row), batch.event(row)) for row in rows]


def _slices(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[at : at + size] for at in range(0, len(items), size))


class _Biographer:
    """Finds a message and its kin: those with the same message id, those it was made from, those made from it.

    And what happened to the queues in which it waits, where that ended its waiting. What is asked for comes first: the
    story of a message that is asked for by its uid is whole even where its kin are too many.
    """

    def __init__(self, batches: _Batches, began: int) -> None:
        self._began = began
        self._batches = batches
        self._follower = batches.follower
        self._found: dict[Place, Event] = {}
        self._uids: dict[int, bool] = {}  # whether each was looked for
        self._message_ids: dict[str, bool] = {}

    async def find(self, key: str) -> Biography | None:
        uid = parse_uid(key)
        if uid is not None:
            await self._look_for(frozenset({uid}), frozenset())
            self._uids[uid] = True
        self._message_ids.setdefault(key, False)
        while not self._batches.is_exhausted:
            uids, message_ids = _take(self._uids), _take(self._message_ids)
            if not uids and not message_ids:
                break
            await self._look_for(frozenset(uids), frozenset(message_ids))
        builder = await self._build()
        for (vhost, queue), since in builder.waiting_since().items():
            if await self._look_for_removals(vhost, queue, since):
                builder = await self._build()
        return await self._finish(builder)

    async def _look_for(self, uids: frozenset[int], message_ids: frozenset[str]) -> None:
        keys = {uid_key(uid) for uid in uids}
        keys |= {key_hash(MESSAGE_ID_KEY, text.encode("utf-8", "replace")) for text in message_ids}
        wanted = [RowFilter(message_id=text) for text in message_ids]
        if uids:
            wanted.append(RowFilter(uids=uids))
        offsets = await self._batches.find(list(keys))
        for offset in offsets:
            if self._batches.is_exhausted:
                self._batches.has_left_out = True
                return
            for place, event in await self._batches.select(offset, wanted, self._found):
                self._add(place, event)
            await self._note_made_from(offset, uids)

    async def _note_made_from(self, offset: int, uids: frozenset[int]) -> None:
        """What was made from these is to be looked for, too; each has an event at least."""
        batch = await self._batches.open(offset)
        if not uids or batch is None or len(self._uids) > self._batches.limits.events:
            return
        rows = await self._batches.rows(batch, replace(MADE_FROM_ANOTHER, source_uids=uids))
        for some in _slices(rows, ROWS_AT_ONCE):
            for uid in await self._follower.run_in_thread(partial(batch.uids, some)):
                self._uids.setdefault(uid, False)

    async def _look_for_removals(self, vhost: str, queue: str, since: int) -> bool:
        """Messages that wait on disk are removed by one event for all of them, which has no uid."""
        before = len(self._found)
        for kind in _REMOVALS:
            await self._look_for_removals_of(kind, vhost, queue, since)
        return len(self._found) > before

    async def _look_for_removals_of(self, kind: int, vhost: str, queue: str, since: int) -> None:
        wanted = RowFilter(kinds=frozenset({kind}), uids=_NO_MESSAGE, vhost=vhost, queue=queue)
        batches = IndexQuery(since, None, kind, frozenset({QUEUE + queue}))
        below = self._follower.source.next_offset
        while below:
            offsets, below = await self._follower.candidates(batches, below)
            for offset in offsets:
                if self._batches.is_exhausted:
                    self._batches.has_left_out = True
                    return
                self._found.update(await self._batches.select(offset, [wanted], self._found))

    def _add(self, place: Place, event: Event) -> None:
        self._found[place] = event
        self._uids.setdefault(event.uid, False)
        if event.source_uid is not None:
            self._uids.setdefault(event.source_uid, False)
        if event.message_id is not None:
            self._message_ids.setdefault(event.message_id, False)

    async def _build(self) -> BiographyBuilder:
        builder = BiographyBuilder()
        places = sorted(self._found)
        for some in _slices(places, EVENTS_AT_ONCE):
            events = [self._found[place] for place in some]
            await self._follower.run_in_thread(partial(builder.add, events))
        return builder

    async def _finish(self, builder: BiographyBuilder) -> Biography | None:
        legs: list[Leg] = []
        while len(legs) < builder.leg_count:
            legs += await self._follower.run_in_thread(partial(builder.legs, self._began, len(legs), EVENTS_AT_ONCE))
        is_all = not self._batches.has_left_out and not self._has_more_to_look_for()
        return await self._follower.run_in_thread(lambda: builder.biography(legs, is_all))

    def _has_more_to_look_for(self) -> bool:
        return not all(self._uids.values()) or not all(self._message_ids.values())


def _take(wanted: dict[Item, bool]) -> set[Item]:
    """Those that were not looked for yet."""
    new = {each for each, was_taken in wanted.items() if not was_taken}
    wanted.update(dict.fromkeys(new, True))
    return new


class _Searcher:
    """Goes through the log from its end, or from a cursor, until there is enough for a page and one more.

    Of a message that has more events than an answer may decode, some are read: the line that is shown counts these.
    """

    def __init__(self, batches: _Batches, query: TraceQuery) -> None:
        self._batches = batches
        self._follower = batches.follower
        self._query = query
        self._found: list[tuple[Place, TraceSummary]] = []
        self._seen: set[int] = {0}  # rows that concern no message are none of anybody's biography
        end = self._follower.source.next_offset
        self._begin = Cursor(end, Place(end, 0)) if query.cursor is None else parse_cursor(query.cursor, end)
        self._place = self._begin.place  # everything from there on was looked through

    async def run(self) -> TracePage:
        keys = wanted_keys(self._query)
        offsets = await self._offsets_with(keys) if keys else None
        below = self._begin.place.offset + (self._begin.place.row > 0)
        while below or offsets:
            if offsets is None:
                some, below = await self._follower.candidates(wanted_batches(self._query), below)
            else:
                some, offsets, below = offsets, [], 0
            for offset in some:
                if offset > self._begin.place.offset:
                    continue
                await self._look_through(offset)
                if self._is_enough:
                    return self._page(self._found[self._query.limit - 1][0])
                if self._batches.is_exhausted:
                    return self._page(self._place)
        return self._page(None)

    @property
    def _is_enough(self) -> bool:
        return len(self._found) > self._query.limit

    async def _offsets_with(self, keys: list[int]) -> list[int]:
        """Of the batches that have all of these keys, the last first."""
        found = [set(await self._follower.find([key])) for key in keys]
        return sorted(set.intersection(*found), reverse=True)

    def _page(self, place: Place | None) -> TracePage:
        traces = [summary for _, summary in self._found[: self._query.limit]]
        return TracePage(traces, None if place is None else Cursor(self._begin.top, place).text())

    async def _look_through(self, offset: int) -> None:
        """Take what fits of a batch, the last first, until there is enough."""
        batch = await self._batches.open(offset)
        if batch is not None:
            before = self._begin.place.row if offset == self._begin.place.offset else None
            rows = await self._follower.run_in_thread(lambda: fitting_rows(batch, self._query, before))
            while rows:
                found = await self._newest(batch, rows)
                await self._take(offset, batch, found)
                if self._is_enough or self._batches.is_exhausted:
                    break
            self._place = Place(offset, rows[-1] + 1 if rows else 0)
        else:
            self._place = Place(offset, 0)

    async def _newest(self, batch: EventBatch, rows: list[int]) -> list[tuple[int, int]]:
        """Take rows off the end, as far as messages are still wanted: the last row of each, with its uid."""
        most = self._query.limit + 1 - len(self._found)
        some = rows[-ROWS_AT_ONCE:]
        uids = await self._follower.run_in_thread(lambda: batch.uids(some))
        found: dict[int, int] = {}
        while uids and len(found) < most:
            uid, row = uids.pop(), rows.pop()
            if uid not in self._seen:
                self._seen.add(uid)
                found[uid] = row
        return [(row, uid) for uid, row in found.items()]

    async def _take(self, offset: int, batch: EventBatch, rows: list[tuple[int, int]]) -> None:
        if self._query.cursor is not None:
            shown = await self._shown_before(frozenset(uid for _, uid in rows))
            rows = [(row, uid) for row, uid in rows if uid not in shown]
        lives = await self._lives_of(offset, batch, rows)
        for row, uid in rows:
            life = lives[uid]
            self._found.append((Place(offset, row), summarize([life[place] for place in sorted(life)])))

    async def _shown_before(self, uids: frozenset[int]) -> set[int]:
        """Those that stand on an earlier page: a row of them behind the cursor fits, too."""
        shown: set[int] = set()
        begin, top = self._begin.place, self._begin.top
        for at in await self._batches.find(list({uid_key(uid) for uid in uids})):
            batch = await self._batches.open(at) if begin.offset <= at < top else None
            if batch is not None:
                rows = await self._follower.run_in_thread(partial(fitting_rows, batch, self._query, None, uids))
                if at == begin.offset:
                    rows = rows[bisect_left(rows, begin.row) :]
                for some in _slices(rows, ROWS_AT_ONCE):
                    shown.update(await self._follower.run_in_thread(partial(batch.uids, some)))
        return shown

    async def _lives_of(
        self, offset: int, batch: EventBatch, rows: list[tuple[int, int]]
    ) -> dict[int, dict[Place, Event]]:
        """The events of these messages, at least those of these rows."""
        uids = frozenset(uid for _, uid in rows)
        lives: dict[int, dict[Place, Event]] = {uid: {} for uid in uids}
        for place, event in await self._batches.decode(offset, batch, [row for row, _ in rows]):
            lives[event.uid][place] = event
        for at in await self._batches.find(list({uid_key(uid) for uid in uids})):
            if self._batches.is_exhausted:
                break
            for place, event in await self._batches.select(at, [RowFilter(uids=uids)]):
                lives[event.uid][place] = event
        return lives
