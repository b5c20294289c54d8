"""The turn of the event loop: work that is collected while input is handled, and done once at the end.

Returned credit (acks, a larger prefetch, a drained socket) makes a queue due once per turn, not once per ack; publishes
of a turn are confirmed together, and its durable changes share an epoch. A turn has one time: the core reads no clock.
Work that no socket triggered (HTTP, a page read by a thread) calls `begin` first, which sets the time and schedules the
end of the turn, unless a turn is in progress.

Owned by the loop thread. Compiled when the package is built (turn.pxd).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.consumer import Consumer
    from warrenmq.core.queue import Queue


class Turn:
    """One per broker, reused for every turn."""

    __slots__ = (
        "begin",
        "cancelled",
        "confirming",
        "deferred",
        "due",
        "has_defined",
        "is_settling",
        "now_ms",
        "pending_replies",
    )

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms  # milliseconds since 1970
        self.begin: Callable[[], None] = _nothing  # set by the server
        self.due: list[Queue] = []  # queues to dispatch at the end of the turn
        self.deferred: dict[Queue, None] = {}  # queues that reached their limit per turn, and continue in the next
        self.cancelled: list[Consumer] = []  # consumers of deleted queues, notified after queue.delete is answered
        self.confirming: list[Channel] = []  # channels with publishes to confirm
        self.is_settling = False  # queues store new messages, and deliver them at the end of the turn
        self.has_defined = False  # something durable was declared, bound or removed
        # By owner: durability level and callback (see `Broker.when_durable`).
        self.pending_replies: dict[object, tuple[int, Callable[[], None]]] = {}


def _nothing() -> None:
    """Without a server: the test sets the time."""
