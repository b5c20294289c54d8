"""Deduplication: a message whose id was seen before is dropped.

A queue, a stream or an exchange with `x-message-deduplication` looks at one header of every message and remembers what
it says, in one of two ways: the last so many ids, each for some time (`RecentIds`), or the ids of what is in the queue
(`QueuedIds`). An id is kept as 16 bytes of BLAKE2b: among ten million ids two are taken for the same with odds of about
1 in 10^25. docs/deduplication.md is the user's side.

Nothing here knows a clock or a file: the time is the turn's, and a `SeenStore` keeps what must last.

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
LARGEST_SIZE = 10_000_000  # some 1.5 GB of memory
_LONGEST_MS = 315_360_000_000  # ten years: more would not fit

_HEADERS = 0x2000


@dataclass(frozen=True, slots=True)
class DeduplicationOptions:
    """What the arguments of a queue or exchange ask for. `size` 0: the ids of what is in the queue."""

    header: str = HEADER
    size: int = DEFAULT_SIZE
    ttl_ms: int = 0  # 0: for as long as there is room
    is_kept: bool = True  # with what is durable; else in memory alone


class SeenIds:
    """What is remembered: by id, a number, and whether a store keeps it, too."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}  # number << 1 | is kept, oldest first

    def __len__(self) -> int:
        return len(self._ids)

    def kept(self) -> Iterator[tuple[bytes, int]]:
        """Those that a store keeps, with their numbers, oldest first."""
        return ((id, number >> 1) for id, number in self._ids.items() if number & 1)

    def newest_kept(self, count: int) -> list[tuple[bytes, int]]:
        """The last so many of them, oldest first."""
        newest = [(id, number >> 1) for id, number in islice(_kept_backwards(self._ids), count)]
        newest.reverse()
        return newest


class RecentIds(SeenIds):
    """The last `size` ids, each until its time is up (its number; 0: never)."""

    __slots__ = ("_again", "_has_times", "_order", "size")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self._order: deque[bytes] = deque()
        self._again: dict[bytes, int] = {}  # how many places in the order do not count, as the id has a later one
        self._has_times = False  # the time of some may be up

    def has(self, id: bytes, now_ms: int) -> bool:
        number = self._ids.get(id)
        return number is not None and not _is_over(number >> 1, now_ms)

    def add(self, id: bytes, expires_ms: int, is_kept: bool, now_ms: int) -> None:
        """Remember it as the newest; the oldest goes if there are too many."""
        if id in self._ids:  # its time was up
            del self._ids[id]
            self._again[id] = self._again.get(id, 0) + 1
        self._ids[id] = expires_ms << 1 | is_kept
        self._order.append(id)
        if expires_ms:
            self._has_times = True
        if self._has_times or len(self._ids) > self.size:
            self._forget_some(now_ms)

    def _forget_some(self, now_ms: int) -> None:
        """Those for which there is no room, or whose time is up: two for each that comes, so nobody has to wait."""
        for _ in range(2):
            oldest = self._oldest()
            if len(self._ids) > self.size or _is_over(self._ids[oldest] >> 1, now_ms):
                self._order.popleft()
                del self._ids[oldest]
        if len(self._order) > 2 * len(self._ids) + 16:  # ids with little time come again and again
            self._order = deque(self._ids)
            self._again.clear()

    def _oldest(self) -> bytes:
        """The first in the order whose place counts; there is one, which is new."""
        while self._again and (count := self._again.get(self._order[0], 0)):
            id = self._order.popleft()
            if count == 1:
                del self._again[id]
            else:
                self._again[id] = count - 1
        return self._order[0]


class QueuedIds(SeenIds):
    """The ids of the messages in a queue; the number of each is the position of its message."""

    __slots__ = ()

    def has(self, id: bytes) -> bool:
        return id in self._ids

    def add(self, id: bytes, position: int, is_kept: bool) -> None:
        self._ids[id] = position << 1 | is_kept

    def remove(self, id: bytes, position: int) -> bool:
        """The message at that position is gone; says whether a store kept its id."""
        number = self._ids.get(id)
        if number is None or number >> 1 != position:
            return False
        del self._ids[id]
        return bool(number & 1)

    def remove_behind(self, position: int) -> bool:
        """All messages behind it are gone; says whether a store kept any of them."""
        gone = [id for id, number in self._ids.items() if number >> 1 > position]
        kept = [id for id in gone if self._ids.pop(id) & 1]
        return bool(kept)


