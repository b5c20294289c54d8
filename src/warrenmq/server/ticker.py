"""The end of the turn: everything that arrived together is made safe together and answered together.

The first input of a turn schedules its end; by then the loop has read every socket that was ready. Where much waits to
be read, each piece of it is a turn (`READ_AT_ONCE`). The end closes the broker's epoch, which confirms publishes, and
writes each connection's output once.

After a turn the loop may look for more input a little longer before it sleeps (`busy_poll` seconds, 0: never): waking a
sleeping process takes longer than the work of a turn, and a client that waits for each answer would wait for that too.
Looking pays only while input does come: after a few vain tries it stops, and tries again once in a while. While an
epoch is being committed the loop sleeps: looking would take the interpreter from the committer.

A loop may read one socket many times before it looks at any other (uvloop 32 times). Whoever has read a large piece
asks whether that has gone on for long (`has_read_long`), and then lets the others in.

Owned by the loop thread. Compiled when the package is built (ticker.pxd).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from warrenmq.core.ports import CommitLog

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker


# So many vain looks in a row end the looking; so many turns later it is tried again.
_VAIN_LOOKS = 4
_TRY_AGAIN_AFTER = 64
# So long the loop may read large pieces before it looks at all its sockets again, in seconds.
_LONG_READING = 0.005


class Ticker:
    """One per node. `dirty` holds the outboxes with something to write."""

    __slots__ = (
        "_broker",
        "_busy_poll",
        "_clock",
        "_hope",
        "_is_looking",
        "_is_reading",
        "_is_scheduled",
        "_log",
        "_look_until",
        "_reading_since",
        "_turns_without_hope",
        "after_turn",
        "call_soon",
        "dirty",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        broker: Broker,
        busy_poll: float = 0.0,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.call_soon = loop.call_soon
        self._clock = clock
        self._broker = broker
        self._log: CommitLog = broker.storage.log
        self._is_scheduled = False
        self._busy_poll = busy_poll
        self._is_looking = False
        self._look_until = 0.0
        self._hope = _VAIN_LOOKS
        self._turns_without_hope = 0
        self._reading_since = 0.0
        self._is_reading = False
        self.dirty: list[Any] = []
        self.after_turn: Any = None  # called after each turn, for the alarms

    def schedule(self) -> None:
        """See to it that the turn ends; cheap when it is known already."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.call_soon(self.end_turn)
            if self._is_looking:
                self._hope = _VAIN_LOOKS

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
        if self._busy_poll != 0.0 and not self._log.is_committing:
            self._keep_looking()

    def _keep_looking(self) -> None:
        if self._hope == 0:
            self._turns_without_hope += 1
            if self._turns_without_hope < _TRY_AGAIN_AFTER:
                return
            self._turns_without_hope = 0
            self._hope = 1
        self._look_until = self._clock() + self._busy_poll
        if not self._is_looking:
            self._is_looking = True
            self.call_soon(self.look)

    def look(self) -> None:
        """While something is scheduled the loop polls its sockets without sleeping: that is all this is for."""
        if self._clock() < self._look_until and not self._log.is_committing:
            self.call_soon(self.look)
        else:
            self._is_looking = False
            self._hope -= 1
