"""Heartbeats: when to say something, and when to give up on a peer that says nothing (AMQP 0-9-1 §4.2.7).

Sans-I/O: the owner notes what it hears and says, and asks at the deadlines.
"""

from __future__ import annotations


class Heartbeat:
    """One side's watch over both directions. An interval of 0 means: none was agreed on."""

    __slots__ = ("interval", "received_at", "sent_at")

    def __init__(self, interval: int, now: float) -> None:
        self.interval = interval
        self.received_at = self.sent_at = now

    def next_deadline(self) -> float | None:
        """When to ask again."""
        return min(self._send_deadline(), self._receive_deadline()) if self.interval else None

    def is_due(self, now: float) -> bool:
        """Whether this side has to say something."""
        return self.interval > 0 and now >= self._send_deadline()

    def is_missed(self, now: float) -> bool:
        """Whether the peer was silent for two intervals: any traffic counts, not only heartbeats."""
        return self.interval > 0 and now >= self._receive_deadline()

    def _send_deadline(self) -> float:
        # Twice per interval, so that one which comes late does not cost the connection.
        return self.sent_at + self.interval / 2

    def _receive_deadline(self) -> float:
        return self.received_at + 2 * self.interval
