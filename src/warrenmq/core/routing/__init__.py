"""Routing: from a routing key, headers or properties to destinations.

One matcher per exchange type, with the interface `Matcher`. Matchers are plain algorithms: a destination is any
hashable object, and nothing here knows queues, messages or the wire format except `Traits`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from warrenmq.core.routing import consistent_hash, headers
from warrenmq.core.routing.consistent_hash import ConsistentHashMatcher
from warrenmq.core.routing.direct import DirectMatcher
from warrenmq.core.routing.fanout import FanoutMatcher
from warrenmq.core.routing.headers import HeadersMatcher
from warrenmq.core.routing.least_loaded import LeastLoadedMatcher
from warrenmq.core.routing.matcher import Matcher, Traits
from warrenmq.core.routing.modulus_hash import ModulusHashMatcher
from warrenmq.core.routing.random import RandomMatcher
from warrenmq.core.routing.topic import TopicMatcher

CONSISTENT_HASH = "x-consistent-hash"
LEAST_LOADED = "x-least-loaded"
MODULUS_HASH = "x-modulus-hash"
RECENT_HISTORY = "x-recent-history"

DELAYED_MESSAGE = "x-delayed-message"

# The matcher of each exchange type.
MATCHERS: dict[str, Callable[[], Matcher]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
    CONSISTENT_HASH: ConsistentHashMatcher,
    MODULUS_HASH: ModulusHashMatcher,
    "x-random": RandomMatcher,
    LEAST_LOADED: LeastLoadedMatcher,
    # The exchange itself does what is special about these (core/deduplication.py, core/history.py).
    "x-message-deduplication": FanoutMatcher,
    RECENT_HISTORY: FanoutMatcher,
    DELAYED_MESSAGE: DirectMatcher,  # that of its `x-delayed-type`
}


def make_matcher(
    type: str,
    hash_header: str | None,
    hash_property: str | None,
    name_of: Callable[[Any], str],
    load_of: Callable[[Any], int],
) -> Matcher:
    """Return a matcher for an exchange. `name_of` returns the unique name of a destination, `load_of` its load."""
    if type == CONSISTENT_HASH:
        return ConsistentHashMatcher(hash_header, hash_property, name_of)
    if type == MODULUS_HASH:
        return ModulusHashMatcher(name_of)
    if type == LEAST_LOADED:
        return LeastLoadedMatcher(load_of)
    return MATCHERS[type]()


def validate_binding(type: str, key: str, arguments: Mapping[str, object]) -> None:
    """Validate a binding to an exchange of that type: ValueError with RabbitMQ's text."""
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
    "LeastLoadedMatcher",
    "Matcher",
    "ModulusHashMatcher",
    "RandomMatcher",
    "TopicMatcher",
    "Traits",
    "make_matcher",
    "validate_binding",
]
