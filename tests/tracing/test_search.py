"""Searches over an event log: what fits is found once, the newest first, page by page."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.tracing.stories import BEGIN, TRACE_ID, EventBuilder, MemoryLog, simple_life
from warrenmq.events import schema
from warrenmq.events.batch import EventBatch
from warrenmq.events.ids import UidClock, uid_key, uid_text
from warrenmq.events.schema import Event
from warrenmq.tracing import reader
from warrenmq.tracing.reader import ReadLimits, Traces
from warrenmq.tracing.search import TracePage, TraceQuery, TraceSummary, parse_cursor

Result = TypeVar("Result")


def ask(
    log: MemoryLog,
    question: Callable[[Traces], Awaitable[Result]],
    clock: Callable[[], float] = lambda: 0.0,
    limits: ReadLimits | None = None,
) -> Result:
    async def run() -> Result:
        traces = Traces(log, clock=clock, limits=limits)
        await traces.start()
        try:
            return await asyncio.wait_for(question(traces), 30)
        finally:
            await traces.stop()

    return asyncio.run(run())


def search(log: MemoryLog, **query: object) -> TracePage:
    return ask(log, lambda traces: traces.search(TraceQuery(**query)))  # type: ignore[arg-type]


async def all_pages(traces: Traces, **query: object) -> list[TraceSummary]:
    found: list[TraceSummary] = []
    page = await traces.search(TraceQuery(**query))  # type: ignore[arg-type]
    while True:
        found += page.traces
        if page.next is None:
            return found
        page = await traces.search(TraceQuery(**query, cursor=page.next))  # type: ignore[arg-type]


def uids(page: TracePage) -> list[int]:
    return [trace.uid for trace in page.traces]


def test_a_summary_has_the_outcome_of_a_message() -> None:
    life = EventBuilder(0, "order-1", correlation_id="basket-9", trace_id=TRACE_ID)
    life.enqueued(1, "a").enqueued(2, "b").delivered(10, "a", "worker").acked(99, "a", "worker")
    (summary,) = search(MemoryLog(life.events)).traces
    assert summary == TraceSummary(
        "order-1", life.uid, BEGIN, BEGIN + 99, schema.ACKED, "/", "orders", "order.created", ("a", "b"), 100, 5,
        "basket-9", TRACE_ID, None,
    )  # fmt: skip


def test_a_priority_that_only_later_events_tell_is_known() -> None:
    """A broker that kept none wrote the first events, and was updated then."""
    life = EventBuilder(0, "order-1").enqueued(1, "a").delivered(10, "a", "worker", priority=6)
    (summary,) = search(MemoryLog(life.events)).traces
    assert summary.priority == 6


def test_an_empty_log_has_nothing() -> None:
    assert search(MemoryLog()) == TracePage([])


def test_the_newest_come_first() -> None:
    lives = [simple_life(1_000 * number) for number in range(5)]
    page = search(MemoryLog(lives[0] + lives[1], lives[2], lives[3] + lives[4]))
    assert uids(page) == [life[0].uid for life in reversed(lives)]


def test_a_message_in_several_batches_is_one_line_with_all_its_events() -> None:
    life = simple_life(0)
    (summary,) = search(MemoryLog(life[:1], life[1:3], life[3:])).traces
    assert (summary.events, summary.last_kind) == (4, schema.ACKED)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"queue": "b"}, [1]),
        ({"queue": "nobody"}, []),
        ({"exchange": "events"}, [2]),
        ({"routing_key": "order.deleted"}, [3]),
        ({"vhost": "test"}, [4]),
        ({"vhosts": frozenset({"test"})}, [4]),
        ({"vhosts": frozenset({"test", "/"})}, [5, 4, 3, 2, 1, 0]),
        ({"vhosts": frozenset({"test"}), "vhost": "/"}, []),
        ({"vhosts": frozenset()}, []),
        ({"correlation_id": "basket-9"}, [5]),
        ({"correlation_id": "basket-8"}, []),
        ({"trace_id": TRACE_ID}, [5]),
        ({"trace_id": TRACE_ID, "correlation_id": "basket-9", "queue": "a"}, [5]),
        ({"trace_id": TRACE_ID, "queue": "b"}, []),
        ({"start": BEGIN + 10_000, "end": BEGIN + 30_000}, [2, 1]),
        ({"start": BEGIN + 10_151}, [5, 4, 3, 2, 1]),
        ({"end": BEGIN + 10_000}, [0]),
        ({"kind": schema.ACKED, "start": BEGIN + 40_000}, [5, 4]),
        ({"kind": schema.DROPPED}, []),
    ],
)
def test_what_fits_is_found(query: dict[str, object], expected: list[int]) -> None:
    lives = [
        simple_life(0, "a"),
        simple_life(10_000, "b"),
        simple_life(20_000, "a", exchange="events"),
        simple_life(30_000, "a", routing_key="order.deleted"),
        simple_life(40_000, "a", vhost="test"),
        simple_life(50_000, "a", correlation_id="basket-9", trace_id=TRACE_ID),
    ]
    log = MemoryLog(lives[0] + lives[1], lives[2] + lives[3], lives[4] + lives[5])
    assert uids(search(log, **query)) == [lives[number][0].uid for number in expected]


def test_events_of_no_message_are_none_of_anybodys_biography() -> None:
    opened = Event(BEGIN, schema.CONNECTION_OPENED, 0, vhost="/", connection="c0")
    assert search(MemoryLog([opened])) == TracePage([])


def test_batches_that_the_index_knows_do_not_fit_are_not_read() -> None:
    log = MemoryLog(*[simple_life(1_000 * number, "rare" if number == 3 else "work") for number in range(50)])

    async def question(traces: Traces) -> int:
        await traces.biography("nobody")  # the index has everything now
        log.reads.clear()
        return len((await traces.search(TraceQuery(queue="rare"))).traces)

    assert ask(log, question) == 1
    assert log.reads == [3]


def test_messages_that_share_a_key_are_distinguished() -> None:
    clock = UidClock()
    lives = [
        [replace(event, uid=uid) for event in simple_life(10 * at)]
        for at, uid in enumerate([clock.next(BEGIN) for _ in range(3)])
    ]
    assert len({uid_key(life[0].uid) for life in lives}) == 1
    log = MemoryLog(lives[0], lives[1] + lives[2])

    async def question(traces: Traces) -> list[list[int]]:
        told = [await traces.biography(uid_text(life[0].uid)) for life in lives]
        return [[event.time for event in story.events] for story in told if story is not None]

    assert ask(log, question) == [[event.time for event in life] for life in lives]


# -- pages -------------------------------------------------------------------------------------------------------------


def mixed_log(seed: int, messages: int = 40) -> MemoryLog:
    """Lives that overlap, cut into batches anywhere."""
    chance = random.Random(seed)
    events = [event for number in range(messages) for event in simple_life(37 * number, chance.choice("ab"))]
    events.sort(key=lambda event: event.time)
    log = MemoryLog()
    while events:
        size = chance.randint(1, 15)
        log.append(events[:size])
        events = events[size:]
    return log


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("query", [{}, {"queue": "a"}, {"kind": schema.DELIVERED}])
def test_pages_of_any_size_have_each_message_once_in_the_same_order(seed: int, query: dict[str, object]) -> None:
    log = mixed_log(seed)

    async def question(traces: Traces) -> None:
        whole = (await traces.search(TraceQuery(**query, limit=500))).traces  # type: ignore[arg-type]
        assert len({trace.uid for trace in whole}) == len(whole) > 0
        for limit in (1, 2, 7, len(whole)):
            assert await all_pages(traces, **query, limit=limit) == list(whole)

    ask(log, question)


def test_the_last_page_has_no_cursor() -> None:
    log = MemoryLog(simple_life(0), simple_life(1_000))
    assert search(log, limit=2).next is None
    assert search(log, limit=1).next is not None


def test_what_happens_between_two_pages_does_not_disturb_them() -> None:
    lives = [simple_life(1_000 * number) for number in range(4)]
    log = MemoryLog(lives[0][:2] + lives[1], lives[2] + lives[3])

    async def question(traces: Traces) -> list[int]:
        first = await traces.search(TraceQuery(limit=2))
        traces.batch_added(*log.append(lives[0][2:] + simple_life(9_000)))
        second = await traces.search(TraceQuery(limit=2, cursor=first.next))
        assert second.next is None
        return uids(first) + uids(second)

    assert ask(log, question) == [life[0].uid for life in reversed(lives)]


def test_a_search_that_takes_long_stops_and_goes_on_from_its_cursor() -> None:
    log = mixed_log(3)
    now = iter(range(100_000))

    async def question(traces: Traces) -> None:
        page = await traces.search(TraceQuery(limit=500))
        assert page.next is not None
        assert len(await all_pages(traces, limit=500)) == 40

    assert ReadLimits().search_seconds == 4.0
    ask(log, question, lambda: next(now))


def test_a_search_that_takes_long_always_gets_on() -> None:
    log = mixed_log(4)
    now = iter(range(0, 100_000_000, 1_000))
    assert len(ask(log, lambda traces: all_pages(traces, queue="a"), lambda: next(now))) > 5


@pytest.mark.parametrize("cursor", ["", "x", "1-2", "1-1-zz", "-1-0-0", "1-2-0", "ffff-1-1", "1-1-1\n", "é-1-1"])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        parse_cursor(cursor, 10)
    with pytest.raises(ValueError, match="cursor"):
        search(MemoryLog(simple_life(0)), cursor=cursor)


def restless(at: int, rounds: int) -> list[Event]:
    """A message that comes back again and again."""
    told = EventBuilder(at, correlation_id="basket").enqueued(at, "work")
    for number in range(rounds):
        told.delivered(at + number, "work", "worker", number + 1)
        told.settled(schema.REQUEUED, at + number, "work", "worker", number + 1)
    return told.events


@pytest.mark.parametrize("query", [{}, {"correlation_id": "basket"}, {"queue": "work"}, {"kind": schema.REQUEUED}])
def test_the_work_of_a_search_is_bounded_and_each_message_is_found_once(
    query: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one message has more events than a whole answer may decode, over several batches."""
    lives = [restless(1_000 * number, 300 if number == 2 else 3) for number in range(12)]
    events = sorted((event for life in lives for event in life), key=lambda event: event.time)
    log = MemoryLog(*[events[at : at + 150] for at in range(0, len(events), 150)])
    decoded = [0]
    decode = reader._decode

    def counting(batch: EventBatch, row: int) -> Event:
        decoded[-1] += 1
        return decode(batch, row)

    monkeypatch.setattr(reader, "_decode", counting)
    limits = ReadLimits(events=100)
    limit = 5

    async def question(traces: Traces) -> list[int]:
        found: list[int] = []
        cursor: str | None = None
        for _ in range(100):
            decoded.append(0)
            page = await traces.search(TraceQuery(**query, limit=limit, cursor=cursor))  # type: ignore[arg-type]
            found += uids(page)
            cursor = page.next
            if cursor is None:
                return found
        raise AssertionError("it never comes to an end")

    assert sorted(ask(log, question, limits=limits)) == sorted(life[0].uid for life in lives)
    assert max(decoded) <= limits.events + limit + 1
