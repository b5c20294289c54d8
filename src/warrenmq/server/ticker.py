"""The end of the turn: everything that arrived together is made safe together and answered together.

The first input of a turn schedules its end; by then the loop has read every socket that was ready. The end closes the
broker's epoch, which confirms publishes, and writes each connection's output once.

Owned by the loop thread. Compiled when the package is built (ticker.pxd).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker


class Ticker:
    """One per node. `dirty` holds the outboxes with something to write."""

    __slots__ = ("_broker", "_call_soon", "_is_scheduled", "after_turn", "dirty")

    def __init__(self, loop: AbstractEventLoop, broker: Broker) -> None:
        self._call_soon = loop.call_soon
        self._broker = broker
        self._is_scheduled = False
        self.dirty: list[Any] = []
        self.after_turn: Any = None  # called after each turn, for the alarms

    def schedule(self) -> None:
        """See to it that the turn ends; cheap when it is known already."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self.end_turn)

    def mark_dirty(self, outbox: Any) -> None:
        """The outbox has something to write at the end of the turn."""
        self.dirty.append(outbox)
        if not self._is_scheduled:
            self.schedule()

    def end_turn(self) -> None:
        """Close the epoch, then write. What writing brings about (a drained socket) belongs to the next turn."""
        self._is_scheduled = False
        self._broker.end_turn()
        dirty = self.dirty
        self.dirty = []
        for outbox in dirty:
            outbox.flush()
        if self.after_turn is not None:
            self.after_turn()
