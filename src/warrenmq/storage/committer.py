"""The committer port: makes epochs durable, in order, and reports progress.

The loop submits one epoch after another; the next one may be submitted before the last is durable. Reports arrive on
the loop. A full disk is waited for. Any other failure is final: it is reported once, and nothing is written or reported
after it.

`LocalCommitter` (local_committer.py) writes to local files.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EpochBatch:
    """One epoch to be written; `time_ms` is the time of the first turn with work in it."""

    epoch: int
    time_ms: int
    payload: bytes | memoryview
    needs_sync: bool


@dataclass(frozen=True, slots=True)
class CommitProgress:
    """All epochs up to these are written and durable. `payload` is the buffer of a written epoch, for reuse."""

    written: int
    durable: int
    payload: bytes | memoryview | None = None


class Committer:
    """`size` is the size of the log in bytes, `newest_file` the first epoch of its newest file, 0 if there is none."""

    def __init__(self) -> None:
        self.size = 0
        self.newest_file = 0
        self.has_failed = False
        self.on_progress: Callable[[CommitProgress], None] = _ignore
        self.on_failed: Callable[[str], None] = _ignore
        self.on_full: Callable[[bool], None] = _ignore

    def start(self, loop: AbstractEventLoop) -> None:
        """Start writing; reports arrive on this loop."""
        raise NotImplementedError

    def submit(self, batch: EpochBatch) -> None:
        """Write the epoch after the last one; sync it at once or later, as it requests."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make durable everything submitted so far."""
        raise NotImplementedError

    def sync_within(self, interval: float | None) -> None:
        """Sync epochs that do not request a sync after this many seconds; None: at the end."""

    def epoch_to_trim(self, size: int) -> int:
        """Return the epoch to trim to so that the log has about `size` bytes; 0 if nothing can be trimmed."""
        raise NotImplementedError

    def trim(self, epoch: int, done: Callable[[], None]) -> None:
        """Drop epochs up to this one, as far as whole files allow; `done` is called on the loop."""
        raise NotImplementedError

    def clear(self, last: EpochBatch | None, done: Callable[[], None]) -> None:
        """Write this epoch and drop all before it: the last job of a clean stop. `done` is called on the loop."""
        raise NotImplementedError

    def stop_waiting(self) -> None:
        """From now on a full disk is a failure, because nothing can wait for space any more."""
        raise NotImplementedError

    def detach_loop(self) -> None:
        """Stop using the loop; called on it, before `stop`."""

    def stop(self) -> None:
        """Finish what was submitted, then stop and close the files. Blocks: not for the loop."""
        raise NotImplementedError


def _ignore(_: Any) -> None:
    """Default callback."""
