"""Messages that are on disk only are forgotten and fetched where they lie: durable, counted, and with few reads."""

from __future__ import annotations

import logging
import os
import random
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.adversity.crash_cycles import errors_raised, new_disk
from tests.adversity.test_bit_rot import flip
from tests.storage.driver import Kept, QuickFiles, body_of
from tests.storage.test_levels import ARGUMENTS, Level
from tests.storage.test_old_formats import FOLDERS
from tests.support.crash import History, effort
from tests.support.disk import RecordingFiles
from tests.support.durable import Life
from warrenmq.core.backlog import Backlog
from warrenmq.core.message import QueuedMessage, address_of, enqueue_as, make_message
from warrenmq.core.ports import MessageStore
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.check import check_folder
from warrenmq.storage.page_index import UNKNOWN
from warrenmq.storage.queue_upkeep import end_run
from warrenmq.storage.segments import Segment

HOUR = 3_600_000


class CountingFiles(QuickFiles):
    """Counts the reads of segments, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.largest = 0
        self._paths: dict[int, str] = {}

    def open_read(self, path: str) -> int:
        handle = super().open_read(path)
        self._paths[handle] = path
        return handle

    def read(self, handle: int, size: int, offset: int) -> bytes:
        if self._paths.get(handle, "").endswith(".seg"):
            self.reads += 1
        return super().read(handle, size, offset)


def always(count: int, size: int, latest: int) -> bool:
    return True


def put(backlog: Backlog, count: int, expires_ms: int = 0, is_persistent: bool = True) -> None:
    """Append messages; the body of each has the number of its position."""
    for _ in range(count):
        position = backlog.next_position
        backlog.next_position += 1
        body = body_of(position)
        header = content_header(len(body), BasicProperties(delivery_mode=2 if is_persistent else 1))
        entry = enqueue_as(make_message(address_of("", "q"), header, body), position)
        entry.expires_ms = expires_ms
        backlog.persist(entry)
        backlog.append(entry)


def on_disk(kept: Kept) -> list[int]:
    """Positions of living messages on disk only, where nothing was acked or forgotten in between."""
    backlog = kept.queue().backlog
    in_memory = [entry.position for entry in backlog]
    return [position for position in range(backlog.next_position) if position not in in_memory]


def forget_first(kept: Kept, is_due: Any = always, name: str = "q") -> tuple[int, int]:
    """As a queue does: the caller counts."""
    count, size = kept.store(name).forget_first_pages(is_due)
    kept.queue(name).backlog.parts()[-1].add_page([], count, size)
    return count, size


def forget(kept: Kept, positions: Iterable[int]) -> None:
    for position in positions:
        size = len(body_of(position))
        assert kept.store().forget_paged(position, size)
        kept.queue().backlog.add_page([], 1, size)


def fetch(store: MessageStore, positions: list[int]) -> list[list[QueuedMessage]]:
    """The answer comes into the list."""
    answers: list[list[QueuedMessage]] = []
    store.fetch(positions, answers.append)
    return answers


def page_at(kept: Kept, position: int) -> tuple[Segment, int]:
    segment = kept.store().segments.find(position)
    assert segment is not None
    return segment, segment.pages.find(position)


def path_of(kept: Kept, segment: Segment) -> Path:
    return Path(kept.store().folder) / segment.name


def positions_of_page(segment: Segment, page: int) -> list[int]:
    return list(range(segment.pages.first(page), segment.pages.last(page) + 1))


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


@pytest.fixture
def kept(tmp_path: Path, files: CountingFiles) -> Kept:
    kept = Kept(tmp_path / "data", files)
    kept.declare()
    put(kept.queue().backlog, 600, expires_ms=HOUR)
    kept.settle()
    return kept


# -- forgetting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_first_pages_are_forgotten_for_good(kept: Kept, clean: bool) -> None:
    paged = on_disk(kept)
    seen: list[tuple[int, int, int]] = []

    def is_due(count: int, size: int, latest: int) -> bool:
        seen.append((count, size, latest))
        return len(seen) <= 5

    count, size = forget_first(kept, is_due)
    assert (count, size) == (sum(each[0] for each in seen[:5]), sum(each[1] for each in seen[:5]))
    assert size == sum(len(body_of(position)) for position in paged[:count])
    assert {latest for _, _, latest in seen} == {HOUR}
    left = [position for position in range(600) if position not in paged[:count]]
    kept.settle()
    kept.restart(clean)
    assert kept.storage.report == []
    assert len(kept.queue().backlog) == len(left)
    assert kept.queue().backlog.body_bytes == sum(len(body_of(position)) for position in left)
    assert kept.drain() == left


def test_forgetting_pages_reads_nothing(tmp_path: Path, files: CountingFiles) -> None:
    kept = Kept(tmp_path / "data", files, dead_allowance=1 << 30)  # no compaction
    kept.declare()
    put(kept.queue().backlog, 600, expires_ms=HOUR)
    kept.settle()
    paged = on_disk(kept)
    files.reads = 0
    count, _ = forget_first(kept)
    assert count == len(paged) > 400
    kept.settle()
    assert files.reads == 0
    assert kept.queue().backlog.paged == 0
    assert not kept.store().has_unread()
    kept.checkpoint()
    kept.drain()
    kept.checkpoint()
    assert kept.names() == []


def test_a_page_with_acks_is_forgotten_also_after_a_restart(kept: Kept) -> None:
    kept.restart()
    kept.ack(kept.take(3))
    kept.checkpoint()
    kept.restart()
    assert kept.queue().backlog.paged == 597
    assert forget_first(kept) == (597, sum(len(body_of(position)) for position in range(3, 600)))


def test_a_page_that_is_not_due_keeps_all_that_follow(kept: Kept) -> None:
    assert forget_first(kept, lambda count, size, latest: False) == (0, 0)
    assert kept.drain() == list(range(600))


@pytest.mark.parametrize(("expiries", "latest"), [((5, 9, 7), 9), ((5, 0, 7), 0), ((0, 0, 0), 0)])
def test_the_last_expiry_of_a_page_is_known_also_after_a_restart(
    tmp_path: Path, expiries: tuple[int, ...], latest: int
) -> None:
    kept = Kept(tmp_path / "data", page_size=16 * 1024)
    kept.declare()
    for number in range(300):
        put(kept.queue().backlog, 1, expiries[number % 3])
    for clean in (True, False):
        kept.restart(clean)
        seen: list[int] = []
        kept.store().forget_first_pages(lambda count, size, latest, seen=seen: seen.append(latest) or False)  # type: ignore
        assert seen == [latest]
    kept.crash()


def test_the_part_of_a_page_that_is_in_memory_is_not_forgotten(kept: Kept) -> None:
    """What was flushed with messages that stay in memory, or was read back, waits on."""
    kept.checkpoint()
    in_memory = [entry.position for entry in kept.queue().backlog]
    forget_first(kept)
    assert kept.drain() == in_memory


def test_a_read_in_progress_does_not_bring_forgotten_messages_back(kept: Kept) -> None:
    paged = on_disk(kept)
    taken = kept.take(paged[0])
    kept.queue().backlog.await_page(lambda: None)
    assert kept.store().is_reading
    forget_first(kept)
    assert not kept.store().is_reading
    kept.settle()
    assert kept.drain() == list(range(paged[-1] + 1, 600))
    kept.ack(taken)
    put(kept.queue().backlog, 300)
    kept.settle()
    assert kept.drain() == list(range(600, 900))


def test_a_read_in_progress_continues_after_what_was_forgotten(kept: Kept) -> None:
    paged = on_disk(kept)
    taken = kept.take(paged[0])
    kept.queue().backlog.await_page(lambda: None)
    count, _ = forget_first(kept, Limit(200))
    notified: list[bool] = []
    kept.queue().backlog.await_page(lambda: notified.append(True))
    kept.settle()
    assert notified
    kept.ack(taken)
    assert kept.drain() == list(range(paged[count], 600))


class Limit:
    """Due while there are fewer than this many messages."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def __call__(self, count: int, size: int, latest: int) -> bool:
        self.left -= count
        return self.left > 0


