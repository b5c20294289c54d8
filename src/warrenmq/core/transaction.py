"""What a channel holds between tx.select (or the last commit) and the next commit or rollback."""

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.queue import Queue

Taken = list[tuple[int, QueuedMessage]]


class Transaction:
    """Publishes with the queues they were routed to, and settlements of deliveries struck from the ledger."""

    __slots__ = ("publishes", "settlements")

    def __init__(self) -> None:
        self.publishes: list[tuple[Message, list[Queue], bool]] = []
        self.settlements: list[tuple[Taken, bool, bool]] = []  # (deliveries, is an ack, requeue)

    def hold(self, taken: Taken, is_ack: bool, requeue: bool) -> None:
        """Settle these on commit."""
        self.settlements.append((taken, is_ack, requeue))

    def held_deliveries(self) -> Taken:
        """Everything that a rollback makes unacked again."""
        return [delivery for taken, _, _ in self.settlements for delivery in taken]
