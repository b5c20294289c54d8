"""Strict routing and binding keys (`strict_keys=True`). AMQP and its brokers allow any key. Pure."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from warrenmq.client.errors import Misuse

_WORD: Final = re.compile(r"[A-Za-z0-9_]*")
_WILDCARDS: Final = ("*", "#")


def check_routing_key(key: str) -> None:
    """Raise Misuse unless the key has only letters, digits, `_` and `.`.

    >>> check_routing_key("order.paid.eu_1")
    >>> check_routing_key("order.*")
    Traceback (most recent call last):
    warrenmq.client.errors.Misuse: strict_keys: the routing key 'order.*' may have only letters, digits, '_' and '.'
    """
    if not all(map(_WORD.fullmatch, key.split("."))):
        raise Misuse(f"strict_keys: the routing key {key!r:.300} may have only letters, digits, '_' and '.'")


def check_binding_key(key: str) -> None:
    """Raise Misuse unless each word is a word of routing keys, `*` or `#`, and no `#` is next to another wildcard.

    >>> check_binding_key("order.*.#")
    Traceback (most recent call last):
    warrenmq.client.errors.Misuse: strict_keys: in the binding key 'order.*.#' a '#' is next to another wildcard
    """
    words = key.split(".")
    if not all(word in _WILDCARDS or _WORD.fullmatch(word) for word in words):
        raise Misuse(
            f"strict_keys: the binding key {key!r:.300} may have only letters, digits, '_', '.' "
            "and the wildcards '*' and '#' as whole words"
        )
    if any("#" in pair and pair[0] in _WILDCARDS and pair[1] in _WILDCARDS for pair in pairwise(words)):
        raise Misuse(f"strict_keys: in the binding key {key!r:.300} a '#' is next to another wildcard")
