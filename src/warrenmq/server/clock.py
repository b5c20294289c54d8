"""The broker's clock: milliseconds since 1970, never going back.

When the system clock is set back, the broker's continues at half speed until both agree: timers are late then, but do
not stop, and records of a stream stay in order. When it is set forward, the broker's follows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns

Clock = Callable[[], int]


def system_time_ms() -> int:
    return time_ns() // 1_000_000


class SteadyClock:
    """Returns the time when called. `source` is the clock that may be set."""

    def __init__(self, source: Clock = system_time_ms) -> None:
        self._source = source
        self._ahead = 0  # milliseconds ahead of the source
        self._last = source()

    def __call__(self) -> int:
        now = self._source() + self._ahead
        passed = now - self._last
        if passed < 0:
            self._ahead -= passed
            return self._last
        if self._ahead:
            slowed = min(self._ahead, passed // 2)
            self._ahead -= slowed
            now -= slowed
        self._last = now
        return now
