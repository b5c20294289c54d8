"""Backpressure: publishers wait while memory or disk is short; consumers go on draining.

Memory is judged by what clients make the broker hold (`Stats.memory`), which falls as soon as it is released, unlike
the size of the process; what is known of the disk comes from outside (see disk_alarm.py). A connection that publishes
while an alarm is raised is not read any more, not even in the middle of a message, and gets connection.blocked if it
supports that.

A connection that is not read can neither finish its message nor commit its transaction. So these may take only a part
of the limit, and are refused beyond it: consumers can always make enough room for the alarm to end.

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
EVENTS = "events"  # they come faster than the event log can be written
RESOURCES = (MEMORY, DISK, EVENTS)

# The alarm ends this far below the limit, so that it does not flutter with every message.
_RELEASE_SHARE = 0.9
# Unfinished messages and open transactions may take this much of the limit; more if one message may be that large,
# but always well below the point where the alarm ends.
_UNFINISHED_SHARE = 0.5
_LARGEST_UNFINISHED_SHARE = 0.8
_BESIDE_THE_BODY = 64 * 1024  # of one message: its method and header


class Alarms:
    """Memory is short from `memory_limit` bytes on; a limit of 0 means that it never is."""

    __slots__ = ("_limit", "_release", "_stats", "blocked", "is_memory_short", "is_raised", "raised")

    def __init__(self, stats: Stats, memory_limit: int, max_message_size: int = 0) -> None:
        self._stats = stats
        stats.unfinished_limit = min(
            max(int(memory_limit * _UNFINISHED_SHARE), max_message_size + _BESIDE_THE_BODY),
            int(memory_limit * _LARGEST_UNFINISHED_SHARE),
        )
        self._limit = memory_limit
        self._release = int(memory_limit * _RELEASE_SHARE)
        self.is_memory_short = False
        self.raised: set[str] = set()  # the resources that are short
        self.is_raised = False  # any of them
        self.blocked: dict[AmqpConnection, None] = {}

    def judge(self) -> None:
        """Look at the memory after each turn."""
        if self._limit == 0:
            return
        if self.is_memory_short:
            if self._stats.memory() <= self._release:
                self.is_memory_short = False
                log.warning("%d bytes of memory are held again", self._stats.memory())
                self.set(MEMORY, False)
        elif self._stats.memory() >= self._limit:
            self.is_memory_short = True
            log.warning("%d bytes of memory are held, the limit is %d", self._stats.memory(), self._limit)
            self.set(MEMORY, True)

    def set(self, resource: str, is_short: bool) -> None:
        """Let publishers wait, or go on if nothing else is short."""
        if is_short is (resource in self.raised):
            return
        if is_short:
            self.raised.add(resource)
        else:
            self.raised.discard(resource)
        self.is_raised = len(self.raised) > 0
        if self.is_raised:
            log.warning("%s: publishers wait", self.reason())
        else:
            log.warning("alarms cleared, publishers resumed")
            waiting = list(self.blocked)
            self.blocked.clear()
            for connection in waiting:
                connection.unblock_publisher()

    def reason(self) -> str:
        """What is short, in RabbitMQ's words where it has them."""
        short = [resource for resource in (MEMORY, DISK) if resource in self.raised]
        words = ["low on " + " & ".join(short)] if short else []
        if EVENTS in self.raised:
            words.append("the event log is behind")
        return ", ".join(words)
