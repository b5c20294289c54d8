"""The settings of automatic retry: from the arguments of a queue, and from the headers of a message (retry.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from warrenmq.core.routing.erlang_text import is_integer

PREFIX = "x-retry-"
EXPONENTIAL = "exponential"
LINEAR = "linear"
FIXED = "fixed"
BACKOFFS = (EXPONENTIAL, LINEAR, FIXED)

DEFAULT_MAX = 16
DEFAULT_DELAY_MS = 1000
DEFAULT_MAX_DELAY_MS = 3_600_000
_MAX_DOUBLINGS = 40


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """`max` is the number of redeliveries. `jitter` is the part of a delay that varies at random, 0 to 1."""

    max: int = DEFAULT_MAX
    delay_ms: int = DEFAULT_DELAY_MS
    backoff: str = EXPONENTIAL
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS
    jitter: float = 0.0
    is_ordered: bool = False

    def delay_after(self, attempts: int, random: float) -> int:
        """Return the delay after this many attempts, with a random number from 0 to 1 for the jitter."""
        delay_ms = self.delay_ms
        if self.backoff == EXPONENTIAL:
            delay_ms <<= min(attempts - 1, _MAX_DOUBLINGS)
        elif self.backoff == LINEAR:
            delay_ms *= attempts
        return round(min(delay_ms, self.max_delay_ms) * (1 - self.jitter * random))


def retry_options(arguments: Mapping[str, Any], default_max: int | None) -> RetryOptions | None:
    """Return the settings of a queue with these arguments; None if it does not retry."""
    if not any(name in arguments for name in _FIELDS):
        return None
    options = RetryOptions(max=DEFAULT_MAX if default_max is None or default_max < 0 else default_max)
    return override(options, arguments)[0]


def override(options: RetryOptions, settings: Mapping[str, Any]) -> tuple[RetryOptions, str]:
    """Return the options changed by headers or arguments, and the name of an invalid one, which is skipped, or ""."""
    invalid = ""
    changes: dict[str, Any] = {}
    for name, (field, is_valid) in _FIELDS.items():
        if settings.get(name) is not None:
            if is_valid(settings[name]):
                changes[field] = settings[name]
            else:
                invalid = name
    return replace(options, **changes), invalid


def is_number(value: Any) -> bool:
    return is_integer(value) and 0 <= value <= 315_360_000_000


def is_jitter(value: Any) -> bool:
    return (is_integer(value) or isinstance(value, float)) and 0 <= value <= 1


def is_backoff(value: Any) -> bool:
    return isinstance(value, str) and value in BACKOFFS


_FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "x-retry-max": ("max", is_number),
    "x-retry-delay": ("delay_ms", is_number),
    "x-retry-backoff": ("backoff", is_backoff),
    "x-retry-max-delay": ("max_delay_ms", is_number),
    "x-retry-jitter": ("jitter", is_jitter),
    "x-retry-ordered": ("is_ordered", lambda value: isinstance(value, bool)),
}
ARGUMENTS = tuple(_FIELDS)
