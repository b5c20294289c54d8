"""The optional arguments of queues, exchanges and consumers: validation, and which a redeclaration must repeat.

Arguments are validated at declaration, with RabbitMQ's error texts. Those in `IGNORED_ARGUMENTS` are accepted without
effect, and the server logs a warning.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from warrenmq.core import deduplication, history, retry_options
from warrenmq.core.consumer_filter import ARGUMENT as FILTER
from warrenmq.core.consumer_filter import find_fault as find_fault_of_filter
from warrenmq.core.durability import parse_durability
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.pace import ARGUMENT as RATE
from warrenmq.core.routing import CONSISTENT_HASH, DELAYED_MESSAGE, MATCHERS, RECENT_HISTORY
from warrenmq.core.routing.consistent_hash import HEADER_ARGUMENT, PROPERTIES, PROPERTY_ARGUMENT
from warrenmq.core.routing.erlang_text import field_type, is_integer, term

# RabbitMQ compares only these when a queue is redeclared; x-queue-type is compared by meaning. The first and those of
# deduplication and retry are WarrenMQ's.
COMPARED_QUEUE_ARGUMENTS = (
    "x-durability",
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-version",
    "x-queue-master-locator",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
    "x-queue-leader-locator",
    *deduplication.ARGUMENTS,
    *retry_options.ARGUMENTS,
)
DELAYED_TYPE = "x-delayed-type"
COMPARED_EXCHANGE_ARGUMENTS = ("alternate-exchange", DELAYED_TYPE, *deduplication.ARGUMENTS)

# Without effect: every queue has some of its messages in memory, and the rest on disk.
IGNORED_ARGUMENTS = frozenset({"x-max-in-memory-length", "x-max-in-memory-bytes"})

_NOT_FOR_QUORUM = frozenset({"x-max-priority", "x-queue-mode"})
_NOT_FOR_STREAM = frozenset(
    {
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-delivery-limit",
        "x-max-length",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-queue-master-locator",
        "x-quorum-initial-group-size",
        "x-single-active-consumer",
        *retry_options.ARGUMENTS,
    }
)
_NOT_FOR_CLASSIC = frozenset(
    {
        "x-delivery-limit",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-stream-filter-size-bytes",
        "x-initial-cluster-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-quorum-initial-group-size",
        "x-queue-leader-locator",
        "x-dead-letter-strategy",
    }
)

_NOT_FOR = {"classic": _NOT_FOR_CLASSIC, "quorum": _NOT_FOR_QUORUM, "stream": _NOT_FOR_STREAM}

MAX_DURATION_MS = 315_360_000_000  # ten years, RabbitMQ's limit for a time
MAX_STREAM_SEGMENT = 3_000_000_000

_AGE = re.compile("([0-9]{1,18})([YMDhms])")
_UNITS_MS = {"Y": 31_536_000_000, "M": 2_592_000_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}

Check = Callable[[Any, Mapping[str, Any]], str]


def validate_queue_arguments(
    what: str, arguments: Mapping[str, Any], is_durable: bool, is_exclusive: bool, is_auto_delete: bool
) -> None:
    """Refuse with 406 what RabbitMQ refuses for a queue of that type."""
    queue_type = queue_type_of(arguments)
    _require_known_type(what, queue_type)
    for name in arguments:
        if name in _NOT_FOR[queue_type]:
            raise PreconditionFailed(f"invalid arg '{name}' for {what} of queue type rabbit_{queue_type}_queue")
    _require_text(what, "x-dead-letter-exchange", arguments)
    _run_checks(what, arguments, _CHECKS)
    _run_checks(what, arguments, _DEDUPLICATION_CHECKS)
    _run_checks(what, arguments, _RETRY_CHECKS)
    if queue_type != "classic":
        _require_durable(what, is_durable, is_exclusive, is_auto_delete)
    if queue_type == "stream" and arguments.get("x-stream-max-segment-size-bytes", 0) > MAX_STREAM_SEGMENT:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")
    # The size of RabbitMQ's Bloom filters, which WarrenMQ does not need. RabbitMQ's text also has the two spaces.
    if queue_type == "stream" and not 16 <= arguments.get("x-stream-filter-size-bytes", 16) <= 255:
        raise PreconditionFailed("Invalid value for  x-stream-filter-size-bytes")


def validate_consumer_arguments(what: str, arguments: Mapping[str, Any]) -> None:
    """Refuse with 406 what RabbitMQ refuses for a consumer."""
    _run_checks(what, arguments, _CONSUMER_CHECKS)


def require_name(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse to generate a name for a quorum queue or stream."""
    queue_type = queue_type_of(arguments)
    if not name and queue_type in ("quorum", "stream"):
        raise PreconditionFailed(f"Cannot declare a server-named queue for type rabbit_{queue_type}_queue")


