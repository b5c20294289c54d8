"""What the streams of one node share: caches of what was read, the broker's timers, and who waits for the log.

Owned by the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.core.timers import Timers
from warrenmq.storage.page_cache import PageCache
from warrenmq.storage.queue_store import StoreContext
from warrenmq.storage.stream_blocks import Block
from warrenmq.storage.stream_segments import IndexesInUse

if TYPE_CHECKING:
    from warrenmq.storage.stream_store import FileStreamStore


class StreamContext:
    """`timers` are the broker's, which are there when streams are attached."""

    timers: Timers

    def __init__(self, stores: StoreContext) -> None:
        self.stores = stores
        self.blocks: PageCache[Block] = PageCache()
        self.indexes = IndexesInUse()
        self.unsafe: dict[FileStreamStore, None] = {}  # have appended what is not safe yet

    def progressed(self) -> None:
        """The log has come further: readers may have more."""
        if self.unsafe:
            for store in list(self.unsafe):
                store.log_progressed()
