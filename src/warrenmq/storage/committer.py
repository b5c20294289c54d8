"""The writer thread: makes epochs durable, one fdatasync each, whatever the number of queues and connections.

An epoch is appended to the log and synced if somebody waits for that; then its definitions go to the catalog, which can
be behind the log but never ahead of it. A disk that is full is waited for. A disk that fails ends everything: what was
not said to be safe is not, and nothing is tried twice as if nothing had happened.

Owned by the thread: the log files and the catalog. The loop gives it batches and hears of its progress.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from warrenmq.journal.errors import JournalError
from warrenmq.journal.log_file import LogFile, LogWriter
from warrenmq.storage import crash_points
from warrenmq.storage.catalog import CatalogFile, CatalogFull
from warrenmq.storage.definition_records import CatalogError

log = logging.getLogger("warrenmq.storage")

# What nobody waits for (acks) is synced when it is this old, in the mode that syncs.
LAZY_SYNC_INTERVAL = 0.2
FULL_DISK_RETRY = 0.5
FULL = (errno.ENOSPC, errno.EDQUOT)
# A file made ahead is no promise: where it cannot be made, the log goes on without it.
NO_SPARE = (*FULL, errno.EFBIG)
# What passes by itself: others give handles or memory back.
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Batch:
    """One epoch on its way to the log."""

    epoch: int
    payload: bytes | memoryview
    operations: list[Any]
    wants_sync: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the log has come; `payload` is the epoch's memory, to be used again."""

    written: int
    synced: int
    files: list[LogFile]
    payload: bytes | memoryview | None = None


