"""Storage whose commits the test decides: every turn with durable work gets an epoch, durable when the test says so."""

from __future__ import annotations

from tests.support.client import PERSISTENT
from warrenmq.core.message import QueuedMessage
from warrenmq.core.ports import CommitLog
from warrenmq.protocol import properties
from warrenmq.storage.memory_store import MemoryMessageStore, MemoryStorage


class ManualLog(CommitLog):
    """Numbers the turns in which something durable happened."""

    def __init__(self) -> None:
        self.epoch = 0
        self.has_work = False

    def end_turn(self) -> int:
        if not self.has_work:
            return 0
        self.has_work = False
        self.epoch += 1
        return self.epoch


class ManualMessageStore(MemoryMessageStore):
    """Tells the log of its work, as a store on disk does."""

    def __init__(self, kept: dict[int, QueuedMessage], log: ManualLog) -> None:
        super().__init__(kept)
        self._log = log

    def append(self, entry: QueuedMessage) -> None:
        assert properties.delivery_mode(entry.message.header) == PERSISTENT, (
            "a transient message was given to the store"
        )
        self._log.has_work = True
        super().append(entry)

    def forget(self, entry: QueuedMessage) -> None:
        self._log.has_work = True
        super().forget(entry)


class ManualStorage(MemoryStorage):
    """Keeps everything in memory, as if its log were slow."""

    def __init__(self) -> None:
        super().__init__()
        self.log: ManualLog = ManualLog()
        self._kept: dict[tuple[str, str], dict[int, QueuedMessage]] = {}

    def message_store(self, vhost: str, queue: str) -> ManualMessageStore:
        return ManualMessageStore(self._kept.setdefault((vhost, queue), {}), self.log)

    def kept(self, queue: str, vhost: str = "/") -> str:
        """The bodies that the store of a queue holds, joined in order of their positions."""
        entries = sorted(self._kept.get((vhost, queue), {}).items())
        return b"".join(entry.message.body for _, entry in entries).decode()
