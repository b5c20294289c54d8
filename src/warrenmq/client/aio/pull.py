"""Pull messages in batches. A PullConsumer's condition guards what it has received."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.aio.primitives import Condition
from warrenmq.client.delivery_batch import DeliveryBatch, PullBuffer
from warrenmq.client.errors import ClientError, CloseReason, ConsumerCancelled, Misuse, channel_error

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection
    from warrenmq.client.aio.transaction import Transaction
    from warrenmq.client.delivery import Delivery


class PullConsumer:
    """Returns messages in batches, when the caller asks for them.

    >>> from warrenmq.client import aio
    >>> async def main():
    ...     async with aio.connect(url) as connection:
    ...         channel = await connection.channel()
    ...         _ = await channel.queue_declare("pulled", auto_delete=True)
    ...         for number in range(3):
    ...             _ = await channel.publish("", "pulled", str(number))
    ...         async with aio.PullConsumer(connection, "pulled") as puller:
    ...             seen = []
    ...             while len(seen) < 3:
    ...                 batch = await puller.pull(100, timeout=10)
    ...                 seen += [delivery.body for delivery in batch]
    ...                 batch.ack_all()
    ...         print(seen)
    >>> asyncio.run(main())
    [b'0', b'1', b'2']

    It is a consumer with a prefetch, so a pull rarely costs a round trip. Up to `prefetch` messages are buffered here
    and go to nobody else until they are settled or this is closed. Threads or tasks may share it.
    """

    def __init__(
        self, connection: Connection, queue: str, *, prefetch: int = 1000, arguments: dict[str, Any] | None = None
    ) -> None:
        if prefetch < 1:
            raise Misuse("prefetch must be at least 1 for a pull consumer")
        self.queue = queue
        self._connection = connection
        self._prefetch = prefetch
        self._arguments = arguments
        self._arrived = Condition()
        self._buffer = PullBuffer()
        self._channel: Channel | None = None
        # blocking only: self.start()

    async def start(self) -> None:
        """Start consuming, unless already done. The first `pull` does so, too."""  # asyncio only
        # blocking only: """Start consuming, unless already done. The constructor does so."""
        if self._channel is not None:
            return
        channel = self._channel = await self._connection.channel()
        try:
            await channel.qos(self._prefetch)
            channel.add_close_listener(self._closed)
            await channel.consume(self.queue, self._received, arguments=self._arguments, on_cancel=self._cancelled)
        except ClientError:
            await self.close()
            raise

    async def pull(self, max_messages: int = 100, timeout: float | None = None) -> DeliveryBatch:
        """Return up to `max_messages`; wait for the first one, and return an empty batch on timeout.

        Raises if no message can come any more: the broker cancelled the consumer, or the channel was closed.
        """
        if max_messages < 1:
            raise Misuse("max_messages must be at least 1")
        await self.start()
        whole = self._connection.factory.call_timeout if timeout is None else timeout
        with self._arrived:
            await self._arrived.wait_for(lambda: self._buffer.has_any() or self._buffer.failure is not None, whole)
            batch = self._buffer.take(max_messages)
            if not batch and self._buffer.failure is not None:
                raise self._buffer.failure
            return batch

    def transaction(self, batch: Iterable[Delivery], *, redeliver: bool = True) -> Transaction:
        """Return a transaction block (`async with`) that acks the batch; see Channel.transaction.

        What the block publishes, on the channel that it returns, is there exactly if the batch is acked.
        """
        if self._channel is None:
            raise Misuse("nothing was pulled yet")
        return self._channel.transaction(*batch, redeliver=redeliver)

    async def close(self) -> None:
        """Stop consuming; the broker requeues what is not settled."""
        if self._channel is not None and self._channel.is_open:
            await self._channel.close()

    async def __aenter__(self) -> PullConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _received(self, delivery: Delivery) -> None:
        with self._arrived:
            self._buffer.add(delivery)
            self._arrived.notify()

    def _cancelled(self, _: object) -> None:
        self._fail(ConsumerCancelled(self.queue))

    def _closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            self._fail(channel_error(reason))

    def _fail(self, failure: ClientError) -> None:
        with self._arrived:
            if self._buffer.failure is None:
                self._buffer.failure = failure
            self._arrived.notify_all()
