"""x-least-loaded: each message goes to the destination with the least load; binding keys and arguments do not matter.

Destinations with equal loads take turns. A destination that is bound twice counts once.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

from warrenmq.core.routing.matcher import Traits, add_destination, drop_destination


class LeastLoadedMatcher:
    """All destinations, one of which is chosen for each message; `load_of` returns the load of one."""

    __slots__ = ("_bound", "_destinations", "_load_of", "_next")

    uses_message: ClassVar[bool] = True
    uses_all_keys: ClassVar[bool] = False

    def __init__(self, load_of: Callable[[Any], int] = lambda _: 0) -> None:
        self._load_of = load_of
        self._bound: dict[Hashable, int] = {}
        self._destinations: list[Hashable] = []  # each once, in the order in which they take turns
        self._next = 0  # the index of the destination whose turn it is

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Add the destination to those that take turns."""
        if destination not in self._bound:
            self._destinations.append(destination)
        add_destination(self._bound, destination)

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        drop_destination(self._bound, destination)
        if destination not in self._bound:
            index = self._destinations.index(destination)
            del self._destinations[index]
            if index < self._next:
                self._next -= 1

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destination that was or is now chosen for this message."""
        if traits is None or not self._destinations:
            return
        chosen = traits.chosen(self)
        if chosen not in self._bound:
            chosen = self._choose()
            traits.note_chosen(self, chosen)
        found[chosen] = None

    def _choose(self) -> Hashable:
        """Return the destination with the least load; of equals the first one from `_next` on."""
        count = len(self._destinations)
        best = self._next
        least: int | None = None
        for index in range(self._next, self._next + count):
            load = self._load_of(self._destinations[index % count])
            if least is None or load < least:
                least = load
                best = index
                if load == 0:
                    break
        self._next = (best + 1) % count
        return self._destinations[best % count]

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return not self._bound
