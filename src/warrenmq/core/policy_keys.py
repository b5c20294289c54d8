"""The keys of policies: their validation, and how they are merged with the arguments of a queue or exchange.

Names, error texts and precedence are RabbitMQ's (table: docs/policies.md). A policy applies to a queue only if the
queue type supports all of its keys. Keys without a meaning on a single node are accepted without effect, so that
definitions of a RabbitMQ cluster can be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warrenmq.core.arguments import MAX_DURATION_MS, MAX_STREAM_SEGMENT, parse_age
from warrenmq.core.options import (
    CLASSIC,
    DROP_HEAD,
    QUORUM,
    REJECT_PUBLISH,
    REJECT_PUBLISH_DLX,
    STREAM,
)
from warrenmq.core.retry_options import is_backoff, is_jitter, is_number
from warrenmq.core.routing.erlang_text import is_integer, json_term

EXCHANGE = "exchange"
QUEUE_TYPES = frozenset({CLASSIC, QUORUM, STREAM})
APPLY_TO: Mapping[str, frozenset[str]] = {
    "queues": QUEUE_TYPES,
    "classic_queues": frozenset({CLASSIC}),
    "quorum_queues": frozenset({QUORUM}),
    "streams": frozenset({STREAM}),
    "exchanges": frozenset({EXCHANGE}),
    "all": QUEUE_TYPES | {EXCHANGE},
}

MAX_INTEGER = (1 << 63) - 1  # in a definition

# How a key is merged: which value wins.
LOWER = "lower"  # the lowest; a negative number is no limit
ARGUMENT = "argument"  # the argument, then the operator policy
POLICY = "policy"  # the policy

Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `what` completes "... is not a valid"; `not_for` are the queue types that do not support it."""

    what: str
    check: Check
    merge: str = ARGUMENT
    not_for: frozenset[str] = frozenset()
    is_for_operators: bool = False
    has_effect: bool = True


def _number(least: int, most: int = MAX_INTEGER) -> Check:
    return lambda value: is_integer(value) and least <= value <= most


def _one_of(*known: str | int) -> Check:
    return lambda value: not isinstance(value, bool | float) and value in known


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_age(value: Any) -> bool:
    return isinstance(value, str) and parse_age(value) is not None


def _is_text_number_or_list(value: Any) -> bool:
    """Check a value of a key of mirrored queues."""
    parts = value if isinstance(value, list) else [value]
    return all(isinstance(part, str) or _number(-MAX_INTEGER)(part) for part in parts)


_NOT_STREAM = frozenset({STREAM})
_ONLY_QUORUM = frozenset({CLASSIC, STREAM})
_ONLY_STREAM = frozenset({CLASSIC, QUORUM})
_ONLY_CLASSIC = frozenset({QUORUM, STREAM})
_LOCATORS = ("client-local", "balanced", "random", "least-leaders", "min-masters")


def _limit(what: str, check: Check, not_for: frozenset[str] = frozenset()) -> Key:
    return Key(what, check, LOWER, not_for, is_for_operators=True)


def _without_effect(
    what: str, check: Check, not_for: frozenset[str] = frozenset(), is_for_operators: bool = False
) -> Key:
    return Key(what, check, ARGUMENT, not_for, is_for_operators, has_effect=False)


KEYS: Mapping[str, Key] = {
    "alternate-exchange": Key("alternate exchange name", _is_text),
    "consumer-timeout": _limit("consumer timeout", _number(0, MAX_DURATION_MS)),
    "dead-letter-exchange": Key("dead letter exchange name", _is_text, not_for=_NOT_STREAM),
    "dead-letter-routing-key": Key("dead letter routing key", _is_text, not_for=_NOT_STREAM),
    "dead-letter-strategy": Key("dead letter strategy", _one_of("at-most-once", "at-least-once"), not_for=_ONLY_QUORUM),
    "delivery-limit": _limit("delivery limit", _number(-MAX_INTEGER), _ONLY_QUORUM),
    "expires": _limit("queue expiry", _number(1, MAX_DURATION_MS), _NOT_STREAM),
    "max-age": Key("max age", _is_age, POLICY, _ONLY_STREAM),
    "max-length": _limit("maximum length", _number(0), _NOT_STREAM),
    "max-length-bytes": _limit("maximum length in bytes", _number(0)),
    "message-ttl": _limit("message TTL", _number(0, MAX_DURATION_MS), _NOT_STREAM),
    "overflow": Key(
        "overflow value",
        _one_of(DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX),
        not_for=_NOT_STREAM,
        is_for_operators=True,
    ),
    "retry-backoff": Key("retry backoff", is_backoff, not_for=_NOT_STREAM),
    "retry-delay": Key("retry delay", is_number, not_for=_NOT_STREAM),
    "retry-jitter": Key("retry jitter", is_jitter, not_for=_NOT_STREAM),
    "retry-max": Key("number of retries", is_number, not_for=_NOT_STREAM),
    "retry-max-delay": Key("retry delay", is_number, not_for=_NOT_STREAM),
    "retry-ordered": Key("retry order", lambda value: isinstance(value, bool), not_for=_NOT_STREAM),
    "stream-max-segment-size-bytes": Key("segment size", _number(0, MAX_STREAM_SEGMENT), POLICY, _ONLY_STREAM),
    # About clusters, and about how RabbitMQ stores messages.
    "consumer-disconnected-timeout": _without_effect("consumer disconnected timeout", _number(0)),
    "ha-mode": _without_effect("ha-mode value", _is_text, _ONLY_CLASSIC, True),
    "ha-params": _without_effect("ha-params value", _is_text_number_or_list, _ONLY_CLASSIC, True),
    "ha-promote-on-failure": _without_effect("ha-promote-on-failure value", _is_text, _ONLY_CLASSIC, True),
    "ha-promote-on-shutdown": _without_effect("ha-promote-on-shutdown value", _is_text, _ONLY_CLASSIC, True),
    "ha-sync-batch-size": _without_effect("ha-sync-batch-size value", _number(1), _ONLY_CLASSIC, True),
    "ha-sync-mode": _without_effect("ha-sync-mode value", _is_text, _ONLY_CLASSIC, True),
    "initial-cluster-size": _without_effect("cluster size", _number(0), _ONLY_STREAM),
    "max-in-memory-bytes": _without_effect("maximum memory in bytes", _number(0), _ONLY_QUORUM, True),
    "max-in-memory-length": _without_effect("maximum memory in bytes", _number(0), _ONLY_QUORUM, True),
    "member-placement-tag": _without_effect(
        "member-placement-tag value. Must be a non-empty string",
        lambda value: _is_text(value) and value != "",
        is_for_operators=True,
    ),
    "queue-leader-locator": _without_effect("queue leader locator value", _one_of(*_LOCATORS)),
    "queue-master-locator": _without_effect("master locator", _one_of(*_LOCATORS), _ONLY_CLASSIC, True),
    "queue-mode": _without_effect("queue-mode value", _one_of("default", "lazy"), _ONLY_CLASSIC),
    "queue-version": _without_effect("queue-version value", _one_of(1, 2), is_for_operators=True),
    "stream-filter-size-bytes": _without_effect("filter size. Valid range is 16-255", _number(16, 255)),
    "target-group-size": _without_effect("qq target count value", _number(1), _ONLY_QUORUM, True),
}

