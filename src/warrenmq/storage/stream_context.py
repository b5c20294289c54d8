"""What the streams of one node share: caches, the broker's timers, and which streams wait for the log.

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
from warrenmq.storage.stream_segments import IndexCache

if TYPE_CHECKING:
    from warrenmq.storage.stream_store import FileStreamStore


log = logging.getLogger("warrenmq.storage")


class StreamContext:
    """`timers` are the broker's, set before streams are opened."""

    timers: Timers

    def __init__(self, stores: StoreContext) -> None:
        self.stores = stores
        self.blocks: PageCache[Block] = PageCache()
        self.indexes = IndexCache()
        self.pending: dict[FileStreamStore, None] = {}  # with appends that are not readable yet
        self._damaged: set[tuple[int, tuple[int, int, int]]] = set()  # blocks that were reported
        self._copied_files: set[str] = set()  # damaged files that were copied

    def note_damage(self, number: int, path: str, key: tuple[int, int, int], block: Block) -> None:
        """Log and count the damage of a block once, and copy the file."""
        if (number, key) in self._damaged:
            return
        self._damaged.add((number, key))
        stores = self.stores
        loss: Loss | str = Loss(block.lost, True)
        if block.is_cut:
            loss = f"{loss}, and later ones in this part of the file," if block.lost else "messages"
        for trouble in block.problems:
            log.error("%s", trouble)
        log.error("%s: %s of %s cannot be read and are skipped", path, loss, stores.describe_queue(number))
        stores.damaged_pages += len(block.problems)
        stores.lost_messages += block.lost
        if path not in self._copied_files:
            self._copied_files.add(path)
            stores.pager.submit(lambda: keep_copy(stores.pager.files, stores.root, path), lambda _: None)

    def on_progress(self) -> None:
        """Make epochs readable that the log has committed."""
        if self.pending:
            for store in list(self.pending):
                store.on_log_progress()
