"""Event-loop turns: input that arrives together is made durable together and answered together.

The first input of a turn sets the turn's time and schedules its end; by then the loop has read every socket that was
ready. Code with input for the broker calls `schedule` first. A large read is a turn of its own (`READ_SIZE`). The end
of a turn closes the broker's epoch, which confirms publishes, and writes each connection's output once.

After a turn the loop may poll its sockets for `busy_poll` seconds before it sleeps (0: never): waking a sleeping
process takes longer than the work of a turn, and a client that waits for each reply would wait for that too. It doubles
the speed of ping-pong and of one confirm at a time. Polling stops after a few polls without input, and is tried again
now and then. While an epoch is being committed the loop sleeps: polling would take the interpreter lock from the
committer.

While turns are frequent and small, the loop may pause after some for up to `max_pause` seconds (0: never), so that
input accumulates (moderation.py). The output of the turn is written before the pause.

A loop may read one socket many times before it polls the others (uvloop: 32 times). After a large read the connection
checks `has_read_too_long`, and yields to the others if so.

Owned by the loop thread. Compiled when the package is built (ticker.pxd).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from warrenmq.core.ports import CommitLog
from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn
from warrenmq.server.moderation import Moderation

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker


# Polling stops after this many empty polls in a row, and is tried again after this many turns.
_MAX_EMPTY_POLLS = 4
_POLL_AGAIN_AFTER = 64
# Seconds that the loop may spend on large reads before it polls all its sockets again.
_MAX_READING_TIME = 0.005


class Ticker:
    """One per node. `dirty` holds the outboxes with unwritten output.

    `now_ms` is the broker's clock; `clock` measures how long reads take and how fast input comes.
    """

    __slots__ = (
        "_broker",
        "_busy_poll",
        "_clock",
        "_is_polling",
        "_is_reading",
        "_is_scheduled",
        "_log",
        "_moderation",
        "_now_ms",
        "_poll_until",
        "_polls_left",
        "_reading_since",
        "_sleep",
        "_stats",
        "_turn",
        "_turns_without_poll",
        "after_turn",
        "call_soon",
        "dirty",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        broker: Broker,
        now_ms: Callable[[], int],
        busy_poll: float = 0.0,
        max_pause: float = 0.0,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        self.call_soon = loop.call_soon
        self._clock = clock
        self._sleep = sleep
        self._moderation = Moderation(max_pause, clock) if max_pause > 0.0 else None
        self._stats: Stats = broker.stats
        self._broker = broker
        self._turn: Turn = broker.turn
        self._turn.begin = self.schedule
        self._now_ms = now_ms
        self._log: CommitLog = broker.storage.log
        self._is_scheduled = False
        self._busy_poll = busy_poll
        self._is_polling = False
        self._poll_until = 0.0
        self._polls_left = _MAX_EMPTY_POLLS
        self._turns_without_poll = 0
        self._reading_since = 0.0
        self._is_reading = False
        self.dirty: list[Any] = []
        self.after_turn: Any = None  # a callable, for the alarms

    def schedule(self) -> None:
        """Begin a turn and schedule its end, unless one is under way."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._turn.now_ms = self._now_ms()
            self.call_soon(self.end_turn)
            if self._is_polling:
                self._polls_left = _MAX_EMPTY_POLLS

    def begin_large_read(self) -> None:
        """Begin the turn of a large read, which `end_turn_early` ends."""
        self._turn.now_ms = self._now_ms()

    def mark_dirty(self, outbox: Any) -> None:
        """Flush this outbox at the end of the turn."""
        self.dirty.append(outbox)
        if not self._is_scheduled:
            self.schedule()

    def end_turn(self) -> None:
        """Close the epoch, then write. What the writes cause (a drained socket) belongs to the next turn."""
        self._is_scheduled = False
        self._end()

    def end_turn_early(self) -> None:
        """End the turn of a large read here, whatever is scheduled."""
        self._end()

    def has_read_too_long(self) -> bool:
        """Return True if large reads have kept the loop from its other sockets for too long."""
        now = self._clock()
        if not self._is_reading:
            self._is_reading = True
            self._reading_since = now
            self.call_soon(self.on_sockets_polled)
        return now - self._reading_since > _MAX_READING_TIME

    def on_sockets_polled(self) -> None:
        """Scheduled by `call_soon`, so it runs when the loop is about to poll its sockets again."""
        self._is_reading = False

    def _end(self) -> None:
        self._broker.end_turn()
        dirty = self.dirty
        self.dirty = []
        for outbox in dirty:
            outbox.flush()
        if self.after_turn is not None:
            self.after_turn()
        if self._moderation is not None and not self._is_scheduled:
            pause = self._moderation.end_turn(self._stats.bytes_in)
            if pause > 0.0:
                self._sleep(pause)
        if self._busy_poll != 0.0 and not self._log.is_committing:
            self._start_polling()

    def _start_polling(self) -> None:
        if self._polls_left == 0:
            self._turns_without_poll += 1
            if self._turns_without_poll < _POLL_AGAIN_AFTER:
                return
            self._turns_without_poll = 0
            self._polls_left = 1
        self._poll_until = self._clock() + self._busy_poll
        if not self._is_polling:
            self._is_polling = True
            self.call_soon(self.poll)

    def poll(self) -> None:
        """Reschedule itself: while a callback is scheduled, the loop polls its sockets without sleeping."""
        if self._clock() < self._poll_until and not self._log.is_committing:
            self.call_soon(self.poll)
        else:
            self._is_polling = False
            self._polls_left -= 1