class Deduplication:
    """What one queue, stream or exchange has seen.

    `has_seen` is asked first, and says nothing to anybody; `note` follows if the message is taken, in the same call.
    """

    __slots__ = (
        "_counted",
        "_default_ttl_ms",
        "_header",
        "_id",
        "_in_queue",
        "_marker",
        "_stats",
        "_store",
        "_ttl_ms",
        "_turn",
        "_window",
    )

    def __init__(self, settings: DeduplicationOptions, store: SeenStore | None, turn: Turn, stats: Stats) -> None:
        self._header = settings.header
        self._default_ttl_ms = settings.ttl_ms
        self._store = store
        self._turn = turn
        self._stats = stats
        self._counted = 0  # ids that are in `Stats.id_bytes`
        self._window = RecentIds(settings.size) if settings.size else None
        self._in_queue = None if settings.size else QueuedIds()
        name = settings.header.encode("utf-8", "surrogateescape")
        self._marker = bytes((len(name),)) + name  # a field table has its key like this
        self._id: bytes | None = None  # of the message that was asked about last
        self._ttl_ms = 0
        if store is not None:
            store.attach(self.ids)
            self._restore(store.recover())
            self._count(len(self.ids))

    @property
    def ids(self) -> SeenIds:
        ids = self._window if self._window is not None else self._in_queue
        assert ids is not None
        return ids

    @property
    def durability_level(self) -> int:
        """What the confirm of a message waits for whose id is kept."""
        return self._store.durability_level if self._store is not None else NOTHING

    def has_seen(self, header: bytes) -> bool:
        """Whether a message with this content header is a duplicate. One without an id never is."""
        self._id = self._read(header)
        if self._id is None:
            return False
        if self._in_queue is not None:
            return self._in_queue.has(self._id)
        assert self._window is not None
        return self._window.has(self._id, self._turn.now_ms)

    def note(self, position: int, is_kept: bool) -> None:
        """The message that was asked about last was taken, at this position; `is_kept`: it survives a restart."""
        id = self._id
        if id is None:
            return
        is_kept = is_kept and self._store is not None
        number = position
        if self._window is not None:
            now_ms = self._turn.now_ms
            number = now_ms + self._ttl_ms if self._ttl_ms else 0
            self._window.add(id, number, is_kept, now_ms)
        else:
            assert self._in_queue is not None
            self._in_queue.add(id, position, is_kept)
        self._count(len(self.ids))
        if is_kept:
            self._store.save(id, number)  # type: ignore[union-attr]

    def note_passed(self, is_kept: bool) -> int:
        """The same for one that was settled by being sent, so it never was in the queue. Gives what to wait for."""
        if self._id is None or self._window is None:
            return NOTHING
        self.note(0, is_kept)
        return self.durability_level if is_kept else NOTHING

    def left(self, header: bytes, position: int) -> None:
        """The message at this position left the queue for good."""
        if self._in_queue is not None:
            id = self._read(header)
            if id is not None and self._in_queue.remove(id, position) and self._store is not None:
                self._store.ids_removed()
            self._count(len(self._in_queue))

    def left_behind(self, position: int) -> None:
        """So did all messages behind this position."""
        if self._in_queue is not None:
            if self._in_queue.remove_behind(position) and self._store is not None:
                self._store.ids_removed()
            self._count(len(self._in_queue))

    def delete(self) -> None:
        """The queue or exchange is gone."""
        self._count(0)
        if self._store is not None:
            self._store.delete()
            self._store = None

    def _count(self, ids: int) -> None:
        """Count the memory of this many ids."""
        self._stats.id_bytes += (ids - self._counted) * SEEN_ID
        self._counted = ids

    def _restore(self, found: Iterable[tuple[bytes, int]]) -> None:
        if self._in_queue is not None:
            for id, position in found:
                self._in_queue.add(id, position, True)
            return
        assert self._window is not None
        now_ms = self._turn.now_ms
        for id, expires_ms in found:
            if not _is_over(expires_ms, now_ms):
                self._window.add(id, expires_ms, True, now_ms)

    def _read(self, header: bytes) -> bytes | None:
        """The id of a message; None if it has none. Also finds how long it wants to be remembered."""
        # Looking for the name is far cheaper than a decode; only what has it pays for that.
        if not header[12] << 8 & _HEADERS or header.find(self._marker) < 0:
            return None
        headers = decode_headers(header)
        value = None if headers is None else headers.get(self._header)
        if value is None:
            return None
        ttl = headers.get(TTL)  # type: ignore[union-attr]
        self._ttl_ms = min(ttl, _LONGEST_MS) if type(ttl) is int and ttl > 0 else self._default_ttl_ms
        return digest_of(value)


def _kept_backwards(ids: dict[bytes, int]) -> Iterator[tuple[bytes, int]]:
    return ((id, number) for id, number in reversed(ids.items()) if number & 1)


def _is_over(expires_ms: int, now_ms: int) -> bool:
    return 0 < expires_ms <= now_ms
