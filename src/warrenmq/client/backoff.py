"""Exponential backoff with jitter.

The jitter keeps a thousand clients that lost the same broker from reconnecting at the same instant. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Exponential delays: `initial`, times `factor` each time, at most `longest`, minus a random part up to `jitter`.

    >>> backoff = Backoff(initial=1, factor=2, longest=5, jitter=0)
    >>> [backoff.next() for _ in range(4)]
    [1, 2, 4, 5]
    >>> backoff.attempt
    4
    >>> backoff.reset(); backoff.next()
    1
    """

    __slots__ = ("_current", "_random", "attempt", "factor", "initial", "jitter", "longest")

    def __init__(
        self,
        initial: float = 0.2,
        factor: float = 2.0,
        longest: float = 30.0,
        jitter: float = 0.5,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.initial = initial
        self.factor = factor
        self.longest = longest
        self.jitter = jitter
        self._random = random
        self.reset()

    def reset(self) -> None:
        """Start again with the initial delay, after a success."""
        self.attempt = 0
        self._current = min(self.initial, self.longest)

    def next(self) -> float:
        """Return the delay before the next attempt, and count the attempt."""
        whole = self._current
        self.attempt += 1
        self._current = min(whole * self.factor, self.longest)
        return whole - whole * self.jitter * self._random() if self.jitter else whole
