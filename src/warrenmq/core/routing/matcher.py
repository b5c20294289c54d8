"""The shape every matcher has, what it may know of a message, and the counting of bindings that share a destination.

The caller keeps the list of bindings and calls `bind` and `unbind` once per distinct (key, arguments, destination).
Unbinding what was never bound is a mistake of the caller and raises KeyError, leaving the matcher as it was.
"""

from collections.abc import Hashable, Mapping
from random import getrandbits
from typing import Protocol


class Traits:
    """What matchers may look at in one message beside its routing keys.

    `header` is the content header as it came, `headers` the table in it, decoded.
    """

    __slots__ = ("_draws", "header", "headers")

    def __init__(self, header: bytes, headers: Mapping[str, object] | None) -> None:
        self.header = header
        self.headers = headers
        self._draws: dict[Hashable, int] | None = None

    def draw(self, matcher: Hashable) -> int:
        """Return 64 random bits; the same if this matcher asks again, as when a transaction is committed."""
        if self._draws is None:
            self._draws = {}
        return self._draws.setdefault(matcher, getrandbits(64))


class Matcher(Protocol):
    """Finds the destinations of a message among the bindings of one exchange."""

    @property
    def uses_message(self) -> bool:
        """True when routes depend on more than the routing key, so that they cannot be cached by it."""

    @property
    def uses_all_keys(self) -> bool:
        """True if `match` is called for the keys in CC and BCC, too; else once, with the routing key."""

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Lead messages that fit the key and arguments to the destination."""

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind; other bindings to the same destination stay."""

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add each destination of the message to `found` (a set in insertion order) once.

        Without traits the answer is what the key alone says; a matcher that `uses_message` may find nothing.
        """

    def is_empty(self) -> bool:
        """Whether no binding is left."""


def add_destination(counts: dict[Hashable, int], destination: Hashable) -> None:
    """Count one more binding to the destination."""
    counts[destination] = counts.get(destination, 0) + 1


def drop_destination(counts: dict[Hashable, int], destination: Hashable) -> None:
    """Count one binding less; the last one takes the destination away."""
    remaining = counts[destination] - 1
    if remaining:
        counts[destination] = remaining
    else:
        del counts[destination]
