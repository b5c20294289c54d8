"""Heartbeats: when to say something, and when to give up on a peer that says nothing (AMQP 0-9-1 §4.2.7).

Sans-I/O: the owner notes what it hears and says, and asks at the deadlines.
"""

from __future__ import annotations


class Heartbeat:
    """One side's watch over both directions. An interval of 0 means: none was agreed on."""

    __slots__ = ("heard_at", "interval", "said_at")

    def __init__(self, interval: int, now: float) -> None:
        self.interval = interval
        self.heard_at = self.said_at = now

    def next_deadline(self) -> float | None:
        """When to ask again."""
        return min(self._silence_ends(), self._patience_ends()) if self.interval else None

    def is_due(self, now: float) -> bool:
        """Whether this side has to say something."""
        return self.interval > 0 and now >= self._silence_ends()

    def is_missed(self, now: float) -> bool:
        """Whether the peer was silent for two intervals: any traffic counts, not only heartbeats."""
        return self.interval > 0 and now >= self._patience_ends()

    def _silence_ends(self) -> float:
        # Twice per interval, so that one which comes late does not cost the connection.
        return self.said_at + self.interval / 2

    def _patience_ends(self) -> float:
        return self.heard_at + 2 * self.interval
