"""Deliveries and notifications on their way from the engine to the user's callbacks and iterations.

`Worker`: one task per channel with callbacks or listeners, one per connection with listeners. It runs callbacks one
after another, in the server's order. `Inbox`: one per iterated consumer.

Owned by the connection's loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from typing import TYPE_CHECKING

from warrenmq.client.delivery import Delivery
from warrenmq.client.engine.consumers import Item, Notification, WorkQueue
from warrenmq.client.errors import ClientError

if TYPE_CHECKING:
    from warrenmq.client.engine.connection import EngineConnection

# Let the loop do other work after this many callbacks that do not wait.
_MAX_BURST = 64


class Worker(WorkQueue):
    """The task that runs the callbacks of one channel, or the listeners of one connection."""

    has_task = True

    def __init__(self, name: str, engine: EngineConnection) -> None:
        self._engine = engine
        self._items: deque[Item] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._is_stopping = False
        self._keeps_deliveries = False
        self._task = engine.loop.create_task(self._run(), name=f"warren-client-{name}")

    def put(self, items: list[Item]) -> None:
        self._items.extend(items)
        self._wake()

    def pending(self) -> int:
        return len(self._items)

    def stop(self, error: ClientError | None = None, *, is_cancel: bool = False) -> None:
        self._is_stopping = True
        self._keeps_deliveries = is_cancel
        self._wake()

    async def ended(self) -> bool:
        if asyncio.current_task() is self._task:
            return False
        if not self._task.done():
            await asyncio.wait((self._task,), timeout=self._engine.factory.close_timeout)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=self._engine.factory.close_timeout)
        return True

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def _run(self) -> None:
        count = 0
        while True:
            while self._items:
                item = self._items.popleft()
                if not self._is_stopping or self._keeps_deliveries or not is_void(item):
                    await self._run_item(item)
                if self.is_full and len(self._items) <= self.resume_at:
                    self.on_drained()
                count += 1
                if count % _MAX_BURST == 0:
                    await asyncio.sleep(0)
            if self._is_stopping:
                self._engine.work_queues.remove(self)
                return
            self._idle = self._engine.loop.create_future()
            await self._idle

    async def _run_item(self, item: Item) -> None:
        try:
            result = item.run()
            if result is not None and inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            if self._task.cancelling():
                raise
            self._report(item, error)  # something that the user's code awaited was cancelled, not this task
        except Exception as error:  # noqa: BLE001 - the user's code
            self._report(item, error)

    def _report(self, item: Item, error: BaseException) -> None:
        self._engine.report(item.context, error, item.source if isinstance(item, Notification) else item.consumer)


class Inbox(WorkQueue):
    """The deliveries of one iterated consumer."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()
        self._error: ClientError | None = None
        self.is_stopped = False

    def put(self, items: list[Item]) -> None:
        self._items.extend(items)
        if self._readers:
            for _ in items:
                self._wake_one()

    def pending(self) -> int:
        return len(self._items)

    def stop(self, error: ClientError | None = None, *, is_cancel: bool = False) -> None:
        """Stop. After a cancel queued deliveries can still be settled and are read; after a close they are dropped."""
        if self.is_stopped:
            return
        self.is_stopped = True
        self._error = error
        if not is_cancel:
            self._items = deque(item for item in self._items if not is_void(item))
        while self._readers:
            self._wake_one()

    async def ended(self) -> bool:
        """Return at once: the reader is the user's."""
        return True

    async def take(self, timeout: float | None) -> Delivery | None:
        """Return the next delivery, or None at the end or on timeout; raise if the consumer ended with an error."""
        while not self._items:
            if self.is_stopped:
                if self._error is not None:
                    raise self._error
                return None
            if not await self._wait(timeout):
                return None
        item = self._items.popleft()
        if self.is_full and len(self._items) <= self.resume_at:
            self.on_drained()
        assert isinstance(item, Delivery)
        return item

    def take_rest(self) -> list[Delivery]:
        """Return all queued deliveries, to be requeued."""
        rest = [item for item in self._items if isinstance(item, Delivery)]
        self._items.clear()
        return rest

    async def _wait(self, timeout: float | None) -> bool:
        reader = asyncio.get_running_loop().create_future()
        self._readers.append(reader)
        try:
            async with asyncio.timeout(timeout):
                await reader
        except TimeoutError:
            return bool(self._items) or self.is_stopped
        except asyncio.CancelledError:
            if reader not in self._readers and self._items:
                self._wake_one()  # the item that it was woken for is for another reader
            raise
        finally:
            if reader in self._readers:
                self._readers.remove(reader)
        return True

    def _wake_one(self) -> None:
        while self._readers:
            reader = self._readers.popleft()
            if not reader.done():
                reader.set_result(None)
                return


def is_void(item: Item) -> bool:
    """Whether the broker will redeliver this delivery, because it can no longer be settled."""
    return isinstance(item, Delivery) and item.consumer is not None and not item.consumer.auto_ack