def find_ignored_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments that have no effect."""
    ignored = IGNORED_ARGUMENTS.intersection(arguments)
    if arguments.get(deduplication.ENABLED) is not True:
        ignored |= set(deduplication.ARGUMENTS[1:]).intersection(arguments)
    return sorted(ignored)


def queue_type_of(arguments: Mapping[str, Any]) -> Any:
    """Return the queue type in the arguments; unvalidated arguments may have any value."""
    return arguments.get("x-queue-type", "classic")


def parse_age(text: str) -> int | None:
    """Return the milliseconds of a text such as "7D" or "12h"; None for any other text."""
    match = _AGE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        return None
    return int(match[1]) * _UNITS_MS[match[2]]


def _require_known_type(what: str, queue_type: Any) -> None:
    if not isinstance(queue_type, str):
        raise PreconditionFailed(f"invalid arg 'x-queue-type' for {what}: {_unacceptable(queue_type)}")
    if queue_type not in _NOT_FOR:
        raise PreconditionFailed(f"invalid arg 'x-queue-type' for {what}: \"unsupported queue type '{queue_type}'\"")


def _require_durable(what: str, is_durable: bool, is_exclusive: bool, is_auto_delete: bool) -> None:
    # With one node a quorum queue is a durable queue like any other.
    for property_name, is_wrong in (
        ("auto-delete", is_auto_delete),
        ("exclusive-owner", is_exclusive),
        ("non-durable", not is_durable),
    ):
        if is_wrong:
            raise PreconditionFailed(f"invalid property '{property_name}' for {what}")


def _require_text(what: str, name: str, arguments: Mapping[str, Any]) -> None:
    if name in arguments and not isinstance(arguments[name], str):
        raise PreconditionFailed(f"invalid type '{field_type(arguments[name])}' for arg '{name}' in {what}")


def validate_exchange_arguments(what: str, type: str, arguments: Mapping[str, Any]) -> None:
    """Refuse with 406 what RabbitMQ refuses for an exchange of that type."""
    _require_text(what, "alternate-exchange", arguments)
    _run_checks(what, arguments, _DEDUPLICATION_CHECKS)
    if type == DELAYED_MESSAGE:
        type = _require_delayed_type(arguments)
    if type == CONSISTENT_HASH:
        _require_hash_source(what, arguments)
    elif type == RECENT_HISTORY:
        _require_history_length(arguments)


def _require_delayed_type(arguments: Mapping[str, Any]) -> str:
    """Return the type by which an x-delayed-message exchange routes."""
    type = arguments.get(DELAYED_TYPE)
    if not isinstance(type, str) or type not in MATCHERS or type == DELAYED_MESSAGE:
        raise PreconditionFailed(f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type")
    return type


def _require_hash_source(what: str, arguments: Mapping[str, Any]) -> None:
    _require_text(what, HEADER_ARGUMENT, arguments)
    _require_text(what, PROPERTY_ARGUMENT, arguments)
    if HEADER_ARGUMENT in arguments and PROPERTY_ARGUMENT in arguments:
        raise PreconditionFailed(f"{HEADER_ARGUMENT} and {PROPERTY_ARGUMENT} are mutually exclusive")
    if PROPERTY_ARGUMENT in arguments and arguments[PROPERTY_ARGUMENT] not in PROPERTIES:
        raise PreconditionFailed(f"Unsupported property: {arguments[PROPERTY_ARGUMENT]}")


def _require_history_length(arguments: Mapping[str, Any]) -> None:
    length = arguments.get(history.LENGTH_ARGUMENT, history.DEFAULT_LENGTH)
    if not is_integer(length) or length < 1:
        raise PreconditionFailed(
            f"Invalid argument {term(length)}, '{history.LENGTH_ARGUMENT}' must be a positive integer"
        )


def _run_checks(what: str, arguments: Mapping[str, Any], checks: "Mapping[str, Check]") -> None:
    for name, check in checks.items():
        if name in arguments:
            fault = check(arguments[name], arguments)
            if fault:
                raise PreconditionFailed(f"invalid arg '{name}' for {what}: {fault}")


def _integer(value: Any) -> str:
    if not is_integer(value):
        return f'"expected integer, got {field_type(value)}"'
    return ""


def _whole(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value)


def _count(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value) or (f"{{value_negative,{value}}}" if value < 0 else "")


def _rate(value: Any, arguments: Mapping[str, Any]) -> str:
    if not is_integer(value) and not isinstance(value, (float, Decimal)):
        return f'"expected number, got {field_type(value)}"'
    return "" if isfinite(value) and value > 0 else f'"expected number above 0, got {term(value)}"'


def _filter(value: Any, arguments: Mapping[str, Any]) -> str:
    return find_fault_of_filter(value)


def _ttl(value: Any, arguments: Mapping[str, Any]) -> str:
    return _count(value, arguments) or (f"{{value_too_large,{value}}}" if value > MAX_DURATION_MS else "")


def _expiry(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value) or ("{value_zero,0}" if value == 0 else _ttl(value, arguments))


def _priority(value: Any, arguments: Mapping[str, Any]) -> str:
    return _count(value, arguments) or (f"{{max_value_exceeded,{value}}}" if value > 255 else "")


def _overflow(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("drop-head", "reject-publish", "reject-publish-dlx") else "invalid_overflow"


def _mode(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("default", "lazy") else f"\"unsupported queue mode '{value}'\""


def _version(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value) or ("" if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


def _dead_letter_key(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if "x-dead-letter-exchange" in arguments else "routing_key_but_no_dlx_defined"


def _dead_letter_strategy(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("at-most-once", "at-least-once") else "invalid_dlx_strategy"


def _flag(value: Any, arguments: Mapping[str, Any]) -> str:
    return "" if isinstance(value, bool) else _unacceptable(value)


def _age(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if parse_age(value) is not None else "invalid_max_age"


def _positive(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value) or ("{value_zero,0}" if value == 0 else _count(value, arguments))


def _leader(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("client-local", "balanced", "random", "least-leaders") else "invalid_queue_locator_arg"


def _durability(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    try:
        parse_durability(value)
    except ValueError:
        return f"\"expected fsync, interval=MS or os, got '{value}'\""
    return ""


def _backoff(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    known = ", ".join(retry_options.BACKOFFS)
    return "" if retry_options.is_backoff(value) else f"\"expected one of {known}, got '{value}'\""


def _jitter(value: Any, arguments: Mapping[str, Any]) -> str:
    if not is_integer(value) and not isinstance(value, float):
        return f'"expected number, got {field_type(value)}"'
    return "" if retry_options.is_jitter(value) else f'"expected a number from 0 to 1, got {term(value)}"'


def _only_for_queues(value: Any, arguments: Mapping[str, Any]) -> str:
    return '"an argument of queues"'


def _cache_size(value: Any, arguments: Mapping[str, Any]) -> str:
    number = _number(value)
    if number is None or number < 1:
        return _positive(value, arguments)
    largest = deduplication.MAX_SIZE
    return f'"at most {largest} ids can be remembered"' if number > largest else ""


def _cache_ttl(value: Any, arguments: Mapping[str, Any]) -> str:
    number = _number(value)
    return _expiry(value if number is None else number, arguments)


def _number(value: Any) -> int | None:
    """Return an integer, also from text: clients of RabbitMQ's plugin may send numbers as text."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,15}", value):
        return int(value)
    return value if is_integer(value) else None