def test_single_messages_are_forgotten_once(kept: Kept) -> None:
    paged = on_disk(kept)
    forget(kept, paged[::3])
    assert not kept.store().forget_paged(paged[0], 1)
    assert not kept.store().forget_paged(0, 1), "it is in memory"
    assert not kept.store().forget_paged(600, 1), "it was never there"
    kept.settle()
    kept.restart(clean=False)
    left = [position for position in range(600) if position not in paged[::3]]
    assert kept.queue().backlog.body_bytes == sum(len(body_of(position)) for position in left)
    assert kept.drain() == left


def test_single_deletions_are_not_repeated_with_their_page(kept: Kept) -> None:
    paged = on_disk(kept)
    forget(kept, paged[::3])
    count, size = forget_first(kept)
    left = [position for position in paged if position not in paged[::3]]
    assert (count, size) == (len(left), sum(len(body_of(position)) for position in left))


def test_a_transient_queue_forgets_without_a_log(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "data")
    kept.declare("t", durable=False)
    put(kept.queue("t").backlog, 400)
    kept.settle()
    work = kept.storage.log.work
    store = kept.store("t")
    last = kept.queue("t").backlog.next_position - 200
    assert store.forget_paged(last, len(body_of(last)))
    kept.queue("t").backlog.add_page([], 1, len(body_of(last)))
    assert forget_first(kept, Limit(100), "t")[0] > 0
    assert kept.storage.log.work == work
    assert not any(segment.unwritten_marks for segment in store.segments.all)
    kept.settle()
    waiting = len(kept.queue("t").backlog)
    assert len(kept.drain("t")) == waiting


