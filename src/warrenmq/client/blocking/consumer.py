"""A consumer as its user sees it: to be cancelled, and to be iterated when it has no callback. For any thread."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from warrenmq.client.blocking.worker import Inbox
from warrenmq.client.delivery import Delivery
from warrenmq.client.errors import ClientError, Misuse

if TYPE_CHECKING:
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.blocking.io_thread import IoThread
    from warrenmq.client.engine.channel import EngineChannel
    from warrenmq.client.engine.consumers import EngineConsumer


class Consumer:
    """What `channel.consume` gives.

    >>> from warrenmq import client
    >>> with client.connect(url) as connection:
    ...     channel = connection.channel()
    ...     queue = channel.queue_declare(exclusive=True).queue
    ...     for number in range(3):
    ...         _ = channel.publish("", queue, str(number))
    ...     for delivery in channel.consume(queue, timeout=0.5):
    ...         print(delivery.body, delivery.ack())
    b'0' True
    b'1' True
    b'2' True

    Iteration ends at a cancel, a close, or when nothing came for `timeout` seconds; it raises when the server ended
    the consumer or its channel. It goes on by itself over a lost connection. Left in a `with` block, or forgotten, a
    consumer without callback is cancelled, and what it had not given out goes back to the queue.
    """

    def __init__(
        self, channel: Channel, engine_consumer: EngineConsumer, inbox: Inbox | None, timeout: float | None
    ) -> None:
        self.channel = channel
        self.timeout = timeout
        self._engine_consumer = engine_consumer
        self._inbox = inbox
        if inbox is not None:
            weakref.finalize(
                self, _give_up, channel._thread, channel._engine_channel, engine_consumer, inbox
            ).atexit = False

    @property
    def tag(self) -> str:
        return self._engine_consumer.tag

    @property
    def queue(self) -> str:
        """Its present name: a server-named queue gets a new one when the connection recovers."""
        return self._engine_consumer.queue

    def cancel(self, timeout: float | None = None) -> None:
        """Ask for no more. What had come before is still given to the callback, or to the iteration."""
        self.channel.cancel(self, timeout=timeout)

    def __iter__(self) -> Iterator[Delivery]:
        if self._inbox is None:
            raise Misuse("this consumer has a callback: its deliveries go there")
        return self

    def __next__(self) -> Delivery:
        if self._inbox is None:
            raise Misuse("this consumer has a callback: its deliveries go there")
        delivery = self._inbox.take(self.timeout)
        if delivery is None:
            raise StopIteration
        return delivery

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.channel.is_open:
            return
        try:
            self.cancel()
            if self._inbox is not None:
                self.channel._call(_give_back(self._engine_consumer, self._inbox), None)
        except ClientError:
            if error is None:  # what went wrong in the block is the news, not that its end went wrong too
                raise

    def __repr__(self) -> str:
        return f"<Consumer {self.tag!r} of queue {self.queue!r}>"


async def _give_back(engine_consumer: EngineConsumer, inbox: Inbox) -> None:
    """Requeue what the consumer has not read: the broker delivers it to others."""
    if not engine_consumer.auto_ack:
        engine_consumer.channel.requeue(delivery.delivery_tag for delivery in inbox.take_rest())


def _give_up(thread: IoThread, engine_channel: EngineChannel, engine_consumer: EngineConsumer, inbox: Inbox) -> None:
    """The consumer is garbage: cancel it, without waiting, as any thread may be the one that collects garbage."""
    if not inbox.is_stopped:
        thread.spawn(_cancel_and_give_back(engine_channel, engine_consumer, inbox))


async def _cancel_and_give_back(engine_channel: EngineChannel, engine_consumer: EngineConsumer, inbox: Inbox) -> None:
    try:
        await engine_channel.cancel(engine_consumer.tag)
        await _give_back(engine_consumer, inbox)
    except ClientError:
        return  # the channel has ended meanwhile: the broker has taken everything back
