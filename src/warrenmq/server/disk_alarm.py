"""The disk alarm: raised while the data folder has too little free space, or a writer waits for space there.

Free space is measured once a second, in a thread: a disk that hangs must not hang the loop.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from warrenmq.server.flow import DISK, Alarms

log = logging.getLogger("warrenmq.flow")

CHECK_INTERVAL = 1.0


class DiskAlarm:
    """Raised below `limit` free bytes; with a limit of 0, only while a writer waits for space."""

    def __init__(self, alarms: Alarms, limit: int, measure: Callable[[], int]) -> None:
        self._alarms = alarms
        self._limit = limit
        self._measure = measure  # returns the free bytes; may block
        self._is_low = False
        self._waiting_writers = 0
        self.free_bytes: int | None = None  # when last measured

    async def watch(self) -> None:
        """Check every CHECK_INTERVAL seconds, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_INTERVAL)

    async def check(self) -> None:
        try:
            free = await asyncio.to_thread(self._measure)
        except OSError as error:
            if self.free_bytes is not None:
                log.warning("cannot measure the free disk space: %s", error)
            self.free_bytes = None
        else:
            self.update(free)

    def update(self, free_bytes: int) -> None:
        """Raise or clear the alarm for this much free space."""
        self.free_bytes = free_bytes
        is_low = free_bytes < self._limit
        if is_low is not self._is_low:
            self._is_low = is_low
            relation = "below" if is_low else "above"
            log.warning("free disk space %s disk_free_limit: %d bytes, limit %d", relation, free_bytes, self._limit)
            self._update_alarm()

    def set_writer_waiting(self, is_waiting: bool) -> None:
        """Count a writer of the log or of segments that waits for space, or no longer does."""
        self._waiting_writers += 1 if is_waiting else -1
        self._update_alarm()

    def _update_alarm(self) -> None:
        self._alarms.set(DISK, self._is_low or self._waiting_writers > 0)
