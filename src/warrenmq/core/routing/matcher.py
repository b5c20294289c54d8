"""The interface of matchers, the message data they may use, and counting of bindings that share a destination.

The caller keeps the list of bindings and calls `bind` and `unbind` once per distinct (key, arguments, destination).
Unbinding what was never bound is a bug of the caller: it raises KeyError and changes nothing.
"""

from collections.abc import Hashable, Mapping
from random import getrandbits
from typing import Protocol


class Traits:
    """The data of a message that matchers may use besides its routing keys.

    `header` is the content header as it came, `headers` the table in it, decoded.
    """

    __slots__ = ("_chosen", "_draws", "header", "headers")

    def __init__(self, header: bytes, headers: Mapping[str, object] | None) -> None:
        self.header = header
        self.headers = headers
        self._draws: dict[Hashable, int] | None = None
        self._chosen: dict[Hashable, Hashable] | None = None

    def draw(self, matcher: Hashable) -> int:
        """Return 64 random bits, the same for each call by this matcher: a transaction routes again on commit."""
        if self._draws is None:
            self._draws = {}
        return self._draws.setdefault(matcher, getrandbits(64))

    def chosen(self, matcher: Hashable) -> Hashable | None:
        """Return the destination that this matcher has chosen for the message, or None."""
        return None if self._chosen is None else self._chosen.get(matcher)

    def note_chosen(self, matcher: Hashable, destination: Hashable) -> None:
        """Note the choice of a matcher whose next choice may be different: the message may be routed again."""
        if self._chosen is None:
            self._chosen = {}
        self._chosen[matcher] = destination


class Matcher(Protocol):
    """Finds the destinations of a message among the bindings of one exchange."""

    @property
    def uses_message(self) -> bool:
        """True if routes depend on more than the routing key, so that they cannot be cached."""

    @property
    def uses_all_keys(self) -> bool:
        """True if `match` is also called for the keys in CC and BCC; else once, with the routing key."""

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Route messages that match the key and arguments to the destination."""

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Remove one binding; other bindings to the same destination stay."""

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destinations of the message to `found`, a set in insertion order.

        Without traits the key alone decides; a matcher that `uses_message` may then find nothing.
        """

    def is_empty(self) -> bool:
        """Return True if no binding is left."""


def add_destination(counts: dict[Hashable, int], destination: Hashable) -> None:
    """Count one more binding to the destination."""
    counts[destination] = counts.get(destination, 0) + 1


def drop_destination(counts: dict[Hashable, int], destination: Hashable) -> None:
    """Count one binding less; remove the destination with the last one."""
    remaining = counts[destination] - 1
    if remaining:
        counts[destination] = remaining
    else:
        del counts[destination]
