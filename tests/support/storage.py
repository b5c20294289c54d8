"""Storage whose commits the test decides: every turn with durable work gets an epoch, durable when the test says so."""

from __future__ import annotations

from typing import Any

from tests.support.client import PERSISTENT
from warrenmq.core.message import QueuedMessage
from warrenmq.core.options import QueueOptions
from warrenmq.core.ports import SYNCED, WRITTEN, CommitLog
from warrenmq.protocol import properties
from warrenmq.storage.memory_store import MemoryCatalog, MemoryMessages, MemoryMessageStore, MemoryStorage


class ManualLog(CommitLog):
    """Numbers the turns in which something durable happened."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self._work_in_epochs = 0
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1

    def end_turn(self) -> int:
        if self.work == self._work_in_epochs:
            return 0
        self._work_in_epochs = self.work
        self.epoch += 1
        return self.epoch


class ManualCatalog(MemoryCatalog):
    """Tells the log of its work, as a catalog on disk does."""

    def __init__(self, log: ManualLog) -> None:
        super().__init__()
        self._log = log

    def save(self, kind: str, key: tuple[str, ...], definition: dict[str, Any]) -> None:
        self._log.work += 1
        super().save(kind, key, definition)

    def delete(self, kind: str, key: tuple[str, ...]) -> None:
        self._log.work += 1
        super().delete(kind, key)


class ManualMessageStore(MemoryMessageStore):
    """Tells the log of its work, as a store on disk does."""

    def __init__(self, kept: MemoryMessages, log: ManualLog, durability_level: int) -> None:
        super().__init__(kept)
        self._log = log
        self.durability_level = durability_level

    def append(self, entry: QueuedMessage) -> None:
        assert properties.delivery_mode(entry.message.header) == PERSISTENT, (
            "a transient message was given to the store"
        )
        self._log.work += 1
        super().append(entry)

    def forget(self, entry: QueuedMessage) -> None:
        self._log.work += 1
        super().forget(entry)


class ManualStorage(MemoryStorage):
    """Keeps everything in memory, as if its log were slow. A queue with x-durability waits only for what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.log: ManualLog = ManualLog()
        self.catalog: ManualCatalog = ManualCatalog(self.log)
        self._kept: dict[tuple[str, str, int], MemoryMessages] = {}

    def message_store(  # type: ignore[override]
        self, vhost: str, queue: str, options: QueueOptions, level: int = 0
    ) -> ManualMessageStore | None:
        if not options.is_durable:
            return None
        durability_level = SYNCED if options.durability is None else WRITTEN
        return ManualMessageStore(
            self._kept.setdefault((vhost, queue, level), MemoryMessages()), self.log, durability_level
        )

    def kept(self, queue: str, vhost: str = "/") -> str:
        """The bodies that the store of a queue holds, joined in order of their positions."""
        entries = sorted(
            each for key, kept in self._kept.items() if key[:2] == (vhost, queue) for each in kept.by_position.items()
        )
        return b"".join(entry.message.body for _, entry in entries).decode()
