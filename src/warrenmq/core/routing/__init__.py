"""Routing: which destinations a routing key, or a message's headers, leads to.

One matcher per exchange type, all with the shape of `Matcher`. They are plain algorithms: a destination is any hashable
object, and nothing here knows queues, messages or the wire.
"""

from collections.abc import Callable

from warrenmq.core.routing.direct import DirectMatcher
from warrenmq.core.routing.fanout import FanoutMatcher
from warrenmq.core.routing.headers import HeadersMatcher
from warrenmq.core.routing.matcher import Matcher
from warrenmq.core.routing.topic import TopicMatcher

# What an exchange of each type makes when it is declared.
MATCHERS: dict[str, Callable[[], Matcher]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
    "x-message-deduplication": FanoutMatcher,  # what makes it special is the exchange's own (core/deduplication.py)
}

__all__ = ["MATCHERS", "DirectMatcher", "FanoutMatcher", "HeadersMatcher", "Matcher", "TopicMatcher"]
