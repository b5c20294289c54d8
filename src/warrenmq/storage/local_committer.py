"""The committer of one machine: a thread that appends epochs to log files, one fdatasync each.

An epoch that requests a sync is durable when it is reported; others are synced together some time later. During a sync
the next epoch grows on the loop, so batches grow with load and need no timer.

An epoch that needs just one write bypasses the thread while that is idle: the native writer writes it without the
interpreter lock.

Owned by the holder of `_log_lock` (the thread, or an epoch in the native writer): the log writer and its files. The
loop submits jobs to both, and receives their progress.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from warrenmq.journal.errors import JournalError
from warrenmq.journal.files import UNSUPPORTED, SystemFiles
from warrenmq.journal.log_file import LogFile
from warrenmq.journal.log_writer import LogWriter
from warrenmq.storage import crash_points
from warrenmq.storage.committer import CommitProgress, Committer, EpochBatch
from warrenmq.storage.full_disk import FULL, SHORT, SpaceWaiter
from warrenmq.storage.native_writer import IS_AVAILABLE, UNFINISHED, NativeWriter

log = logging.getLogger("warrenmq.storage")

# Acks, which no client waits for, are synced after this time in mode fsync.
LAZY_SYNC_INTERVAL = 0.2
# A longer epoch is worth waking the thread, and its checksum should not be computed on the loop.
NATIVE_MAX = 256 * 1024
# Preallocation is optional: if it fails for these reasons, the log continues without it.
NO_SPARE = (*FULL, *SHORT, errno.EFBIG)


class LocalCommitter(Committer):
    """`sync_interval`: see `sync_within`."""

    def __init__(self, writer: LogWriter, sync_interval: float | None) -> None:
        super().__init__()
        self.writer = writer
        writer.on_roll = _reach_roll
        self.post: Callable[..., object] = _call
        self._room = SpaceWaiter("confirms are paused", lambda is_full: self.post(self.on_full, is_full))
        self._files: list[LogFile] = []
        self._note_files()
        self._sync_interval = sync_interval
        self._sync_due: float | None = None
        self._jobs: SimpleQueue[Callable[[], None] | EpochBatch | None] = SimpleQueue()
        self._submitted = 0  # jobs submitted to the thread
        self._finished = 0  # jobs finished by the thread
        self._thread: threading.Thread | None = None
        self._log_lock = threading.Lock()
        self._native: NativeWriter | None = None
        self._native_batch: tuple[EpochBatch, bytes] | None = None  # the epoch in the native writer, and its record

    # -- the loop's side ---------------------------------------------------------------------------------------------

    def start(self, loop: AbstractEventLoop) -> None:
        self.post = loop.call_soon_threadsafe
        if IS_AVAILABLE and type(self.writer.files) is SystemFiles:
            self._native = NativeWriter(loop, self._native_done)
        self._thread = threading.Thread(target=self._run, name="warren-committer", daemon=True)
        self._thread.start()

    def sync_within(self, interval: float | None) -> None:
        if interval is not None and (self._sync_interval is None or interval < self._sync_interval):
            self._sync_interval = interval

    def submit(self, batch: EpochBatch) -> None:
        if not self._try_native_write(batch):
            self._enqueue(batch)

    def sync(self) -> None:
        self._enqueue(self._sync_pending)

    def _enqueue(self, job: Callable[[], None] | EpochBatch) -> None:
        self._submitted += 1
        self._jobs.put(job)

    def epoch_to_trim(self, size: int) -> int:
        files = self._files
        excess = sum(file.size for file in files) - size
        epoch = 0
        for file in files[:-1]:  # the file being written stays
            if excess <= 0:
                break
            epoch = file.last
            excess -= file.size
        return epoch

    def trim(self, epoch: int, done: Callable[[], None]) -> None:
        self._enqueue(lambda: self._trim(epoch, done))

    def clear(self, last: EpochBatch | None, done: Callable[[], None]) -> None:
        self._enqueue(lambda: self._clear(last, done))

    def stop_waiting(self) -> None:
        self._room.stop_waiting()

    def detach_loop(self) -> None:
        if self._native is not None:
            self._native.detach_loop()

    def stop(self) -> None:
        self.stop_waiting()
        if self._native is not None:
            self._native.stop()
            if self._native_batch is not None:  # the loop receives no report any more
                self._finish_native(self._native.error(), lambda progress: self.post(self.on_progress, progress))
            self._native = None
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self.writer.close()

    def run_one(self) -> bool:
        """Run the next job without the thread. Return False if there is none."""
        if self._jobs.empty():
            return False
        self._do(self._jobs.get())
        return True

    # -- the native writer, on the loop ------------------------------------------------------------------------------

    def _try_native_write(self, batch: EpochBatch) -> bool:
        """Pass the epoch to the native writer. Return False if it needs the thread, or the thread is busy."""
        if (
            self._native is None
            or not batch.needs_sync
            or len(batch.payload) > NATIVE_MAX
            or self._submitted != self._finished
            or self.has_failed
            or crash_points.is_any_armed()
            or not self._log_lock.acquire(blocking=False)
        ):
            return False
        record = self.writer.begin_append(batch.payload, batch.epoch, batch.time_ms)
        if record is None:
            self._log_lock.release()
            return False
        self._native_batch = batch, record[1]
        self._native.write(*record)
        return True

    def _native_done(self, error: int) -> None:
        self._finish_native(error, self.on_progress)

    def _finish_native(self, error: int, report: Callable[[CommitProgress], object]) -> None:
        assert self._native_batch is not None
        batch, record = self._native_batch
        self._native_batch = None
        if error == 0:
            self.writer.end_append(batch.epoch, record)
            self._sync_due = None
            self._note_files()
        self._log_lock.release()
        if error == 0:
            report(CommitProgress(batch.epoch, batch.epoch, batch.payload))
            if self._wants_spare():
                self._jobs.put(self._prepare_spare)
        elif error == UNFINISHED or error in UNSUPPORTED or error in FULL or error in SHORT:
            self._enqueue(batch)  # the thread can wait for space, or write in another way
        else:
            self._fail(str(OSError(error, os.strerror(error))))

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._guard(self._prepare_first)
        while True:
            try:
                job = self._jobs.get(timeout=self._sync_timeout())
            except Empty:
                self._run_locked(self._sync_pending)
                continue
            if job is None:
                self._run_locked(self._sync_pending)
                return
            self._do(job)
            if self._sync_due is not None and time.monotonic() >= self._sync_due:
                self._run_locked(self._sync_pending)

    def _sync_timeout(self) -> float | None:
        if self._sync_due is not None and not self.has_failed:
            return max(0.0, self._sync_due - time.monotonic())
        return None

    def _do(self, job: Callable[[], None] | EpochBatch | None) -> None:
        if isinstance(job, EpochBatch):
            self._run_locked(lambda: self._commit(job))
            self._finished += 1
            # After `_finished`, so that the loop's next epoch finds the thread idle.
            self._guard(lambda: self._report(job.payload))
            if self._jobs.empty():
                self._guard(self._prepare_spare)
        elif job == self._prepare_spare:
            self._guard(self._prepare_spare)
        elif job is not None:
            self._run_locked(job)
            self._finished += 1

    def _run_locked(self, work: Callable[[], None]) -> None:
        with self._log_lock:
            self._guard(work)

    def _guard(self, work: Callable[[], None]) -> None:
        """Run the work, unless there was a failure: after one, nothing is written or reported as durable."""
        if self.has_failed:
            return
        try:
            work()
        except (OSError, JournalError) as error:
            self._fail(str(error))
        except Exception as error:
            # A bug must stop the node, too: the log would have a gap.
            log.exception("internal error in the committer")
            self._fail(f"internal error: {error}")

    def _fail(self, reason: str) -> None:
        self.has_failed = True
        self.post(self.on_failed, reason)

    def _commit(self, batch: EpochBatch) -> None:
        durably = batch.needs_sync and not crash_points.is_armed("log.after_write")
        self._append(batch, durably)
        crash_points.reach("log.after_write")
        if batch.needs_sync:
            self._sync()
        elif self._sync_due is None and self._sync_interval is not None:
            self._sync_due = time.monotonic() + self._sync_interval

    def _append(self, batch: EpochBatch, durably: bool) -> None:
        append = partial(self.writer.append, batch.payload, batch.epoch, batch.time_ms, durably)
        self._room.run(append, self.writer.cut)

    def _sync(self) -> None:
        self.writer.sync()
        crash_points.reach("log.after_sync")
        self._sync_due = None

    def _sync_pending(self) -> None:
        """Sync epochs that did not request it."""
        if self.writer.synced < self.writer.written:
            self._sync()
            self._report(None)

    def _report(self, payload: bytes | memoryview | None) -> None:
        self._note_files()
        self.post(self.on_progress, CommitProgress(self.writer.written, self.writer.synced, payload))

    def _note_files(self) -> None:
        """Publish the list of files to the loop, which only reads it."""
        self._files = self.writer.files_in_use
        self.size = sum([file.size for file in self._files])
        self.newest_file = self._files[-1].first if self._files else 0

    def _trim(self, epoch: int, done: Callable[[], None]) -> None:
        self._sync_pending()
        crash_points.reach("checkpoint.before_trim")
        self._room.run(lambda: self.writer.remove_up_to(epoch))
        self._report(None)
        self.post(done)

    def _clear(self, last: EpochBatch | None, done: Callable[[], None]) -> None:
        self._sync_pending()
        self._room.run(self.writer.begin_file)
        if last is not None:
            self._append(last, durably=True)
        crash_points.reach("stop.mid")
        self._room.run(lambda: self.writer.remove_up_to(self.writer.written))
        self.post(done)

    def _prepare_first(self) -> None:
        """Begin the log in a preallocated file, so that its first epochs sync as fast as the others."""
        try:
            self.writer.prepare_spare()
        except OSError as error:
            if error.errno not in NO_SPARE:
                raise

    def _prepare_spare(self) -> None:
        """Preallocate the next log file in small steps while the thread is idle: zeroed blocks sync twice as fast."""
        if self._wants_spare():
            try:
                self.writer.prepare_spare_step()
            except OSError as error:
                if error.errno not in NO_SPARE:
                    raise

    def _wants_spare(self) -> bool:
        return not self.writer.has_spare and self.writer.current_size > self.writer.file_size // 4


def _reach_roll() -> None:
    crash_points.reach("log.mid_roll")


def _call(function: Callable[..., object], *arguments: Any) -> None:
    """Call directly, where there is no loop (tests)."""
    function(*arguments)
