"""Answers what happened: the biography of a message, and searches, read from the event log by its index.

Owned by the loop; each step that takes long is done by the follower's thread.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from warrenmq.events import schema
from warrenmq.events.batch import Batch, Selection
from warrenmq.events.codec import decode
from warrenmq.events.errors import BadEvents
from warrenmq.events.ids import MESSAGE_ID_KEY, key_hash, parse_uid, uid_key
from warrenmq.events.schema import Event
from warrenmq.journal.files import Files, SystemFiles
from warrenmq.tracing.biography import Biography, tell, waiting_since
from warrenmq.tracing.follower import BatchSource, LogFollower
from warrenmq.tracing.index import MADE_FROM_ANOTHER
from warrenmq.tracing.index_file import QUEUE, BadIndex, BatchNote, Wanted
from warrenmq.tracing.search import (
    Cursor,
    Place,
    TracePage,
    TraceQuery,
    TraceSummary,
    TracingUnavailable,
    newest_first,
    parse_cursor,
    summarize,
    wanted_batches,
    wanted_keys,
    was_shown,
)

# A search stops after so many seconds, and goes on when it is asked for the rest.
SEARCH_PATIENCE = 4.0
# A biography is of one message and its kin; an id that half of all messages have in common is none.
MOST_EVENTS = 10_000
MOST_BATCHES = 1_000
# So many decoded batches are at hand during one answer.
HELD_BATCHES = 16

_PURGES = frozenset({schema.DROPPED})
_NO_MESSAGE = frozenset({0})

Result = TypeVar("Result")
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
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
        began: int | None = None,
    ) -> None:
        self._follower = LogFollower(source, flush, folder, files or SystemFiles())
        self._clock = clock
        self._began = time.time_ns() // 1000 if began is None else began

    async def start(self) -> None:
        """Begin to follow the log; returns at once."""
        self._follower.start()

    async def stop(self) -> None:
        """Write the index; nothing is answered any more."""
        await self._follower.stop()

    def batch_was_added(self, offset: int, octets: bytes, note: BatchNote) -> None:
        """The log has a new batch, of which this is to be known."""
        self._follower.batch_was_added(offset, octets, note)

    def figures(self) -> dict[str, int]:
        return self._follower.index.figures()

    async def biography(self, key: str) -> Biography | None:
        """Of the message with this message-id or uid; None if nothing is kept of it."""
        return await self._answer(lambda: _Biographer(self._follower, self._began).find(key))

    async def search(self, query: TraceQuery) -> TracePage:
        """ValueError for a cursor that is none."""
        return await self._answer(lambda: _Searcher(self._follower, query, self._clock).run())

    async def _answer(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Where the index turns out to be damaged it is built again, and asked again."""
        for _ in range(2):
            await self._follower.be_up_to_date()
            try:
                return await ask()
            except BadIndex:
                continue
        raise TracingUnavailable("the index of the event log is damaged again and again")


class _Batches:
    """The batches that one answer needs; the last few stay decoded."""

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower
        self._held: OrderedDict[int, Batch | None] = OrderedDict()
        self.count = 0

    async def open(self, offset: int) -> Batch | None:
        """None if it is no longer kept, or damaged."""
        if offset in self._held:
            self._held.move_to_end(offset)
            return self._held[offset]
        octets = await self._follower.fetch(offset)
        batch = None if octets is None else await self._follower.do(lambda: _decode(octets))
        self._held[offset] = batch
        self.count += 1
        if len(self._held) > HELD_BATCHES:
            self._held.popitem(last=False)
        return batch

    async def select(self, offset: int, wanted: Selection) -> Life:
        """The events in a batch that are wanted, with their places."""
        batch = await self.open(offset)
        return [] if batch is None else await self._follower.do(lambda: _selected(offset, batch, wanted))


def _decode(octets: bytes) -> Batch | None:
    try:
        return decode(octets)
    except BadEvents:  # the index has said so when it came by
        return None


def _selected(offset: int, batch: Batch, wanted: Selection) -> Life:
    return [(Place(offset, row), batch.event(row)) for row in batch.select(wanted)]


