"""What a service waits for: subscriptions that have ended, and the stop. `aio/commands.py` is the same for asyncio."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Commands(Generic[Item]):
    """A queue of items that ends with `stop`. One thread takes; any thread, or signal handler, may put and stop."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # reentrant, as signal handlers need
        self._is_stopped = False

    def put(self, item: Item) -> None:
        self._items.put(item)

    def stop(self) -> None:
        self._is_stopped = True
        self._items.put(None)

    def next(self) -> Item | None:
        """Return the next item, or None once stopped."""
        if self._is_stopped:
            return None
        item = self._items.get()
        return None if self._is_stopped else item

    def wait_for_stop(self, seconds: float) -> bool:
        """Wait; return True at once when stopped. Items stay in the queue."""
        deadline = monotonic() + seconds
        others: list[Item] = []
        try:
            while not self._is_stopped:
                try:
                    item = self._items.get(timeout=max(0.0, deadline - monotonic()))
                except queue.Empty:
                    return False
                if item is not None:
                    others.append(item)
            return True
        finally:
            for other in others:
                self._items.put(other)

    def unless_stopped(self, work: Callable[[], Result]) -> Result | None:
        """Do the work, which a stop does not interrupt."""
        return None if self._is_stopped else work()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM. Outside the main thread, which handles signals, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
