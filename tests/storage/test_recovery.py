"""A start finds what was there: from segments, marks and the log, whatever a crash or a bad disk did to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.journal.fixtures import PERSISTENT_HEADER
from tests.storage.driver import Kept
from warrenmq.core.message import enqueue_as, make_message
from warrenmq.journal.files import SystemFiles
from warrenmq.journal.log_scan import LogScan
from warrenmq.journal.log_writer import LogWriter
from warrenmq.journal.record import PERSISTENT
from warrenmq.journal.segment_file import PAGE_HEAD_SIZE
from warrenmq.storage.codec import EpochBuffer


def spoiled(change: Callable[[bytearray], object], path: Path) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip(offset: int) -> Callable[[bytearray], object]:
    def change(data: bytearray) -> None:
        data[offset] ^= 4

    return change


def segments(kept: Kept) -> list[Path]:
    return sorted(Path(kept.store().folder).glob("*.seg"))


def marks(kept: Kept) -> list[Path]:
    return sorted(Path(kept.store().folder).glob("*.dead"))


def filled(tmp_path: Path, count: int = 300) -> Kept:
    kept = Kept(tmp_path)
    kept.declare()
    kept.publish(range(count))
    kept.settle()
    return kept


@pytest.mark.parametrize("ways", [(False,), (True,), (False, False, False), (True, False, True), (False, True, False)])
def test_nothing_changes_from_start_to_start(tmp_path: Path, ways: tuple[bool, ...]) -> None:
    kept = filled(tmp_path)
    kept.ack(kept.take(20))
    kept.settle()
    for clean in ways:
        kept.restart(clean)
        assert kept.queue().message_count() == 280
    assert kept.drain() == list(range(20, 300))
    kept.settle()
    kept.restart(clean=False)
    assert kept.queue().message_count() == 0


def test_what_follows_pages_after_a_start_is_flushed_once(tmp_path: Path) -> None:
    """The tail that recovery made of the log's messages is paged out by the next checkpoint, and not doubled."""
    kept = filled(tmp_path)
    kept.publish(range(300, 305))
    kept.settle()
    kept.restart(clean=False)
    kept.checkpoint()
    assert kept.queue().message_count() == 305
    kept.publish(range(305, 400))
    assert kept.drain() == list(range(400))


def test_a_log_that_holds_more_than_the_memory_is_paged_out_at_the_start(tmp_path: Path) -> None:
    kept = Kept(tmp_path, window=1 << 30)
    kept.declare()
    kept.publish(range(1000))
    kept.settle()
    assert kept.names() == []
    kept.options = Kept(tmp_path / "other").options
    kept.restart(clean=False)
    assert kept.queue().backlog.paged > 800
    assert kept.drain() == list(range(1000))


