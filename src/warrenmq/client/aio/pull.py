"""Pulling messages in batches on asyncio: `PullConsumer` as in client/pull.py, with `await`. Its loop owns it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.delivery_batch import DeliveryBatch, PullBuffer
from warrenmq.client.errors import ClientError, CloseReason, ConsumerCancelled, Misuse, channel_error

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection
    from warrenmq.client.delivery import Delivery


class PullConsumer:
    """Takes messages in batches: `batch = await puller.pull(100)`. See warrenmq.client.PullConsumer.

    The first `pull`, or entering `async with`, starts consuming.
    """

    def __init__(
        self, connection: Connection, queue: str, *, prefetch: int = 1000, arguments: dict[str, Any] | None = None
    ) -> None:
        if prefetch < 1:
            raise Misuse("a pull consumer holds at least one message: prefetch goes from 1")
        self.queue = queue
        self._connection = connection
        self._prefetch = prefetch
        self._arguments = arguments
        self._arrived = asyncio.Event()
        self._pulled = PullBuffer()
        self._channel: Channel | None = None

    async def start(self) -> None:
        """Start consuming; the first `pull` does so by itself."""
        channel = self._channel = await self._connection.channel()
        try:
            await channel.qos(self._prefetch)
            channel.add_close_listener(self._closed)
            await channel.consume(self.queue, self._received, arguments=self._arguments, on_cancel=self._cancelled)
        except ClientError:
            await self.close()
            raise

    async def pull(self, max_messages: int = 100, timeout: float | None = None) -> DeliveryBatch:
        """What is there, up to `max_messages`; waits for the first one up to the time-out, then the batch is empty.

        Raises when nothing can come any more: the broker cancelled the consumer, or the channel was closed.
        """
        if max_messages < 1:
            raise Misuse("a pull takes at least one message")
        if self._channel is None:
            await self.start()
        await self._wait_for_any(self._connection.factory.call_timeout if timeout is None else timeout)
        batch = self._pulled.take(max_messages)
        if not batch and self._pulled.failure is not None:
            raise self._pulled.failure
        return batch

    async def close(self) -> None:
        """Give back what is not settled."""
        if self._channel is not None and self._channel.is_open:
            await self._channel.close()

    async def __aenter__(self) -> PullConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _wait_for_any(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not self._pulled.has_any() and self._pulled.failure is None:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass  # an empty batch says it

    def _received(self, delivery: Delivery) -> None:
        self._pulled.add(delivery)
        self._arrived.set()

    def _cancelled(self, _: object) -> None:
        self._fail(ConsumerCancelled(self.queue))

    def _closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            self._fail(channel_error(reason))

    def _fail(self, failure: ClientError) -> None:
        if self._pulled.failure is None:
            self._pulled.failure = failure
        self._arrived.set()
