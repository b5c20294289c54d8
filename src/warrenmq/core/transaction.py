"""Publishes and acks that a transactional channel holds until the next commit or rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.core.memory import memory_refusal
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import NOTHING
from warrenmq.core.publishing import Target
from warrenmq.core.queue import Queue
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.stats import Stats

Taken = list[tuple[int, QueuedMessage]]


class Transaction:
    """Publishes with the queues they were routed to, and settlements of deliveries taken from the ledger.

    `size` is the memory of the publishes; the channel counts it in `Stats.uncommitted_bytes`.
    """

    __slots__ = ("publishes", "settlements", "size")

    def __init__(self) -> None:
        self.publishes: list[tuple[Message, Target, bool]] = []
        self.size = 0
        self.settlements: list[tuple[Taken, int, bool]] = []  # (deliveries, acked, nacked or rejected, requeue)

    def hold_publish(self, message: Message, target: Target, is_mandatory: bool, stats: Stats) -> None:
        """Deliver this on commit; 311 if open transactions take all the memory they may."""
        size = message.footprint()
        if stats.exceeds_unfinished(size):
            raise memory_refusal(stats)
        stats.uncommitted_bytes += size
        self.size += size
        self.publishes.append((message, target, is_mandatory))

    def hold(self, taken: Taken, kind: int, requeue: bool) -> None:
        """Settle these deliveries on commit."""
        self.settlements.append((taken, kind, requeue))

    def settled_level(self) -> int:
        """Return the highest durability level among the queues of the settled messages that are stored."""
        level = NOTHING
        for _, entry in self.held_deliveries():
            queue: Queue = entry.queue  # type: ignore[assignment]
            if entry.epoch and not queue.is_deleted and queue.durability_level > level:
                level = queue.durability_level
        return level

    def apply(self, channel: Channel) -> None:
        """Publish and settle everything held; deleted queues are skipped."""
        for message, target, is_mandatory in self.publishes:
            if message.uid != 0:
                channel.events.message_event(schema.TX_COMMITTED, message, channel, 0)
            if isinstance(target, list):
                target = [queue for queue in target if not queue.is_deleted]
            channel.deliver(message, target, is_mandatory)
        for taken, kind, requeue in self.settlements:
            entries = [entry for _, entry in taken]
            if kind == schema.ACKED:
                channel.settle_all(entries)
            else:
                channel.refuse_all(entries, kind, requeue)

    def undo(self, channel: Channel, reason: int) -> None:
        """Drop the publishes; the deliveries are unacked again."""
        for message, _, _ in self.publishes:
            if message.uid != 0:
                channel.events.message_event(schema.TX_ROLLED_BACK, message, channel, reason)
        channel.ledger.put_back(self.held_deliveries())

    def refused_deliveries(self) -> Taken:
        """Return the deliveries that a commit nacks or rejects."""
        return [delivery for taken, kind, _ in self.settlements if kind != schema.ACKED for delivery in taken]

    def held_deliveries(self) -> Taken:
        """Return the deliveries that a rollback makes unacked again."""
        return [delivery for taken, _, _ in self.settlements for delivery in taken]
