"""The disk alarm: raised while the data folder has too little free space, or something waits to be written there.

The folder is looked at once a second, in a thread: a disk that hangs must not hang the loop.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from warrenmq.server.flow import DISK, Alarms

log = logging.getLogger("warrenmq.flow")

LOOK_INTERVAL = 1.0


class DiskAlarm:
    """Raised below `limit` bytes; a limit of 0 leaves it to those who write to say that the disk is full."""

    def __init__(self, alarms: Alarms, limit: int, measure: Callable[[], int]) -> None:
        self._alarms = alarms
        self._limit = limit
        self._measure = measure  # the free bytes; may block
        self._is_low = False
        self._waiting_writers = 0  # for space
        self.free_bytes: int | None = None  # as last seen

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_INTERVAL)

    async def look(self) -> None:
        try:
            free = await asyncio.to_thread(self._measure)
        except OSError as error:
            if self.free_bytes is not None:
                log.warning("cannot tell how much of the disk is free: %s", error)
            self.free_bytes = None
        else:
            self.judge(free)

    def judge(self, free_bytes: int) -> None:
        """So many are free."""
        self.free_bytes = free_bytes
        is_low = free_bytes < self._limit
        if is_low is not self._is_low:
            self._is_low = is_low
            again = "only" if is_low else "again"
            log.warning("the data folder has %s %d bytes free, the limit is %d", again, free_bytes, self._limit)
            self._decide()

    def log_is_full(self, is_full: bool) -> None:
        """One who writes the log or the segments waits for space, or has got it."""
        self._waiting_writers += 1 if is_full else -1
        self._decide()

    def _decide(self) -> None:
        self._alarms.set(DISK, self._is_low or self._waiting_writers > 0)
