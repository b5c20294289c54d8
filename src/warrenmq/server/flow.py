"""Backpressure: publishers wait while the messages held take too much memory; consumers go on draining.

The alarm judges the bytes that waiting and unacked messages take (`Stats.held_bytes`), which fall as soon as messages
leave, unlike the size of the process. A connection that publishes while it is raised is not read any more, and is told
so if it can hear it (connection.blocked).

Owned by the loop thread. Compiled when the package is built (flow.pxd).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from warrenmq.core.stats import Stats

if TYPE_CHECKING:
    from warrenmq.server.connection import AmqpConnection

log = logging.getLogger("warrenmq.flow")

REASON = "low on memory"

# The alarm ends this far below the limit, so that it does not flutter with every message.
_RELEASE_SHARE = 0.9


class MemoryAlarm:
    """Raised from `limit` bytes on; a limit of 0 never raises it."""

    __slots__ = ("_limit", "_release", "_stats", "blocked", "is_raised")

    def __init__(self, stats: Stats, limit: int) -> None:
        self._stats = stats
        self._limit = limit
        self._release = int(limit * _RELEASE_SHARE)
        self.is_raised = False
        self.blocked: dict[AmqpConnection, None] = {}

    def judge(self) -> None:
        """Look at the memory after each turn."""
        if self._limit == 0:
            return
        if self.is_raised:
            if self._stats.held_bytes <= self._release:
                self._clear()
        elif self._stats.held_bytes >= self._limit:
            self.is_raised = True
            log.warning("messages hold %d bytes, the limit is %d: publishers wait", self._stats.held_bytes, self._limit)

    def _clear(self) -> None:
        self.is_raised = False
        log.warning("messages hold %d bytes again: publishers go on", self._stats.held_bytes)
        waiting = list(self.blocked)
        self.blocked.clear()
        for connection in waiting:
            connection.unblock_publisher()
