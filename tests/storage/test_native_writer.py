"""The native writer: what it writes is durable when it reports 0, and what it cannot do is left to the thread."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.test_local_committer import Log
from tests.support.loops import on_a_loop
from tests.support.waiting import let_loop_run
from warrenmq.journal.files import SystemFiles
from warrenmq.storage import native_writer
from warrenmq.storage.committer import EpochBatch
from warrenmq.storage.native_writer import UNFINISHED, NativeWriter

pytestmark = pytest.mark.skipif(not native_writer.IS_AVAILABLE, reason="compiled on Linux only")


class Results:
    """What a writer reported, in order."""

    def __init__(self) -> None:
        self.errors: asyncio.Queue[int] = asyncio.Queue()

    async def next(self) -> int:
        return await asyncio.wait_for(self.errors.get(), 30)


def make_writer(results: Results) -> NativeWriter:
    return NativeWriter(asyncio.get_running_loop(), results.errors.put_nowait)


def end(writer: NativeWriter) -> None:
    writer.detach_loop()
    writer.stop()


@on_a_loop
async def test_records_are_written_at_their_offsets(tmp_path: Path) -> None:
    results = Results()
    writer = make_writer(results)
    handle = SystemFiles().create(str(tmp_path / "file"))
    offset = 0
    for size in (1, 100, 5000, 300_000, 7):
        writer.write(handle, bytes([size % 251]) * size, offset)
        assert await results.next() == 0
        offset += size
        await let_loop_run(0.001)  # the thread has fallen asleep, or not
    end(writer)
    os.close(handle)
    written = (tmp_path / "file").read_bytes()
    assert written == b"".join(bytes([size % 251]) * size for size in (1, 100, 5000, 300_000, 7))


@on_a_loop
async def test_the_error_of_the_operating_system_is_reported(tmp_path: Path) -> None:
    results = Results()
    writer = make_writer(results)
    (tmp_path / "file").write_bytes(b"")
    handle = SystemFiles().open_read(str(tmp_path / "file"))
    writer.write(handle, b"not for a file that is open for reading", 0)
    assert await results.next() == errno.EBADF
    end(writer)
    os.close(handle)


@on_a_loop
async def test_a_stop_during_a_write_leaves_its_result(tmp_path: Path) -> None:
    results = Results()
    writer = make_writer(results)
    handle = SystemFiles().create(str(tmp_path / "file"))
    writer.write(handle, b"x" * 1_000_000, 0)
    end(writer)
    os.close(handle)
    assert results.errors.empty()
    written = (tmp_path / "file").stat().st_size
    assert (writer.error(), written) in ((0, 1_000_000), (UNFINISHED, 0))


class BrokenWriter:
    """In place of a committer's native writer: reports these results instead of writing."""

    def __init__(self, log: Log, result: Callable[[int], int | None]) -> None:
        self.writes = 0
        self._result = result
        self._done = log.committer._native_done
        self._error = UNFINISHED
        assert log.committer._native is not None
        end(log.committer._native)
        log.committer._native = self  # type: ignore[assignment]

    def write(self, handle: int, record: bytes, offset: int) -> None:
        self.writes += 1
        result = self._result(self.writes)
        if result is not None:
            asyncio.get_running_loop().call_soon(self._done, result)

    def error(self) -> int:
        return self._error

    def detach_loop(self) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_unsupported_native_writes_go_to_the_thread(tmp_path: Path, error: int) -> None:
    @on_a_loop
    async def run() -> None:
        log = Log(tmp_path)
        writer = BrokenWriter(log, lambda _: error)
        await log.commit(1, b"the thread makes the file")
        for number in range(2, 6):
            assert (await log.commit(number, b"epoch %d" % number)).durable == number
        assert writer.writes >= 1
        await log.close()
        assert log.found() == [b"the thread makes the file", b"epoch 2", b"epoch 3", b"epoch 4", b"epoch 5"]

    run()


@on_a_loop
async def test_a_failed_write_ends_the_committer(tmp_path: Path) -> None:
    log = Log(tmp_path)
    writer = BrokenWriter(log, lambda _: errno.EIO)
    await log.commit(1, b"the thread makes the file")
    while writer.writes == 0:
        log.committer.submit(EpochBatch(2, 0, b"lost", True))
        await let_loop_run(0.01)
    assert "Input/output error" in await asyncio.wait_for(log.failures.get(), 30)
    log.committer.submit(EpochBatch(3, 0, b"never written", True))
    await log.close()
    assert log.progress.empty()
    assert log.found() == [b"the thread makes the file"]


@on_a_loop
async def test_a_stop_in_the_middle_of_an_epoch_finishes_it(tmp_path: Path) -> None:
    """The loop does not hear of the write any more: the stop must not wait for that."""
    log = Log(tmp_path)
    writer = BrokenWriter(log, lambda _: None)
    await log.commit(1, b"the thread makes the file")
    log.committer.submit(EpochBatch(2, 0, b"in the middle", True))
    assert writer.writes == 1
    await asyncio.wait_for(log.close(), 30)
    assert (await asyncio.wait_for(log.progress.get(), 30)).durable == 2
    assert log.found() == [b"the thread makes the file", b"in the middle"]


@on_a_loop
async def test_stops_at_any_moment_keep_every_epoch(tmp_path: Path) -> None:
    for delay in range(12):
        log = Log(tmp_path / str(delay))
        await log.commit(1, b"the thread makes the file")
        log.committer.submit(EpochBatch(2, 0, b"x" * 50_000, True))
        for _ in range(delay):
            await asyncio.sleep(0)
        await asyncio.wait_for(log.close(), 30)
        assert log.found() == [b"the thread makes the file", b"x" * 50_000]
