"""x-least-loaded: each message goes to the destination with the least load; binding keys and arguments do not matter.

Destinations with equal loads take turns. A destination that is bound twice counts once.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

from warrenmq.core.routing.matcher import Traits, add_destination, drop_destination


class LeastLoadedMatcher:
    """All destinations, one of which is chosen for each message; `load_of` returns the load of one."""

    __slots__ = ("_bound", "_line", "_load_of")

    uses_message: ClassVar[bool] = True
    uses_all_keys: ClassVar[bool] = False

    def __init__(self, load_of: Callable[[Any], int] = lambda _: 0) -> None:
        self._load_of = load_of
        self._bound: dict[Hashable, int] = {}
        self._line: list[Hashable] = []  # each once, in the order in which they take turns

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Add the destination to those that take turns."""
        if destination not in self._bound:
            self._line.append(destination)
        add_destination(self._bound, destination)

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        drop_destination(self._bound, destination)
        if destination not in self._bound:
            self._line.remove(destination)

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destination that was or is now chosen for this message."""
        if traits is None or not self._line:
            return
        chosen = traits.chosen(self)
        if chosen not in self._bound:
            chosen = self._choose()
            traits.note_chosen(self, chosen)
        found[chosen] = None

    def _choose(self) -> Hashable:
        """Return the first destination in the line with the least load, and move it to the end."""
        best = 0
        least: int | None = None
        for index, destination in enumerate(self._line):
            load = self._load_of(destination)
            if least is None or load < least:
                least = load
                best = index
                if load == 0:
                    break
        chosen = self._line.pop(best)
        self._line.append(chosen)
        return chosen

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return not self._bound
