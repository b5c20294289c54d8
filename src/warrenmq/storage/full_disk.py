"""Waits for disk space and file descriptors.

Each thread that writes has a `SpaceWaiter`: it repeats work that fails for lack of space, descriptors or memory until
it succeeds, and raises any other error. Publishers are blocked meanwhile.
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
# Temporary: others return descriptors or memory.
SHORT = (*NO_DESCRIPTOR, errno.ENOMEM)


class SpaceWaiter:
    """One per thread; calls `report_full` with True when it begins to wait and with False when it continues.

    `consequence` is part of the log line.
    """

    def __init__(self, consequence: str, report_full: Callable[[bool], object]) -> None:
        self._consequence = consequence
        self._report_full = report_full
        self._may_wait = True

    def stop_waiting(self) -> None:
        """From now on raise instead of waiting."""
        self._may_wait = False

    def run(self, work: Callable[[], Any], clean_up: Callable[[], None] | None = None) -> Any:
        """Run the work, waiting for space as long as necessary. `clean_up` runs before each retry."""
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
                    log.error("%s: %s, retrying (%s)", _shortage(number), self._consequence, error)
                    self._report_full(True)
                if clean_up is not None:
                    clean_up()
                time.sleep(FULL_DISK_RETRY)
        if is_waiting:
            log.warning("writing resumed")
            self._report_full(False)
        return result


def _shortage(number: int) -> str:
    if number in NO_DESCRIPTOR:
        return "no file descriptors left"
    return "the disk is full" if number in FULL else "out of memory"
