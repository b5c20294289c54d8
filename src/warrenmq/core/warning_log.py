"""Warnings for the operator: clients and policies that ask for what has no effect.

Rate-limited by kind, so that clients cannot flood the log. The server sets `on_warning`, which logs them.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from warrenmq.core.turn import Turn

MAX_PER_PERIOD = 10  # of each kind
PERIOD_MS = 60_000


class WarningLog:
    """The warnings of one broker. Kinds are literals in the code, so there are few."""

    def __init__(self, turn: Turn) -> None:
        self.on_warning: Callable[[str], None] | None = None
        self._turn = turn
        self._recent: dict[str, tuple[int, int]] = {}  # by kind: start of the period, warnings in it

    def warn(self, kind: str, text: str) -> None:
        """Log the text, unless there were too many warnings of this kind within a minute."""
        now = self._turn.now_ms
        started, count = self._recent.get(kind, (now, 0))
        suppressed = 0
        if now - started >= PERIOD_MS:
            suppressed = max(0, count - MAX_PER_PERIOD)
            started, count = now, 0
        self._recent[kind] = (started, count + 1)
        if count < MAX_PER_PERIOD and self.on_warning is not None:
            self.on_warning(f"{text} ({suppressed} similar warnings suppressed)" if suppressed else text)
