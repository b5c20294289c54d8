"""The loop's side of the commit log: the open epoch, and which epochs are durable.

Every durable change is recorded in the open epoch, in order. When a turn ends and the committer is idle, the epoch is
submitted; while it is busy the epoch keeps growing. So batches grow with load and need no timer.

Owned by the loop thread. Compiled when the package is built (commit_log.pxd).
"""

from collections.abc import Callable

from warrenmq.core.ports import NOTHING, SYNCED, CommitLog
from warrenmq.storage import crash_points
from warrenmq.storage.codec import EpochBuffer
from warrenmq.storage.committer import CommitProgress, Committer, EpochBatch

# Larger epochs are not deferred.
_DEFERRED_BYTES = 64 * 1024


class LocalLog(CommitLog):
    """The log of one node.

    `epoch` is the open epoch, `last` the last one with content, and `epoch_time_ms` the time of the first turn with
    work in it.
    """

    __slots__ = (
        "_committer",
        "_has_waiters",
        "_is_deferred",
        "_needs_sync",
        "buffer",
        "epoch",
        "epoch_time_ms",
        "last",
        "on_deferred",
        "syncs",
    )

    def __init__(self, committer: Committer, next_epoch: int, reply_level: int = SYNCED) -> None:
        super().__init__(reply_level)
        self._committer = committer
        self.buffer = EpochBuffer()
        self.epoch = next_epoch
        self.epoch_time_ms = 0
        self.last = next_epoch - 1
        self.written = next_epoch - 1
        self.durable = next_epoch - 1
        self.syncs = 0
        self._needs_sync = False
        self._has_waiters = False  # a client waits for the open epoch
        self._is_deferred = False
        self.on_deferred: Callable[[], object] | None = None  # schedules `submit_deferred`; None: nothing is deferred

    # -- what is said ------------------------------------------------------------------------------------------------

    def note_work(self, durability_level: int) -> None:
        """Note that something was added to the buffer."""
        self.work += 1
        if self.last != self.epoch:
            self._begin_epoch()
        if durability_level != NOTHING:
            self._has_waiters = True
            if durability_level == SYNCED:
                self._needs_sync = True

    def note_relogged(self) -> None:
        """Note that the buffer got something that the log had already: it counts as no work."""
        if self.last != self.epoch:
            self._begin_epoch()

    def put_definition(self, is_define: bool, encoded: bytes) -> int:
        """Record that something was defined or deleted. Return its epoch, which will be synced."""
        self.buffer.put_definition(is_define, encoded)
        self.note_work(SYNCED)
        return self.epoch

    def put_file_record(self, is_define: bool, encoded: bytes) -> int:
        """Record or forget a file of the manifest, which no client waits for. Return its epoch."""
        self.buffer.put_definition(is_define, encoded)
        self.note_relogged()
        return self.epoch

    def put_events(self, first: int, last: int, rows: bytes) -> None:
        """Log rows that are in no batch yet together with the turn that caused them; they alone start no commit."""
        self.buffer.put_events(first, last, rows)
        if self.last != self.epoch:
            self._begin_epoch()

    def discard_events(self, up_to: int) -> None:
        self.buffer.put_events_discarded(up_to)
        if self.last != self.epoch:
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.last = self.epoch
        self.epoch_time_ms = self.turn.now_ms

    def end_transaction(self) -> None:
        crash_points.reach("transaction.mid")

    # -- when it is safe ---------------------------------------------------------------------------------------------

    def end_turn(self) -> int:
        if not self.is_committing and self.buffer.size != 0:
            self._submit_or_defer()
        # The turn's work may have been submitted before its end: then it is in the last epoch as well.
        return self.last if self.last > self.durable else 0

    def flush(self) -> None:
        """Sync everything logged so far, although no client waits for it."""
        if self.buffer.size == 0:
            if self.last > self.durable:
                self._committer.sync()
            return
        self._needs_sync = self._has_waiters = True
        if not self.is_committing:
            self._submit_epoch()

    def request_sync(self) -> None:
        """Sync everything logged so far, at the end of the turn: the records of one call must be in one epoch."""
        if self.buffer.size != 0:
            self._needs_sync = self._has_waiters = True
        elif self.last > self.durable:
            self._committer.sync()

    def _submit_or_defer(self) -> None:
        """Defer acks, so that they share a write with the next publish."""
        if self._has_waiters or self.on_deferred is None or self.buffer.size >= _DEFERRED_BYTES:
            self._submit_epoch()
        elif not self._is_deferred:
            self._is_deferred = True
            self.on_deferred()

    def submit_deferred(self) -> None:
        """Submit what was deferred, some time after `on_deferred`."""
        self._is_deferred = False
        self.flush()

    def _submit_epoch(self) -> None:
        if self.on_epoch_end is not None:
            self.on_epoch_end()
        self.is_committing = True
        batch = EpochBatch(self.epoch, self.epoch_time_ms, self.buffer.take(), self._needs_sync)
        self._needs_sync = self._has_waiters = False
        self.epoch += 1
        self._committer.submit(batch)

    def close_last(self) -> EpochBatch | None:
        """Close the open epoch and return it for the caller to submit; None if it is empty."""
        if self.buffer.size == 0:
            return None
        batch = EpochBatch(self.epoch, self.epoch_time_ms, self.buffer.take(), True)
        self.epoch += 1
        return batch

    def on_progress(self, progress: CommitProgress) -> None:
        """Handle a report of the committer, on the loop."""
        if progress.payload is not None:
            self.buffer.recycle(progress.payload)
            self.is_committing = False
        if progress.durable > self.durable:
            self.syncs += 1
        self.advance(progress.written, progress.durable)
        if not self.is_committing and self.buffer.size != 0:
            self._submit_or_defer()
