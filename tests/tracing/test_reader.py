"""Biographies from an event log: found by either id, with the kin of a message, while the log grows and after it was
lost."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.tracing.stories import BEGIN, EventBuilder, MemoryLog, simple_life
from warrenmq.events import schema
from warrenmq.events.batch import EventBatch
from warrenmq.events.ids import uid_text
from warrenmq.events.schema import Event
from warrenmq.tracing import follower, reader
from warrenmq.tracing.biography import Biography, build_biography
from warrenmq.tracing.index import FILE_NAME
from warrenmq.tracing.reader import ReadLimits, Traces
from warrenmq.tracing.search import TracingBusy, TracingUnavailable


@asynccontextmanager
async def reading(log: MemoryLog, folder: Path | None = None) -> AsyncIterator[Traces]:
    traces = Traces(log, None if folder is None else str(folder))
    await traces.start()
    try:
        async with asyncio.timeout(30):
            yield traces
    finally:
        await traces.stop()


def run(question: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(question(), 60)

    asyncio.run(limited())


async def events_of(traces: Traces, key: str) -> list[Event]:
    biography = await traces.biography(key)
    return [] if biography is None else list(biography.events)


def biography_in(log: MemoryLog, key: str) -> Biography | None:
    async def question() -> Biography | None:
        async with reading(log) as traces:
            return await traces.biography(key)

    return asyncio.run(question())


def test_a_message_is_found_by_its_message_id_and_by_its_uid() -> None:
    life = simple_life(0, message_id="order-1")
    log = MemoryLog(simple_life(5_000, message_id="order-2") + life[:2], simple_life(9_000), life[2:])
    for key in ("order-1", uid_text(life[0].uid), uid_text(life[0].uid).lower()):
        biography = biography_in(log, key)
        assert biography is not None
        assert list(biography.events) == life
        assert biography.is_complete


def test_of_a_message_that_was_not_traced_there_is_none() -> None:
    log = MemoryLog(simple_life(0, message_id="order-1"))
    assert biography_in(log, "order-2") is None
    assert biography_in(log, "0" * 13) is None
    assert biography_in(log, "") is None


def test_a_message_id_that_is_any_text() -> None:
    for message_id in ("<script>", "Ünïcödé \u2028", "x" * 255):
        log = MemoryLog(simple_life(0, message_id=message_id))
        biography = biography_in(log, message_id)
        assert biography is not None
        assert biography.message_id == message_id


def test_a_republished_message_belongs_to_it_by_its_message_id() -> None:
    first, again = simple_life(0, message_id="order-1"), simple_life(9_000, message_id="order-1")
    log = MemoryLog(first, simple_life(500), again)
    for key in ("order-1", uid_text(first[0].uid), uid_text(again[0].uid)):
        biography = biography_in(log, key)
        assert biography is not None
        assert list(biography.events) == first + again
        assert len(biography.legs) == 2


def republished(at: int, source: list[Event]) -> list[Event]:
    life = EventBuilder(at, source_uid=source[0].uid).add(schema.REPUBLISHED, at)
    return life.enqueued(at + 1, "work").delivered(at + 9, "work", "worker").acked(at + 12, "work", "worker").events


def test_what_a_message_was_made_from_and_what_was_made_from_it_belong_to_it() -> None:
    first = simple_life(0)
    second = republished(5_000, first)
    third = republished(9_000, second)
    log = MemoryLog(first, simple_life(500), second, third)
    for life in (first, second, third):
        biography = biography_in(log, uid_text(life[0].uid))
        assert biography is not None
        assert list(biography.events) == first + second + third


def purge(at: int, queue: str = "work") -> Event:
    return Event(BEGIN + at, schema.DROPPED, 0, vhost="/", queue=queue, reason=schema.R_PURGED, depth=3)


def test_a_purge_that_dropped_it_with_many_others_is_found() -> None:
    waiting = EventBuilder(0, "order-1").enqueued(1, "work").events
    later = EventBuilder(7_000, "order-2").enqueued(7_001, "work").events
    log = MemoryLog(waiting, [*simple_life(500), purge(600, "other")], [purge(5_000), *later], simple_life(9_000))
    biography = biography_in(log, "order-1")
    assert biography is not None
    assert list(biography.events) == [*waiting, purge(5_000)]
    assert (biography.legs[0].outcome, biography.is_complete) == ("dropped", True)
    assert biography_in(log, "order-2") == build_biography(later)


def test_a_purge_between_two_lives_of_a_message_is_found() -> None:
    first = EventBuilder(0, "order-1").enqueued(1, "work").events
    again = EventBuilder(7_000, "order-1").enqueued(7_001, "work").events
    biography = biography_in(MemoryLog(first, [purge(5_000)], again), "order-1")
    assert biography is not None
    assert [leg.outcome for leg in biography.legs] == ["dropped", "waiting"]


def test_what_a_consumer_had_before_the_broker_began_is_lost() -> None:
    log = MemoryLog(EventBuilder(0, "order-1").enqueued(1, "work").delivered(5, "work", "worker").events)

    async def question(began: int) -> str:
        traces = Traces(log, began=BEGIN + began)
        await traces.start()
        biography = await traces.biography("order-1")
        await traces.stop()
        assert biography is not None
        return biography.legs[0].outcome

    assert asyncio.run(question(6)) == "lost"
    assert asyncio.run(question(5)) == "processing"


def test_what_has_just_happened_is_in_it_before_the_log_can_be_read() -> None:
    log = MemoryLog()
    life = simple_life(0, message_id="order-1")

    class Slow(MemoryLog):
        async def read(self, offset: int) -> dict[int, bytes]:
            return {}

    log = Slow()

    async def question() -> None:
        async with reading(log) as traces:
            for event in life:
                traces.batch_added(*log.append([event]))
            assert await events_of(traces, "order-1") == life

    run(question)


def test_a_batch_that_is_still_being_written_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "READ_INTERVAL", 0.001)
    monkeypatch.setattr(follower, "RECENT_BYTES", 1)
    lives = [simple_life(at * 1000, message_id=f"order-{at}") for at in range(3)]

    class Late(MemoryLog):
        async def read(self, offset: int) -> dict[int, bytes]:
            found = await super().read(offset)
            return found if self.reads.count(offset) > 3 else {}

    log = Late()

    async def question() -> None:
        async with reading(log) as traces:
            for life in lives:
                traces.batch_added(*log.append(life))
            assert await events_of(traces, "order-0") == lives[0]

    run(question)


def test_the_rows_that_are_in_no_batch_yet_are_asked_for_first() -> None:
    log = MemoryLog()
    life = simple_life(0, message_id="order-1")
    traces: Traces | None = None

    async def flush() -> None:
        assert traces is not None
        if not log.batches:
            traces.batch_added(*log.append(life))

    async def question() -> None:
        nonlocal traces
        log.flush = flush  # type: ignore[method-assign]
        traces = Traces(log)
        await traces.start()
        assert await events_of(traces, "order-1") == life
        await traces.stop()

    run(question)


def test_answers_are_the_same_after_a_stop_and_a_crash(tmp_path: Path) -> None:
    lives = [simple_life(1_000 * number, message_id=f"order-{number}") for number in range(30)]
    log = MemoryLog(*lives[:20])

    async def question() -> None:
        async with reading(log, tmp_path) as traces:
            assert await events_of(traces, "order-3") == lives[3]
        log.reads.clear()
        for life in lives[20:]:
            log.append(life)
        async with reading(log, tmp_path) as traces:
            for number, life in enumerate(lives):
                assert await events_of(traces, f"order-{number}") == life
            assert min(log.reads[:5]) >= 19  # the index knew the others

    run(question)


LIFE = simple_life(0, message_id="new")


@pytest.mark.parametrize(
    "other",
    [
        MemoryLog(LIFE),
        MemoryLog(LIFE, *[simple_life(1_000 * at) for at in range(4)]),
        MemoryLog(LIFE, *[simple_life(1_000 * at) for at in range(9)]),
        MemoryLog(),
    ],
    ids=["shorter", "as long", "longer", "empty"],
)
def test_an_index_of_another_log_is_built_again(tmp_path: Path, other: MemoryLog) -> None:
    log = MemoryLog(*[simple_life(1_000 * at, message_id="old") for at in range(5)])

    async def question() -> None:
        async with reading(log, tmp_path) as traces:
            assert await events_of(traces, "old")
        async with reading(other, tmp_path) as traces:
            assert await events_of(traces, "old") == []
            assert await events_of(traces, "new") == (LIFE if other.batches else [])

    run(question)


def damage(folder: Path) -> None:
    with sqlite3.connect(folder / FILE_NAME) as database:
        database.execute("UPDATE pages SET checksum = checksum + 1")


def test_a_damaged_index_is_built_again_while_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lives = [simple_life(1_000 * number, message_id=f"order-{number}") for number in range(10)]

    async def question() -> None:
        async with reading(MemoryLog(*lives), tmp_path) as traces:
            traces._follower.index._run_batches = 3
            assert await events_of(traces, "order-0")
            damage(tmp_path)
            for number, life in enumerate(lives):
                assert await events_of(traces, f"order-{number}") == life

    run(question)


def test_a_log_that_was_deleted_is_forgotten_and_the_next_one_followed() -> None:
    log = MemoryLog(simple_life(0, message_id="old"))
    life = simple_life(0, message_id="new")

    async def question() -> None:
        async with reading(log) as traces:
            assert await events_of(traces, "old")
            log.delete()
            assert await events_of(traces, "old") == []
            traces.batch_added(*log.append(life))
            traces.batch_added(*log.append(simple_life(9_000, message_id="third")))
            assert await events_of(traces, "new") == life
            assert await events_of(traces, "third")

    run(question)


def test_the_first_question_after_the_log_was_made_anew_waits_for_its_index() -> None:
    """The old log was longer than the new one: that much of the new one is not indexed."""
    log = MemoryLog(*[simple_life(1_000 * number) for number in range(5)])
    life = simple_life(0, message_id="new")

    async def question() -> None:
        async with reading(log) as traces:
            assert await events_of(traces, "new") == []
            log.delete()
            traces.batch_added(*log.append(life))
            for _ in range(5):
                await asyncio.sleep(0)  # the follower has seen it, and its thread is about to throw the old index away
            assert await events_of(traces, "new") == life

    run(question)


def test_a_log_whose_end_cannot_be_read_is_passed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "READ_ATTEMPTS", 2)
    monkeypatch.setattr(follower, "READ_INTERVAL", 0.001)
    lives = [simple_life(1_000 * number, message_id=f"order-{number}") for number in range(300)]

    class Damaged(MemoryLog):
        async def read(self, offset: int) -> dict[int, bytes]:
            return {at: data for at, data in (await super().read(offset)).items() if at < 5}

    log = Damaged(*lives)

    async def question() -> None:
        async with reading(log) as traces:
            assert await events_of(traces, "order-4") == lives[4]
            assert await events_of(traces, "order-5") == []
            asked = len(log.reads)
            assert asked < 20, "each batch was tried alone"
            new = simple_life(900_000, message_id="new")
            traces.batch_added(*log.append(new))
            assert await events_of(traces, "new") == new

    run(question)


def test_what_retention_removed_is_gone() -> None:
    lives = [simple_life(1_000 * number, message_id=f"order-{number}") for number in range(6)]
    log = MemoryLog(*lives)

    async def question() -> None:
        async with reading(log) as traces:
            log.first_offset = 4
            assert await events_of(traces, "order-3") == []
            assert await events_of(traces, "order-4") == lives[4]

    run(question)


def test_a_batch_that_is_damaged_costs_its_own_events_only() -> None:
    lives = [simple_life(1_000 * number, message_id=f"order-{number}") for number in range(3)]
    log = MemoryLog(*lives)
    log.batches[1] = log.batches[1][:200]

    async def question() -> None:
        async with reading(log) as traces:
            assert await events_of(traces, "order-0") == lives[0]
            assert await events_of(traces, "order-1") == []
            assert await events_of(traces, "order-2") == lives[2]

    run(question)


def test_an_index_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("in the way")

    async def question() -> None:
        async with reading(MemoryLog(simple_life(0)), folder) as traces:
            with pytest.raises(TracingUnavailable, match="index of the event log"):
                await traces.biography("order-1")

    run(question)


def test_an_index_that_lags_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "INDEX_TIMEOUT", 0.01)
    is_open = asyncio.Event()

    class Stuck(MemoryLog):
        async def read(self, offset: int) -> dict[int, bytes]:
            await is_open.wait()
            return await super().read(offset)

    async def question() -> None:
        async with reading(Stuck(simple_life(0))) as traces:
            with pytest.raises(TracingUnavailable, match="0 of 1"):
                await traces.biography("order-1")

    run(question)


def test_a_stopped_reader_answers_nothing() -> None:
    async def question() -> None:
        async with reading(MemoryLog()) as traces:
            pass
        with pytest.raises(TracingUnavailable):
            await traces.biography("order-1")

    run(question)


def test_many_ask_at_once_while_the_log_grows() -> None:
    log = MemoryLog()
    lives = [simple_life(1_000 * number, message_id=f"order-{number}") for number in range(40)]

    async def grow(traces: Traces) -> None:
        for life in lives:
            traces.batch_added(*log.append(life))
            await asyncio.sleep(0)

    async def question() -> None:
        async with reading(log) as traces:
            growing = asyncio.create_task(grow(traces))
            await asyncio.gather(*[traces.biography(f"order-{number}") for number in range(40)])
            await growing
            found = await asyncio.gather(*[events_of(traces, f"order-{number}") for number in range(40)])
            assert found == lives

    run(question)


def test_dropped_messages_have_a_biography() -> None:
    life = EventBuilder(0, "order-1").add(schema.UNROUTABLE, 5, reason=schema.R_NO_ROUTE).events
    biography = biography_in(MemoryLog(life), "order-1")
    assert biography is not None
    assert biography.is_complete


# -- an id that many messages have -------------------------------------------------------------------------------------


class Counted:
    """Counts the events that the reader decodes, and the answers that do so at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = 0
        self.on_event: Callable[[], object] = lambda: None
        decode = reader._decode

        def counting(batch: EventBatch, row: int) -> Event:
            self.events += 1
            self.on_event()
            return decode(batch, row)

        monkeypatch.setattr(reader, "_decode", counting)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def crowd(count: int, message_id: str = "popular") -> list[Event]:
    return [event for number in range(count) for event in simple_life(1_000 * number, message_id=message_id)]


