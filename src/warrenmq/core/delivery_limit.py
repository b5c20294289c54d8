"""The delivery limit of a quorum queue (`x-delivery-limit`), and the header `x-delivery-count`.

A message is requeued by a nack or reject with requeue, by recover, or when its channel is closed. When that happens
more than `limit` times, the queue drops it. The count is `QueuedMessage.attempts`, which the message store persists;
deliveries interrupted by a crash of the broker do not count.

Owned by the loop thread.
"""

from __future__ import annotations

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.number_header import NumberHeader

HEADER = "x-delivery-count"


class DeliveryLimit:
    """The limit of one queue; None: no limit."""

    __slots__ = ("_header", "limit")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._header = NumberHeader(HEADER)

    def stamp(self, entry: QueuedMessage) -> Message:
        """Return the message with the number of earlier deliveries in its header, if there were any."""
        count = entry.attempts - 1
        return self._header.stamp(entry.message, count) if count > 0 else entry.message

    def divide(self, entries: list[QueuedMessage]) -> tuple[list[QueuedMessage], list[QueuedMessage]]:
        """Split requeued messages into those within the limit and those above it."""
        limit = self.limit
        if limit is None:
            return entries, []
        over = [entry for entry in entries if entry.attempts > limit]
        return [entry for entry in entries if entry.attempts <= limit] if over else entries, over