# Not ignored, since the user would miss federated messages.
_FEDERATION = ("federation-upstream", "federation-upstream-set", "federation-upstream-pattern")


def find_fault(definition: Any, is_operator: bool) -> str:
    """Return the fault of a policy definition, in RabbitMQ's words; empty if there is none."""
    if not isinstance(definition, Mapping):
        return f"definition must be a dictionary: {json_term(definition)}"
    if not definition:
        return "no policy provided"
    unknown = []
    for name, value in sorted(definition.items()):
        key = KEYS.get(name)
        if key is None or (is_operator and not key.is_for_operators):
            unknown.append((name, value))
        elif not key.check(value):
            return f"{json_term(value)} is not a valid {key.what}"
    if not unknown:
        return ""
    shown = ",".join(f"{{{json_term(name)},{json_term(value)}}}" for name, value in unknown)
    has_federation = any(name in _FEDERATION for name, _ in unknown)
    hint = ": WarrenMQ has no federation, leave the key out" if has_federation else ""
    return f"[{shown}] are not recognised policy settings{hint}"


def keys_without_effect(definition: Mapping[str, Any]) -> list[str]:
    """Return the keys of a valid definition that have no effect."""
    return sorted(name for name in definition if not KEYS[name].has_effect)


def find_targets(apply_to: str, definition: Mapping[str, Any]) -> frozenset[str]:
    """Return the types of queues, and "exchange", to which a valid policy can apply."""
    targets = set(APPLY_TO[apply_to])
    for name in definition:
        targets -= KEYS[name].not_for
    return frozenset(targets)


def merge_definitions(policy: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged settings of a policy and an operator policy."""
    merged = {**policy, **operator}
    for name in policy.keys() & operator.keys():
        if KEYS[name].merge == LOWER:
            merged[name] = lower(policy[name], operator[name])
    return merged


def merge_queue_arguments(
    type: str, arguments: Mapping[str, Any], policy: Mapping[str, Any], operator: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a queue, changed by its policies."""
    merged = dict(arguments)
    for name in {**policy, **operator}:
        if KEYS[name].has_effect:
            argument = "x-" + name
            merged[argument] = _merge(type, name, arguments.get(argument), policy.get(name), operator.get(name))
    return merged


def _merge(type: str, name: str, argument: Any, policy: Any, operator: Any) -> Any:
    """Return the merged value of a key. None: not set; the policy or the operator policy sets it."""
    merge = KEYS[name].merge
    if merge == LOWER:
        # A policy may raise this limit of a stream, an operator policy never does.
        policy_wins = type == STREAM and name == "max-length-bytes" and policy is not None
        return lower(policy if policy_wins else lower(policy, argument), operator)
    setting = policy if operator is None else operator
    policy_wins = merge == POLICY or (type == QUORUM and name == "overflow")
    return setting if policy_wins or argument is None else argument


def merge_exchange_arguments(
    arguments: Mapping[str, Any], policy: Mapping[str, Any], operator: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of an exchange, changed by its policies: an argument wins."""
    settings = {**policy, **operator}
    return {name: settings[name] for name in ("alternate-exchange",) if name in settings} | dict(arguments)


def lower(one: Any, other: Any) -> Any:
    """Return the stricter limit. A negative one is no limit; None does not count."""
    if not is_integer(one) or not is_integer(other):
        return one if is_integer(one) else other
    return max(one, other) if one < 0 or other < 0 else min(one, other)
