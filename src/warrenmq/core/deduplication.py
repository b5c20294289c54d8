"""Deduplication: a message whose id was seen before is dropped.

A queue, a stream or an exchange with `x-message-deduplication` takes the id of a message from one of its headers, and
remembers either the last N ids, each for a limited time (`RecentIds`), or the ids of the messages in the queue
(`QueuedIds`). An id is stored as 16 bytes of BLAKE2b: the odds of a collision among ten million ids are about 1 in
10^25. User documentation: docs/deduplication.md.

The time is the turn's; a `SeenStore` makes ids durable.

Owned by the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from warrenmq.core.digest import digest_of
from warrenmq.core.memory import SEEN_ID
from warrenmq.core.ports import NOTHING, SeenStore
from warrenmq.protocol.properties import headers as decode_headers

if TYPE_CHECKING:
    from warrenmq.core.stats import Stats
    from warrenmq.core.turn import Turn

EXCHANGE_TYPE = "x-message-deduplication"
ENABLED = "x-message-deduplication"
SIZE = "x-cache-size"
TTL = "x-cache-ttl"
HEADER = "x-deduplication-header"
PERSISTENCE = "x-cache-persistence"
ARGUMENTS = (ENABLED, SIZE, TTL, HEADER, PERSISTENCE)

DEFAULT_SIZE = 100_000
MAX_SIZE = 10_000_000  # some 1.5 GB of memory
_MAX_TTL_MS = 315_360_000_000  # ten years: more would not fit

_HEADERS = 0x2000


@dataclass(frozen=True, slots=True)
class DeduplicationOptions:
    """Options from the arguments of a queue or exchange. `size` 0: remember the ids of the messages in the queue."""

    header: str = HEADER
    size: int = DEFAULT_SIZE
    ttl_ms: int = 0  # 0: for as long as there is room
    is_persistent: bool = True  # with what is durable; else in memory only


class SeenIds:
    """The remembered ids: a number for each, and whether a store has it, too."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}  # number << 1 | is_stored, oldest first

    def __len__(self) -> int:
        return len(self._ids)

    def stored(self) -> Iterator[tuple[bytes, int]]:
        """Iterate over the ids in the store with their numbers, oldest first."""
        return ((id, number >> 1) for id, number in self._ids.items() if number & 1)

    def newest_stored(self, count: int) -> list[tuple[bytes, int]]:
        """Return the newest `count` ids in the store, oldest first."""
        newest = [(id, number >> 1) for id, number in islice(_stored_backwards(self._ids), count)]
        newest.reverse()
        return newest


class RecentIds(SeenIds):
    """The last `size` ids. The number of each is the time at which it expires; 0: never."""

    __slots__ = ("_has_times", "_order", "_stale", "size")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self._order: deque[bytes] = deque()
        self._stale: dict[bytes, int] = {}  # entries of an id in `_order` that are superseded by a later one
        self._has_times = False  # some ids may expire

    def has(self, id: bytes, now_ms: int) -> bool:
        number = self._ids.get(id)
        return number is not None and not _is_expired(number >> 1, now_ms)

    def add(self, id: bytes, expires_ms: int, is_stored: bool, now_ms: int) -> None:
        """Add an id as the newest; remove the oldest if there are too many."""
        if id in self._ids:  # expired
            del self._ids[id]
            self._stale[id] = self._stale.get(id, 0) + 1
        self._ids[id] = expires_ms << 1 | is_stored
        self._order.append(id)
        if expires_ms:
            self._has_times = True
        if self._has_times or len(self._ids) > self.size:
            self._evict(now_ms)

    def _evict(self, now_ms: int) -> None:
        """Remove at most two ids that are expired or exceed the size: two per new id bounds the work of each."""
        for _ in range(2):
            oldest = self._oldest()
            if len(self._ids) > self.size or _is_expired(self._ids[oldest] >> 1, now_ms):
                self._order.popleft()
                del self._ids[oldest]
        if len(self._order) > 2 * len(self._ids) + 16:  # short-lived ids that return again and again
            self._order = deque(self._ids)
            self._stale.clear()

    def _oldest(self) -> bytes:
        """Return the first id in `_order` that is not stale; the newest never is."""
        while self._stale and (count := self._stale.get(self._order[0], 0)):
            id = self._order.popleft()
            if count == 1:
                del self._stale[id]
            else:
                self._stale[id] = count - 1
        return self._order[0]


class QueuedIds(SeenIds):
    """The ids of the messages in a queue; the number of each is the position of its message."""

    __slots__ = ()

    def has(self, id: bytes) -> bool:
        return id in self._ids

    def add(self, id: bytes, position: int, is_stored: bool) -> None:
        self._ids[id] = position << 1 | is_stored

    def remove(self, id: bytes, position: int) -> bool:
        """Remove the id of the message at that position. Return True if a store has it."""
        number = self._ids.get(id)
        if number is None or number >> 1 != position:
            return False
        del self._ids[id]
        return bool(number & 1)

    def remove_after(self, position: int) -> bool:
        """Remove the ids of all messages after that position. Return True if a store has any of them."""
        removed = [id for id, number in self._ids.items() if number >> 1 > position]
        stored = [id for id in removed if self._ids.pop(id) & 1]
        return bool(stored)


