"""The fast lane: what it writes is durable when it says so, and what it cannot do is left to the thread."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.loops import on_a_loop
from warrenmq.journal.files import SystemFiles
from warrenmq.journal.log_file import LogScan, LogWriter
from warrenmq.storage import lane
from warrenmq.storage.catalog import CatalogFile
from warrenmq.storage.committer import Batch, Committer, Progress

pytestmark = pytest.mark.skipif(not lane.IS_AVAILABLE, reason="a lane is compiled, and for Linux")


class Heard:
    """What a lane said, in order."""

    def __init__(self) -> None:
        self.errors: asyncio.Queue[int] = asyncio.Queue()

    async def next(self) -> int:
        return await asyncio.wait_for(self.errors.get(), 30)


def make_lane(heard: Heard) -> lane.Lane:
    return lane.Lane(asyncio.get_running_loop(), heard.errors.put_nowait)


def end(of: lane.Lane) -> None:
    of.leave_loop()
    of.stop()


@on_a_loop
async def test_writes_where_it_is_told_one_after_the_other(tmp_path: Path) -> None:
    heard = Heard()
    one = make_lane(heard)
    handle = SystemFiles().create(str(tmp_path / "file"))
    offset = 0
    for size in (1, 100, 5000, 300_000, 7):
        one.write(handle, bytes([size % 251]) * size, offset)
        assert await heard.next() == 0
        offset += size
        await asyncio.sleep(0.001)  # it has fallen asleep, or not
    end(one)
    os.close(handle)
    written = (tmp_path / "file").read_bytes()
    assert written == b"".join(bytes([size % 251]) * size for size in (1, 100, 5000, 300_000, 7))


@on_a_loop
async def test_says_what_the_operating_system_said(tmp_path: Path) -> None:
    heard = Heard()
    one = make_lane(heard)
    (tmp_path / "file").write_bytes(b"")
    handle = SystemFiles().open_read(str(tmp_path / "file"))
    one.write(handle, b"not for a file that is open for reading", 0)
    assert await heard.next() == errno.EBADF
    end(one)
    os.close(handle)


@on_a_loop
async def test_ends_in_the_middle_of_a_write(tmp_path: Path) -> None:
    heard = Heard()
    one = make_lane(heard)
    handle = SystemFiles().create(str(tmp_path / "file"))
    one.write(handle, b"x" * 1_000_000, 0)
    end(one)
    os.close(handle)
    assert heard.errors.empty()


class Log:
    """A committer with its thread and its lane, and what it said."""

    def __init__(self, root: Path, error: Callable[[int], int] | None = None) -> None:
        self.writer = LogWriter(SystemFiles(), str(root / "log"), 1, file_size=1 << 20)
        self.catalog = CatalogFile.open(str(root / "catalog.sqlite"))
        self.committer = Committer(self.writer, self.catalog, 0.2, 0)
        self.progress: asyncio.Queue[Progress] = asyncio.Queue()
        self.failures: asyncio.Queue[str] = asyncio.Queue()
        self.committer.on_progress = self._progressed
        self.committer.on_failed = self.failures.put_nowait
        loop = asyncio.get_running_loop()
        self.committer.start(loop.call_soon_threadsafe)
        self.committer.open_lane(loop)
        self.lane_writes = 0
        if error is not None:
            self._fail_by(error)

    def _progressed(self, progress: Progress) -> None:
        if progress.payload is not None:
            self.progress.put_nowait(progress)

    def _fail_by(self, error: Callable[[int], int]) -> None:
        """Let the lane say that, instead of writing."""
        done = self.committer._lane_is_done

        class Broken:
            def write(_, handle: int, record: bytes, offset: int) -> None:  # noqa: N805
                self.lane_writes += 1
                asyncio.get_running_loop().call_soon(done, error(self.lane_writes))

            def leave_loop(self) -> None: ...

            def stop(self) -> None: ...

        assert self.committer._lane is not None
        end(self.committer._lane)
        self.committer._lane = Broken()  # type: ignore[assignment]

    async def commit(self, epoch: int, payload: bytes, wants_sync: bool = True) -> Progress:
        self.committer.submit(Batch(epoch, payload, [], wants_sync))
        return await asyncio.wait_for(self.progress.get(), 30)

    async def close(self) -> None:
        self.committer.leave_loop()
        await asyncio.to_thread(self.committer.stop)
        self.writer.close()
        self.catalog.close()

    def found(self) -> list[bytes]:
        return [bytes(epoch.payload) for epoch in LogScan(SystemFiles(), self.writer.folder)]


@on_a_loop
async def test_epochs_through_lane_and_thread_come_back_in_order(tmp_path: Path) -> None:
    """Sizes on both sides of the lane's limit, syncs and none, and several rolls of the file."""
    log = Log(tmp_path)
    payloads = [bytes([number % 251]) * (700 + number * 1379 % 400_000) for number in range(60)]
    for number, payload in enumerate(payloads, 1):
        progress = await log.commit(number, payload, wants_sync=number % 7 != 0)
        assert progress.written == number
        assert progress.synced == number or number % 7 == 0
    await log.close()
    assert log.found() == payloads


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_what_the_lane_cannot_do_the_thread_does(tmp_path: Path, error: int) -> None:
    @on_a_loop
    async def run() -> None:
        log = Log(tmp_path, lambda _: error)
        await log.commit(1, b"the thread makes the file")
        for number in range(2, 6):
            assert (await log.commit(number, b"epoch %d" % number)).synced == number
        assert log.lane_writes >= 1
        await log.close()
        assert log.found() == [b"the thread makes the file", b"epoch 2", b"epoch 3", b"epoch 4", b"epoch 5"]

    run()


@on_a_loop
async def test_failed_write_in_the_lane_ends_everything(tmp_path: Path) -> None:
    log = Log(tmp_path, lambda _: errno.EIO)
    await log.commit(1, b"the thread makes the file")
    while log.lane_writes == 0:
        log.committer.submit(Batch(2, b"lost", [], True))
        await asyncio.sleep(0.01)
    assert "Input/output error" in await asyncio.wait_for(log.failures.get(), 30)
    log.committer.submit(Batch(3, b"never written", [], True))
    await log.close()
    assert log.progress.empty()
    assert log.found() == [b"the thread makes the file"]
