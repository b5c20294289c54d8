"""Files are changed in order, after their epochs; and after a failure not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.storage.driver import Kept, QuickFiles
from warrenmq.journal.files import Data


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
    kept.storage.checkpoint.begin(kept.storage.log.last, may_carry=False)
    files.operation, files.number = operation, number
    kept.storage.run_all()
    assert len(kept.failures) == 1
    kept.crash()
    kept.open()
    assert kept.drain() == list(range(300))


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warrenmq.storage.pager.FULL_DISK_RETRY", 0.0)
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
    kept.storage.begin_to_stop(lambda: done.append(True))
    kept.storage.run_all()
    assert (done, len(kept.failures)) == ([], 1)
    files.operation = ""
    kept.crash()
    kept.open()
    assert kept.drain() == list(range(20))
