"""Pulling messages in batches, on the blocking face; and the batches of both faces.

A PullConsumer's lock guards what it has received; the batches that it handed out can be settled by any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.errors import ClientError, CloseReason, ConsumerCancelled, Misuse, channel_error

if TYPE_CHECKING:
    from warrenmq.client.blocking.connection import Connection
    from warrenmq.client.delivery import Delivery


class PullConsumer:
    """Takes messages in batches, when the caller wants them.

    >>> from warrenmq import client
    >>> with client.connect(url) as connection:
    ...     channel = connection.channel()
    ...     _ = channel.queue_declare("pulled", auto_delete=True)
    ...     for number in range(3):
    ...         _ = channel.publish("", "pulled", str(number))
    ...     with PullConsumer(connection, "pulled") as puller:
    ...         seen = []
    ...         while len(seen) < 3:
    ...             batch = puller.pull(100, timeout=10)
    ...             seen += [delivery.body for delivery in batch]
    ...             batch.ack_all()
    >>> seen
    [b'0', b'1', b'2']

    Stands on a consumer whose prefetch bounds what is in hand, so a pull rarely costs a round trip; up to `prefetch`
    messages are held here, and nobody else gets them, until they are settled or this is closed. Thread-safe.
    """

    def __init__(
        self, connection: Connection, queue: str, *, prefetch: int = 1000, arguments: dict[str, Any] | None = None
    ) -> None:
        if prefetch < 1:
            raise Misuse("a pull consumer holds at least one message: prefetch goes from 1")
        self.queue = queue
        self._call_timeout = connection.factory.call_timeout
        self._arrived = threading.Condition()
        self._pulled = Pulled()
        self._channel = connection.channel()
        try:
            self._channel.qos(prefetch)
            self._channel.add_close_listener(self._closed)
            self._channel.consume(queue, self._received, arguments=arguments, on_cancel=self._cancelled)
        except ClientError:
            self._channel.close()
            raise

    def pull(self, max_messages: int = 100, timeout: float | None = None) -> Batch:
        """What is there, up to `max_messages`; waits for the first one up to the time-out, then the batch is empty.

        Raises when nothing can come any more: the broker cancelled the consumer, or the channel was closed.
        """
        if max_messages < 1:
            raise Misuse("a pull takes at least one message")
        whole = self._call_timeout if timeout is None else timeout
        with self._arrived:
            self._arrived.wait_for(lambda: self._pulled.has_any() or self._pulled.failure is not None, whole)
            batch = self._pulled.take(max_messages)
            if not batch and self._pulled.failure is not None:
                raise self._pulled.failure
            return batch

    def close(self) -> None:
        """Give back what is not settled."""
        if self._channel.is_open:
            self._channel.close()

    def __enter__(self) -> PullConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _received(self, delivery: Delivery) -> None:
        with self._arrived:
            self._pulled.add(delivery)
            self._arrived.notify()

    def _cancelled(self, _: object) -> None:
        self._fail(ConsumerCancelled(self.queue))

    def _closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            self._fail(channel_error(reason))

    def _fail(self, failure: ClientError) -> None:
        with self._arrived:
            if self._pulled.failure is None:
                self._pulled.failure = failure
            self._arrived.notify_all()


class Batch(list["Delivery"]):
    """Deliveries that were pulled together, in order. Settle them one by one, or all at once."""

    __slots__ = ("_pulled",)

    def __init__(self, deliveries: list[Delivery], pulled: Pulled) -> None:
        super().__init__(deliveries)
        self._pulled = pulled

    def ack_all(self) -> None:
        """Ack those that are not settled yet; in one word where that is possible."""
        self._pulled.ack_all(self)

    def nack_all(self, requeue: bool = True) -> None:
        """Give back, or drop, those that are not settled yet."""
        for delivery in self._pulled.unsettled(self):
            delivery.nack(requeue=requeue)


class Pulled:
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

    def take(self, most: int) -> Batch:
        taken: list[Delivery] = []
        while len(taken) < most and self.has_any():
            taken.append(self._received.popleft())
        with self._lock:
            self._forget_settled()
            self._handed_out.extend(taken)
        return Batch(taken, self)

    def ack_all(self, batch: Batch) -> None:
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
