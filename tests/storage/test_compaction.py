"""Segments with many dead messages are rewritten without them, and only the disk shows it."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.storage.driver import Kept, QuickFiles, numbers_of
from tests.support.client import PERSISTENT
from warrenmq.core.message import QueuedMessage
from warrenmq.journal import record
from warrenmq.journal.files import SystemFiles
from warrenmq.journal.segment_file import SEGMENT_MAGIC, encode_file_head, encode_page
from warrenmq.storage import crash_points
from warrenmq.storage.check import check_folder
from warrenmq.storage.compaction import TEMPORARY, SegmentCopy, Source

KIB = 1024
TRANSIENT = 1
SEGMENT = 512 * KIB
# As the defaults are to each other, but smaller.
SCALED = {
    "segment_size": SEGMENT,
    "dead_allowance": SEGMENT * 3 // 4,
    "page_size": 16 * KIB,
    "read_size": 64 * KIB,
    "window": 256 * KIB,
    "page": 64 * KIB,
}


def scattered(kept: Kept) -> list[QueuedMessage]:
    """A queue whose first segments have more dead than living messages; return those that are alive and unacked."""
    kept.declare()
    kept.publish(range(400))
    held = kept.take(400)
    kept.checkpoint()
    kept.ack(entry for entry in held if not is_alive(entry.position))
    return [entry for entry in held if is_alive(entry.position)]


def is_alive(number: int) -> bool:
    return number >= 350 or number % 5 == 0


def alive() -> list[int]:
    return [number for number in range(400) if is_alive(number)]


def begin(kept: Kept) -> None:
    """Let the deaths become durable, which a compaction waits for."""
    commit(kept)
    assert kept.storage.compaction.is_running


def commit(kept: Kept) -> None:
    """End the turn and make it durable; nothing is written to segments."""
    kept.write_log()


def test_mostly_dead_segments_become_one_file(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    before = len(scattered(kept))
    segments = kept.segment_count()
    kept.settle()
    assert kept.storage.compaction.count > 0
    assert "00000000000000000000-1.seg" in kept.names()
    assert kept.segment_count() < segments
    kept.restart(clean=False)
    assert kept.queue().message_count() == before
    assert kept.drain() == alive()


def test_optional_fields_of_messages_are_copied(tmp_path: Path) -> None:
    traced = record.encode(0, record.PERSISTENT | record.TRACED, b"a", b"h", b"b", record.TRACE.pack(7, 8, 9))
    gone = record.encode(1, record.PERSISTENT, b"a", b"h", b"gone")
    expiring = record.encode(2, record.PERSISTENT | record.EXPIRY, b"a", b"h", b"bb", bytes(8))
    payload = traced + gone + expiring
    path = tmp_path / "segment"
    path.write_bytes(encode_file_head(SEGMENT_MAGIC) + encode_page(0, 2, 3, 1, 1, payload, 0, 7) + payload)
    copy = SegmentCopy(SystemFiles(), [Source(str(path), 0, path.stat().st_size, bytearray(b"\x02"))], "new", 0, 1000)
    assert copy.copy_some(1000)
    assert (copy.count, copy.last, copy.kept_bytes) == (2, 2, 3)
    assert (tmp_path / TEMPORARY).read_bytes().endswith(traced + expiring)


# -- how much of the disk is taken ---------------------------------------------------------------------------------


def publish_sizes(kept: Kept, sizes: Iterable[int], transient: Iterable[bool] | None = None) -> None:
    modes = iter(transient or ())
    for number, size in enumerate(sizes):
        mode = TRANSIENT if next(modes, False) else PERSISTENT
        kept.channel.publish(b"%08d" % number + b"." * (size - 8), "q", delivery_mode=mode)
    kept.settle()


def disk_use(kept: Kept) -> int:
    folder = Path(kept.store().folder)
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0


def require_little_dead(kept: Kept, living: Iterable[bytes]) -> None:
    live = sum(map(len, living))
    assert disk_use(kept) <= 2 * live + SEGMENT, kept.names()
    assert kept.segment_count() <= 2 + 4 * live // SEGMENT, kept.names()


def one_in_200(number: int) -> bool:
    return number % 200 == 7


def even(number: int) -> bool:
    return number % 2 == 0


@pytest.mark.parametrize(
    ("sizes", "stays"),
    [
        ([100] * 30_000, one_in_200),
        ([10 * KIB] * 600, one_in_200),
        ([100 * KIB] * 60, lambda number: number == 30),
        ([100, 100 * KIB] * 50, even),  # the large ones are gone
        ([100 * KIB, 100] * 50, lambda number: number % 10 == 0),
        ([100, 10 * KIB, 100, 100 * KIB] * 40, one_in_200),
        ([100] * 6000 + [100 * KIB] * 40, lambda number: number < 6000),
    ],
    ids=["small", "large", "very large", "small ones stay", "large ones stay", "mixed", "small before large"],
)
def test_a_queue_takes_twice_its_living_messages_and_a_segment_at_most(
    tmp_path: Path, sizes: list[int], stays: Callable[[int], bool]
) -> None:
    kept = Kept(tmp_path, **SCALED)
    kept.declare()
    publish_sizes(kept, sizes)
    held = kept.take_all()
    kept.ack(entry for entry in held if not stays(entry.position))
    living = [entry.message.body for entry in held if stays(entry.position)]
    kept.settle()
    require_little_dead(kept, living)
    for clean in (True, False):
        kept.restart(clean)
        require_little_dead(kept, living)
    assert [entry.message.body for entry in kept.take_all()] == living


def test_dead_space_that_a_start_finds_is_reclaimed(tmp_path: Path) -> None:
    kept = Kept(tmp_path, **{**SCALED, "dead_allowance": 1 << 40})
    kept.declare()
    publish_sizes(kept, [100, 10 * KIB] * 200)
    held = kept.take_all()
    kept.ack(entry for entry in held if not one_in_200(entry.position) and entry.position % 40)
    living = [entry.message.body for entry in held if one_in_200(entry.position) or entry.position % 40 == 0]
    kept.settle()
    assert disk_use(kept) > 3 * SEGMENT
    kept.stop()
    kept = Kept(tmp_path, **SCALED)
    require_little_dead(kept, living)
    assert [entry.message.body for entry in kept.take_all()] == living


@pytest.mark.parametrize("transient_size", [10 * KIB, 100])
def test_transient_messages_of_an_earlier_run_are_dead_space(tmp_path: Path, transient_size: int) -> None:
    """Also where they share their pages with others: then the heads of pages do not tell how much is theirs."""
    kept = Kept(tmp_path, **SCALED)
    kept.declare()
    count = 4 * SEGMENT // transient_size
    publish_sizes(kept, [100 if number % 20 == 0 else transient_size for number in range(count)], is_not_20th())
    kept.restart()
    living = [b"%08d" % number + b"." * 92 for number in range(0, count, 20)]
    require_little_dead(kept, living)
    assert [entry.message.body for entry in kept.take_all()] == living


def is_not_20th() -> Iterator[bool]:
    while True:
        yield False
        yield from [True] * 19


def test_the_file_that_is_written_is_compacted_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path, **{**SCALED, "segment_size": 1 << 30})
    kept.declare()
    publish_sizes(kept, [10 * KIB] * 200)
    held = kept.take_all()
    kept.ack(held[1:-1])
    kept.settle()
    require_little_dead(kept, [entry.message.body for entry in (held[0], held[-1])])
    kept.publish(range(3))
    kept.checkpoint()
    kept.restart(clean=False)
    assert [len(entry.message.body) for entry in kept.take_all()] == [10 * KIB, 10 * KIB, 48, 68, 88]


def test_queues_that_are_not_durable_are_compacted_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path, **SCALED)
    kept.declare(durable=False)
    publish_sizes(kept, [10 * KIB] * 400)
    held = kept.take_all()
    kept.ack(entry for entry in held if not one_in_200(entry.position))
    kept.settle()
    require_little_dead(kept, [entry.message.body for entry in held if one_in_200(entry.position)])


def test_a_slow_message_in_every_segment_leaves_few_files(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.declare()
    slow: list[QueuedMessage] = []
    for round in range(40):
        kept.publish(range(round * 200, round * 200 + 200))
        kept.settle()
        held = kept.take(200)
        slow.append(held.pop(100))
        kept.ack(held)
        kept.checkpoint()
    assert kept.segment_count() <= 4
    kept.restart(clean=False)
    assert kept.drain() == numbers_of(slow)


class Counted(QuickFiles):
    """Counts the bytes that are written to copies, and to segments at all."""

    copied = 0
    written = 0

    def writev(self, handle: int, pieces: object, offset: int) -> None:
        size = sum(map(len, pieces))  # type: ignore[call-overload]
        name = os.readlink(f"/proc/self/fd/{handle}")
        self.copied += size * name.endswith(TEMPORARY)
        self.written += size * name.endswith(".seg")
        super().writev(handle, pieces, offset)  # type: ignore[arg-type]


def test_copies_cost_less_than_what_was_published(tmp_path: Path) -> None:
    """However slowly a queue dies: one message of ten stays each time."""
    files = Counted()
    kept = Kept(tmp_path, files)
    kept.declare()
    kept.publish(range(3000))
    kept.settle()
    held = kept.take_all()
    while held:
        for at in range(10):
            kept.ack(held[at::20])
            kept.settle()
        held = [entry for number, entry in enumerate(held) if number % 20 >= 10]
    assert kept.names() == []
    assert 0 < files.copied < files.written


def test_purging_and_deleting_frees_the_files_at_once(tmp_path: Path) -> None:
    kept = Kept(tmp_path, **SCALED)
    kept.declare()
    publish_sizes(kept, [10 * KIB] * 300)
    held = kept.take(1)
    kept.queue().purge()
    kept.settle()
    require_little_dead(kept, [held[0].message.body])
    publish_sizes(kept, [10 * KIB] * 300)
    folder = Path(kept.store().folder)
    kept.channel.delete(kept.queue())
    kept.settle()
    assert not folder.exists()


# -- what happens meanwhile ----------------------------------------------------------------------------------------


def test_acks_that_come_while_it_is_copied_count_for_the_copy(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    held = scattered(kept)
    begin(kept)
    kept.ack(held[:3])
    kept.settle()
    assert kept.storage.compaction.count > 0
    kept.checkpoint()
    kept.restart(clean=False)
    assert kept.drain() == alive()[3:]


def test_a_purge_that_comes_while_it_is_copied_counts_for_the_copy(tmp_path: Path) -> None:
    kept = Kept(tmp_path, window=4 * KIB)
    kept.declare()
    kept.publish(range(800))
    kept.settle()
    held = kept.take(760)
    assert kept.store().has_unread()
    kept.ack(entry for entry in held if entry.position % 10 or entry.position > 700)
    begin(kept)
    kept.storage.pager.run_one()
    kept.queue().purge()
    kept.settle()
    assert kept.storage.compaction.count > 0
    kept.checkpoint()
    kept.restart(clean=False)
    assert kept.drain() == list(range(0, 701, 10))


def test_other_work_gets_its_turn_between_its_steps(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    scattered(kept)
    begin(kept)
    done: list[bool] = []
    kept.storage.pager.submit(lambda: True, done.append)
    while not done:
        assert kept.storage.pager.run_one()
    assert kept.storage.compaction.is_running
    kept.settle()
    assert kept.drain() == []  # the living are unacked


def test_a_segment_can_be_compacted_while_it_is_read(tmp_path: Path) -> None:
    kept = Kept(tmp_path, **{**SCALED, "segment_size": 1 << 30, "window": 32 * KIB, "page": 8 * KIB})
    kept.declare()
    publish_sizes(kept, [KIB] * 1000)
    bodies = [entry.message.body for entry in kept.take(2)]
    held = kept.take(900)
    assert kept.store().segments.reading is not None
    kept.ack(held)
    begin(kept)
    kept.queue().await_page(lambda: None)
    kept.settle()
    assert kept.storage.compaction.count == 1
    rest = [entry.message.body for entry in kept.take_all()]
    assert [int(body[:8]) for body in rest] == list(range(902, 1000))
    kept.restart(clean=False)
    assert [entry.message.body for entry in kept.take_all()] == bodies + rest


def test_a_stop_waits_for_the_one_under_way(tmp_path: Path) -> None:
    """Else the marks of the old file would be written while a new one takes its place, and acked messages come back."""
    for steps in range(12):
        kept = Kept(tmp_path / str(steps))
        held = scattered(kept)
        begin(kept)
        kept.ack(held[:3])
        kept.turn()
        kept.storage.committer.run_one()
        for _ in range(steps):
            kept.storage.pager.run_one()
        kept.restart()
        assert kept.failures == []
        assert kept.storage.replayed_epochs <= 1
        assert kept.drain() == alive()[3:]


@pytest.mark.parametrize("steps", range(0, 12, 3))
def test_a_queue_can_be_deleted_meanwhile(tmp_path: Path, steps: int) -> None:
    kept = Kept(tmp_path)
    scattered(kept)
    begin(kept)
    for _ in range(steps):
        kept.storage.pager.run_one()
    folder = Path(kept.store().folder)
    kept.channel.delete(kept.queue())
    kept.settle()
    assert kept.failures == []
    assert not folder.exists()
    assert not kept.storage.compaction.is_running


@pytest.mark.parametrize("steps", range(0, 12, 3))
def test_segments_that_empty_meanwhile_leave_no_file(tmp_path: Path, steps: int) -> None:
    kept = Kept(tmp_path)
    held = scattered(kept)
    begin(kept)
    for _ in range(steps):
        kept.storage.pager.run_one()
    kept.ack(held)
    kept.checkpoint()
    assert kept.names() == []
    assert kept.failures == []


@pytest.mark.parametrize("steps", range(0, 12, 3))
def test_a_segment_emptied_during_compaction_stays_deleted(tmp_path: Path, steps: int) -> None:
    kept = Kept(tmp_path)
    held = scattered(kept)
    begin(kept)
    for _ in range(steps):
        kept.storage.pager.run_one()
    second = kept.store().segments.all[1]
    gone = [entry for entry in held if second.first <= entry.position <= second.last]
    assert gone
    kept.ack(gone)
    kept.checkpoint()
    kept.restart(clean=False)
    assert kept.drain() == [number for number in alive() if not second.first <= number <= second.last]


# -- crashes and bad disks -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


def kill() -> None:
    raise Killed


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    crash_points.disarm()


@pytest.mark.parametrize(
    ("point", "count"),
    [
        *(("compaction.mid", count) for count in (1, 8, 15)),
        ("compaction.before_rename", 1),
        ("compaction.after_rename", 1),
        *(("compaction.mid_removal", count) for count in range(1, 5)),
    ],
)
@pytest.mark.parametrize("acks", ["before", "meanwhile"])
def test_a_crash_neither_loses_nor_repeats_a_message(tmp_path: Path, point: str, count: int, acks: str) -> None:
    kept = Kept(tmp_path)
    held = scattered(kept)
    expected = alive()
    begin(kept)
    if acks == "meanwhile":
        kept.ack(held[::2])
        commit(kept)
        expected = expected[1::2]
    assert kept.segment_count() >= 3
    crash_points.arm(point, count, kill)
    with pytest.raises(Killed):
        kept.settle()
    crash_points.disarm()
    kept.crash()
    report = check_folder(str(tmp_path))
    assert (report.damage, report.messages) == ([], len(expected))
    kept.open()
    assert kept.storage.report == []
    assert kept.drain() == expected
    kept.checkpoint()
    assert kept.names() == []


def test_files_that_a_dead_copy_replaced_stay_dead(tmp_path: Path) -> None:
    """All it had is acked, and the old files are still there: they must go before it does."""
    kept = Kept(tmp_path)
    held = scattered(kept)
    begin(kept)

    def ack_and_kill() -> None:
        kept.ack(held)
        commit(kept)
        kill()

    crash_points.arm("compaction.after_rename", 1, ack_and_kill)
    with pytest.raises(Killed):
        kept.settle()
    kept.crash()
    kept.open()
    assert (kept.names(), kept.drain()) == ([], [])


def test_temporary_copies_are_removed_after_a_crash(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    scattered(kept)
    kept.settle()
    folder = Path(kept.store().folder)
    kept.crash()
    (folder / TEMPORARY).write_bytes(b"half a segment")
    (folder / "00000000000000000000-0.seg").write_bytes(b"an older generation")
    (folder / "00000000000000000000-0.dead").write_bytes(b"its marks")
    kept.open()
    assert TEMPORARY not in kept.names()
    assert not [name for name in kept.names() if name.startswith("00000000000000000000-0.")]
    assert kept.storage.report == []
    assert kept.drain() == alive()


def test_a_damaged_segment_is_left_alone_and_the_others_are_compacted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(tmp_path)
    scattered(kept)
    damaged = kept.store().segments.all[1]
    path = Path(kept.store().folder) / damaged.name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR, "warrenmq.storage"):
        kept.settle()
    assert [line.getMessage() for line in caplog.records if "not compacted" in line.getMessage()]
    assert kept.failures == []
    assert damaged.name in kept.names()
    assert "00000000000000000000-1.seg" in kept.names()
    assert TEMPORARY not in kept.names()


class Full(QuickFiles):
    is_full = False

    def writev(self, handle: int, pieces: object, offset: int) -> None:
        if self.is_full and os.readlink(f"/proc/self/fd/{handle}").endswith(TEMPORARY):
            raise OSError(errno.ENOSPC, "no room")
        super().writev(handle, pieces, offset)  # type: ignore[arg-type]


def test_a_full_disk_ends_it_and_delays_nothing_else(tmp_path: Path) -> None:
    files = Full()
    kept = Kept(tmp_path, files)
    files.is_full = True
    held = scattered(kept)
    kept.settle()
    assert kept.storage.compaction.count == 0
    assert TEMPORARY not in kept.names()
    kept.ack(held)
    kept.settle()
    assert (kept.names(), kept.full, kept.failures) == ([], [], [])


def test_it_is_tried_again_when_the_disk_has_room(tmp_path: Path) -> None:
    files = Full()
    kept = Kept(tmp_path, files)
    files.is_full = True
    held = scattered(kept)
    kept.settle()
    files.is_full = False
    kept.ack(held[:1])
    kept.checkpoint()
    kept.settle()
    assert kept.storage.compaction.count > 0


def test_transient_messages_of_an_earlier_run_are_not_copied(tmp_path: Path) -> None:
    """They are not alive: with them the copy would have to be copied again, and again."""
    kept = Kept(tmp_path)
    kept.declare()
    for number in range(200):
        kept.publish([number], transient=number % 8 != 0)
    kept.settle()
    kept.restart()
    taken = kept.take_all()
    assert numbers_of(taken) == list(range(0, 200, 8))
    kept.ack(taken[:1])
    kept.checkpoint()
    kept.checkpoint()
    counts = [(segment.count, segment.alive) for segment in kept.store().segments.all]
    count = kept.storage.compaction.count
    kept.ack(taken[1:2])
    kept.settle()
    assert kept.storage.compaction.count <= count + 1, counts
