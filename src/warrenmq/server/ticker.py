"""The end of the turn: everything that arrived together is made safe together and answered together.

The first input of a turn sets its time and schedules its end; by then the loop has read every socket that was ready.
Whoever has input for the broker calls `schedule` before. Where much waits to be read, each piece of it is a turn
(`READ_AT_ONCE`). The end closes the broker's epoch, which confirms publishes, and writes each connection's output once.

A loop may read one socket many times before it looks at any other (uvloop 32 times). Whoever has read a large piece
asks whether that has gone on for long (`has_read_long`), and then lets the others in.

Owned by the loop thread. Compiled when the package is built (ticker.pxd).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from warrenmq.core.turn import Turn

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker


# So long the loop may read large pieces before it looks at all its sockets again, in seconds.
_LONG_READING = 0.005


class Ticker:
    """One per node. `dirty` holds the outboxes with something to write.

    `now_ms` is the broker's clock; `clock` measures how long the loop has been reading.
    """

    __slots__ = (
        "_broker",
        "_clock",
        "_is_reading",
        "_is_scheduled",
        "_now_ms",
        "_reading_since",
        "_turn",
        "after_turn",
        "call_soon",
        "dirty",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        broker: Broker,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.call_soon = loop.call_soon
        self._clock = clock
        self._broker = broker
        self._turn: Turn = broker.turn
        self._turn.begin = self.schedule
        self._now_ms = now_ms
        self._is_scheduled = False
        self._reading_since = 0.0
        self._is_reading = False
        self.dirty: list[Any] = []
        self.after_turn: Any = None  # called after each turn, for the alarms

    def schedule(self) -> None:
        """Begin a turn and see to it that it ends, unless one is under way."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._turn.now_ms = self._now_ms()
            self.call_soon(self.end_turn)

    def begin_piece(self) -> None:
        """Begin a turn for a large piece of input, which `end_turn_early` ends."""
        self._turn.now_ms = self._now_ms()

    def mark_dirty(self, outbox: Any) -> None:
        """The outbox has something to write at the end of the turn."""
        self.dirty.append(outbox)
        if not self._is_scheduled:
            self.schedule()

    def end_turn(self) -> None:
        """Close the epoch, then write. What writing brings about (a drained socket) belongs to the next turn."""
        self._is_scheduled = False
        self._end()

    def end_turn_early(self) -> None:
        """More is there to be read than is good for one turn: this one ends here, whatever is scheduled."""
        self._end()

    def has_read_long(self) -> bool:
        """Asked after each large piece: whether the loop has read nothing else for too long."""
        now = self._clock()
        if not self._is_reading:
            self._is_reading = True
            self._reading_since = now
            self.call_soon(self.has_looked_around)
        return now - self._reading_since > _LONG_READING

    def has_looked_around(self) -> None:
        """What is called soon comes before the loop looks at its sockets again."""
        self._is_reading = False

    def _end(self) -> None:
        self._broker.end_turn()
        dirty = self.dirty
        self.dirty = []
        for outbox in dirty:
            outbox.flush()
        if self.after_turn is not None:
            self.after_turn()
