"""x-consistent-hash: equal hash values go to the same destination; destinations get shares by weight.

The binding key is the weight. The hashed value is the routing key, a header or a property of the message.

Weighted rendezvous hashing: for each value, every destination draws a time from the hash of the value and its own name,
exponentially distributed with its weight as the rate, and the earliest wins. Shares are exactly proportional to the
weights; a new destination takes keys from the others without moving keys between them, and a removed one leaves its
keys to the others. The result depends only on names and weights, not on the order of the bindings. The cost of a match
grows with the number of destinations; the virtual host caches the routes of routing keys.

Of several bindings of one destination the first counts, as in RabbitMQ; when it is removed, the next one.

Compiled when the package is built (consistent_hash.pxd).
"""

import math
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from warrenmq.core.digest import hash_of
from warrenmq.core.routing.erlang_text import term
from warrenmq.core.routing.matcher import Traits
from warrenmq.protocol import properties

HEADER_ARGUMENT = "hash-header"
PROPERTY_ARGUMENT = "hash-property"
MAX_WEIGHT = 10_000  # of RabbitMQ since 4.3

# What `hash-property` may name.
PROPERTIES: dict[str, Callable[[bytes], object]] = {
    "correlation_id": properties.correlation_id,
    "message_id": properties.message_id,
    "timestamp": properties.timestamp,
}

_INTEGER = re.compile("[+-]?[0-9]+")
# As C numbers.
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_FIRST_FACTOR = 0xBF58_476D_1CE4_E5B9
_SECOND_FACTOR = 0x94D0_49BB_1331_11EB
_UNIT = 2.0**-53
_NEVER = float("inf")


def validate(key: str) -> None:
    """Refuse a binding key that is not a weight: ValueError with RabbitMQ's text, sent to the peer as 406."""
    if _INTEGER.fullmatch(key) is None:
        raise ValueError(f"The binding key must be an integer: {term(key)}")
    if int(key) < 1:
        raise ValueError("The binding key must be greater than 0")
    if int(key) > MAX_WEIGHT:
        raise ValueError(f"The binding key must not exceed {MAX_WEIGHT}")


class Share:
    """A destination, the hash of its name, and the mean of the times that it draws: 1 / weight."""

    __slots__ = ("destination", "mean", "seed")

    def __init__(self, seed: int, mean: float, destination: Hashable) -> None:
        self.seed = seed
        self.mean = mean
        self.destination = destination


class ConsistentHashMatcher:
    """Destinations with their weights. `name_of` returns the name of one; `header` and `property` what is hashed."""

    __slots__ = ("_header", "_keys", "_name_of", "_read_property", "_shares", "uses_message")

    uses_all_keys = False

    def __init__(
        self, header: str | None = None, property: str | None = None, name_of: Callable[[Any], str] = str
    ) -> None:
        self.uses_message = header is not None or property is not None
        self._header = header
        self._read_property = None if property is None else PROPERTIES[property]
        self._name_of = name_of
        self._keys: dict[Hashable, list[str]] = {}  # of all bindings of a destination, the oldest first
        self._shares: list[Share] | None = None  # by name; None: to be computed again

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Give the destination a share of this weight; ValueError as `validate`."""
        validate(key)
        self._keys.setdefault(destination, []).append(key)
        self._shares = None

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        keys = self._keys[destination]
        if key not in keys:
            raise KeyError(key)
        keys.remove(key)
        if not keys:
            del self._keys[destination]
        self._shares = None

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destination of the hashed value; messages without that header or property all go to the same."""
        if self._shares is None:
            self._shares = self._compute_shares()
        value = hash_of(self._read(key, traits))
        winner: Share | None = None
        earliest = _NEVER
        for share in self._shares:
            # The finalizer of SplitMix64, which makes independent values of the XOR.
            mixed = value ^ share.seed
            mixed = (mixed ^ mixed >> 30) * _FIRST_FACTOR & _MASK
            mixed = (mixed ^ mixed >> 27) * _SECOND_FACTOR & _MASK
            time = -math.log(((mixed ^ mixed >> 31) >> 11) * _UNIT + _UNIT) * share.mean
            if time < earliest:
                earliest = time
                winner = share
        if winner is not None:
            found[winner.destination] = None

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return not self._keys

    def _read(self, key: str, traits: Traits | None) -> object:
        if not self.uses_message:
            return key
        if traits is None:
            return None
        if self._read_property is not None:
            return self._read_property(traits.header)
        return None if traits.headers is None else traits.headers.get(self._header or "")

    def _compute_shares(self) -> list[Share]:
        by_name = sorted(self._keys, key=self._name_of)
        return [Share(hash_of(self._name_of(each)), 1.0 / int(self._keys[each][0]), each) for each in by_name]
