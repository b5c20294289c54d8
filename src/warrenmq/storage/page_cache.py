"""A cache of decoded pages of streams, shared by all readers.

Readers close to each other share a page; distant ones evict each other's. The cache holds no more than its limit for
any number of streams and readers, or one page if that is larger.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from warrenmq.core.message import Message

CACHE_BYTES = 8 * 1024 * 1024


class Page(NamedTuple):
    """Consecutive messages from position `first` on."""

    first: int
    messages: list[Message]


Cached = TypeVar("Cached")


class PageCache(Generic[Cached]):
    """`limit` is in bytes of memory, as messages count them."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._pages: dict[Hashable, tuple[Cached, int]] = {}  # least recently used first

    def find(self, key: Hashable) -> Cached | None:
        found = self._pages.pop(key, None)
        if found is None:
            return None
        self._pages[key] = found
        return found[0]

    def add(self, key: Hashable, page: Cached, size: int) -> None:
        self.drop(key)
        self._pages[key] = (page, size)
        self._size += size
        while self._size > self._limit and len(self._pages) > 1:
            self.drop(next(iter(self._pages)))

    def drop(self, key: Hashable) -> None:
        found = self._pages.pop(key, None)
        if found is not None:
            self._size -= found[1]

    def __len__(self) -> int:
        return len(self._pages)
