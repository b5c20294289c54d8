"""A thread that does file work in order, and reports each result to the loop.

The storage has three: one writes segments, one reads them, so that a read never waits for a sync, and one applies
definitions to the catalog. A job runs in the thread; its result, or its `OSError`, `JournalError` or `CatalogError`, is
passed to its callback on the loop. Any other exception is a bug, and stops the node like a failed disk.

Owned by the loop: submission. Owned by the thread: what the jobs touch.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from warrenmq.journal.errors import JournalError
from warrenmq.storage.definition_records import CatalogError
from warrenmq.storage.full_disk import SpaceWaiter

log = logging.getLogger("warrenmq.storage")

Job = Callable[[], Any]
Done = Callable[[Any], None]
# How results reach the loop: `loop.call_soon_threadsafe`, or a list in a test.
Post = Callable[..., object]


class Abandoned(Exception):
    """The job was skipped because an earlier one failed."""


class Worker:
    """One thread and its queue of jobs. Without `start`, a test runs the jobs with `run_one`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting = 0  # jobs whose callback has not run yet
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._post: Post | None = None
        self._posted: deque[tuple[Done, Any]] = deque()

    def start(self, post: Post) -> None:
        self._post = post
        self._thread = threading.Thread(target=self._run, name=f"warren-{self.name}", daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        """Run the job after all earlier ones; then call `done` on the loop with its result or exception."""
        self.waiting += 1
        self._jobs.put((job, done))

    def stop(self) -> None:
        """Finish what was submitted, then stop. Blocks: not for the loop."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def run_one(self) -> bool:
        """Run the next job and its callback in the caller's thread; return False if there is none."""
        if self._jobs.empty():
            return False
        item = self._jobs.get()
        assert item is not None
        self._do(*item)
        self._deliver()
        return True

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            self._do(*item)
            self._post(self._deliver)  # type: ignore[misc]

    def _do(self, job: Job, done: Done) -> None:
        try:
            result = job()
        except (OSError, JournalError, CatalogError, Abandoned) as error:
            result = error
        except Exception as error:
            log.exception("internal error in the %s thread", self.name)
            result = error
        self._posted.append((done, result))

    def _deliver(self) -> None:
        """On the loop: call the callbacks of finished jobs."""
        while self._posted:
            done, result = self._posted.popleft()
            self.waiting -= 1
            done(result)


class DiskWorker(Worker):
    """A worker that changes files: it retries jobs while the disk is full, and skips all jobs after a failure.

    The callback runs only if the job was done. The first failure is reported to `on_failed`. `consequence`: see
    `SpaceWaiter`.
    """

    def __init__(self, name: str, consequence: str) -> None:
        super().__init__(name)
        self.has_failed = False
        self.on_failed: Callable[[str], None] = _raise
        self.on_full: Callable[[bool], None] = lambda is_full: None
        self._room = SpaceWaiter(consequence, self._report_full)

    def submit(self, job: Job, done: Done) -> None:
        super().submit(lambda: self._run_job(job), lambda result: self._finished(result, done))

    def stop_waiting(self) -> None:
        """From now on a full disk is a failure, because nothing can wait for space any more."""
        self._room.stop_waiting()

    def stop(self) -> None:
        self.stop_waiting()
        super().stop()

    def _run_job(self, job: Job) -> Any:
        if self.has_failed:
            raise Abandoned
        try:
            return self._room.run(job)
        except BaseException:
            self.has_failed = True
            raise

    def _report_full(self, is_full: bool) -> None:
        if self._post is not None:
            self._post(self.on_full, is_full)
        else:
            self.on_full(is_full)

    def _finished(self, result: Any, done: Done) -> None:
        if isinstance(result, Abandoned):
            return
        if isinstance(result, Exception):
            self.on_failed(str(result))
        else:
            done(result)


def _raise(reason: str) -> None:
    raise JournalError(reason)
