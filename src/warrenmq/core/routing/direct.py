"""Direct: matches if the routing key equals the binding key.

Bindings that differ only in their arguments are counted, so removing one keeps the others. One lookup per match.
"""

from collections.abc import Hashable, Mapping
from typing import ClassVar

from warrenmq.core.routing.matcher import Traits, add_destination, drop_destination


class DirectMatcher:
    """Destinations by exact key, oldest binding first."""

    __slots__ = ("_destinations",)

    uses_message: ClassVar[bool] = False
    uses_all_keys: ClassVar[bool] = True

    def __init__(self) -> None:
        self._destinations: dict[str, dict[Hashable, int]] = {}

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Route messages with exactly this key to the destination."""
        add_destination(self._destinations.setdefault(key, {}), destination)

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        counts = self._destinations[key]
        drop_destination(counts, destination)
        if not counts:
            del self._destinations[key]

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destinations bound with this key."""
        for destination in self._destinations.get(key, ()):
            found[destination] = None

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return not self._destinations
