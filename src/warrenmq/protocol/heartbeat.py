"""Heartbeats: when to send one, and when to give up on a silent peer (AMQP 0-9-1 §4.2.7).

Sans-I/O: the owner sets `received_at` and `sent_at`, and checks at the deadlines.
"""

from __future__ import annotations


class Heartbeat:
    """The heartbeat timers of one side. Interval 0: no heartbeats."""

    __slots__ = ("interval", "received_at", "sent_at")

    def __init__(self, interval: int, now: float) -> None:
        self.interval = interval
        self.received_at = self.sent_at = now

    def next_deadline(self) -> float | None:
        """Return when to check again."""
        return min(self._send_deadline(), self._receive_deadline()) if self.interval else None

    def is_due(self, now: float) -> bool:
        """Return True if this side has to send something."""
        return self.interval > 0 and now >= self._send_deadline()

    def is_missed(self, now: float) -> bool:
        """Return True if the peer was silent for two intervals; any traffic counts."""
        return self.interval > 0 and now >= self._receive_deadline()

    def _send_deadline(self) -> float:
        # Twice per interval, so that a late one does not end the connection.
        return self.sent_at + self.interval / 2

    def _receive_deadline(self) -> float:
        return self.received_at + 2 * self.interval
