"""The turn: what has to be done before the work that arrived together is over.

Credit that comes back (acks, a larger prefetch, a drained socket) makes a queue due once per turn, not once per ack;
publishes of one turn are confirmed together, and what was promised in it is kept together. All of a turn happens at
one time; the core reads no clock. Work that no socket brought (HTTP, a thread that has read a page)
calls `begin` before: it sets the time and sees to the turn's end, unless a turn is under way.

Owned by the loop thread. Compiled when the package is built (turn.pxd).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.consumer import Consumer
    from warrenmq.core.queue import Queue


class Turn:
    """One per broker, used again for every turn."""

    __slots__ = (
        "begin",
        "confirming",
        "due",
        "has_defined",
        "is_settling",
        "later",
        "lost",
        "now_ms",
        "pending_replies",
    )

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms  # milliseconds since 1970
        self.begin: Callable[[], None] = _nothing  # set by the server
        self.due: list[Queue] = []  # queues with messages for consumers that have credit again
        self.later: dict[Queue, None] = {}  # queues that have done enough for one turn, and go on in the next
        self.lost: list[Consumer] = []  # consumers whose queue is gone, to be told after whoever deleted it is answered
        self.confirming: list[Channel] = []  # channels with publishes to be confirmed
        self.is_settling = False  # queues keep what they get, and deliver it when the turn ends
        self.has_defined = False  # something durable was declared, bound or removed
        # By owner: durability level and callback (see `Broker.when_durable`).
        self.pending_replies: dict[object, tuple[int, Callable[[], None]]] = {}


def _nothing() -> None:
    """Without a server: the test sets the time."""