def test_files_of_forgotten_pages_are_compacted(kept: Kept) -> None:
    before = kept.segment_count()
    paged = on_disk(kept)
    forget(kept, [position for position in paged if position % 10])
    kept.settle()
    for _ in range(5):
        kept.run()
    assert kept.storage.compaction.count > 0
    assert kept.segment_count() < before
    seen: list[tuple[int, int]] = []
    kept.store().forget_first_pages(lambda count, size, latest: bool(seen.append((count, size))))
    segment = kept.store().segments.reading
    assert segment is not None
    first = [position for position in paged if position % 10 == 0][: seen[0][0]]
    assert seen == [(len(first), sum(len(body_of(position)) for position in first))]
    assert kept.drain() == [position for position in range(600) if position not in paged or position % 10 == 0]


@pytest.mark.parametrize("steps", range(12))
def test_pages_are_forgotten_and_fetched_in_the_middle_of_a_compaction(tmp_path: Path, steps: int) -> None:
    kept = Kept(tmp_path / "data", read_size=500)
    kept.declare()
    put(kept.queue().backlog, 600, expires_ms=HOUR)
    kept.settle()
    paged = on_disk(kept)
    dead = [position for position in paged if position % 4]
    forget(kept, dead)
    kept.turn()
    kept.storage.log.flush()
    while kept.storage.committer.run_one():
        pass
    for _ in range(steps):
        kept.storage.pager.run_one()
    was_running = kept.storage.compaction.is_running
    living = [position for position in paged if position % 4 == 0]
    count, size = forget_first(kept, Limit(20))
    assert size == sum(len(body_of(position)) for position in living[:count])
    forget(kept, living[count + 5 : count + 15])
    left = [position for position in living[count:] if position not in living[count + 5 : count + 15]]
    answers = fetch(kept.store(), living)
    kept.settle()
    assert [[entry.position for entry in answer] for answer in answers] == [left]
    for segment in kept.store().segments.all:
        assert sum(segment.pages.unread(page) for page in range(len(segment.pages))) == segment.unread
        sizes = [segment.pages.unread_bytes(page) for page in range(len(segment.pages))]
        assert sum(sizes) == segment.unread_bytes
    kept.restart(clean=False)
    assert kept.drain() == [position for position in range(600) if position not in paged or position in left]
    assert was_running or steps in (0, 1) or kept.storage.compaction.count == 0


