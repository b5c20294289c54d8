"""Batches of deliveries that a PullConsumer returns, and their settlement. Shared by both faces.

Any thread may settle a batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery
    from warrenmq.client.errors import ClientError


class DeliveryBatch(list["Delivery"]):
    """Deliveries that were pulled together, in order. Settle them one by one, or all at once."""

    __slots__ = ("_pulled",)

    def __init__(self, deliveries: list[Delivery], pulled: PullBuffer) -> None:
        super().__init__(deliveries)
        self._pulled = pulled

    def ack_all(self) -> None:
        """Ack those that are not settled yet; in one word where that is possible."""
        self._pulled.ack_all(self)

    def nack_all(self, requeue: bool = True) -> None:
        """Give back, or drop, those that are not settled yet."""
        for delivery in self._pulled.unsettled(self):
            delivery.nack(requeue=requeue)


class PullBuffer:
    """What a pull consumer has received and not handed out, and what it has handed out and is not settled.

    `add`, `has_any` and `take` are for the consumer, which guards them; `ack_all` may be called by any thread.
    """

    __slots__ = ("_acked_up_to", "_handed_out", "_lock", "_received", "failure")

    def __init__(self) -> None:
        self._received: deque[Delivery] = deque()
        self._handed_out: deque[Delivery] = deque()
        self._acked_up_to = 0  # the delivery tag of the last word on a whole batch
        self._lock = threading.Lock()
        self.failure: ClientError | None = None

    def add(self, delivery: Delivery) -> None:
        self._received.append(delivery)

    def has_any(self) -> bool:
        """Whether there is something to hand out. What a lost link has made stale comes again: it is forgotten."""
        while self._received and self._received[0].is_stale:
            self._received.popleft()
        return bool(self._received)

    def take(self, most: int) -> DeliveryBatch:
        taken: list[Delivery] = []
        while len(taken) < most and self.has_any():
            taken.append(self._received.popleft())
        with self._lock:
            self._forget_settled()
            self._handed_out.extend(taken)
        return DeliveryBatch(taken, self)

    def ack_all(self, batch: DeliveryBatch) -> None:
        """Ack a batch: "all up to here" where nothing that was handed out before it waits for a word, else each one.

        Under the lock, so that the word on an older batch of another thread stands in the output before this one.
        """
        with self._lock:
            rest = self.unsettled(batch)
            self._forget_settled()
            if rest and self._handed_out and self._handed_out[0] is rest[0]:
                rest[-1].ack(multiple=True)
                self._acked_up_to = rest[-1].delivery_tag
            else:
                for delivery in rest:
                    delivery.ack()

    def unsettled(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Those that wait for a word, and for which a word still counts."""
        return [delivery for delivery in deliveries if self._is_unsettled(delivery)]

    def _is_unsettled(self, delivery: Delivery) -> bool:
        return not (delivery.is_settled or delivery.is_stale or delivery.delivery_tag <= self._acked_up_to)

    def _forget_settled(self) -> None:
        while self._handed_out and not self._is_unsettled(self._handed_out[0]):
            self._handed_out.popleft()
