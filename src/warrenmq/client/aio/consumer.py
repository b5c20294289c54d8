"""A consumer as its user sees it: to be cancelled, and iterated if it has no callback."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.aio.primitives import Lock
from warrenmq.client.aio.worker import Inbox
from warrenmq.client.delivery import Delivery
from warrenmq.client.errors import ClientError, Misuse
from warrenmq.client.unread import release_forgotten, requeue_unread

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.engine.consumers import EngineConsumer

Begin = Callable[[], "Coroutine[Any, Any, EngineConsumer]"]


class Consumer:
    """The result of `channel.consume`.

    >>> from warrenmq.client import aio
    >>> async def main():
    ...     async with aio.connect(url) as connection, await connection.channel() as channel:
    ...         queue = (await channel.queue_declare(exclusive=True)).queue
    ...         for number in range(3):
    ...             _ = await channel.publish("", queue, str(number))
    ...         async for delivery in channel.consume(queue, timeout=0.5):
    ...             print(delivery.body, delivery.ack())
    >>> asyncio.run(main())
    b'0' True
    b'1' True
    b'2' True

    Iteration ends at a cancel, a close, or if nothing comes for `timeout` seconds; it raises if the server ends the
    consumer or its channel. It continues after a recovery. At the end of a `with` block, and when it is garbage
    collected, a consumer without callback is cancelled, and its unread messages are requeued.
    """

    def __init__(self, channel: Channel, begin: Begin, queue: str, inbox: Inbox | None, timeout: float | None) -> None:
        self.channel = channel
        self.timeout = timeout
        self._begin = begin
        self._queue = queue
        self._inbox = inbox
        self._engine_consumer: EngineConsumer | None = None
        self._lock = Lock()

    @property
    def tag(self) -> str:
        return self._started().tag

    @property
    def queue(self) -> str:
        """The current name: a server-named queue gets a new one when the connection recovers."""
        return self._queue if self._engine_consumer is None else self._engine_consumer.queue

    async def cancel(self, timeout: float | None = None) -> None:
        """Stop new deliveries. Those that have arrived still go to the callback or the iteration."""
        await self.channel.cancel(self, timeout=timeout)

    def __await__(self) -> Generator[Any, None, Consumer]:  # asyncio only
        return self._start().__await__()  # asyncio only

    def __aiter__(self) -> Consumer:
        self._require_inbox()
        return self

    async def __anext__(self) -> Delivery:
        inbox = self._require_inbox()
        if self._engine_consumer is None:
            await self._start()
        delivery = await inbox.take(self.timeout)
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def __aenter__(self) -> Consumer:
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if not self.channel.is_open:
            return
        try:
            await self.cancel()
            if self._inbox is not None:
                await self.channel._call(requeue_unread(self._started(), self._inbox), None)
        except ClientError:
            if error is None:  # otherwise the error in the block is raised
                raise

    def __repr__(self) -> str:
        tag = "not started" if self._engine_consumer is None else repr(self._engine_consumer.tag)
        return f"<Consumer {tag} of queue {self.queue!r}>"

    async def _start(self) -> Consumer:
        async with self._lock:
            if self._engine_consumer is None:
                self._engine_consumer = await self.channel._call(self._begin(), None)
                if self._inbox is not None:
                    spawn = self.channel.connection._spawn
                    weakref.finalize(self, release_forgotten, spawn, self._engine_consumer, self._inbox).atexit = False
        return self

    def _started(self) -> EngineConsumer:
        if self._engine_consumer is None:
            raise Misuse("the consumer has not started: await it, or iterate it")
        return self._engine_consumer

    def _require_inbox(self) -> Inbox:
        if self._inbox is None:
            raise Misuse("this consumer has a callback: its deliveries go there")
        return self._inbox
