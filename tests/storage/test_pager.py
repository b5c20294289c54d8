"""Files are changed in order, after their epochs; and after a failure not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.storage.driver import Kept, QuickFiles
from warrenmq.core.turn import Turn
from warrenmq.journal.files import Data, Files
from warrenmq.storage.pager import Pager
from warrenmq.storage.uncached_writer import LARGE_WRITE, SLOW_FOR, SLOW_IN_A_ROW


class Failing(QuickFiles):
    """Says no to the next write or sync of a segment, with an error of the test's choice."""

    number = 0
    operation = ""
    times = 1

    def writev(self, handle: int, pieces: object, offset: int) -> None:
        self._fail("write", handle)
        super().writev(handle, pieces, offset)  # type: ignore[arg-type]

    def write(self, handle: int, data: Data, offset: int) -> None:
        super().write(handle, data, offset)

    def sync(self, handle: int) -> None:
        self._fail("sync", handle)

    def _fail(self, operation: str, handle: int) -> None:
        if operation == self.operation and os.readlink(f"/proc/self/fd/{handle}").endswith(".seg"):
            self.times -= 1
            if self.times == 0:
                self.operation = ""
            raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("operation", "number"), [("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.ENOSPC), ("write", errno.EROFS)]
)
def test_the_log_is_not_trimmed_after_a_failure(tmp_path: Path, operation: str, number: int) -> None:
    """Also not by what was asked for before anybody heard of it."""
    files = Failing()
    kept = Kept(tmp_path, files, log_file_size=3000)
    kept.declare()
    kept.publish(range(300))
    kept.turn()
    kept.storage.checkpoint.begin(kept.storage.log.last, may_relog=False)
    files.operation, files.number = operation, number
    kept.storage.run_all()
    assert len(kept.failures) == 1
    kept.crash()
    kept.open()
    assert kept.drain() == list(range(300))


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warrenmq.storage.full_disk.FULL_DISK_RETRY", 0.0)
    files = Failing()
    kept = Kept(tmp_path, files)
    kept.declare()
    kept.publish(range(300))
    files.operation, files.number, files.times = "write", errno.ENOSPC, 3
    kept.settle()
    assert kept.full == [True, False]
    assert kept.failures == []
    assert kept.drain() == list(range(300))


def test_a_full_disk_is_not_waited_for_when_the_broker_stops(tmp_path: Path) -> None:
    files = Failing()
    kept = Kept(tmp_path, files)
    kept.declare()
    kept.publish(range(20))
    kept.settle()
    files.operation, files.number, files.times = "write", errno.ENOSPC, 1000
    done: list[bool] = []
    kept.storage.begin_stop(lambda: done.append(True))
    kept.storage.run_all()
    assert (done, len(kept.failures)) == ([], 1)
    files.operation = ""
    kept.crash()
    kept.open()
    assert kept.drain() == list(range(20))


class Ways(QuickFiles):
    """Notes for each file which way it was written."""

    def __init__(self) -> None:
        self.ways: list[tuple[str, str]] = []
        self._is_past = False

    def write_direct(self, handle: int, pieces: Sequence[Data], offset: int) -> bool:
        self._is_past = True
        super().write_direct(handle, pieces, offset)
        self._is_past = False
        return True

    def writev(self, handle: int, pieces: Sequence[Data], offset: int) -> None:
        super().writev(handle, pieces, offset)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
        self.ways.append((name, "past" if self._is_past else "cached"))


class NoLog:
    """Nothing waits for it."""

    last = durable = 0
    turn = Turn()

    def request_sync(self) -> None: ...


def make_pager(files: Files) -> Pager:
    return Pager(files, NoLog())


def test_only_large_writes_of_files_that_can_be_done_without_go_past_the_cache(tmp_path: Path) -> None:
    files = Ways()
    pager = make_pager(files)
    lost: list[str] = []
    done: list[str] = []
    large, small = bytes(LARGE_WRITE), bytes(LARGE_WRITE - 5)
    pager.write(str(tmp_path / "queue"), 0, [large], True, lambda: done.append("queue"))
    pager.write(str(tmp_path / "transient"), 0, [large], True, lambda: done.append("transient"), is_durable=False)
    for name, body in (("small", small), ("large", large), ("headed", small)):
        head = (lambda: b"12345") if name == "headed" else None
        note = partial(done.append, name)
        pager.write(str(tmp_path / name), 0, [b"a", body, b"b"], True, note, on_lost=lost.append, head=head)
    pager.submit(lambda: pager.write_file(str(tmp_path / "whole"), [large]), lambda _: None)
    pager.run_all()
    assert files.ways == [
        ("queue", "cached"),
        ("transient", "cached"),
        ("small", "cached"),
        ("large", "past"),
        ("headed", "past"),
        ("whole", "cached"),
    ]
    assert (tmp_path / "headed").read_bytes() == b"12345a" + small + b"b"
    assert (done, lost) == (["queue", "transient", "small", "large", "headed"], [])
    pager.stop()


def test_a_slow_disk_has_such_files_written_through_the_cache_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowWays(Ways):
        now = 100.0

        def write_direct(self, handle: int, pieces: Sequence[Data], offset: int) -> bool:
            self.now += 1.0
            return super().write_direct(handle, pieces, offset)

    files = SlowWays()
    monkeypatch.setattr("time.monotonic", lambda: files.now)
    pager = make_pager(files)
    for number in range(SLOW_IN_A_ROW + 3):
        pager.write(str(tmp_path / f"{number}"), 0, [bytes(LARGE_WRITE)], True, lambda: None, on_lost=lambda _: None)
        pager.run_all()
        files.now += SLOW_FOR / 2
    pager.stop()
    assert [way for _, way in files.ways] == [*["past"] * SLOW_IN_A_ROW, "cached", "past", "cached"]


@pytest.mark.parametrize(("number", "is_lost"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_a_large_write_of_a_file_that_can_be_done_without_fails_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_lost: bool
) -> None:
    monkeypatch.setattr("warrenmq.storage.full_disk.FULL_DISK_RETRY", 0.0)
    files = Failing()
    files.operation, files.number, files.times = "write", number, 1
    pager = make_pager(files)
    full: list[bool] = []
    pager.writer.on_full = full.append
    lost: list[str] = []
    path = tmp_path / "1.seg"
    pager.write(str(path), 0, [bytes(LARGE_WRITE)], True, lambda: None, on_lost=lost.append)
    pager.run_all()
    assert (len(lost), pager.writer.has_failed) == (int(is_lost), False)
    assert full == ([] if is_lost else [True, False])
    assert path.stat().st_size == (0 if is_lost else LARGE_WRITE)
    pager.stop()
