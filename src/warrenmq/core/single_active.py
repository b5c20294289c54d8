"""Single active consumer: one consumer of a queue receives messages, the others are on standby.

The active consumer is the first registered among those with the highest priority. Only it is in the queue's ring:
messages wait while it has no credit. When it leaves, the queue elects the next one at the end of the turn (`elect`),
after the deliveries of the closed channel are requeued. When a consumer with a higher priority arrives, the active one
receives no more messages, and the new one becomes active once all deliveries of the old one are settled.

Owned by the loop thread.
"""

from __future__ import annotations

from operator import attrgetter

from warrenmq.core.consumer import Consumer, ConsumerRing

_priority = attrgetter("priority")


class SingleActive:
    """The election of one queue, with its `consumers` (in order of registration) and `ring`.

    `active` is None if there is no consumer. `is_decided` is False while an election is pending.
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
        """Return True if the active consumer is to be replaced and has no unacked deliveries left."""
        return not self.is_decided and self.active is not None and self.active.unacked == 0

    def elect(self) -> None:
        """Elect the active consumer, unless the current one still has unacked deliveries."""
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
