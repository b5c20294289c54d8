"""Reads and writes the files of queues in threads.

One thread does writes, removals and syncs in the order they were submitted, another one reads, so that a consumer never
waits for a sync. Nothing is written before the epochs it comes from are durable: what a crash undoes in the log must
not appear in a segment. A job waits while the disk is full or no descriptor is free. Any other failure stops the node,
and nothing is written or synced after it: the log, which has everything, must not be trimmed.

Owned by the loop: jobs that wait for their epoch. Owned by the writing thread: which files are not synced yet.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn
from warrenmq.journal.errors import SyncFailed
from warrenmq.journal.files import NO_DESCRIPTOR, Data, Files
from warrenmq.storage import crash_points
from warrenmq.storage.full_disk import FULL, FULL_DISK_RETRY, SHORT
from warrenmq.storage.uncached_writer import UncachedWriter
from warrenmq.storage.worker import DiskWorker, Done, Job, Post, Worker

WriteVector = Callable[[int, list[Data], int], None]


class Log(Protocol):
    """The part of the log that the pager uses; `last` is the last epoch with work."""

    @property
    def last(self) -> int: ...

    @property
    def durable(self) -> int: ...

    @property
    def turn(self) -> Turn: ...

    def request_sync(self) -> None:
        """Make all work durable soon, even if no client waits for it."""


class Pager:
    """`writer` is the writing thread."""

    def __init__(self, files: Files, log: Log) -> None:
        self.files = files
        self.pending_bytes = 0  # submitted and not written yet
        self.stats: Stats | None = None  # counts them as memory
        self._log = log
        self._requested_epoch = 0  # a sync was requested up to here
        self.writer = DiskWorker("segment-writer", "paging out is paused")
        self._reader = Worker("segment-reader")
        self._waiting: deque[tuple[int, Job, Done]] = deque()  # for their epoch to be durable
        self._may_wait = True
        # Of the writing thread:
        self._unsynced_files: dict[str, None] = {}
        self._unsynced_folders: dict[str, None] = {}
        self._orphaned_mark_files: list[str] = []  # of removed segments
        self._expendable_folders: set[str] = set()  # of files whose loss is tolerated
        self._uncached_writer = UncachedWriter(files, time.monotonic)  # for these files
        self._handle = -1  # of the last file written, usually also the next
        self._handle_path = ""

    def start(self, post: Post) -> None:
        self.writer.start(post)
        self._reader.start(post)

    def stop_waiting(self) -> None:
        """From now on a full disk is a failure, because nothing can wait for space any more."""
        self._may_wait = False
        self.writer.stop_waiting()

    def stop(self) -> None:
        """Finish what was submitted, then stop. Blocks: not for the loop."""
        self.stop_waiting()
        self._reader.stop()
        self.writer.stop()
        self._close_handle()

    # -- the loop's side ---------------------------------------------------------------------------------------------

    @property
    def on_failed(self) -> Callable[[str], None]:
        return self.writer.on_failed

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self.writer.waiting == 0 and self._reader.waiting == 0

    def write(
        self,
        path: str,
        offset: int,
        pieces: list[Data],
        is_new: bool,
        done: Callable[[], None],
        is_durable: bool = True,
        on_lost: Callable[[str], None] | None = None,
        head: Callable[[], bytes] | None = None,
    ) -> None:
        """Write after all earlier jobs. A write that is not durable waits for no epoch and is never synced.

        `on_lost` makes the file expendable: it is called if the write fails, before `done`. `head` is called by the
        thread and returns the bytes to write before the pieces.
        """
        size = sum(map(len, pieces))
        self._note_pending(size)

        def finished(reason: str | None) -> None:
            self._note_pending(-size)
            if reason is not None and on_lost is not None:
                on_lost(reason)
            done()

        def job() -> str | None:
            try:
                writev = self.files.writev if on_lost is None else self._uncached_writer.writev
                self._write(path, offset, pieces if head is None else [head(), *pieces], is_new, is_durable, writev)
            except OSError as error:
                if on_lost is None or error.errno in (*FULL, *SHORT):
                    raise
                self._forget_path(path)
                return str(error)
            if on_lost is not None:
                self._expendable_folders.add(os.path.dirname(path))
            return None

        self.submit(job, finished, None if is_durable else 0)

    def sync_file(self, path: str) -> None:
        """Make a file and its name durable before any later job."""
        self.submit(lambda: self._sync_path(path), _nothing)

    def _note_pending(self, size: int) -> None:
        self.pending_bytes += size
        if self.stats is not None:
            self.stats.held_bytes += size

    def remove(self, folder: str, names: list[str], is_durable: bool = True) -> None:
        """Remove files; marks (`.dead`) only after the removal of their segment is durable."""
        self.submit(lambda: self._remove(folder, names, is_durable), _nothing, None if is_durable else 0)

    def remove_tree(self, folder: str, epoch: int | None = None) -> None:
        self.submit(lambda: self._remove_tree(folder), _nothing, epoch)

    def sync(self, done: Callable[[], None]) -> None:
        """Make durable everything written or removed so far."""
        self.submit(self._sync, lambda _: done())

    def submit(self, job: Job, done: Done, epoch: int | None = None) -> None:
        """Run a job that changes files, after all earlier ones and after an epoch is durable (None: everything logged
        so far).

        Retried while the disk is full.
        """
        if epoch is None:
            epoch = self._log.last
        self._waiting.append((epoch, job, done))
        self.release()
        if self._waiting and epoch > self._requested_epoch:
            self._requested_epoch = epoch
            self._log.request_sync()

    def release(self) -> None:
        """Submit jobs whose epoch has become durable."""
        durable = self._log.durable
        while self._waiting and self._waiting[0][0] <= durable:
            _, job, done = self._waiting.popleft()
            self.writer.submit(job, done)

    def read(self, job: Callable[[Files], Any], done: Done) -> None:
        """Read, not in order with the writes: read only what is known to be written."""
        self._reader.submit(lambda: self._read(job), lambda result: self._deliver(result, done))

    def _deliver(self, result: Any, done: Done) -> None:
        """Begin a turn, since messages that were read may be delivered at once."""
        self._log.turn.begin()
        done(result)

    def run_one(self) -> bool:
        """Run the next job without the threads; return False if there is none."""
        return self.writer.run_one() or self._reader.run_one()

    def run_all(self) -> None:
        while self.run_one():
            pass

    # -- the writing thread ------------------------------------------------------------------------------------------

    def _write(
        self, path: str, offset: int, pieces: list[Data], is_new: bool, is_durable: bool, writev: WriteVector
    ) -> None:
        if self._handle_path != path:
            self._close_handle()
            if is_new:
                folder = os.path.dirname(path)
                if not self.files.exists(folder):
                    self.files.make_dirs(folder)
                self._handle = self.files.create(path)
                if is_durable:
                    # Even if the folder existed: its creator may have been killed before the sync.
                    self._unsynced_folders[folder] = None
                    self._unsynced_folders[os.path.dirname(folder)] = None
            else:
                self._handle = self.files.open(path)
            self._handle_path = path
        if is_durable:
            self._unsynced_files[path] = None
        writev(self._handle, pieces, offset)
        crash_points.reach("segment.after_write")

    def write_file(self, path: str, pieces: list[Data]) -> None:
        """In a job: create a durable file with this content."""
        self._write(path, 0, pieces, True, True, self.files.writev)
        self._sync_path(path)

    def _remove(self, folder: str, names: list[str], is_durable: bool) -> None:
        crash_points.reach("segment.before_remove")
        for name in names:
            path = os.path.join(folder, name)
            if is_durable and name.endswith(".dead"):
                self._forget_path(path)
                self._orphaned_mark_files.append(path)
            else:
                self.unlink(path)
        if is_durable:
            self._unsynced_folders[folder] = None

    def unlink(self, path: str) -> None:
        """In a job: remove a file if it exists."""
        self._forget_path(path)
        if self.files.exists(path):
            self.files.remove(path)

    def _remove_tree(self, folder: str) -> None:
        self._close_handle()
        for path in [path for path in self._unsynced_files if path.startswith(folder + os.sep)]:
            del self._unsynced_files[path]
        self._unsynced_folders.pop(folder, None)
        if self.files.exists(folder):
            self.files.remove_tree(folder)
            self._unsynced_folders[os.path.dirname(folder)] = None

    def _sync_path(self, path: str) -> None:
        if path in self._unsynced_files:
            self._sync_file(path)
        folder = os.path.dirname(path)
        if folder in self._unsynced_folders:
            self._sync_folder(folder)

    def _sync(self) -> None:
        for path in list(self._unsynced_files):
            self._sync_file(path)
        for folder in list(self._unsynced_folders):
            self._sync_folder(folder)
        # The next start removes any that a crash leaves.
        while self._orphaned_mark_files:
            self.unlink(self._orphaned_mark_files.pop())

    def _sync_file(self, path: str) -> None:
        is_open = path == self._handle_path
        try:
            handle = self._handle if is_open else self.files.open(path)
        except FileNotFoundError:
            if os.path.dirname(path) not in self._expendable_folders:
                raise
            del self._unsynced_files[path]
            return
        try:
            self._sync_handle(handle, path)
        finally:
            if not is_open:
                self.files.close(handle)
        del self._unsynced_files[path]

    def _sync_handle(self, handle: int, path: str) -> None:
        try:
            self.files.sync(handle)
        except OSError as error:
            raise SyncFailed(path, error) from error  # final: a retry would not tell what is lost

    def _sync_folder(self, folder: str) -> None:
        if self.files.exists(folder):
            try:
                self.files.sync_dir(folder)
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    raise  # no sync was tried: the job is repeated
                raise SyncFailed(folder, error) from error
        del self._unsynced_folders[folder]

    def sync_written(self, path: str) -> None:
        """In a job: make a file durable that was not written by `write`."""
        self._unsynced_files[path] = None
        self._sync_file(path)

    def replace(self, folder: str, old: list[str], temporary: str, new: str, is_durable: bool) -> None:
        """In a job: rename a temporary file to `new` and remove the files it replaces. May be repeated after an error.

        The new name is durable before the old files are removed, and their removal is durable on return: otherwise they
        could come back after the new file is removed.
        """
        path = os.path.join(folder, temporary)
        crash_points.reach("compaction.before_rename")
        if self.files.exists(path):
            self.files.rename(path, os.path.join(folder, new))
        if is_durable:
            self._unsynced_folders[folder] = None
            self._sync_folder(folder)
        crash_points.reach("compaction.after_rename")
        for name in old:
            self.unlink(os.path.join(folder, name))
            crash_points.reach("compaction.mid_removal")
        if is_durable:
            self._unsynced_folders[folder] = None
            self._sync_folder(folder)

    def _read(self, job: Callable[[Files], Any]) -> Any:
        """In the reading thread."""
        while True:
            try:
                return job(self.files)
            except OSError as error:
                if not self._may_wait or error.errno not in SHORT:
                    raise
                time.sleep(FULL_DISK_RETRY)

    def _forget_path(self, path: str) -> None:
        self._unsynced_files.pop(path, None)
        if path == self._handle_path:
            self._close_handle()

    def _close_handle(self) -> None:
        if self._handle >= 0:
            self.files.close(self._handle)
        self._handle = -1
        self._handle_path = ""


def _nothing(_: Any) -> None:
    """Ignore the result."""
