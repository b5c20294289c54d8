"""The ledger of a channel: its unacked deliveries, and how many more the prefetch allows.

Tags grow by one for every delivery of the channel, acked or not, and are never used twice (AMQP 0-9-1 §1.8.3.13).
Compiled when the package is built (ledger.pxd).
"""

from typing import TYPE_CHECKING, Any

from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.message import QueuedMessage
from warrenmq.core.turn import Turn

if TYPE_CHECKING:
    from warrenmq.core.consumer_timeout import UnackedWatch

NEVER_MS = 1 << 62


class Ledger:
    """The unacked deliveries of a channel.

    `prefetch` limits those of all its consumers together (0: no limit); basic.get does not count. Taking a delivery
    from the ledger does not settle it (a transaction may hold it): `outstanding` falls when the queue settles it. From
    `note_from_ms` on, `watch` records the time of the next delivery (core/consumer_timeout.py).
    """

    __slots__ = (
        "last_served",
        "last_tag",
        "note_from_ms",
        "oldest",
        "outstanding",
        "parked",
        "prefetch",
        "turn",
        "unacked",
        "watch",
    )

    def __init__(self, turn: Turn | None = None) -> None:
        self.turn = turn or Turn()
        self.note_from_ms = NEVER_MS
        self.watch: UnackedWatch | None = None
        self.last_served: Any = None  # the consumer of the last delivery that counts against the prefetch
        self.last_tag = 0
        self.oldest = 1  # no tag below it is out
        self.prefetch = 0
        self.outstanding = 0
        self.unacked: dict[int, QueuedMessage] = {}
        self.parked: dict[Any, None] = {}  # consumers that wait for the channel's credit

    def next_tag(self) -> int:
        """Return the tag of a delivery without ack."""
        self.last_tag += 1
        return self.last_tag

    def add(self, entry: QueuedMessage) -> int:
        """Add a delivery that waits for its ack. Return its tag."""
        self.last_tag += 1
        self.unacked[self.last_tag] = entry
        if entry.consumer is not None:
            self.outstanding += 1
            if self.prefetch != 0:
                self.last_served = entry.consumer
        if self.turn.now_ms >= self.note_from_ms:
            self.watch.note(self.last_tag)  # type: ignore[union-attr]
        return self.last_tag

    def is_full(self) -> bool:
        return self.prefetch != 0 and self.outstanding >= self.prefetch

    def take(self, tag: int) -> QueuedMessage | None:
        """Remove one delivery; None if the tag is not unacked."""
        return self.unacked.pop(tag, None)

    def take_known(self, tag: int, multiple: bool) -> list[tuple[int, QueuedMessage]]:
        """Remove one delivery, or all up to it (0: all); 406 if the tag is not unacked."""
        if multiple and tag == 0:
            return self.take_up_to(self.last_tag)
        if multiple and tag in self.unacked:
            return self.take_up_to(tag)
        entry = None if multiple else self.take(tag)
        if entry is None:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        return [(tag, entry)]

    def take_up_to(self, tag: int) -> list[tuple[int, QueuedMessage]]:
        """Remove all deliveries up to and including this tag, oldest first."""
        unacked = self.unacked
        if tag - self.oldest > 2 * len(unacked):
            # Deliveries without ack left a long gap: walk the unacked deliveries instead.
            tags = [known for known in unacked if known <= tag]
        else:
            tags = [known for known in range(self.oldest, tag + 1) if known in unacked]
        self.oldest = tag + 1
        return [(known, unacked.pop(known)) for known in tags]

    def take_entries_up_to(self, tag: int) -> list[QueuedMessage]:
        """Remove deliveries as `take_up_to` does, without their tags."""
        unacked = self.unacked
        if tag - self.oldest > 2 * len(unacked):
            return [entry for _, entry in self.take_up_to(tag)]
        taken: list[QueuedMessage] = []
        for known in range(self.oldest, tag + 1):
            entry = unacked.pop(known, None)
            if entry is not None:
                taken.append(entry)
        self.oldest = tag + 1
        return taken

    def put_back(self, deliveries: list[tuple[int, QueuedMessage]]) -> None:
        """Put back deliveries that a transaction had taken."""
        if not deliveries:
            return
        everything = [*deliveries, *self.unacked.items()]
        everything.sort(key=_tag_of)
        self.unacked.clear()
        self.unacked.update(everything)
        self.oldest = min(self.oldest, everything[0][0])

    def take_all(self) -> list[QueuedMessage]:
        """Remove all deliveries, oldest first."""
        taken = list(self.unacked.values())
        self.unacked.clear()
        self.oldest = self.last_tag + 1
        return taken


def _tag_of(delivery: tuple[int, QueuedMessage]) -> int:
    return delivery[0]
