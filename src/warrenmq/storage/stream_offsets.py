"""The offsets of a stream's tracked consumers: in the log only, as OFFSET records, at most one per tag and epoch.

An ack that moves an offset updates the record of its tag in the open epoch, or adds one, so it costs no extra write.
All offsets are relogged before the log is trimmed, and in the last epoch of a clean stop.

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
        self._kept = kept  # from recovery; shared with the stream after `open`
        self._epoch = 0  # the epoch of the records in `_places`
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
        """Log all offsets again before the log is trimmed. Return False if there are none."""
        for tag, position in self._kept.items():
            self._log.buffer.put_offset(self._number, position, tag.encode())
        if not self._kept:
            return False
        self._log.note_relogged()
        return True

    def delete(self) -> None:
        """The stream is gone, and its number is never reused."""
        self._context.stores.pop(self, None)
