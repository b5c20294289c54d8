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
    """Deliveries of one pull, in order. Settle them one by one or all at once."""

    __slots__ = ("_buffer",)

    def __init__(self, deliveries: list[Delivery], buffer: PullBuffer) -> None:
        super().__init__(deliveries)
        self._buffer = buffer

    def ack_all(self) -> None:
        """Ack those that are not settled yet, with one ack if possible."""
        self._buffer.ack_all(self)

    def nack_all(self, requeue: bool = True) -> None:
        """Requeue, or drop, those that are not settled yet."""
        for delivery in self._buffer.unsettled(self):
            delivery.nack(requeue=requeue)


class PullBuffer:
    """The deliveries that a pull consumer has received, and those it has returned and that are not settled.

    `add`, `has_any` and `take` are guarded by the consumer; any thread may call `ack_all`.
    """

    __slots__ = ("_acked_up_to", "_lock", "_received", "_returned", "failure")

    def __init__(self) -> None:
        self._received: deque[Delivery] = deque()
        self._returned: deque[Delivery] = deque()
        self._acked_up_to = 0  # delivery tag of the last `ack(multiple=True)`
        self._lock = threading.Lock()
        self.failure: ClientError | None = None

    def add(self, delivery: Delivery) -> None:
        self._received.append(delivery)

    def has_any(self) -> bool:
        """Whether a delivery is available. Removes those that a lost connection made stale: they are redelivered."""
        while self._received and self._received[0].is_stale:
            self._received.popleft()
        return bool(self._received)

    def take(self, max_count: int) -> DeliveryBatch:
        taken: list[Delivery] = []
        while len(taken) < max_count and self.has_any():
            taken.append(self._received.popleft())
        with self._lock:
            self._forget_settled()
            self._returned.extend(taken)
        return DeliveryBatch(taken, self)

    def ack_all(self, batch: DeliveryBatch) -> None:
        """Ack a batch: with one multiple ack if nothing returned before it is unsettled, else one by one.

        Under the lock, so that another thread's ack of an older batch is written before this one.
        """
        with self._lock:
            rest = self.unsettled(batch)
            self._forget_settled()
            if rest and self._returned and self._returned[0] is rest[0]:
                rest[-1].ack(multiple=True)
                self._acked_up_to = rest[-1].delivery_tag
            else:
                for delivery in rest:
                    delivery.ack()

    def unsettled(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Return those that are neither settled nor stale."""
        return [delivery for delivery in deliveries if self._is_unsettled(delivery)]

    def _is_unsettled(self, delivery: Delivery) -> bool:
        return not (delivery.is_settled or delivery.is_stale or delivery.delivery_tag <= self._acked_up_to)

    def _forget_settled(self) -> None:
        while self._returned and not self._is_unsettled(self._returned[0]):
            self._returned.popleft()
