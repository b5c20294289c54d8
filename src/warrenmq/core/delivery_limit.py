"""How often a message of a quorum queue may come back, and the header that says how often it did.

A message comes back when it is nacked or rejected with requeue, recovered, or held by a channel that ends. One that
comes back more than `limit` times is dropped by its queue. The count is `QueuedMessage.attempts`, which the message
store keeps; deliveries that a crash of the broker interrupts are not counted.

Owned by the loop thread.
"""

from __future__ import annotations

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.number_header import NumberHeader

HEADER = "x-delivery-count"


class DeliveryLimit:
    """That of one queue; `limit` None: messages may come back without limit."""

    __slots__ = ("_header", "limit")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._header = NumberHeader(HEADER)

    def stamp(self, entry: QueuedMessage) -> Message:
        """Return the message as it is delivered now: with the number of deliveries before this one, if any."""
        count = entry.attempts - 1
        return self._header.stamp(entry.message, count) if count > 0 else entry.message

    def divide(self, entries: list[QueuedMessage]) -> tuple[list[QueuedMessage], list[QueuedMessage]]:
        """Divide messages that came back into those that are within the limit and those that are over it."""
        limit = self.limit
        if limit is None:
            return entries, []
        over = [entry for entry in entries if entry.attempts > limit]
        return [entry for entry in entries if entry.attempts <= limit] if over else entries, over
