"""Remarks: what a client does that is allowed and has no effect, told to the one who runs the broker.

Rate-limited by kind, so that a client cannot fill the log with them. The server sets `on_remark`, which logs them.
Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from warrenmq.core.turn import Turn

# Of each kind, this many in this time.
MOST = 10
PERIOD_MS = 60_000


class Remarks:
    """The remarks of one broker. Kinds are named in the code: there are few."""

    def __init__(self, turn: Turn) -> None:
        self.on_remark: Callable[[str], None] | None = None
        self._turn = turn
        self._recent: dict[str, tuple[int, int]] = {}  # by kind: when the period began, how many came in it

    def tell(self, kind: str, text: str) -> None:
        """Pass the remark on, unless there were too many of this kind in the last minute."""
        now = self._turn.now_ms
        began, count = self._recent.get(kind, (now, 0))
        left_out = 0
        if now - began >= PERIOD_MS:
            left_out = max(0, count - MOST)
            began, count = now, 0
        self._recent[kind] = (began, count + 1)
        if count < MOST and self.on_remark is not None:
            self.on_remark(f"{text} ({left_out} more like this were not logged)" if left_out else text)
