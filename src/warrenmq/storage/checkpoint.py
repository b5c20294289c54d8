"""Checkpoints keep the log short: what only its oldest files hold moves to segments, then the files are dropped.

In order: live messages and ids are flushed, or relogged in the open epoch if they are few, which needs no file;
deletion marks are written; changed segments are recorded in the manifest; the next position of each queue and the
offsets of tracked consumers are relogged; everything is synced; the catalog is synced; the files are dropped. A crash
between any two steps leaves the log with everything it needs.

Owned by the loop thread. Large brokers are flushed in slices so that the loop does not stall.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from warrenmq.storage import crash_points
from warrenmq.storage.catalog_writer import CatalogWriter
from warrenmq.storage.committer import Committer
from warrenmq.storage.options import StorageOptions
from warrenmq.storage.queue_upkeep import consider_compaction, write_marks

if TYPE_CHECKING:
    from warrenmq.storage.queue_store import QueueStore
    from warrenmq.storage.store_context import StoreContext

log = logging.getLogger("warrenmq.storage")

STORES_PER_SLICE = 100
SEGMENTS_PER_SLICE = 200
POSITIONS_PER_SLICE = 2000


class Participant(Protocol):
    """A store with data that only the log holds; in `StoreContext.unflushed` while it has any, until deleted."""

    def flush(self, epoch: int, relog_below: int) -> int:
        """Write to files what only the log has up to this epoch.

        Less than `relog_below` bytes may be relogged in the open epoch instead. Return the number of relogged bytes.
        """

    def has_unflushed(self) -> bool:
        """Return True if the store has data that only the log holds."""


class Positioned(Protocol):
    """A store with positions that only the log holds: the next one of a queue, or those of tracked consumers."""

    def log_position(self) -> bool:
        """Log the positions again before the log is trimmed. Return False if there are none."""


class Checkpoint:
    """One at a time. `call_soon` schedules the next slice on the loop."""

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
        self._relog_below = options.relog_below
        self._call_soon = call_soon
        self._epoch = 0
        self.relogged_bytes = 0  # in the current or the last checkpoint
        self._may_relog = True
        self._done: list[Callable[[], None]] = []
        self._participants: list[Participant] = []
        self._marked: list[QueueStore] = []
        self._unlogged: list[Positioned] = []  # positions not yet relogged
        self._unlogged_idle: list[tuple[int, int]] = []  # the same of queues without a store: number and position
        self._has_relogged = False
        self._is_last = False
        self._work_at_start = -1
        self.is_ready = False  # set once the queues have their stores
        self.is_running = False
        self.is_blocked = False  # by a compaction
        self.on_end: Callable[[], None] = _nothing
        self.count = 0

    def start_if_due(self) -> None:
        """Start a checkpoint if the log is too long."""
        if self.is_ready and not self.is_running and not self.is_blocked and self._committer.size > self._limit:
            if self._context.log.work == self._work_at_start:
                return  # the last one could drop nothing, and nothing was logged since
            epoch = self._committer.epoch_to_trim(self._limit * 3 // 4)
            if epoch:
                self.begin(epoch, may_relog=True)

    def begin(self, epoch: int, may_relog: bool, done: Callable[[], None] | None = None, is_last: bool = False) -> None:
        """Flush everything up to this epoch and drop the files that hold nothing later.

        Positions are relogged, except in the last checkpoint of a clean stop (`is_last`), where the storage does that.
        """
        assert not self.is_running
        self.is_running = True
        self._work_at_start = self._context.log.work
        self._epoch = epoch
        self._context.manifest.begin_checkpoint(epoch)
        self._may_relog = may_relog
        self.relogged_bytes = 0
        self._has_relogged = False
        self._is_last = is_last
        self._done = [done] if done is not None else []
        self._participants = list(self._context.unflushed)
        if self._context.log.on_trim is not None:
            self._context.log.on_trim()
        self._flush_some()

    def when_done(self, done: Callable[[], None]) -> None:
        """Call `done` at the end of the running checkpoint."""
        self._done.append(done)

    def _flush_some(self) -> None:
        for participant in _take_slice(self._participants):
            self._flush(participant)
        if self._participants:
            self._call_soon(self._flush_some)
            return
        self._marked = list(self._context.marked_stores)
        self._mark_some()

    def _mark_some(self) -> None:
        marked = self._context.marked_stores
        for store in _take_slice(self._marked):
            if marked.pop(store, self) is None:  # not deleted meanwhile
                write_marks(store)
                consider_compaction(store)
        if self._marked:
            self._call_soon(self._mark_some)
            return
        self._record_some()

    def _record_some(self) -> None:
        manifest = self._context.manifest
        if manifest.unrecorded:
            self._has_relogged = True
            manifest.record_some(SEGMENTS_PER_SLICE)
        if manifest.unrecorded:
            self._call_soon(self._record_some)
            return
        self._unlogged = [] if self._is_last else list(self._context.stores)
        self._unlogged_idle = [] if self._is_last else list(self._context.idle_positions.items())
        self._log_some_positions()

    def _log_some_positions(self) -> None:
        for store in _take_slice(self._unlogged, POSITIONS_PER_SLICE):
            if store.log_position():
                self._has_relogged = True
        if not self._unlogged and self._unlogged_idle:
            # Also of queues that have a store by now: they were not in `_unlogged`.
            log_positions(self._context, _take_slice(self._unlogged_idle, POSITIONS_PER_SLICE))
            self._has_relogged = True
        if self._unlogged or self._unlogged_idle:
            self._call_soon(self._log_some_positions)
            return
        if self.relogged_bytes or self._has_relogged:
            self._context.log.flush()  # relogged data must be durable before its first copy is dropped
        self._context.manifest.checkpoint_epoch = 0  # later records are not part of this sync
        self._context.pager.sync(self._synced)

    def _flush(self, participant: Participant) -> None:
        unflushed = self._context.unflushed
        if participant in unflushed:  # not deleted meanwhile
            may_relog = self._may_relog and self.relogged_bytes < self._limit // 2
            self.relogged_bytes += participant.flush(self._epoch, self._relog_below if may_relog else 0)
            if not participant.has_unflushed():
                unflushed.pop(participant, None)

    def _synced(self) -> None:
        crash_points.reach("checkpoint.after_sync")
        if self._is_last:  # the storage drops the log after it has written the positions
            self._catalog.sync(self._epoch, self._trimmed)
        else:
            self._catalog.sync(self._epoch, lambda: self._committer.trim(self._epoch, self._trimmed))

    def _trimmed(self) -> None:
        self.is_running = False
        self._context.manifest.released_epoch = self._epoch
        self.count += 1
        log.debug("the log was trimmed up to epoch %d", self._epoch)
        for done in self._done:
            done()
        self.on_end()


def log_positions(context: StoreContext, positions: Iterable[tuple[int, int]]) -> None:
    """Log the next positions of queues, by number."""
    for number, position in positions:
        context.log.buffer.put_position(number, position)
        context.log.note_relogged()


def _take_slice(stores: list[Any], size: int = STORES_PER_SLICE) -> list[Any]:
    taken = stores[:size]
    del stores[:size]
    return taken


def _nothing() -> None:
    """Default callback."""
