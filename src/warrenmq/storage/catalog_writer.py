"""Applies definitions to the catalog after their epoch is durable in the log.

One thread applies operations in order; all that became durable meanwhile is one transaction. After a crash the catalog
catches up by replay, so the log may be trimmed only after `sync`. A full disk is waited for; any other failure stops
the node.

Owned by the loop: waiting operations. Owned by the thread (before it starts: by recovery): the catalog file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from warrenmq.storage.catalog import CatalogFile
from warrenmq.storage.definition_records import Operation
from warrenmq.storage.worker import DiskWorker


class Log(Protocol):
    """The part of the log that is used here."""

    @property
    def durable(self) -> int: ...


class CatalogWriter:
    """`worker` runs the thread."""

    def __init__(self, catalog: CatalogFile, log: Log) -> None:
        self.worker = DiskWorker("catalog", "the catalog is not updated")
        self._catalog = catalog
        self._log = log
        self._waiting: deque[tuple[int, Operation]] = deque()
        self._is_applying = False

    def add(self, epoch: int, operation: Operation) -> None:
        """Apply the operation when its epoch is durable."""
        self._waiting.append((epoch, operation))

    def release(self) -> None:
        """Apply what is durable by now; called when the log has progressed."""
        if self._waiting and not self._is_applying and self._waiting[0][0] <= self._log.durable:
            self._is_applying = True
            self._apply(0, self._applied)

    def note(self, epoch: int) -> None:
        """Record that this epoch was durable, so that a start that misses it in the log reports a loss."""
        assert epoch <= self._log.durable
        self._apply(epoch, _nothing)

    def sync(self, epoch: int, done: Callable[[], None]) -> None:
        """Make the catalog durable up to this epoch, which the log has made durable; release the log up to there."""
        self.note(epoch)
        self.release_log(epoch, done)

    def release_log(self, epoch: int, done: Callable[[], None]) -> None:
        """Make durable that the log is not needed up to this epoch."""
        self.worker.submit(lambda: self._catalog.release(epoch), _nothing)
        self.worker.submit(self._catalog.sync, lambda _: done())

    def stop(self) -> None:
        """Finish all jobs, then stop the thread and close the file. Blocks."""
        self.worker.stop()
        self._catalog.close()

    def _apply(self, epoch: int, done: Callable[[Any], None]) -> None:
        operations = []
        while self._waiting and self._waiting[0][0] <= self._log.durable:
            epoch_of_operation, operation = self._waiting.popleft()
            epoch = max(epoch, epoch_of_operation)
            operations.append(operation)
        self.worker.submit(lambda: self._catalog.apply(epoch, operations), done)

    def _applied(self, _: Any) -> None:
        self._is_applying = False
        self.release()


def _nothing(_: Any) -> None:
    """Ignore the result."""