# -- fetching --------------------------------------------------------------------------------------------------------


def test_messages_are_fetched_and_stay_on_disk(kept: Kept, files: CountingFiles) -> None:
    paged = on_disk(kept)
    segment, page = page_at(kept, paged[100])
    wanted = [*positions_of_page(segment, page)[::2], paged[-1]]
    files.reads = 0
    answers = fetch(kept.store(), wanted)
    assert answers == [], "it is answered later"
    kept.settle()
    (found,) = answers
    assert [entry.position for entry in found] == wanted
    assert all(entry.message.body == body_of(entry.position) for entry in found)
    assert {(entry.expires_ms, entry.epoch) for entry in found} == {(HOUR, 1)}
    assert files.reads == 4, "two pages, a head and a payload each"
    assert kept.drain() == list(range(600))


def test_messages_in_memory_or_deleted_are_left_out(kept: Kept) -> None:
    paged = on_disk(kept)
    forget(kept, paged[:50])
    answers = fetch(kept.store(), [0, 1, *paged[40:60], 600, 10_000])
    forget(kept, paged[50:55])
    kept.settle()
    assert [entry.position for entry in answers[0]] == paged[55:60]
    assert fetch(kept.store(), []) == []


def test_messages_paged_in_meanwhile_are_left_out(kept: Kept) -> None:
    paged = on_disk(kept)
    kept.ack(kept.take(paged[0]))
    kept.store().page_in()  # this read comes first
    answers = fetch(kept.store(), paged)
    kept.settle()
    (found,) = answers
    in_memory = {entry.position for entry in kept.queue().backlog}
    assert in_memory & set(paged)
    assert [entry.position for entry in found] == [position for position in paged if position not in in_memory]


def test_requests_are_answered_in_order_and_a_purge_answers_them(kept: Kept) -> None:
    paged = on_disk(kept)
    answers = fetch(kept.store(), paged)
    expiries: list[Any] = []
    kept.store().read_expiries(paged[0], expiries.append)
    kept.queue().purge()
    kept.settle()
    assert (answers, expiries) == ([[]], [[]])


def test_a_deleted_queue_answers_nothing_and_nothing_fails(kept: Kept) -> None:
    answers = fetch(kept.store(), on_disk(kept))
    kept.channel.delete(kept.queue())
    kept.settle()
    assert answers == []
    assert kept.failures == []


def test_a_page_that_is_not_written_yet_is_waited_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "data")
    kept.declare()
    put(kept.queue().backlog, 300)
    paged = on_disk(kept)
    assert paged
    answers = fetch(kept.store(), paged[-3:])
    kept.storage.pager.run_all()
    assert answers == [], "its epoch is not durable, so no page is written"
    kept.settle()
    assert [entry.position for entry in answers[0]] == paged[-3:]


@pytest.mark.parametrize("is_fetch", [True, False])
def test_a_file_that_a_compaction_has_replaced_is_not_taken_for_damaged(kept: Kept, is_fetch: bool) -> None:
    """The writing thread has removed it, and the loop has not heard of that yet."""
    paged = on_disk(kept)
    segment, _ = page_at(kept, paged[0])
    path = path_of(kept, segment)
    answers: list[list[QueuedMessage]] = []
    if is_fetch:
        answers = fetch(kept.store(), paged[:3])
    else:
        kept.ack(kept.take(paged[0]))
        kept.store().page_in()
    path.rename(path.with_suffix(".aside"))
    segment.is_compacting = True
    kept.settle()
    assert answers == []
    path.with_suffix(".aside").rename(path)
    end_run(kept.store(), [segment])
    kept.settle()
    assert not is_fetch or [entry.position for entry in answers[0]] == paged[:3]
    assert kept.storage.figures()["damaged_pages"] == 0
    assert kept.drain() == list(range(0 if is_fetch else paged[0], 600))


