"""What a channel holds between tx.select (or the last commit) and the next commit or rollback."""

from __future__ import annotations

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import NOTHING
from warrenmq.core.publishing import Unrouted
from warrenmq.core.queue import Queue

Taken = list[tuple[int, QueuedMessage]]


class Transaction:
    """Publishes with the queues they were routed to, and settlements of deliveries struck from the ledger."""

    __slots__ = ("publishes", "settlements")

    def __init__(self) -> None:
        self.publishes: list[tuple[Message, list[Queue] | Unrouted, bool]] = []
        self.settlements: list[tuple[Taken, int, bool]] = []  # (deliveries, acked, nacked or rejected, requeue)

    def hold(self, taken: Taken, kind: int, requeue: bool) -> None:
        """Settle these on commit."""
        self.settlements.append((taken, kind, requeue))

    def settled_level(self) -> int:
        """What the settlements wait for until they are safe: the most that any queue of a kept message asks for."""
        level = NOTHING
        for _, entry in self.held_deliveries():
            queue: Queue = entry.queue  # type: ignore[assignment]
            if entry.epoch and queue.store is not None and queue.store.promise > level:
                level = queue.store.promise
        return level

    def held_deliveries(self) -> Taken:
        """Everything that a rollback makes unacked again."""
        return [delivery for taken, _, _ in self.settlements for delivery in taken]