class _Biographer:
    """Finds a message and its kin: those with the same message id, those it was made from, those made from it.

    And what happened to the queues in which it waits, where that ended its waiting.
    """

    def __init__(self, follower: LogFollower, began: int) -> None:
        self._follower = follower
        self._began = began
        self._batches = _Batches(follower)
        self._found: dict[Place, Event] = {}
        self._uids: dict[int, bool] = {}  # whether each was looked for
        self._message_ids: dict[str, bool] = {}

    async def find(self, key: str) -> Biography | None:
        self._message_ids[key] = False
        uid = parse_uid(key)
        if uid is not None:
            self._uids[uid] = False
        while (uids := _take(self._uids)) | (message_ids := _take(self._message_ids)):
            await self._look_for(frozenset(uids), frozenset(message_ids))
            if self._is_too_much():
                break
        for (vhost, queue), since in waiting_since(self._story()).items():
            await self._look_for_purges(vhost, queue, since)
        return tell(self._story(), not self._is_too_much(), self._began)

    def _story(self) -> list[Event]:
        return [self._found[place] for place in sorted(self._found)]

    async def _look_for(self, uids: frozenset[int], message_ids: frozenset[str]) -> None:
        keys = [uid_key(uid) for uid in uids]
        keys += [key_hash(MESSAGE_ID_KEY, text.encode("utf-8", "replace")) for text in message_ids]
        wanted = [Selection(message_id=text) for text in message_ids]
        if uids:
            wanted.append(Selection(uids=uids))
        for offset in await self._follower.find(keys):
            for selection in wanted:
                for place, event in await self._batches.select(offset, selection):
                    self._add(place, event)
            for _, event in await self._batches.select(offset, MADE_FROM_ANOTHER):
                if event.source_uid in uids:
                    self._uids.setdefault(event.uid, False)
            if self._is_too_much():
                return

    async def _look_for_purges(self, vhost: str, queue: str, since: int) -> None:
        """Messages that wait on disk are dropped by one event for all of them, which has no uid."""
        wanted = Selection(kinds=_PURGES, uids=_NO_MESSAGE, vhost=vhost, queue=queue)
        batches = Wanted(since, None, schema.DROPPED, frozenset({QUEUE + queue}))
        below = self._follower.source.next_offset
        while below and not self._is_too_much():
            offsets, below = await self._follower.candidates(batches, below)
            for offset in offsets[: MOST_BATCHES + 1]:
                self._found.update(await self._batches.select(offset, wanted))

    def _add(self, place: Place, event: Event) -> None:
        self._found[place] = event
        self._uids.setdefault(event.uid, False)
        if event.source_uid is not None:
            self._uids.setdefault(event.source_uid, False)
        if event.message_id is not None:
            self._message_ids.setdefault(event.message_id, False)

    def _is_too_much(self) -> bool:
        return len(self._found) > MOST_EVENTS or self._batches.count > MOST_BATCHES


def _take(wanted: dict[Result, bool]) -> set[Result]:
    """Those that were not looked for yet."""
    new = {each for each, was_taken in wanted.items() if not was_taken}
    wanted.update(dict.fromkeys(new, True))
    return new


class _Searcher:
    """Goes through the log from its end, or from a cursor, until there is enough for a page and one more."""

    def __init__(self, follower: LogFollower, query: TraceQuery, clock: Callable[[], float]) -> None:
        self._follower = follower
        self._query = query
        self._clock = clock
        self._deadline = clock() + SEARCH_PATIENCE
        self._batches = _Batches(follower)
        self._found: list[tuple[Place, TraceSummary]] = []
        self._seen: set[int] = set()
        end = follower.source.next_offset
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
                await self._look_through(offset)
                if len(self._found) > self._query.limit:
                    return self._page(self._found[self._query.limit - 1][0])
                if self._clock() > self._deadline:
                    return self._page(self._place)
        return self._page(None)

    async def _offsets_with(self, keys: list[int]) -> list[int]:
        """Of the batches that have all of these keys, the last first."""
        found = [set(await self._follower.find([key])) for key in keys]
        return sorted(set.intersection(*found), reverse=True)

    def _page(self, place: Place | None) -> TracePage:
        traces = [summary for _, summary in self._found[: self._query.limit]]
        return TracePage(traces, None if place is None else Cursor(self._begin.top, place).text())

    async def _look_through(self, offset: int) -> None:
        """Take what fits of a batch, until there is enough."""
        batch = await self._batches.open(offset)
        before = self._begin.place.row if offset == self._begin.place.offset else None
        is_all = batch is None
        while batch is not None and not is_all and len(self._found) <= self._query.limit:
            rows, is_all = await self._rows(batch, before)
            await self._take(offset, rows)
            before = rows[-1][0] if rows else before
        if is_all:
            self._place = Place(offset, 0)

    async def _rows(self, batch: Batch, before: int | None) -> tuple[list[tuple[int, int]], bool]:
        seen, most = frozenset(self._seen), self._query.limit + 1 - len(self._found)
        return await self._follower.do(lambda: newest_first(batch, self._query, before, seen, most))

    async def _take(self, offset: int, rows: list[tuple[int, int]]) -> None:
        lives = await self._lives_of(frozenset(uid for _, uid in rows))
        for row, uid in rows:
            place = self._place = Place(offset, row)
            self._seen.add(uid)
            if lives[uid] and not was_shown(lives[uid], self._query, self._begin, place):
                self._found.append((place, summarize([event for _, event in lives[uid]])))

    async def _lives_of(self, uids: frozenset[int]) -> dict[int, Life]:
        """All events of these messages, in order."""
        lives: dict[int, Life] = {uid: [] for uid in uids}
        for offset in await self._follower.find([uid_key(uid) for uid in uids]) if uids else ():
            for place, event in await self._batches.select(offset, Selection(uids=uids)):
                if event.uid in lives:  # not one that was only made from one of them
                    lives[event.uid].append((place, event))
        return lives
