"""The stateful exchanges on a message's path: those that remember ids (deduplication.py) or messages (history.py).

Their state changes when a message is delivered; in a transaction, on commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.core.outcome import DROPPED, UNROUTED
from warrenmq.core.ports import NOTHING

if TYPE_CHECKING:
    from warrenmq.core.exchange import Exchange
    from warrenmq.core.message import Message


class ExchangePath:
    """The exchanges that one message passed, and whether one of them dropped it as a duplicate."""

    __slots__ = ("_durability_level", "_message", "_passed", "was_dropped")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._passed: list[Exchange] = []
        self._durability_level = NOTHING
        self.was_dropped = False

    def ends_at(self, exchange: Exchange) -> bool:
        """Return True if the exchange drops the message as a duplicate; called once for each exchange on the path."""
        deduplication = exchange.deduplication
        if deduplication is not None and deduplication.has_seen(self._message.header):
            self.was_dropped = True
            self._durability_level |= deduplication.durability_level
            return True
        self._passed.append(exchange)
        return False

    def outcome(self) -> int:
        """Return the outcome of a message that reached no queue.

        The confirm of a duplicate waits until the first message with its id is durable.
        """
        if not self.was_dropped:
            return UNROUTED
        return DROPPED | (self._durability_level if self._message.is_persistent() else NOTHING)

    def record(self, is_accepted: bool) -> int:
        """Record the message in the exchanges that it passed. Return what its confirm waits for.

        A history records every message. An id is recorded only if queues accepted the message and none rejected it:
        otherwise it may be published again.
        """
        is_persistent = self._message.is_persistent()
        level = NOTHING
        for exchange in self._passed:
            deduplication = exchange.deduplication
            if deduplication is not None and is_accepted:
                deduplication.has_seen(self._message.header)  # again: it may have looked at other messages meanwhile
                deduplication.record(0, is_persistent)
                if is_persistent:
                    level |= deduplication.durability_level
            if exchange.history is not None:
                level |= exchange.history.add(self._message)
        return level
