"""The offsets of a stream's tracked consumers, in the log alone: as OFFSET records, one for a tag in an epoch.

An ack that moves an offset changes the record of its tag in the open epoch, or puts one there. Before the log is
trimmed, and in the last epoch of a clean stop, all offsets are logged again. So an ack costs no write of its own.

Owned by the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.core.ports import NOTHING, OffsetStore
from warrenmq.storage.commit_log import LocalLog

if TYPE_CHECKING:
    from warrenmq.storage.store_context import StoreContext


class FileOffsets(OffsetStore):
    """`number` is the stream's in the log."""

    __slots__ = ("_context", "_epoch", "_kept", "_log", "_number", "_places")

    def __init__(self, context: StoreContext, number: int, kept: dict[str, int]) -> None:
        self._context = context
        self._number = number
        self._log: LocalLog = context.log
        self._kept = kept  # as recovery found it; the stream's from `open` on
        self._epoch = 0  # in which records lie at these places:
        self._places: dict[str, int] = {}

    def open(self) -> dict[str, int]:
        if self._kept:
            self._context.stores[self] = None
        return self._kept

    def save(self, tag: str, position: int) -> None:
        log = self._log
        if self._epoch != log.epoch:
            self._epoch = log.epoch
            self._places.clear()
        place = self._places.get(tag)
        if place is None:
            self._context.stores[self] = None
            self._places[tag] = log.buffer.put_offset(self._number, position, tag.encode())
        else:
            log.buffer.move_offset(place, position)
        log.note_work(NOTHING)

    def forget(self, tag: str) -> None:
        self._places.pop(tag, None)
        self._log.buffer.put_offset(self._number, 0, tag.encode())
        self._log.note_work(NOTHING)

    def log_position(self) -> bool:
        """Log all offsets again, which the log is about to forget. Return False if there are none."""
        for tag, position in self._kept.items():
            self._log.buffer.put_offset(self._number, position, tag.encode())
        if not self._kept:
            return False
        self._log.note_relogged()
        return True

    def delete(self) -> None:
        """The stream is gone, and its number is not used again."""
        self._context.stores.pop(self, None)
