"""Applies definitions to the catalog, behind the log and never ahead of it.

Operations wait until the epoch that holds them is durable in the log, then one thread applies them, in order; all that
became durable meanwhile makes one transaction. After a crash the catalog is at some epoch and catches up by replay, so
the log may forget epochs only after `sync`. A full disk is waited for; a failure stops the node.

Owned by the loop: operations that wait. Owned by the thread (before it starts: by recovery): the catalog file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from warrenmq.storage.catalog import CatalogFile
from warrenmq.storage.definition_records import Operation
from warrenmq.storage.worker import DiskWorker


class Log(Protocol):
    """The log, as far as it is asked."""

    @property
    def durable(self) -> int: ...


class CatalogWriter:
    """`worker` is the thread."""

    def __init__(self, catalog: CatalogFile, log: Log) -> None:
        self.worker = DiskWorker("catalog", "definitions are kept in the log alone")
        self._catalog = catalog
        self._log = log
        self._waiting: deque[tuple[int, Operation]] = deque()
        self._is_applying = False

    def add(self, epoch: int, operation: Operation) -> None:
        """Apply the operation when its epoch is durable."""
        self._waiting.append((epoch, operation))

    def release(self) -> None:
        """Apply what is durable by now. Called when the log has made progress."""
        if self._waiting and not self._is_applying and self._waiting[0][0] <= self._log.durable:
            self._is_applying = True
            self._apply(0, self._applied)

    def note(self, epoch: int) -> None:
        """Note that this epoch was durable: a start that does not find it in the log knows that something is lost."""
        assert epoch <= self._log.durable
        self._apply(epoch, _nothing)

    def sync(self, epoch: int, done: Callable[[], None]) -> None:
        """Make durable that the catalog holds everything up to this epoch, which is durable in the log.

        And that the log is not needed any more up to there.
        """
        self.note(epoch)
        self.release_log(epoch, done)

    def release_log(self, epoch: int, done: Callable[[], None]) -> None:
        """Make durable that no message is in the log alone up to this epoch."""
        self.worker.submit(lambda: self._catalog.release(epoch), _nothing)
        self.worker.submit(self._catalog.sync, lambda _: done())

    def stop(self) -> None:
        """Do what was asked for, then end and close the file. Blocks."""
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
    """No one waits for it."""
