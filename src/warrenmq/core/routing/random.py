"""x-random: each message goes to one of the bindings, chosen at random; keys and arguments do not matter.

As in RabbitMQ, the choice is between bindings: a destination bound twice gets twice as many messages.
"""

from collections.abc import Hashable, Mapping
from typing import ClassVar

from warrenmq.core.routing.matcher import Traits, add_destination, drop_destination


class RandomMatcher:
    """All destinations, one of which is drawn for each message."""

    __slots__ = ("_choices", "_destinations")

    uses_message: ClassVar[bool] = True
    uses_all_keys: ClassVar[bool] = False

    def __init__(self) -> None:
        self._destinations: dict[Hashable, int] = {}
        self._choices: list[Hashable] | None = None  # one for each binding; None: to be listed again

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Give the destination a share."""
        add_destination(self._destinations, destination)
        self._choices = None

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        drop_destination(self._destinations, destination)
        self._choices = None

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destination that is drawn for this message."""
        if self._choices is None:
            self._choices = repeat_by_count(self._destinations)
        if self._choices and traits is not None:
            found[self._choices[traits.draw(self) % len(self._choices)]] = None

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return not self._destinations


def repeat_by_count(counts: Mapping[Hashable, int]) -> list[Hashable]:
    """List each destination as often as it is bound."""
    return [destination for destination, count in counts.items() for _ in range(count)]