def test_fetched_messages_know_how_often_they_were_delivered(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "data")
    kept.declare(**{"x-queue-type": "quorum"})  # type: ignore[arg-type]
    put(kept.queue().backlog, 300)
    kept.checkpoint()
    kept.restart()
    queue = kept.queue()
    assert queue.backlog.paged == 300
    taken = kept.take(250)
    for entry in taken:
        entry.attempts = 2
    queue.requeue(taken)
    queue.backlog.page_out_requeued()
    position = on_disk(kept)[100]
    answers = fetch(kept.store(), [position])
    kept.settle()
    assert [(entry.position, entry.attempts) for entry in answers[0]] == [(position, taken[position].attempts)]
    assert taken[position].attempts >= 2


# -- expiry ----------------------------------------------------------------------------------------------------------


def test_the_expiries_of_a_page_are_read(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "data")
    kept.declare()
    for number in range(300):
        put(kept.queue().backlog, 1, expires_ms=HOUR + number if number % 3 else 0)
    kept.settle()
    position = on_disk(kept)[50]
    forget(kept, [position + 1])
    segment, page = page_at(kept, position)
    found: list[Any] = []
    kept.store().read_expiries(segment.pages.first(page), found.append)
    kept.settle()
    expected = [each for each in positions_of_page(segment, page) if each % 3 and each != position + 1]
    assert found == [[(each, HOUR + each, len(body_of(each))) for each in expected]]


def test_a_page_in_which_nothing_expires_is_not_read(tmp_path: Path, files: CountingFiles) -> None:
    kept = Kept(tmp_path / "data", files)
    kept.declare()
    put(kept.queue().backlog, 300)
    kept.settle()
    files.reads = 0
    found: list[Any] = []
    kept.store().read_expiries(on_disk(kept)[0], found.append)
    assert found == []
    kept.settle()
    assert (found, files.reads) == ([[]], 0)


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_finds_when_each_page_expires(kept: Kept, clean: bool) -> None:
    put(kept.queue().backlog, 300)  # never
    kept.settle()
    put(kept.queue().backlog, 300, expires_ms=2 * HOUR)
    kept.settle()
    if clean:
        kept.stop()
    else:
        kept.crash()
    kept._data_dir.lock()
    storage = type(kept.storage).open(kept._data_dir, kept.options, files=kept.files)
    store: Any = storage.message_store("/", "q", kept_options(), 0)
    recovered = store.recovered
    expected = [
        (segment.pages.earliest(page), segment.pages.first(page))
        for segment in store.segments.all
        for page in range(len(segment.pages))
        if segment.pages.first(page) < 600 or segment.pages.last(page) >= 900
    ]
    assert recovered.expiring == expected
    assert {time for time, _ in recovered.expiring} == {HOUR, 2 * HOUR}
    storage.close()
    kept._data_dir.unlock()


def kept_options() -> Any:
    from warrenmq.core.options import queue_options

    return queue_options(True, {})


# -- damage ----------------------------------------------------------------------------------------------------------


def spoil(kept: Kept, position: int, in_head: bool) -> list[int]:
    """Damage the page of a position; return all positions in it."""
    segment, page = page_at(kept, position)
    flip(path_of(kept, segment), segment.pages.offset(page) + (20 if in_head else 100))
    return positions_of_page(segment, page)