class Deduplication:
    """The ids that one queue, stream or exchange has seen.

    `has_seen` checks a message and changes nothing; `record` follows in the same call if the message is accepted.
    """

    __slots__ = (
        "_counted",
        "_default_ttl_ms",
        "_header",
        "_id",
        "_marker",
        "_queued",
        "_recent",
        "_stats",
        "_store",
        "_ttl_ms",
        "_turn",
    )

    def __init__(self, options: DeduplicationOptions, store: SeenStore | None, turn: Turn, stats: Stats) -> None:
        self._header = options.header
        self._default_ttl_ms = options.ttl_ms
        self._store = store
        self._turn = turn
        self._stats = stats
        self._counted = 0  # ids that are in `Stats.id_bytes`
        self._recent = RecentIds(options.size) if options.size else None
        self._queued = None if options.size else QueuedIds()
        name = options.header.encode("utf-8", "surrogateescape")
        self._marker = bytes((len(name),)) + name  # the key as encoded in a field table
        self._id: bytes | None = None  # of the message that was checked last
        self._ttl_ms = 0
        if store is not None:
            store.attach(self.ids)
            self._restore(store.recover())
            self._count(len(self.ids))

    @property
    def ids(self) -> SeenIds:
        ids = self._recent if self._recent is not None else self._queued
        assert ids is not None
        return ids

    @property
    def durability_level(self) -> int:
        """What the confirm of a message with a stored id waits for."""
        return self._store.durability_level if self._store is not None else NOTHING

    def has_seen(self, header: bytes) -> bool:
        """Return True if a message with this content header is a duplicate. One without an id never is."""
        self._id = self._read(header)
        if self._id is None:
            return False
        if self._queued is not None:
            return self._queued.has(self._id)
        assert self._recent is not None
        return self._recent.has(self._id, self._turn.now_ms)

    def record(self, position: int, is_stored: bool) -> None:
        """Remember the id of the message that was checked last; `is_stored`: the message survives a restart."""
        id = self._id
        if id is None:
            return
        is_stored = is_stored and self._store is not None
        number = position
        if self._recent is not None:
            now_ms = self._turn.now_ms
            number = now_ms + self._ttl_ms if self._ttl_ms else 0
            self._recent.add(id, number, is_stored, now_ms)
        else:
            assert self._queued is not None
            self._queued.add(id, position, is_stored)
        self._count(len(self.ids))
        if is_stored:
            self._store.save(id, number)  # type: ignore[union-attr]

    def record_direct(self, is_stored: bool) -> int:
        """Remember a message that was settled by being sent, without entering the queue. Return what to wait for."""
        if self._id is None or self._recent is None:
            return NOTHING
        self.record(0, is_stored)
        return self.durability_level if is_stored else NOTHING

    def message_removed(self, header: bytes, position: int) -> None:
        """The message at this position was removed from the queue."""
        if self._queued is not None:
            id = self._read(header)
            if id is not None and self._queued.remove(id, position) and self._store is not None:
                self._store.ids_removed()
            self._count(len(self._queued))

    def removed_after(self, position: int) -> None:
        """All messages after this position were removed from the queue."""
        if self._queued is not None:
            if self._queued.remove_after(position) and self._store is not None:
                self._store.ids_removed()
            self._count(len(self._queued))

    def delete(self) -> None:
        """The queue or exchange was deleted."""
        self._count(0)
        if self._store is not None:
            self._store.delete()
            self._store = None

    def _count(self, ids: int) -> None:
        """Set the counted memory to that of N ids."""
        self._stats.id_bytes += (ids - self._counted) * SEEN_ID
        self._counted = ids

    def _restore(self, found: Iterable[tuple[bytes, int]]) -> None:
        if self._queued is not None:
            for id, position in found:
                self._queued.add(id, position, True)
            return
        assert self._recent is not None
        now_ms = self._turn.now_ms
        for id, expires_ms in found:
            if not _is_expired(expires_ms, now_ms):
                self._recent.add(id, expires_ms, True, now_ms)

    def _read(self, header: bytes) -> bytes | None:
        """Return the id of a message; None if it has none. Also set the time to remember it."""
        # Searching for the name is far cheaper than decoding the headers.
        if not header[12] << 8 & _HEADERS or header.find(self._marker) < 0:
            return None
        headers = decode_headers(header)
        value = None if headers is None else headers.get(self._header)
        if value is None:
            return None
        ttl = headers.get(TTL)  # type: ignore[union-attr]
        self._ttl_ms = min(ttl, _MAX_TTL_MS) if type(ttl) is int and ttl > 0 else self._default_ttl_ms
        return digest_of(value)


def _stored_backwards(ids: dict[bytes, int]) -> Iterator[tuple[bytes, int]]:
    return ((id, number) for id, number in reversed(ids.items()) if number & 1)


def _is_expired(expires_ms: int, now_ms: int) -> bool:
    return 0 < expires_ms <= now_ms
