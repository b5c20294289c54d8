"""The shape every matcher has, and the counting of bindings that share a destination.

The caller keeps the list of bindings and calls `bind` and `unbind` once per distinct (key, arguments, destination).
Unbinding what was never bound is a mistake of the caller and raises KeyError, leaving the matcher as it was.
"""

from collections.abc import Hashable, Mapping
from typing import Protocol


class Matcher(Protocol):
    """Finds the destinations of a message among the bindings of one exchange."""

    @property
    def uses_headers(self) -> bool:
        """True when routes depend on more than the routing key, so that they cannot be cached by it."""

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Lead messages that fit the key and arguments to the destination."""

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind; other bindings to the same destination stay."""

    def match(self, key: str, headers: Mapping[str, object] | None, found: dict[Hashable, None]) -> None:
        """Add each destination of the message to `found` (a set in insertion order) once."""

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
