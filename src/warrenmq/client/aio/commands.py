"""What a service waits for: subscriptions that have ended, and the stop. `blocking/commands.py` is the same for
threads."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from warrenmq.client.aio.primitives import Event

Item = TypeVar("Item")
Result = TypeVar("Result")


class Commands(Generic[Item]):
    """A queue of items that ends with `stop`. Owned by one event loop."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Item | None] = asyncio.Queue()
        self._stopping = Event()

    def put(self, item: Item) -> None:
        self._items.put_nowait(item)

    def stop(self) -> None:
        self._stopping.set()
        self._items.put_nowait(None)

    async def next(self) -> Item | None:
        """Return the next item, or None once stopped."""
        if self._stopping.is_set():
            return None
        item = await self._items.get()
        return None if self._stopping.is_set() else item

    async def wait_for_stop(self, seconds: float) -> bool:
        return await self._stopping.wait(seconds)

    async def unless_stopped(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result | None:
        """Do the work; cancel it and return None if stopped meanwhile."""
        working = asyncio.create_task(work())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.wait([working, stopping])


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM. Outside the main thread, which handles signals, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
