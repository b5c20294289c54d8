"""Keeps the log short: what its oldest files alone still hold goes to the segments, then they are let go.

In order: living messages are flushed (those of small queues are said again in the open epoch instead, which costs no
file), deaths are written beside their segments, everything is synced, the catalog is synced, the files are dropped. A
crash between any two of these leaves the log with all it needs.

Owned by the loop thread. A big broker is flushed in slices, so that the loop does not stall.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from warrenmq.storage import crash_points
from warrenmq.storage.catalog_writer import CatalogWriter
from warrenmq.storage.committer import Committer
from warrenmq.storage.options import StorageOptions
from warrenmq.storage.queue_store import QueueStore, StoreContext

log = logging.getLogger("warrenmq.storage")

STORES_PER_SLICE = 100


class Checkpoint:
    """One at a time. `call_soon` continues on the loop."""

    def __init__(
        self,
        context: StoreContext,
        committer: Committer,
        catalog: CatalogWriter,
        options: StorageOptions,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._context = context
        self._committer = committer
        self._catalog = catalog
        self._limit = options.log_limit
        self._carry_below = options.carry_below
        self._call_soon = call_soon
        self._epoch = 0
        self.carried = 0  # bytes of memory, in the one that runs or ran last
        self._may_carry = True
        self._done: list[Callable[[], None]] = []
        self._stores: list[QueueStore] = []
        self._began_at_work = -1
        self.is_ready = False  # not before the queues have their stores
        self.is_running = False
        self.is_held = False  # a compaction is under way
        self.on_end: Callable[[], None] = _nothing
        self.count = 0

    def judge(self) -> None:
        """Begin if the log has grown too long."""
        if self.is_ready and not self.is_running and not self.is_held and self._committer.size > self._limit:
            if self._context.log.work == self._began_at_work:
                return  # the last one could drop nothing, and nothing was said since
            epoch = self._committer.epoch_to_trim(self._limit * 3 // 4)
            if epoch:
                self.begin(epoch, may_carry=True)

    def begin(self, epoch: int, may_carry: bool, done: Callable[[], None] | None = None) -> None:
        """Flush everything up to this epoch and drop the files that end with it or before."""
        assert not self.is_running
        self.is_running = True
        self._began_at_work = self._context.log.work
        self._epoch = epoch
        self._may_carry = may_carry
        self.carried = 0
        self._done = [done] if done is not None else []
        self._stores = list(self._context.unflushed)
        if self._context.log.on_trim is not None:
            self._context.log.on_trim()
        self._flush_some()

    def when_done(self, done: Callable[[], None]) -> None:
        """Call when the one that runs is over."""
        self._done.append(done)

    def _flush_some(self) -> None:
        for store in self._slice():
            self._flush(store)
        if self._stores:
            self._call_soon(self._flush_some)
            return
        self._stores = list(self._context.marked)
        self._mark_some()

    def _mark_some(self) -> None:
        marked = self._context.marked
        for store in self._slice():
            if marked.pop(store, self) is None:  # it may have been deleted meanwhile
                store.write_marks()
                store.look_for_compactable()
        if self._stores:
            self._call_soon(self._mark_some)
            return
        if self.carried:
            self._context.log.flush()  # what was said again must be safe before the first time is forgotten
        self._context.pager.sync(self._synced)

    def _slice(self) -> list[QueueStore]:
        taken = self._stores[:STORES_PER_SLICE]
        del self._stores[:STORES_PER_SLICE]
        return taken

    def _flush(self, store: QueueStore) -> None:
        if store.is_deleted or not store.has_unflushed():
            self._context.unflushed.pop(store, None)
            return
        if self._is_to_be_carried(store):
            self.carried += store.carry(self._epoch)
            return
        store.flush(self._epoch)
        if not store.has_unflushed():
            self._context.unflushed.pop(store, None)

    def _is_to_be_carried(self, store: QueueStore) -> bool:
        if not self._may_carry or store.segments.all or self.carried >= self._limit // 2:
            return False
        return store.unflushed_bytes(self._carry_below) < self._carry_below

    def _synced(self) -> None:
        crash_points.reach("checkpoint.after_sync")
        self._catalog.sync(self._epoch, lambda: self._committer.trim(self._epoch, self._trimmed))

    def _trimmed(self) -> None:
        self.is_running = False
        self.count += 1
        log.debug("the log was trimmed up to epoch %d", self._epoch)
        for done in self._done:
            done()
        self.on_end()


def _nothing() -> None:
    """Nobody waits for it."""
