"""Pull messages in batches, blocking. A PullConsumer's lock guards what it has received."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.delivery_batch import DeliveryBatch, PullBuffer
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
        self._pulled = PullBuffer()
        self._channel = connection.channel()
        try:
            self._channel.qos(prefetch)
            self._channel.add_close_listener(self._closed)
            self._channel.consume(queue, self._received, arguments=arguments, on_cancel=self._cancelled)
        except ClientError:
            self._channel.close()
            raise

    def pull(self, max_messages: int = 100, timeout: float | None = None) -> DeliveryBatch:
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
