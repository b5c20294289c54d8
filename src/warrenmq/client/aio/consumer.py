"""A consumer on asyncio as its user sees it: begun by awaiting or iterating it. Owned by the connection's loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.aio.worker import Inbox
from warrenmq.client.delivery import Delivery
from warrenmq.client.errors import ClientError, Misuse

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.engine.channel import EngineChannel
    from warrenmq.client.engine.consumers import EngineConsumer

Begin = Callable[[], Coroutine[Any, Any, "EngineConsumer"]]


class Consumer:
    """What `channel.consume` gives.

    >>> async def main():
    ...     async with aio.connect(url) as connection, await connection.channel() as channel:
    ...         queue = (await channel.queue_declare("", exclusive=True)).queue
    ...         await channel.publish("", queue, "by iteration")
    ...         async for delivery in channel.consume(queue, auto_ack=True):
    ...             print(delivery.body)
    ...             break
    ...         came = asyncio.Event()
    ...         async def handle(delivery):
    ...             print(delivery.body)
    ...             delivery.ack()
    ...             came.set()
    ...         consumer = await channel.consume(queue, handle)
    ...         await channel.publish("", queue, "by callback")
    ...         await came.wait()
    >>> asyncio.run(main())
    b'by iteration'
    b'by callback'

    Iteration ends at a cancel, a close, or when nothing came for `timeout` seconds; it raises when the server ended
    the consumer or its channel. It goes on by itself over a lost connection. Left in an `async with` block, or
    forgotten, a consumer without callback is cancelled, and what it had not given out goes back to the queue.
    """

    def __init__(self, channel: Channel, begin: Begin, queue: str, inbox: Inbox | None, timeout: float | None) -> None:
        self.channel = channel
        self.timeout = timeout
        self._begin = begin
        self._queue = queue
        self._inbox = inbox
        self._engine_consumer: EngineConsumer | None = None
        self._lock = asyncio.Lock()

    @property
    def tag(self) -> str:
        return self._begun().tag

    @property
    def queue(self) -> str:
        """Its present name: a server-named queue gets a new one when the connection recovers."""
        return self._queue if self._engine_consumer is None else self._engine_consumer.queue

    async def cancel(self, timeout: float | None = None) -> None:
        """Ask for no more. What had come before is still given to the callback, or to the iteration."""
        await self.channel.cancel(self, timeout=timeout)

    def __await__(self) -> Generator[Any, None, Consumer]:
        return self._start().__await__()

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
        if self.channel.is_open:
            await self.cancel()
            if self._inbox is not None:
                _give_back(self._begun(), self._inbox)

    def __repr__(self) -> str:
        tag = "not begun" if self._engine_consumer is None else repr(self._engine_consumer.tag)
        return f"<Consumer {tag} of queue {self.queue!r}>"

    async def _start(self) -> Consumer:
        async with self._lock:
            if self._engine_consumer is None:
                self._engine_consumer = await self._begin()
                if self._inbox is not None:
                    channel = self.channel._engine_channel
                    weakref.finalize(self, _give_up, channel, self._engine_consumer, self._inbox).atexit = False
        return self

    def _begun(self) -> EngineConsumer:
        if self._engine_consumer is None:
            raise Misuse("the consumer has not begun: await it, or iterate it")
        return self._engine_consumer

    def _require_inbox(self) -> Inbox:
        if self._inbox is None:
            raise Misuse("this consumer has a callback: its deliveries go there")
        return self._inbox


def _give_back(engine_consumer: EngineConsumer, inbox: Inbox) -> None:
    """Requeue what the consumer has not read: the broker delivers it to others."""
    if not engine_consumer.auto_ack:
        engine_consumer.channel.requeue(delivery.delivery_tag for delivery in inbox.take_rest())


def _give_up(engine_channel: EngineChannel, engine_consumer: EngineConsumer, inbox: Inbox) -> None:
    """The consumer is garbage, collected by whichever thread: have the loop cancel it."""
    if not inbox.is_stopped:
        engine_channel.engine.spawn(lambda: _cancel_and_give_back(engine_channel, engine_consumer, inbox))


async def _cancel_and_give_back(engine_channel: EngineChannel, engine_consumer: EngineConsumer, inbox: Inbox) -> None:
    try:
        await engine_channel.cancel(engine_consumer)
        _give_back(engine_consumer, inbox)
    except ClientError:
        return  # the channel has ended meanwhile: the broker has taken everything back
