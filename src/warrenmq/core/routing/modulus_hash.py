"""x-modulus-hash: the hash of the routing key, modulo the number of bindings, chooses one of them.

The bindings are numbered by the names of their destinations, so the same bindings lead a key to the same destination
after a restart. A binding more or less moves most keys: x-consistent-hash is for that. Binding keys and arguments do
not matter; a destination that is bound twice gets twice as much, as in RabbitMQ.
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
        """Let the destination have a share."""
        add_destination(self._destinations, destination)
        self._slots = None

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        drop_destination(self._destinations, destination)
        self._slots = None

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destination that the key leads to."""
        if self._slots is None:
            self._slots = sorted(repeat_by_count(self._destinations), key=self._name_of)
        if self._slots:
            found[self._slots[hash_of(key) % len(self._slots)]] = None

    def is_empty(self) -> bool:
        """Whether no binding is left."""
        return not self._destinations
