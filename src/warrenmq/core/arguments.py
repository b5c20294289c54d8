"""The optional arguments of queues and exchanges: what each may be, and which a redeclaration must repeat.

Checked when the queue is declared, in RabbitMQ's words, and kept with it. What the broker does not act on yet is named
in `NOT_ACTED_ON`, so that the edge can say so.
"""

from collections.abc import Callable, Mapping
from typing import Any

from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.routing.erlang_text import field_type

# RabbitMQ compares these when a queue is declared again, and no others; x-queue-type is compared by meaning.
COMPARED_ARGUMENTS = (
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
)

# Kept and compared, but without effect in this version.
NOT_ACTED_ON = frozenset(COMPARED_ARGUMENTS) - {
    "x-queue-mode",
    "x-queue-type",
    "x-queue-version",
    "x-queue-master-locator",
}

_NOT_FOR_QUORUM = frozenset({"x-max-priority", "x-queue-mode"})
_NOT_FOR_CLASSIC = frozenset(
    {
        "x-delivery-limit",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-quorum-initial-group-size",
        "x-queue-leader-locator",
        "x-dead-letter-strategy",
    }
)

LONGEST_MS = 315_360_000_000  # ten years, RabbitMQ's limit for a time

Check = Callable[[Any, Mapping[str, Any]], str]


def validate_queue_arguments(
    what: str, arguments: Mapping[str, Any], is_durable: bool, is_exclusive: bool, is_auto_delete: bool
) -> None:
    """Refuse with 406 what RabbitMQ refuses for a classic queue."""
    queue_type = arguments.get("x-queue-type", "classic")
    _require_known_type(what, queue_type, is_durable, is_exclusive, is_auto_delete)
    for name in arguments:
        if name in (_NOT_FOR_CLASSIC if queue_type == "classic" else _NOT_FOR_QUORUM):
            raise PreconditionFailed(f"invalid arg '{name}' for {what} of queue type rabbit_{queue_type}_queue")
    _require_text(what, "x-dead-letter-exchange", arguments)
    for name, check in _CHECKS.items():
        if name in arguments:
            fault = check(arguments[name], arguments)
            if fault:
                raise PreconditionFailed(f"invalid arg '{name}' for {what}: {fault}")


def _require_known_type(what: str, queue_type: Any, is_durable: bool, is_exclusive: bool, is_auto_delete: bool) -> None:
    if not isinstance(queue_type, str):
        raise PreconditionFailed(f"invalid arg 'x-queue-type' for {what}: {_unacceptable(queue_type)}")
    if queue_type == "classic":
        return
    if queue_type != "quorum":
        raise PreconditionFailed(f"invalid arg 'x-queue-type' for {what}: \"unsupported queue type '{queue_type}'\"")
    # A quorum queue is here a durable queue like any other: there is one node, and it keeps what it confirms.
    for property_name, is_wrong in (
        ("non-durable", not is_durable),
        ("exclusive-owner", is_exclusive),
        ("auto-delete", is_auto_delete),
    ):
        if is_wrong:
            raise PreconditionFailed(f"invalid property '{property_name}' for {what}")


def _require_text(what: str, name: str, arguments: Mapping[str, Any]) -> None:
    if name in arguments and not isinstance(arguments[name], str):
        raise PreconditionFailed(f"invalid type '{field_type(arguments[name])}' for arg '{name}' in {what}")


def validate_exchange_arguments(what: str, arguments: Mapping[str, Any]) -> None:
    """Refuse with 406 what RabbitMQ refuses for an exchange."""
    _require_text(what, "alternate-exchange", arguments)


def _integer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {field_type(value)}"'
    return ""


def _count(value: Any, arguments: Mapping[str, Any]) -> str:
    return _integer(value) or (f"{{value_negative,{value}}}" if value < 0 else "")


def _ttl(value: Any, arguments: Mapping[str, Any]) -> str:
    return _count(value, arguments) or (f"{{value_too_large,{value}}}" if value > LONGEST_MS else "")


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


def _flag(value: Any, arguments: Mapping[str, Any]) -> str:
    return "" if isinstance(value, bool) else _unacceptable(value)


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{field_type(value)}}}"


# In the order in which RabbitMQ looks at them.
_CHECKS: dict[str, Check] = {
    "x-expires": _expiry,
    "x-message-ttl": _ttl,
    "x-dead-letter-routing-key": _dead_letter_key,
    "x-max-length": _count,
    "x-max-length-bytes": _count,
    "x-max-priority": _priority,
    "x-overflow": _overflow,
    "x-queue-mode": _mode,
    "x-single-active-consumer": _flag,
    "x-queue-version": _version,
}
