"""Redeclarations must be equivalent to what exists, or the channel is closed with 406, with RabbitMQ's texts."""

from collections.abc import Mapping
from typing import Any

from warrenmq.core.arguments import queue_type_of
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.routing.erlang_text import field_type, term
from warrenmq.core.routing.headers import comparable


def require_same_flag(flag: str, what: str, received: str | bool, current: str | bool) -> None:
    """Refuse a redeclaration whose type or flag differs."""
    if received != current:
        raise PreconditionFailed(
            f"inequivalent arg '{flag}' for {what}: received '{_word(received)}' but current is '{_word(current)}'"
        )


def require_same_arguments(
    what: str, received: Mapping[str, Any], current: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    """Refuse a redeclaration in which one of these arguments differs."""
    for name in names:
        if name not in received and name not in current:
            continue
        if name == "x-queue-type" and queue_type_of(received) == queue_type_of(current):
            continue
        if name in received and name in current:
            if _are_equal(received[name], current[name]):
                continue
            theirs, ours = f"'{_shown(received[name])}'", f"'{_shown(current[name])}'"
        else:
            theirs, ours = _described(name, received), _described(name, current)
        raise PreconditionFailed(f"inequivalent arg '{name}' for {what}: received {theirs} but current is {ours}")


def _are_equal(theirs: Any, ours: Any) -> bool:
    """Compare values: integers of any width by value; a float never equals an integer."""
    return isinstance(theirs, float) == isinstance(ours, float) and comparable(theirs) == comparable(ours)


def _described(name: str, arguments: Mapping[str, Any]) -> str:
    if name not in arguments:
        return "none"
    value = arguments[name]
    return f"the value '{_shown(value)}' of type '{field_type(value)}'"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else term(value)


def _word(value: str | bool) -> str:
    return value if isinstance(value, str) else "true" if value else "false"
