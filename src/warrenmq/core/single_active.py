"""Single active consumer: one consumer of a queue gets messages, the others wait for their turn.

The active one is the first that was registered, among those with the highest priority. Only it stands in the ring of
its queue: while it has no credit, messages wait, and no other consumer gets them. When it goes, the queue chooses the
next one before the turn ends (`elect`): what the lost channel held is back at its place by then. When a consumer with a
higher priority comes, the active one gets no more messages; the new one is active once all that it holds is settled.

Owned by the loop thread.
"""

from __future__ import annotations

from operator import attrgetter

from warrenmq.core.consumer import Consumer, ConsumerRing

_priority = attrgetter("priority")


class SingleActive:
    """The choice of one queue, whose `consumers` (in order of registration) and `ring` these are.

    `active` is None if there is no consumer. `is_decided` is False while another consumer has to become active.
    """

    __slots__ = ("_consumers", "_ring", "active", "is_decided")

    def __init__(self, consumers: dict[Consumer, None], ring: ConsumerRing) -> None:
        self._consumers = consumers
        self._ring = ring
        self.active: Consumer | None = None
        self.is_decided = True

    def may_take(self, consumer: Consumer) -> bool:
        """Return True if messages go to this consumer."""
        return self.is_decided and consumer is self.active

    def added(self, consumer: Consumer) -> bool:
        """A consumer was registered. Return True if the queue has to elect."""
        active = self.active
        if active is not None and consumer.priority <= active.priority:
            return False
        if active is not None:
            self._ring.remove(active)
        self.is_decided = False
        return True

    def removed(self, consumer: Consumer) -> bool:
        """A consumer is gone. Return True if the queue has to elect."""
        if consumer is self.active:
            self.active = None
            self.is_decided = False
        return not self.is_decided

    def is_drained(self) -> bool:
        """Return True if the active consumer, which has to make room for another, holds nothing any more."""
        return not self.is_decided and self.active is not None and self.active.unacked == 0

    def elect(self) -> None:
        """Choose the active consumer, unless the present one still holds messages."""
        if self.is_decided:
            return
        active = self.active
        first = max(self._consumers, key=_priority, default=None)
        if active is not None and first is not None and first.priority > active.priority:
            if active.unacked:
                return
            active = None
        if active is None:
            active = self.active = first
        self.is_decided = True
        if active is not None:
            self._ring.add(active)
