"""The committer with its thread: epochs reach the log in order, and a failed write ends it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

from tests.support.loops import on_a_loop
from warrenmq.journal.files import Data, Files, SystemFiles
from warrenmq.journal.log_scan import LogScan
from warrenmq.journal.log_writer import LogWriter
from warrenmq.storage.committer import CommitProgress, EpochBatch
from warrenmq.storage.local_committer import LocalCommitter


class FailingFiles(SystemFiles):
    """Appends fail with EIO while `is_broken`."""

    is_broken = False

    def write(self, handle: int, data: Data, offset: int) -> None:
        self._check()
        super().write(handle, data, offset)

    def write_durably(self, handle: int, pieces: Sequence[Data], offset: int) -> None:
        self._check()
        super().write_durably(handle, pieces, offset)

    def _check(self) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, "Input/output error")


class Log:
    """A started committer, and what it reported."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.writer = LogWriter(files or SystemFiles(), str(root / "log"), 1, file_size=1 << 20)
        self.committer = LocalCommitter(self.writer, 0.2)
        self.progress: asyncio.Queue[CommitProgress] = asyncio.Queue()
        self.failures: asyncio.Queue[str] = asyncio.Queue()
        self.committer.on_progress = self._progressed
        self.committer.on_failed = self.failures.put_nowait
        self.committer.start(asyncio.get_running_loop())

    def _progressed(self, progress: CommitProgress) -> None:
        if progress.payload is not None:
            self.progress.put_nowait(progress)

    async def commit(self, epoch: int, payload: bytes, needs_sync: bool = True) -> CommitProgress:
        self.committer.submit(EpochBatch(epoch, 1000 + epoch, payload, needs_sync))
        return await asyncio.wait_for(self.progress.get(), 30)

    async def close(self) -> None:
        self.committer.detach_loop()
        await asyncio.to_thread(self.committer.stop)

    def found(self) -> list[bytes]:
        return [bytes(epoch.payload) for epoch in LogScan(SystemFiles(), self.writer.folder)]


@on_a_loop
async def test_epochs_with_and_without_sync_come_back_in_order_across_rolls(tmp_path: Path) -> None:
    log = Log(tmp_path)
    payloads = [bytes([number % 251]) * (700 + number * 1379 % 400_000) for number in range(60)]
    for number, payload in enumerate(payloads, 1):
        progress = await log.commit(number, payload, needs_sync=number % 7 != 0)
        assert progress.written == number
        assert progress.durable == number or number % 7 == 0
    await log.close()
    assert log.found() == payloads


@on_a_loop
async def test_nothing_is_written_after_a_failed_write(tmp_path: Path) -> None:
    files = FailingFiles()
    log = Log(tmp_path, files)
    await log.commit(1, b"written")
    files.is_broken = True
    log.committer.submit(EpochBatch(2, 0, b"lost", True))
    assert "Input/output error" in await asyncio.wait_for(log.failures.get(), 30)
    files.is_broken = False
    log.committer.submit(EpochBatch(3, 0, b"never written", True))
    await log.close()
    assert log.progress.empty()
    assert log.found() == [b"written"]


class NoDescriptorForSpares(SystemFiles):
    """As `ulimit -n` does, for the files that are made ahead."""

    refused = 0

    def create(self, path: str) -> int:
        if path.endswith("spare-new"):
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().create(path)


@on_a_loop
async def test_the_log_continues_without_a_spare_file_while_no_descriptor_is_free(tmp_path: Path) -> None:
    files = NoDescriptorForSpares()
    log = Log(tmp_path, files)
    payloads = [bytes([number]) * 300_000 for number in range(8)]
    for number, payload in enumerate(payloads, 1):
        assert (await log.commit(number, payload)).durable == number
    await log.close()
    assert files.refused > 1
    assert log.failures.empty()
    assert log.found() == payloads
