"""The queues of one virtual host by name, those that are idle as a name only.

An idle queue is durable, has no arguments, policies or bindings, and holds no message. A start finds it so, and makes
the queue when it is first looked up: until then it takes a tenth of the memory, and the start takes less time.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

from warrenmq.core.queue import Queue


class Queues(MutableMapping[str, Queue]):
    """Looking up an idle queue makes it, by `make`, which adds it; names, `in` and `len` make none."""

    __slots__ = ("_make", "_queues")

    def __init__(self, make: Callable[[str], Queue]) -> None:
        self._make = make
        self._queues: dict[str, Queue | None] = {}  # None: idle

    def add_idle(self, name: str) -> None:
        self._queues[name] = None

    def is_idle(self, name: str) -> bool:
        return name in self._queues and self._queues[name] is None

    def idle(self) -> list[str]:
        """Return the names of the idle queues."""
        return [name for name, queue in self._queues.items() if queue is None]

    def made(self) -> list[Queue]:
        """Return the queues that are not idle."""
        return [queue for queue in self._queues.values() if queue is not None]

    def __getitem__(self, name: str) -> Queue:
        queue = self._queues[name]
        return self._make(name) if queue is None else queue

    def __setitem__(self, name: str, queue: Queue) -> None:
        self._queues[name] = queue

    def __delitem__(self, name: str) -> None:
        del self._queues[name]

    def __contains__(self, name: object) -> bool:
        return name in self._queues

    def __iter__(self) -> Iterator[str]:
        return iter(self._queues)

    def __len__(self) -> int:
        return len(self._queues)
