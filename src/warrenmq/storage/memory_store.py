"""Storage in memory: everything is durable at once, and lost with the process.

A broker built again on the same storage finds its durable definitions and persistent messages, as with files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warrenmq.core.backlog import Backlog
from warrenmq.core.deduplication import SeenIds
from warrenmq.core.message import QueuedMessage
from warrenmq.core.options import QueueOptions
from warrenmq.core.ports import Catalog, CommitLog, MessageStore, Recovered, SeenStore, Storage
from warrenmq.storage.memory_stream import MemoryStream, MemoryStreamStore
from warrenmq.storage.page_cache import Page, PageCache


class MemoryMessages:
    """The persistent messages of one queue by position, and its next position; outlives the broker."""

    def __init__(self) -> None:
        self.by_position: dict[int, QueuedMessage] = {}
        self.next_position = 0


class MemoryMessageStore(MessageStore):
    """The persistent messages of one queue."""

    __slots__ = ("_stored",)

    def __init__(self, kept: MemoryMessages) -> None:
        super().__init__()
        self._stored = kept

    def append(self, entry: QueuedMessage) -> None:
        entry.epoch = 1
        self._stored.by_position[entry.position] = entry
        self._stored.next_position = entry.position + 1

    def forget(self, entry: QueuedMessage) -> None:
        self._stored.by_position.pop(entry.position, None)

    def open(self, backlog: Backlog) -> Recovered:
        entries = [
            QueuedMessage(entry.message, position) for position, entry in sorted(self._stored.by_position.items())
        ]
        for entry in entries:
            before = self._stored.by_position[entry.position]
            entry.epoch = 1
            entry.expires_ms = before.expires_ms
            entry.attempts = before.attempts
        return Recovered(entries, 0, self._stored.next_position)

    def delete(self) -> None:
        self._stored.by_position.clear()
        self._stored.next_position = 0


class MemorySeenStore(SeenStore):
    """The ids that one queue or exchange has seen."""

    __slots__ = ("_ids", "_key", "_stored")

    def __init__(self, kept: dict[tuple[str, str, str], SeenIds], key: tuple[str, str, str]) -> None:
        super().__init__()
        self._stored = kept
        self._key = key
        self._ids: SeenIds | None = kept.get(key)

    def attach(self, ids: SeenIds) -> None:
        self._stored[self._key] = ids

    def save(self, id: bytes, number: int) -> None:
        """The attached ids include it."""

    def recover(self) -> Iterable[tuple[bytes, int]]:
        ids, self._ids = self._ids, None
        return [] if ids is None else list(ids.stored())

    def delete(self) -> None:
        del self._stored[self._key]


class MemoryCatalog(Catalog):
    """Definitions in dictionaries."""

    __slots__ = ("_stored",)

    def __init__(self) -> None:
        self._stored: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {}

    def save(self, kind: str, key: tuple[str, ...], definition: dict[str, Any]) -> None:
        self._stored.setdefault(kind, {})[key] = definition

    def delete(self, kind: str, key: tuple[str, ...]) -> None:
        self._stored.get(kind, {}).pop(key, None)

    def load(self, kind: str) -> Iterable[dict[str, Any]]:
        return list(self._stored.get(kind, {}).values())


class MemoryLog(CommitLog):
    """A log without waiting."""

    __slots__ = ()

    def end_turn(self) -> int:
        return 0


class MemoryStorage(Storage):
    """Storage of one node in memory."""

    __slots__ = ("_messages", "_pages", "_seen", "_streams", "catalog", "log")

    def __init__(self) -> None:
        self.catalog = MemoryCatalog()
        self.log = MemoryLog()
        self._messages: dict[tuple[str, str, int], MemoryMessages] = {}
        self._streams: dict[tuple[str, str], MemoryStream] = {}
        self._seen: dict[tuple[str, str, str], SeenIds] = {}
        self._pages: PageCache[Page] = PageCache()

    def message_store(self, vhost: str, queue: str, options: QueueOptions, level: int = 0) -> MemoryMessageStore | None:
        if not options.is_durable:
            return None
        return MemoryMessageStore(self._messages.setdefault((vhost, queue, level), MemoryMessages()))

    def stored_levels(self, vhost: str, queue: str) -> list[int]:
        kept = self._messages.items()
        return sorted(key[2] for key, messages in kept if key[:2] == (vhost, queue) and key[2] and messages.by_position)

    def stream_store(self, vhost: str, queue: str, options: QueueOptions) -> MemoryStreamStore:
        kept = self._streams.setdefault((vhost, queue), MemoryStream())
        return MemoryStreamStore(kept, options, self._pages, self.log)

    def seen_store(self, kind: str, vhost: str, name: str, durability_level: int | None = None) -> MemorySeenStore:
        return MemorySeenStore(self._seen, (kind, vhost, name))
