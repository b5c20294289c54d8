"""One message on its way through exchanges that note what passes: ids (deduplication.py), recent messages (history.py).

Such exchanges are asked when the message is delivered, in a transaction on commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.core.outcome import DROPPED, UNROUTED
from warrenmq.core.ports import NOTHING

if TYPE_CHECKING:
    from warrenmq.core.exchange import Exchange
    from warrenmq.core.message import Message


class Passage:
    """The exchanges that a message passed, and whether one of them has dropped it as a duplicate."""

    __slots__ = ("_durability_level", "_message", "_passed", "was_dropped")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._passed: list[Exchange] = []
        self._durability_level = NOTHING
        self.was_dropped = False

    def is_stopped_by(self, exchange: Exchange) -> bool:
        """Whether the exchange has seen it; asked once for each exchange on the way."""
        deduplication = exchange.deduplication
        if deduplication is not None and deduplication.has_seen(self._message.header):
            self.was_dropped = True
            self._durability_level = max(self._durability_level, deduplication.durability_level)
            return True
        self._passed.append(exchange)
        return False

    def outcome(self) -> int:
        """Return the outcome of a message that reached no queue.

        The confirm of a duplicate waits until its first message is safe.
        """
        if not self.was_dropped:
            return UNROUTED
        return DROPPED | (self._durability_level if self._message.is_persistent() else NOTHING)

    def note(self, is_taken: bool) -> int:
        """Let the exchanges that it passed remember it. Return what its confirm waits for.

        A history keeps every message. An id counts only if queues have taken the message and none has rejected it:
        otherwise it may be published again.
        """
        is_persistent = self._message.is_persistent()
        level = NOTHING
        for exchange in self._passed:
            deduplication = exchange.deduplication
            if deduplication is not None and is_taken:
                deduplication.has_seen(self._message.header)  # again: others may have passed meanwhile
                deduplication.note(0, is_persistent)
                if is_persistent:
                    level = max(level, deduplication.durability_level)
            if exchange.history is not None:
                level = max(level, exchange.history.add(self._message))
        return level