def test_positions_are_not_reused_while_anything_refers_to_them(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    kept.drain()
    kept.settle()
    kept.restart(clean=False)
    kept.publish(range(300, 600))
    kept.settle()
    kept.restart(clean=False)
    assert kept.drain() == list(range(300, 600))


@pytest.mark.parametrize("offset", [-1, -40, -400])
def test_a_torn_end_of_the_last_segment_comes_from_the_log(tmp_path: Path, offset: int) -> None:
    kept = filled(tmp_path)
    last = segments(kept)[-1]
    kept.crash()
    spoiled(lambda data: data.__delitem__(slice(offset, None)), last)
    kept.open()
    assert kept.drain() == list(range(300))


def test_a_page_of_relogged_messages_that_was_torn_comes_from_the_log(tmp_path: Path) -> None:
    kept = Kept(tmp_path, relog_below=1 << 20, log_file_size=600)
    kept.declare()
    kept.publish(range(5))
    kept.checkpoint(carry=True)
    assert kept.names() == []
    queue = kept.queue()
    queue.backlog.store.flush(kept.storage.log.last, 0)  # type: ignore[union-attr]
    kept.settle()
    (segment,) = segments(kept)
    kept.crash()
    spoiled(flip(-1), segment)
    kept.open()
    assert kept.drain() == list(range(5))


@pytest.mark.parametrize("which", [0, 1])
def test_damage_in_one_segment_loses_no_other(tmp_path: Path, which: int) -> None:
    kept = filled(tmp_path)
    kept.stop()
    paths = segments(kept)
    spoiled(flip(16 + 8), paths[which])
    kept.open()
    kept.publish([300])
    assert any("lost" in line for line in kept.storage.report)
    found = kept.drain()
    firsts = [int(path.name[:20]) for path in paths] + [300]
    assert found == [number for number in range(301) if not firsts[which] <= number < firsts[which + 1]]
    assert len(list((tmp_path / "lost+damaged").iterdir())) == 1


def test_a_damaged_file_head_loses_nothing(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    kept.stop()
    spoiled(flip(3), segments(kept)[0])
    kept.open()
    assert len(kept.storage.report) == 1
    assert kept.drain() == list(range(300))


def acked(tmp_path: Path) -> Kept:
    """Two batches of marks in the first segment."""
    kept = filled(tmp_path)
    held = kept.take(300)
    kept.ack(held[5:10])
    kept.checkpoint()
    kept.ack(held[20:25])
    kept.checkpoint()
    return kept


def test_torn_marks_are_cut_and_the_others_count(tmp_path: Path) -> None:
    kept = acked(tmp_path)
    kept.stop()
    spoiled(lambda data: data.__delitem__(slice(-1, None)), marks(kept)[0])
    kept.open()
    kept.restart()
    assert kept.drain() == [number for number in range(300) if number not in range(5, 10)]


def test_marks_after_damaged_ones_count_for_ever(tmp_path: Path) -> None:
    kept = acked(tmp_path)
    kept.stop()
    spoiled(flip(16 + 12), marks(kept)[0])
    kept.open()
    held = kept.take(10)
    kept.ack(held[:1])
    kept.checkpoint()
    kept.restart()
    kept.restart()
    assert kept.drain() == [number for number in range(1, 300) if number not in range(20, 25)]


def test_marks_without_a_segment_do_not_meet_another_one(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    path = segments(kept)[0].with_suffix(".dead")
    kept.ack(kept.take(50))
    kept.checkpoint()
    data = path.read_bytes()
    kept.drain()
    kept.stop()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    kept.open()
    kept.publish(range(300))
    kept.restart()
    assert kept.drain() == list(range(300))


def test_a_folder_of_no_queue_is_removed(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    kept.stop()
    (tmp_path / "queues" / "99").mkdir()
    kept.open()
    assert not (tmp_path / "queues" / "99").exists()


def test_a_page_head_is_as_long_as_these_tests_think() -> None:
    assert PAGE_HEAD_SIZE == 80


def test_an_epoch_that_cannot_be_decoded_is_skipped_as_a_whole(tmp_path: Path) -> None:
    kept = filled(tmp_path, 3)
    number, epoch = kept.store().number, kept.storage.log.epoch
    kept.crash()
    files = SystemFiles()
    found = list(LogScan(files, str(tmp_path / "log")))
    writer = LogWriter(files, str(tmp_path / "log"), epoch)
    message = enqueue_as(make_message(b"\x00\x01q", PERSISTENT_HEADER, b"xx"), 3)
    buffer = EpochBuffer()
    buffer.put_append(number, message, PERSISTENT)
    buffer.put_forget(number, 0)
    buffer.put_definition(True, b"no definition")
    writer.append(bytes(buffer.take()), epoch, 1)
    buffer.put_forget(number, 1)
    writer.append(bytes(buffer.take()), epoch + 1, 2)
    writer.sync()
    writer.close()
    assert len(found) == epoch - 1
    kept.open()
    (line,) = kept.storage.report
    assert f"epoch {epoch} " in line
    assert kept.drain() == [0, 2]
