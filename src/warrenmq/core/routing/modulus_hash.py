"""x-modulus-hash: the hash of the routing key, modulo the number of bindings, chooses one of them.

The bindings are numbered by the names of their destinations, so a key goes to the same destination after a restart.
Adding or removing a binding moves most keys; x-consistent-hash avoids that. Binding keys and arguments do not matter; a
destination bound twice gets twice as many messages, as in RabbitMQ.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

from warrenmq.core.digest import hash_of
from warrenmq.core.routing.matcher import Traits, add_destination, drop_destination
from warrenmq.core.routing.random import repeat_by_count


class ModulusHashMatcher:
    """All destinations in the order of their names; `name_of` returns the name of one."""

    __slots__ = ("_destinations", "_name_of", "_slots")

    uses_message: ClassVar[bool] = False
    uses_all_keys: ClassVar[bool] = False

    def __init__(self, name_of: Callable[[Any], str] = str) -> None:
        self._name_of = name_of
        self._destinations: dict[Hashable, int] = {}
        self._slots: list[Hashable] | None = None  # one for each binding; None: to be numbered again

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Give the destination a share."""
        add_destination(self._destinations, destination)
        self._slots = None

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        drop_destination(self._destinations, destination)
        self._slots = None

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destination of the key."""
        if self._slots is None:
            self._slots = sorted(repeat_by_count(self._destinations), key=self._name_of)
        if self._slots:
            found[self._slots[hash_of(key) % len(self._slots)]] = None

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return not self._destinations
