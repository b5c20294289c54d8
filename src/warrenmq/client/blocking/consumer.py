"""A consumer as its user sees it: to be cancelled, and iterated if it has no callback.

Written by tools/unasync.py from aio/consumer.py: change that, then run it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.blocking.primitives import Lock
from warrenmq.client.blocking.worker import Inbox
from warrenmq.client.delivery import Delivery
from warrenmq.client.errors import ClientError, Misuse
from warrenmq.client.unread import release_forgotten, requeue_unread

if TYPE_CHECKING:
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.engine.consumers import EngineConsumer

Begin = Callable[[], "Coroutine[Any, Any, EngineConsumer]"]


class Consumer:
    """The result of `channel.consume`.

    >>> from warrenmq import client
    >>> with client.connect(url) as connection, connection.channel() as channel:
    ...     queue = (channel.queue_declare(exclusive=True)).queue
    ...     for number in range(3):
    ...         _ = channel.publish("", queue, str(number))
    ...     for delivery in channel.consume(queue, timeout=0.5):
    ...         print(delivery.body, delivery.ack())
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

    def cancel(self, timeout: float | None = None) -> None:
        """Stop new deliveries. Those that have arrived still go to the callback or the iteration."""
        self.channel.cancel(self, timeout=timeout)

    def __iter__(self) -> Consumer:
        self._require_inbox()
        return self

    def __next__(self) -> Delivery:
        inbox = self._require_inbox()
        if self._engine_consumer is None:
            self._start()
        delivery = inbox.take(self.timeout)
        if delivery is None:
            raise StopIteration
        return delivery

    def __enter__(self) -> Consumer:
        return self._start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.channel.is_open:
            return
        try:
            self.cancel()
            if self._inbox is not None:
                self.channel._call(requeue_unread(self._started(), self._inbox), None)
        except ClientError:
            if error is None:  # otherwise the error in the block is raised
                raise

    def __repr__(self) -> str:
        tag = "not started" if self._engine_consumer is None else repr(self._engine_consumer.tag)
        return f"<Consumer {tag} of queue {self.queue!r}>"

    def _start(self) -> Consumer:
        with self._lock:
            if self._engine_consumer is None:
                self._engine_consumer = self.channel._call(self._begin(), None)
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