def _header_name(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    size = len(value.encode("utf-8", "surrogateescape"))
    return "" if 0 < size <= 255 else '"expected the name of a header, of 1 to 255 bytes"'


def _persistence(value: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return _unacceptable(value)
    return "" if value in ("memory", "disk") else f"\"expected memory or disk, got '{value}'\""


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{field_type(value)}}}"


# In RabbitMQ's order.
_CHECKS: dict[str, Check] = {
    "x-expires": _expiry,
    "x-message-ttl": _ttl,
    "x-dead-letter-routing-key": _dead_letter_key,
    "x-dead-letter-strategy": _dead_letter_strategy,
    "x-max-length": _count,
    "x-max-length-bytes": _count,
    "x-max-priority": _priority,
    "x-overflow": _overflow,
    "x-queue-mode": _mode,
    "x-single-active-consumer": _flag,
    "x-consumer-timeout": _count,
    "x-delivery-limit": _whole,
    "x-queue-version": _version,
    "x-max-age": _age,
    "x-stream-max-segment-size-bytes": _count,
    "x-stream-filter-size-bytes": _count,
    "x-initial-cluster-size": _positive,
    "x-queue-leader-locator": _leader,
    "x-durability": _durability,
}


_DEDUPLICATION_CHECKS: dict[str, Check] = {
    deduplication.ENABLED: _flag,
    deduplication.SIZE: _cache_size,
    deduplication.TTL: _cache_ttl,
    deduplication.HEADER: _header_name,
    deduplication.PERSISTENCE: _persistence,
}

_RETRY_CHECKS: dict[str, Check] = {
    "x-retry-max": _ttl,
    "x-retry-delay": _ttl,
    "x-retry-backoff": _backoff,
    "x-retry-max-delay": _ttl,
    "x-retry-jitter": _jitter,
    "x-retry-ordered": _flag,
}

_CONSUMER_CHECKS: dict[str, Check] = {
    "x-priority": _whole,
    "x-consumer-timeout": _count,
    RATE: _rate,
    FILTER: _filter,
    **_RETRY_CHECKS,
    "x-retry-ordered": _only_for_queues,
}
