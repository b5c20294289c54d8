"""Waits for room on a full disk, and for file descriptors.

Each thread that writes has a `SpaceWaiter`: work that fails for lack of space, descriptors or memory is repeated until
it succeeds; any other error is raised. Publishers are not read meanwhile.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Any

from warrenmq.journal.files import NO_DESCRIPTOR
from warrenmq.storage.catalog import CatalogFull

log = logging.getLogger("warrenmq.storage")

FULL_DISK_RETRY = 0.5
FULL = (errno.ENOSPC, errno.EDQUOT)
# Passes by itself: others return descriptors or memory.
SHORT = (*NO_DESCRIPTOR, errno.ENOMEM)


class SpaceWaiter:
    """One per thread, which calls `report_full` with True when it begins to wait and with False when it goes on.

    `consequence` is what the log line says happens meanwhile.
    """

    def __init__(self, consequence: str, report_full: Callable[[bool], object]) -> None:
        self._consequence = consequence
        self._report_full = report_full
        self._may_wait = True

    def stop_waiting(self) -> None:
        """From now on a shortage is a failure."""
        self._may_wait = False

    def run(self, work: Callable[[], Any], clean_up: Callable[[], None] | None = None) -> Any:
        """Do the work, however long it takes until there is room. `clean_up` runs before each retry."""
        is_waiting = False
        while True:
            try:
                result = work()
                break
            except (OSError, CatalogFull) as error:
                number = errno.ENOSPC if isinstance(error, CatalogFull) else error.errno
                if not self._may_wait or number not in (*FULL, *SHORT):
                    raise
                if not is_waiting:
                    is_waiting = True
                    log.error("%s: %s until that has passed (%s)", _shortage(number), self._consequence, error)
                    self._report_full(True)
                if clean_up is not None:
                    clean_up()
                time.sleep(FULL_DISK_RETRY)
        if is_waiting:
            log.warning("there is room again")
            self._report_full(False)
        return result


def _shortage(number: int) -> str:
    if number in NO_DESCRIPTOR:
        return "no file descriptor is free"
    return "the disk is full" if number in FULL else "memory is short"
