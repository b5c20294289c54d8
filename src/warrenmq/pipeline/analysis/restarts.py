"""A streaming query that is restarted when it fails, after growing delays.

If the broker is away, the query is retried for ever. If it fails repeatedly while the broker answers, without having
made progress, the analysis ends. For one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from warrenmq.pipeline.errors import FollowFailed, short_reason

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_DELAY, MAX_DELAY = 1.0, 15.0
MAX_FAILURES = 3  # in a row, with the broker reachable and no progress in between
# Spark's error when a busy machine starts a Python worker too late; that may go on for a while.
TOO_BUSY = "Python worker failed to connect back"
TOO_BUSY_WEIGHT = 0.1  # of a failure

log = logging.getLogger("warrenmq.analysis")


class RestartingQuery:
    """`start` starts the query, `progress` returns a number that grows with its work, `report` receives its state."""

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        progress: Callable[[], int],
        is_broker_reachable: Callable[[], bool],
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._progress = progress
        self._is_broker_reachable = is_broker_reachable
        self._report = report
        self._clock = clock
        self._query: StreamingQuery | None = None
        self._restart_at = 0.0
        self._delay = FIRST_DELAY
        self._failures = 0.0
        self._last_progress = progress()

    def poll(self) -> bool:
        """Restart the query if it is due; return False when it has ended. Raises FollowFailed."""
        if self._query is None:
            if self._clock() >= self._restart_at:
                self._try_to_start()
            return True
        if self._query.isActive:
            return True
        failure = self._query.exception()
        if failure is None:
            return False
        self._query = None
        self._failed(short_reason(str(failure)))
        return True

    def stop(self) -> None:
        """Stop the query; one that waits for a broker may not stop in time, and ends with the session."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        query, self._query = self._query, None
        try:
            if query is not None:
                query.stop()
        except (PySparkException, Py4JJavaError) as failure:
            log.warning("a query did not stop in time: %s", short_reason(str(failure)))

    def _try_to_start(self) -> None:
        from pyspark.errors import PySparkException

        try:
            self._query = self._start()
        except PySparkException as failure:
            self._failed(short_reason(str(failure)))
        else:
            self._report("following")

    def _failed(self, reason: str) -> None:
        progress = self._progress()
        if progress > self._last_progress:
            self._last_progress, self._failures, self._delay = progress, 0.0, FIRST_DELAY
        is_reachable = self._is_broker_reachable()
        if is_reachable:
            self._failures += TOO_BUSY_WEIGHT if TOO_BUSY in reason else 1
        if self._failures >= MAX_FAILURES:
            raise FollowFailed(reason)
        log.warning("restarting a query in %g s: %s", self._delay, reason)
        self._report("restarting" if is_reachable else "waiting for the broker")
        self._restart_at = self._clock() + self._delay
        self._delay = min(2 * self._delay, MAX_DELAY)
