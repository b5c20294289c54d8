"""Deliveries and notifications on their way from the loop to the user's threads.

`Worker`: one per channel with callbacks or listeners, one per connection with listeners. It is one thread, so callbacks
of a channel run one after another, in the server's order. `Inbox`: one per iterated consumer, read by the iterating
threads.

A SimpleQueue is between the loop and the reader. If too much is queued, the engine stops reading the socket until the
reader calls `on_drained`.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from warrenmq.client.delivery import Delivery
from warrenmq.client.engine.consumers import Item, Notification, WorkQueue
from warrenmq.client.errors import ClientError

if TYPE_CHECKING:
    from warrenmq.client.engine.connection import EngineConnection


class Worker(WorkQueue):
    """The thread that runs the callbacks of one channel, or the listeners of one connection."""

    def __init__(self, name: str, engine: EngineConnection) -> None:
        super().__init__()
        self._engine = engine
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- on the loop -------------------------------------------------------------------------------------------------

    def put(self, items: list[Item]) -> None:
        put = self._items.put
        for item in items:
            put(item)

    def pending(self) -> int:
        return self._items.qsize()

    def stop(self, error: ClientError | None = None, *, is_cancel: bool = False) -> None:
        self._is_stopping = True
        self._items.put(None)

    async def ended(self) -> bool:
        """Return at once: the closing thread waits (`join`), as a callback may be waiting for the loop."""
        return True

    # -- any thread --------------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, limit: float) -> None:
        """Wait for a running callback; a callback that closes its own channel does not wait."""
        if threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, limit))

    # -- the worker's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        take = self._items.get
        while (item := take()) is not None:
            if not (self._is_stopping and is_void(item)):
                try:
                    item.run()
                except BaseException as error:  # noqa: BLE001 - the user's code; even SystemExit ends no worker
                    self._engine.report(
                        item.context, error, item.source if isinstance(item, Notification) else item.consumer
                    )
            if self.is_full and self._items.qsize() <= self.resume_at:
                self.on_drained()


class Inbox(WorkQueue):
    """The deliveries of one iterated consumer."""

    def __init__(self) -> None:
        super().__init__()
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._error: ClientError | None = None
        self.is_stopped = False
        self._keeps_rest = False

    # -- on the loop -------------------------------------------------------------------------------------------------

    def put(self, items: list[Item]) -> None:
        put = self._items.put
        for item in items:
            put(item)

    def pending(self) -> int:
        return self._items.qsize()

    def stop(self, error: ClientError | None = None, *, is_cancel: bool = False) -> None:
        """Stop. After a cancel queued deliveries can still be settled and are read; after a close they are dropped."""
        if not self.is_stopped:
            self._error = error
            self._keeps_rest = is_cancel
            self.is_stopped = True
            self._items.put(None)

    async def ended(self) -> bool:
        """Return at once: the reader is the user's."""
        return True

    # -- the reader's thread -----------------------------------------------------------------------------------------

    def take(self, timeout: float | None) -> Delivery | None:
        """Return the next delivery, or None at the end or on timeout; raise if the consumer ended with an error."""
        while True:
            try:
                item = self._items.get(timeout=timeout)
            except Empty:
                return None
            if item is None:
                self._items.put(None)  # for the next call
                if self._error is not None:
                    raise self._error
                return None
            if self.is_full and self._items.qsize() <= self.resume_at:
                self.on_drained()
            if isinstance(item, Delivery) and not (self.is_stopped and not self._keeps_rest and is_void(item)):
                return item

    def take_rest(self) -> list[Delivery]:
        """Return all queued deliveries, to be requeued."""
        rest: list[Delivery] = []
        while True:
            try:
                item = self._items.get_nowait()
            except Empty:
                break
            if isinstance(item, Delivery):
                rest.append(item)
        if self.is_stopped:
            self._items.put(None)  # the end mark was taken, too; other readers may wait for it
        return rest


def is_void(item: Item) -> bool:
    """Whether the broker will redeliver this delivery, because it can no longer be settled."""
    return isinstance(item, Delivery) and item.consumer is not None and not item.consumer.auto_ack
