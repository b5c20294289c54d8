"""Waits for room on a full disk.

Each thread that writes has a `RoomWaiter`: work that fails for lack of space, or of file handles or memory, is repeated
until it succeeds; any other error is raised. Publishers are not read meanwhile.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Any

from warrenmq.storage.catalog import CatalogFull

log = logging.getLogger("warrenmq.storage")

FULL_DISK_RETRY = 0.5
FULL = (errno.ENOSPC, errno.EDQUOT)
# Passes by itself: others give handles or memory back.
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class RoomWaiter:
    """One per thread, which calls `tell_full` with True when it begins to wait and with False when there is room.

    `consequence` is what the log line says about a full disk.
    """

    def __init__(self, consequence: str, tell_full: Callable[[bool], object]) -> None:
        self._consequence = consequence
        self._tell_full = tell_full
        self._is_patient = True

    def hurry(self) -> None:
        """From now on a full disk is a failure."""
        self._is_patient = False

    def run(self, work: Callable[[], Any], clean_up: Callable[[], None] | None = None) -> Any:
        """Do the work, however long it takes until the disk has room. `clean_up` runs before each retry."""
        is_waiting = False
        while True:
            try:
                result = work()
                break
            except (OSError, CatalogFull) as error:
                number = errno.ENOSPC if isinstance(error, CatalogFull) else error.errno
                is_full = number in FULL
                if not self._is_patient or not (is_full or number in SHORT):
                    raise
                if is_full and not is_waiting:
                    is_waiting = True
                    log.error("the disk is full: %s until there is room (%s)", self._consequence, error)
                    self._tell_full(True)
                if clean_up is not None:
                    clean_up()
                time.sleep(FULL_DISK_RETRY)
        if is_waiting:
            log.warning("there is room on the disk again")
            self._tell_full(False)
        return result
