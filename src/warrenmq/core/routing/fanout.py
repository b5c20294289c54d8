"""Fanout: a message goes to every destination, whatever its key.

Bindings to one destination under several keys or arguments are counted; the last one removes it.
"""

from collections.abc import Hashable, Mapping
from typing import ClassVar

from warrenmq.core.routing.matcher import Traits, add_destination, drop_destination


class FanoutMatcher:
    """All destinations, oldest binding first."""

    __slots__ = ("_destinations",)

    uses_message: ClassVar[bool] = False
    uses_all_keys: ClassVar[bool] = True

    def __init__(self) -> None:
        self._destinations: dict[Hashable, int] = {}

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Route every message to the destination."""
        add_destination(self._destinations, destination)

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        drop_destination(self._destinations, destination)

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add every destination."""
        for destination in self._destinations:
            found[destination] = None

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return not self._destinations
