"""Routing: which destinations a routing key, or what else a message carries, leads to.

One matcher per exchange type, all with the shape of `Matcher`. They are plain algorithms: a destination is any hashable
object, and nothing here knows queues, messages or the wire but for what `Traits` carries.
"""

from collections.abc import Callable, Mapping
from typing import Any

from warrenmq.core.routing import consistent_hash, headers
from warrenmq.core.routing.consistent_hash import ConsistentHashMatcher
from warrenmq.core.routing.direct import DirectMatcher
from warrenmq.core.routing.fanout import FanoutMatcher
from warrenmq.core.routing.headers import HeadersMatcher
from warrenmq.core.routing.matcher import Matcher, Traits
from warrenmq.core.routing.modulus_hash import ModulusHashMatcher
from warrenmq.core.routing.random import RandomMatcher
from warrenmq.core.routing.topic import TopicMatcher

CONSISTENT_HASH = "x-consistent-hash"
MODULUS_HASH = "x-modulus-hash"
RECENT_HISTORY = "x-recent-history"

# What an exchange of each type makes when it is declared.
MATCHERS: dict[str, Callable[[], Matcher]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
    CONSISTENT_HASH: ConsistentHashMatcher,
    MODULUS_HASH: ModulusHashMatcher,
    "x-random": RandomMatcher,
    # What makes these special is the exchange's own (core/deduplication.py, core/history.py).
    "x-message-deduplication": FanoutMatcher,
    RECENT_HISTORY: FanoutMatcher,
}


def make_matcher(
    type: str, hash_header: str | None, hash_property: str | None, name_of: Callable[[Any], str]
) -> Matcher:
    """Return a matcher for an exchange. `name_of` returns a name that no other destination has."""
    if type == CONSISTENT_HASH:
        return ConsistentHashMatcher(hash_header, hash_property, name_of)
    if type == MODULUS_HASH:
        return ModulusHashMatcher(name_of)
    return MATCHERS[type]()


def validate_binding(type: str, key: str, arguments: Mapping[str, object]) -> None:
    """Refuse what an exchange of that type cannot be bound with: ValueError with RabbitMQ's words."""
    if type == CONSISTENT_HASH:
        consistent_hash.validate(key)
    elif type == "headers":
        headers.validate(arguments)


__all__ = [
    "MATCHERS",
    "ConsistentHashMatcher",
    "DirectMatcher",
    "FanoutMatcher",
    "HeadersMatcher",
    "Matcher",
    "ModulusHashMatcher",
    "RandomMatcher",
    "TopicMatcher",
    "Traits",
    "make_matcher",
    "validate_binding",
]
