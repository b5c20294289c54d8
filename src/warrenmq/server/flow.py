"""Resource alarms: publishers are paused while memory or disk is short; consumers keep draining queues.

Memory is what clients make the broker hold (`Stats.memory`); unlike the size of the process it falls as soon as it is
released. The disk is watched by disk_alarm.py. A connection that publishes while an alarm is raised is no longer read,
not even in the middle of a message, and gets connection.blocked if it supports that.

A paused connection can neither finish its message nor commit its transaction. So unfinished ones may take only a part
of the limit and are refused beyond it; consumers can then always free enough memory for the alarm to end.

Owned by the loop thread. Compiled when the package is built (flow.pxd).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from warrenmq.core.stats import Stats

if TYPE_CHECKING:
    from warrenmq.server.connection import AmqpConnection

log = logging.getLogger("warrenmq.flow")

MEMORY = "memory"
DISK = "disk"
EVENTS = "events"  # recorded faster than the event log is written
RESOURCES = (MEMORY, DISK, EVENTS)

# The memory alarm ends at this share of the limit, so that it does not toggle with every message.
_RELEASE_SHARE = 0.9
# Unfinished messages and open transactions may take this share of the limit; more if max_message_size needs it, but
# always well below the point where the alarm ends.
_UNFINISHED_SHARE = 0.5
_MAX_UNFINISHED_SHARE = 0.8
_METHOD_AND_HEADER = 64 * 1024  # size allowance for one message


class Alarms:
    """Raised and cleared by resource. Memory is short from `memory_limit` bytes on; 0 means no limit."""

    __slots__ = ("_limit", "_release", "_stats", "blocked", "is_memory_short", "is_raised", "raised")

    def __init__(self, stats: Stats, memory_limit: int, max_message_size: int = 0) -> None:
        self._stats = stats
        stats.unfinished_limit = min(
            max(int(memory_limit * _UNFINISHED_SHARE), max_message_size + _METHOD_AND_HEADER),
            int(memory_limit * _MAX_UNFINISHED_SHARE),
        )
        self._limit = memory_limit
        self._release = int(memory_limit * _RELEASE_SHARE)
        self.is_memory_short = False
        self.raised: set[str] = set()  # resources that are short
        self.is_raised = False
        self.blocked: dict[AmqpConnection, None] = {}

    def check_memory(self) -> None:
        """Raise or clear the memory alarm; called after each turn."""
        if self._limit == 0:
            return
        if self.is_memory_short:
            if self._stats.memory() <= self._release:
                self.is_memory_short = False
                log.warning("memory below memory_limit: %d bytes, limit %d", self._stats.memory(), self._limit)
                self.set(MEMORY, False)
        elif self._stats.memory() >= self._limit:
            self.is_memory_short = True
            log.warning("memory above memory_limit: %d bytes, limit %d", self._stats.memory(), self._limit)
            self.set(MEMORY, True)

    def set(self, resource: str, is_short: bool) -> None:
        """Raise or clear one alarm; publishers are resumed when none is left."""
        if is_short is (resource in self.raised):
            return
        if is_short:
            self.raised.add(resource)
        else:
            self.raised.discard(resource)
        self.is_raised = len(self.raised) > 0
        if self.is_raised:
            log.warning("alarm: %s, publishers paused", self.reason())
        else:
            log.warning("alarms cleared, publishers resumed")
            waiting = list(self.blocked)
            self.blocked.clear()
            for connection in waiting:
                connection.unblock_publisher()

    def reason(self) -> str:
        """Return what is short, in RabbitMQ's words where it has them."""
        short = [resource for resource in (MEMORY, DISK) if resource in self.raised]
        reasons = ["low on " + " & ".join(short)] if short else []
        if EVENTS in self.raised:
            reasons.append("the event log is behind")
        return ", ".join(reasons)
