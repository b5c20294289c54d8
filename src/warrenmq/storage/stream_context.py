"""What the streams of one node share: caches of what was read, the broker's timers, and who waits for the log.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from warrenmq.core.timers import Timers
from warrenmq.storage.damaged import keep_copy
from warrenmq.storage.manifest import Loss
from warrenmq.storage.page_cache import PageCache
from warrenmq.storage.store_context import StoreContext
from warrenmq.storage.stream_blocks import Block
from warrenmq.storage.stream_segments import IndexesInUse

if TYPE_CHECKING:
    from warrenmq.storage.stream_store import FileStreamStore


log = logging.getLogger("warrenmq.storage")


class StreamContext:
    """`timers` are the broker's, which are there when streams are attached."""

    timers: Timers

    def __init__(self, stores: StoreContext) -> None:
        self.stores = stores
        self.blocks: PageCache[Block] = PageCache()
        self.indexes = IndexesInUse()
        self.unsafe: dict[FileStreamStore, None] = {}  # have appended what is not safe yet
        self._damaged: set[tuple[int, tuple[int, int, int]]] = set()  # blocks that were reported
        self._kept_aside: set[str] = set()  # damaged files of which there is a copy

    def note_damage(self, number: int, path: str, key: tuple[int, int, int], block: Block) -> None:
        """Report and count what cannot be read in a block, once; keep a copy of the file."""
        if (number, key) in self._damaged:
            return
        self._damaged.add((number, key))
        stores = self.stores
        loss: Loss | str = Loss(block.lost, True)
        if block.is_cut:
            loss = f"{loss}, and those behind them in this part of the file," if block.lost else "messages"
        for trouble in block.troubles:
            log.error("%s", trouble)
        log.error("%s: %s of %s cannot be read and are passed over", path, loss, stores.words_of(number))
        stores.damaged_pages += len(block.troubles)
        stores.lost_messages += block.lost
        if path not in self._kept_aside:
            self._kept_aside.add(path)
            stores.pager.later(lambda: keep_copy(stores.pager.files, stores.root, path), lambda _: None)

    def progressed(self) -> None:
        """The log has come further: readers may have more."""
        if self.unsafe:
            for store in list(self.unsafe):
                store.log_progressed()