class Committer:
    """`sync_interval`: seconds after which the rest is synced, too; None: never but at the end (the mode "os")."""

    def __init__(self, writer: LogWriter, catalog: CatalogFile, sync_interval: float | None, last_epoch: int) -> None:
        self.writer = writer
        self.catalog = catalog
        self._sync_interval = sync_interval
        self._written = last_epoch
        self._synced = last_epoch
        self._sync_due: float | None = None
        self._jobs: SimpleQueue[Callable[[], None] | Batch | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.has_failed = False
        self._is_patient = True
        self.on_progress: Callable[[Progress], None] = _ignore
        self.on_failed: Callable[[str], None] = _ignore
        self.on_full: Callable[[bool], None] = _ignore
        self.post: Callable[..., object] = _call

    # -- the loop's side ---------------------------------------------------------------------------------------------

    def start(self, post: Callable[..., object]) -> None:
        """`post` calls a function on the loop."""
        self.post = post
        self._thread = threading.Thread(target=self._run, name="warren-committer", daemon=True)
        self._thread.start()

    def sync_within(self, interval: float | None) -> None:
        """Some queue wants what is written to be synced this soon."""
        if interval is not None and (self._sync_interval is None or interval < self._sync_interval):
            self._sync_interval = interval

    def submit(self, batch: Batch) -> None:
        self._jobs.put(batch)

    def submit_sync(self) -> None:
        """Sync what was submitted so far."""
        self._jobs.put(self._sync_rest)

    def submit_trim(self, epoch: int, done: Callable[[], None]) -> None:
        """Let go of log files that hold nothing after this epoch; the catalog is made durable first."""
        self._jobs.put(lambda: self._trim(epoch, done))

    def submit_drop_all(self, epoch: int, done: Callable[[], None]) -> None:
        """The last job of a clean stop: all is in segments and in the catalog, so no log is needed to start again."""
        self._jobs.put(lambda: self._drop_all(epoch, done))

    def hurry(self) -> None:
        """From now on a full disk is a failure: nobody can wait for it any more."""
        self._is_patient = False

    def stop(self) -> None:
        """Do what was submitted, then end. Blocks: not for the loop."""
        self.hurry()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def run_one(self) -> bool:
        """Without the thread: do the next job here and now; says whether there was one."""
        if self._jobs.empty():
            return False
        self._do(self._jobs.get())
        return True

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._guard(self._prepare_first)
        while True:
            try:
                job = self._jobs.get(timeout=self._patience())
            except Empty:
                self._guard(self._sync_rest)
                continue
            if job is None:
                self._guard(self._sync_rest)
                return
            self._do(job)
            if self._sync_due is not None and time.monotonic() >= self._sync_due:
                self._guard(self._sync_rest)

    def _patience(self) -> float | None:
        if self._sync_due is not None and not self.has_failed:
            return max(0.0, self._sync_due - time.monotonic())
        return None

    def _do(self, job: Callable[[], None] | Batch | None) -> None:
        if isinstance(job, Batch):
            self._guard(lambda: self._commit(job))
            if self._jobs.empty():
                self._guard(self._prepare_spare)
        elif job is not None:
            self._guard(job)

    def _guard(self, work: Callable[[], None]) -> None:
        """After a failure nothing is done any more, and so nothing is said to be safe."""
        if self.has_failed:
            return
        try:
            work()
        except (OSError, JournalError, CatalogError) as error:
            self._fail(str(error))
        except Exception as error:
            # A bug must stop the node, too: the log would have a hole.
            log.exception("internal error in the committer")
            self._fail(f"internal error: {error}")

    def _fail(self, reason: str) -> None:
        self.has_failed = True
        self.post(self.on_failed, reason)

    def _commit(self, batch: Batch) -> None:
        wants_sync = batch.wants_sync or bool(batch.operations)
        self._append(batch, wants_sync and not crash_points.is_armed("log.after_write"))
        self._written = batch.epoch
        crash_points.reach("log.after_write")
        if wants_sync:
            self._sync()
        elif self._sync_due is None and self._sync_interval is not None:
            self._sync_due = time.monotonic() + self._sync_interval
        self._report(batch.payload)
        if batch.operations:
            self._wait_for_room(lambda: self.catalog.apply(batch.epoch, batch.operations))

    def _append(self, batch: Batch, durably: bool) -> None:
        now = int(time.time() * 1000)
        self._wait_for_room(lambda: self.writer.append(batch.payload, batch.epoch, now, durably), self.writer.cut)

    def _wait_for_room(self, work: Callable[[], None], clean_up: Callable[[], None] | None = None) -> None:
        """Do it, however long it takes until the disk has room."""
        is_waiting = False
        while True:
            try:
                work()
                break
            except (OSError, CatalogFull) as error:
                number = errno.ENOSPC if isinstance(error, CatalogFull) else error.errno
                is_full = number in FULL
                if not self._is_patient or not (is_full or number in SHORT):
                    raise
                if is_full and not is_waiting:
                    is_waiting = True
                    log.error("the disk is full: nothing is confirmed until there is room (%s)", error)
                    self.post(self.on_full, True)
                if clean_up is not None:
                    clean_up()
                time.sleep(FULL_DISK_RETRY)
        if is_waiting:
            log.warning("there is room on the disk again")
            self.post(self.on_full, False)

    def _sync(self) -> None:
        self.writer.sync()
        crash_points.reach("log.after_sync")
        self._synced = self._written
        self._sync_due = None

    def _sync_rest(self) -> None:
        """Sync what nobody waited for."""
        if self._synced < self._written:
            self._sync()
            self._report(None)

    def _report(self, payload: bytes | memoryview | None) -> None:
        progress = Progress(self._written, self._synced, self.writer.files_in_use, payload)
        self.post(self.on_progress, progress)

    def _drop_all(self, epoch: int, done: Callable[[], None]) -> None:
        self._sync_rest()
        self._wait_for_room(lambda: self.catalog.apply(epoch, []))  # so that the next start knows how far the log was
        self._wait_for_room(self.catalog.sync)
        crash_points.reach("stop.mid")
        self._wait_for_room(self.writer.drop_all)
        self.post(done)

    def _prepare_first(self) -> None:
        """The log begins in a file whose blocks are there: the first epochs are as fast to sync as all others."""
        try:
            self.writer.prepare_spare()
        except OSError as error:
            if error.errno not in NO_SPARE:
                raise

    def _prepare_spare(self) -> None:
        """Make the next log file in small steps, while nobody waits: zeroed blocks are twice as fast to sync."""
        if not self.writer.has_spare and self.writer.current_size > self.writer.file_size // 4:
            try:
                self.writer.prepare_spare_piece()
            except OSError as error:
                if error.errno not in NO_SPARE:
                    raise

    def _trim(self, epoch: int, done: Callable[[], None]) -> None:
        self._sync_rest()
        self._wait_for_room(self.catalog.sync)
        crash_points.reach("checkpoint.before_trim")
        self._wait_for_room(lambda: self.writer.forget_up_to(epoch))
        self._report(None)
        self.post(done)


def _ignore(_: Any) -> None:
    """Nobody listens yet."""


def _call(function: Callable[..., object], *arguments: Any) -> None:
    """Without a loop: the test's own thread is the loop."""
    function(*arguments)