@asynccontextmanager
async def reading_within(log: MemoryLog, limits: ReadLimits) -> AsyncIterator[Traces]:
    traces = Traces(log, limits=limits)
    await traces.start()
    try:
        yield traces
    finally:
        await traces.stop()


@pytest.mark.parametrize("batches", [1, 3, 400])
def test_an_id_that_many_messages_have_is_cut_off_in_the_middle_of_a_batch(counted: Counted, batches: int) -> None:
    events = crowd(400)
    size = -(-len(events) // batches)
    log = MemoryLog(*[events[at : at + size] for at in range(0, len(events), size)])

    async def question() -> None:
        async with reading_within(log, ReadLimits(events=250)) as traces:
            biography = await traces.biography("popular")
            assert biography is not None
            assert list(biography.events) == events[:250]
            assert (biography.is_truncated, biography.is_complete) == (True, False)
            assert counted.events == 250

    run(question)


def test_what_fits_is_whole_and_not_truncated(counted: Counted) -> None:
    events = crowd(50)

    async def question() -> None:
        async with reading_within(MemoryLog(events), ReadLimits(events=len(events) + 1)) as traces:
            biography = await traces.biography("popular")
            assert biography is not None
            assert (list(biography.events), biography.is_truncated) == (events, False)
            assert biography.is_complete
            assert counted.events == len(events)

    run(question)


def test_a_message_that_is_asked_for_by_its_uid_is_whole_however_many_share_its_id() -> None:
    events = crowd(400)
    wanted = simple_life(900_000, message_id="popular")
    log = MemoryLog(events, wanted[:2], wanted[2:])

    async def question() -> None:
        async with reading_within(log, ReadLimits(events=100)) as traces:
            biography = await traces.biography(uid_text(wanted[0].uid))
            assert biography is not None
            assert [event for event in biography.events if event.uid == wanted[0].uid] == wanted
            assert (len(biography.events), biography.is_truncated) == (100, True)

    run(question)


def test_what_many_messages_were_made_from_is_cut_off(counted: Counted) -> None:
    source = simple_life(0)
    made = [event for number in range(1, 200) for event in republished(1_000 * number, source)]

    async def question() -> None:
        async with reading_within(MemoryLog(source + made), ReadLimits(events=100)) as traces:
            biography = await traces.biography(uid_text(source[0].uid))
            assert biography is not None
            assert list(biography.events)[: len(source)] == source
            assert (len(biography.events), biography.is_truncated) == (100, True)
            assert counted.events == 100

    run(question)


def test_batches_and_time_are_limited_too() -> None:
    log = MemoryLog(*[simple_life(1_000 * number, message_id="popular") for number in range(50)])
    now = iter(range(100_000))

    async def question() -> None:
        async with reading_within(log, ReadLimits(batches=5)) as traces:
            biography = await traces.biography("popular")
            assert biography is not None
            assert (len(biography.legs), biography.is_truncated) == (5, True)
        traces = Traces(log, clock=lambda: float(next(now)), limits=ReadLimits(seconds=20))
        await traces.start()
        biography = await traces.biography("popular")
        await traces.stop()
        assert biography is not None
        assert 0 < len(biography.legs) < 50
        assert biography.is_truncated

    run(question)


def test_many_purges_of_a_queue_in_which_many_wait_cost_no_more_than_their_number() -> None:
    waiting = [
        event for number in range(300) for event in EventBuilder(number, "popular").enqueued(number, "work").events
    ]
    purges = [purge(10_000 + number) for number in range(300)]
    biography = biography_in(MemoryLog(waiting, purges), "popular")
    assert biography is not None
    assert [event for event in biography.events if event.uid == 0] == purges[:1]
    assert {leg.outcome for leg in biography.legs} == {"dropped"}


def test_few_answers_are_under_way_at_a_time(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0
    find = reader._Biographer.find

    def counting(self: reader._Biographer, key: str, began: int) -> Biography | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return find(self, key, began)
        finally:
            running -= 1

    monkeypatch.setattr(reader._Biographer, "find", counting)

    async def question() -> None:
        async with reading_within(MemoryLog(crowd(100)), ReadLimits(events=50, readers=2, waiting=6)) as traces:
            answers = await asyncio.gather(*[traces.biography("popular") for _ in range(20)], return_exceptions=True)
        told = [answer for answer in answers if isinstance(answer, Biography)]
        assert (len(told), most) == (8, 2)
        assert all(isinstance(answer, TracingBusy) for answer in answers if answer not in told)
        assert counted.events == 8 * 50

    run(question)


def test_an_answer_lets_others_work_after_each_step(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps of no length, it pauses before each event that it decodes or adds."""
    monkeypatch.setattr(reader, "STEP", 0.0)
    pauses = 0
    pause = follower.LogFollower.pause

    def counting(self: follower.LogFollower) -> None:
        nonlocal pauses
        pauses += 1
        pause(self)

    monkeypatch.setattr(follower.LogFollower, "pause", counting)

    async def question() -> None:
        async with reading(MemoryLog(crowd(50))) as traces:
            assert await traces.biography("popular") is not None
            assert pauses >= 2 * counted.events > 0

    run(question)


def test_an_answer_that_is_cancelled_is_read_no_further(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "STEP", 0.0)

    async def question() -> None:
        async with reading_within(MemoryLog(crowd(500)), ReadLimits(readers=1)) as traces:
            asking = asyncio.create_task(traces.biography("popular"))
            loop = asyncio.get_running_loop()
            counted.on_event = lambda: loop.call_soon_threadsafe(asking.cancel)
            await asyncio.gather(asking, return_exceptions=True)
            assert asking.cancelled()
            assert counted.events < 500
            counted.on_event = lambda: None
            assert await traces.biography("nothing") is None  # the turn was handed on

    run(question)
