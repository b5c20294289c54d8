"""The pace of a consumer: how many messages per second it is sent at most (`x-rate` of basic.consume).

Messages are spaced evenly. One that is late, because a timer or the loop was, or no message waited, may be made up for:
within TOLERANCE_NS of it the next ones follow at once, so that the rate is met on average. So in any time t a consumer
is sent rate * (t + TOLERANCE_NS) + 1 messages at most.

Owned by the loop thread.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from warrenmq.core.timers import Timer, Timers
from warrenmq.core.turn import Turn

if TYPE_CHECKING:
    from warrenmq.core.consumer import Consumer

ARGUMENT = "x-rate"
TOLERANCE_NS = 50_000_000
_NS_PER_MS = 1_000_000
_MAX_INTERVAL_NS = 10**18  # 31 years


class Pace:
    """When one consumer may be sent its next message."""

    __slots__ = ("_interval_ns", "_next_ns", "_timer", "_timers", "_turn")

    def __init__(self, rate: float, turn: Turn, timers: Timers) -> None:
        self._interval_ns = min(-(-1_000_000_000 // Fraction(rate)), _MAX_INTERVAL_NS)  # rounded up
        self._turn = turn
        self._timers = timers
        self._next_ns = turn.now_ms * _NS_PER_MS
        self._timer: Timer | None = None

    def has_credit(self, consumer: Consumer) -> bool:
        """Return True if the consumer may be sent a message now; otherwise wake it when it may."""
        if self._next_ns <= self._turn.now_ms * _NS_PER_MS:
            return True
        if self._timer is None:
            self._timer = self._timers.schedule(-(-self._next_ns // _NS_PER_MS), lambda: self._wake(consumer))
        return False

    def use_credit(self) -> None:
        """A message is sent to the consumer."""
        self._next_ns = max(self._next_ns, self._turn.now_ms * _NS_PER_MS - TOLERANCE_NS) + self._interval_ns

    def stop(self) -> None:
        """Do not wake the consumer any more."""
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None

    def _wake(self, consumer: Consumer) -> None:
        self._timer = None
        consumer.queue.wake(consumer)
