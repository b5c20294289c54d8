"""Callbacks of one kind, of a connection or channel.

Any thread may add and remove; the loop calls them in the order in which they were added. The tuple is replaced, never
changed, so that the loop may iterate over it meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

L = TypeVar("L")


def do_nothing() -> None:
    """A listener for events that do not matter."""


class ListenerList(Generic[L]):
    """Ordered callbacks. One added twice is called twice, and removed once per call."""

    __slots__ = ("_listeners", "_lock")

    def __init__(self) -> None:
        self._listeners: tuple[L, ...] = ()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[L]:
        return iter(self._listeners)

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: L) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: L) -> bool:
        """Return False if it was not there. A call in progress is not stopped."""
        with self._lock:
            if listener not in self._listeners:
                return False
            at = self._listeners.index(listener)
            self._listeners = self._listeners[:at] + self._listeners[at + 1 :]
            return True
