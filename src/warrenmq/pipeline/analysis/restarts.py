"""A streaming query that is started again when it fails, with pauses that grow.

A broker that is away is waited for, for ever. While it is there, a query that fails again and again without having
got further ends the analysis. One thread calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from warrenmq.pipeline.failures import FollowFailed, reason_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
FAILURES = 3  # in a row, with the broker there and no progress in between
# What Spark says when a machine is too busy to start a Python process within its limit; it may be so for a while.
TOO_BUSY = "Python worker failed to connect back"
PATIENCE = 10

log = logging.getLogger("warrenmq.analysis")


class KeptQuery:
    """`start` starts the query, `progress` counts what it has done, `say` is told what it is at."""

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        progress: Callable[[], int],
        is_broker_there: Callable[[], bool],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._progress = progress
        self._is_broker_there = is_broker_there
        self._say = say
        self._clock = clock
        self._query: StreamingQuery | None = None
        self._again_at = 0.0
        self._pause = FIRST_PAUSE
        self._failures = 0.0
        self._reached = progress()

    def look(self) -> bool:
        """Start it if that is due; False when it has ended well. Raises FollowFailed."""
        if self._query is None:
            if self._clock() >= self._again_at:
                self._try_to_start()
            return True
        if self._query.isActive:
            return True
        failure = self._query.exception()
        if failure is None:
            return False
        self._query = None
        self._failed(reason_of(str(failure)))
        return True

    def stop(self) -> None:
        """End it; one that waits for a broker may not hear it in time, and ends with the session."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        query, self._query = self._query, None
        try:
            if query is not None:
                query.stop()
        except (PySparkException, Py4JJavaError) as failure:
            log.warning("a query did not stop in time: %s", reason_of(str(failure)))

    def _try_to_start(self) -> None:
        from pyspark.errors import PySparkException

        try:
            self._query = self._start()
        except PySparkException as failure:
            self._failed(reason_of(str(failure)))
        else:
            self._say("following")

    def _failed(self, reason: str) -> None:
        reached = self._progress()
        if reached > self._reached:
            self._reached, self._failures, self._pause = reached, 0.0, FIRST_PAUSE
        is_there = self._is_broker_there()
        if is_there:
            self._failures += 1 / PATIENCE if TOO_BUSY in reason else 1
        if self._failures >= FAILURES:
            raise FollowFailed(reason)
        log.warning("a query is started again in %g s: %s", self._pause, reason)
        self._say("starting again" if is_there else "waiting for the broker")
        self._again_at = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