@pytest.mark.parametrize("in_head", [False, True])
@pytest.mark.parametrize("reads_expiries", [False, True])
def test_a_damaged_page_is_reported_once_and_costs_its_messages_alone(
    kept: Kept, caplog: pytest.LogCaptureFixture, in_head: bool, reads_expiries: bool
) -> None:
    paged = on_disk(kept)
    lost = spoil(kept, paged[200], in_head)
    answers: list[Any] = []
    if reads_expiries:
        kept.store().read_expiries(lost[0], answers.append)
        expected = []
    else:
        kept.store().fetch(paged, answers.append)
        expected = [position for position in paged if position not in lost]
    kept.settle()
    kept.settle()
    assert len(answers) == 1
    assert [getattr(entry, "position", None) for entry in answers[0]] == expected
    backlog = kept.queue().backlog
    assert (len(backlog), backlog.paged) == (600 - len(lost), len(paged) - len(lost))
    assert backlog.body_bytes == sum(len(body_of(position)) for position in range(600) if position not in lost)
    figures = kept.storage.figures()
    assert (figures["damaged_pages"], figures["lost_messages"]) == (1, len(lost))
    assert list((kept.folder / "lost+damaged").iterdir())
    assert kept.drain() == [position for position in range(600) if position not in lost]
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert sum(" lost" in line for line in told) == 1
    assert f"{len(lost)} messages of queue 'q' in vhost '/' lost" in told[0]
    kept.settle()
    kept.restart(clean=False)
    assert kept.drain() == []
    assert kept.storage.report == []


@pytest.mark.parametrize("in_head", [False, True])
def test_a_damaged_page_can_be_forgotten_with_the_others(kept: Kept, in_head: bool) -> None:
    spoil(kept, on_disk(kept)[200], in_head)
    paged = on_disk(kept)
    assert forget_first(kept)[0] == len(paged)
    kept.settle()
    assert kept.storage.figures()["damaged_pages"] == 0


def test_pages_after_a_damaged_one_are_forgotten_and_the_counts_stay_right(tmp_path: Path) -> None:
    """The reader counts what it lost when it comes to the end of the segment: that may be forgotten before."""
    kept = Kept(tmp_path / "data", segment_size=1 << 20, read_size=1000)
    kept.declare()
    put(kept.queue().backlog, 600)
    kept.settle()
    paged = on_disk(kept)
    segment, page = page_at(kept, paged[0])
    assert len(segment.pages) > page + 10
    lost = spoil(kept, segment.pages.first(page + 2), False)
    taken = kept.take(lost[-1] + 3)
    assert kept.storage.figures()["damaged_pages"] == 1
    assert kept.storage.figures()["lost_messages"] == 0
    kept.ack(taken)
    before = kept.queue().backlog.paged
    assert before > 100
    assert forget_first(kept)[0] == before
    assert not kept.store().has_unread()
    assert kept.storage.figures()["lost_messages"] == len(lost)
    assert len(kept.drain()) == 600 - len(taken) - before


def test_a_missing_file_costs_its_messages_and_stalls_nothing(kept: Kept) -> None:
    paged = on_disk(kept)
    segment, _ = page_at(kept, paged[-1])
    os.remove(path_of(kept, segment))
    answers = fetch(kept.store(), paged)
    kept.settle()
    assert len(answers) == 1
    assert [entry.position for entry in answers[0]] == [each for each in paged if each < segment.first]
    assert len(kept.queue().backlog) == 600 - sum(position >= segment.first for position in paged)


# -- old files, and levels -------------------------------------------------------------------------------------------


def test_a_folder_of_format_5_is_read_and_its_pages_are_forgotten(tmp_path: Path) -> None:
    """Written by a broker that was killed: page heads without expiry, some messages acked, x-max-priority ignored."""
    folder = tmp_path / "data"
    with tarfile.open(FOLDERS / "v5.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    waiting = [*range(1, 40, 2), *range(40, 320)]
    report = check_folder(str(folder))
    assert (report.damage, report.messages) == ([], len(waiting) + 25)
    kept = Kept(folder)
    assert kept.storage.report == []
    assert len(kept.queue().backlog) == len(waiting)
    old = [segment.first for segment in kept.store().segments.all if segment.is_old]
    assert old == [0, 112, 220]
    assert kept.store().segments.all[0].pages.unread_bytes(0) == UNKNOWN  # several pages of the segment have acks
    assert forget_first(kept) == (0, 0)
    kept.ack(kept.take(60))
    waiting = waiting[60:]
    put(kept.queue().backlog, 200, expires_ms=HOUR)
    kept.settle()
    assert [segment.first for segment in kept.store().segments.all if segment.is_old] == old
    in_memory = {entry.position for entry in kept.queue().backlog}
    paged = [position for position in waiting if position not in in_memory]
    seen: list[int] = []

    def is_due(count: int, size: int, latest: int) -> bool:
        seen.append(latest)
        return len(seen) < 4

    count, size = forget_first(kept, is_due)
    assert size == sum(len(body_of(position)) for position in paged[:count])
    assert set(seen) == {0}
    waiting = [position for position in waiting if position not in paged[:count]]
    kept.checkpoint()
    kept.restart(clean=False)
    assert kept.storage.report == []
    assert kept.storage.stored_levels("/", "q") == []
    assert kept.queue().backlog.body_bytes == sum(len(body_of(each)) for each in [*waiting, *range(320, 520)])
    assert kept.drain() == [*waiting, *range(320, 520)]


def test_each_level_of_a_queue_forgets_its_own(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "data")
    kept.declare(**ARGUMENTS)  # type: ignore[arg-type]
    low, high = Level(kept.storage, 1), Level(kept.storage, 2)
    low.put(*range(0, 600, 2))
    high.put(*range(1, 600, 2))
    kept.settle()
    count, size = low.store.forget_first_pages(always)
    low.backlog.add_page([], count, size)
    assert count > 100
    kept.settle()
    kept.restart(clean=False)
    assert len(Level(kept.storage, 1).numbers()) == 300 - count
    assert Level(kept.storage, 2).numbers() == list(range(1, 600, 2))


# -- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(effort(6)))
def test_a_crash_leaves_what_was_there_after_some_turn(seed: int) -> None:
    """Power loss and kills at any file operation, while messages come, expire page by page and one by one."""
    choice = random.Random(seed)
    history = History.begin(new_disk())
    life = Life(history.files)
    life.publisher.declare("q", durable=True)
    life.settle()
    backlog: Any = life.queue("q").backlog
    waiting: list[int] = []
    promised: list[tuple[int, tuple[int, ...]]] = [(life.epoch, ())]
    life.on_durable = lambda epoch: history.record(("durable", epoch))
    history.record(("durable", life.durable))
    for _ in range(60):
        with errors_raised():
            do = choice.random()
            in_memory = {entry.position for entry in backlog}
            paged = [position for position in waiting if position not in in_memory]
            if do < 0.4 or not paged:
                first = backlog.next_position
                put(backlog, choice.randint(5, 40), HOUR)
                waiting += range(first, backlog.next_position)
            elif do < 0.6:
                count, size = backlog.store.forget_first_pages(Limit(choice.randint(1, 60)))
                backlog.add_page([], count, size)
                waiting = [position for position in waiting if position not in paged[:count]]
            elif do < 0.8:
                for position in choice.sample(paged, min(len(paged), 10)):
                    assert backlog.store.forget_paged(position, len(body_of(position)))
                    backlog.add_page([], 1, len(body_of(position)))
                    waiting.remove(position)
            else:
                entry = backlog.take()
                while entry is not None and choice.random() < 0.9:
                    backlog.settle(entry)
                    waiting.remove(entry.position)
                    entry = backlog.take()
                if entry is not None:
                    backlog.requeue([entry])
            promised.append((life.epoch, tuple(waiting)))
            history.record(("state", life.epoch, tuple(waiting)))
            life.end_turn()
            for _ in range(choice.randrange(8)):
                choice.choice((life.commit_one, life.page_one, life.apply_one))()
            if choice.random() < 0.2:
                life.settle()
    for crash in history.crashes(choice, 12, 2):
        durable = max([fact[1] for fact in crash.facts if fact[0] == "durable"], default=0)
        after = Life(RecordingFiles(crash.disk.after_kill()))
        assert not after.storage.has_damage
        found = tuple(int(body[:8]) for body in dict(after.take_everything()[0]).get("q", ()))
        before = [waiting for epoch, waiting in promised if epoch <= durable]
        allowed = {before[-1] if before else (), *(waiting for epoch, waiting in promised if epoch > durable)}
        assert found in allowed, f"seed {seed}, after operation {crash.after}, killed: {crash.killed}"
