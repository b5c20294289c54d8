"""When a query is started again, and when it is given up. Queries are made up; the clock is the test's."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkValueError

from warrenmq.pipeline.analysis.restarts import TOO_BUSY, RestartingQuery
from warrenmq.pipeline.errors import FollowFailed


class Query:
    def __init__(self, failure: str | None = None, is_active: bool = False) -> None:
        self.isActive = is_active
        self._failure = failure
        self.is_stopped = False

    def exception(self) -> str | None:
        return self._failure

    def stop(self) -> None:
        self.is_stopped = True


class Restarts:
    """A restarting query with prepared outcomes, and a manual clock."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.started: list[float] = []
        self.reported: list[str] = []
        self.now = 100.0
        self.done = 0
        self.is_broker_reachable = True
        self.query = RestartingQuery(
            self._start, lambda: self.done, lambda: self.is_broker_reachable, self.reported.append, lambda: self.now
        )

    def _start(self) -> Any:
        self.started.append(self.now)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def poll_for(self, seconds: int) -> None:
        """Poll once per second."""
        for _ in range(seconds):
            assert self.query.poll()
            self.now += 1


def test_a_query_that_ended_well_is_done() -> None:
    restarts = Restarts(Query())
    assert restarts.query.poll()  # started
    assert not restarts.query.poll()


def test_a_failed_query_is_restarted_after_growing_delays() -> None:
    restarts = Restarts(PySparkValueError("no"), Query("ValueError: disk"), Query(is_active=True))
    restarts.poll_for(20)
    assert restarts.started == [100, 101, 104]
    assert restarts.reported == ["restarting", "following", "restarting", "following"]


def test_a_query_without_progress_raises_after_three_failures() -> None:
    restarts = Restarts(*(Query("ValueError: the disk is full") for _ in range(9)))
    with pytest.raises(FollowFailed, match="the disk is full"):
        restarts.poll_for(60)
    assert len(restarts.started) == 3


def test_progress_resets_the_failures() -> None:
    restarts = Restarts(*(Query("ValueError: now and then") for _ in range(9)), Query(is_active=True))
    for _ in range(9):
        restarts.done += 1
        restarts.poll_for(3)
    assert len(restarts.started) > 3


def test_an_unreachable_broker_is_retried_for_ever() -> None:
    restarts = Restarts(*(Query("ConnectionFailed: nobody answers") for _ in range(9)), Query(is_active=True))
    restarts.is_broker_reachable = False
    restarts.poll_for(200)
    assert len(restarts.started) == 10
    assert restarts.reported[0:3] == ["following", "waiting for the broker", "following"]
    assert max(after - before for before, after in zip(restarts.started, restarts.started[1:], strict=False)) <= 17


def test_a_machine_that_is_too_busy_is_given_more_time() -> None:
    restarts = Restarts(*(Query(f"SparkException: {TOO_BUSY}.") for _ in range(40)))
    with pytest.raises(FollowFailed):
        restarts.poll_for(1000)
    assert len(restarts.started) == 30


def test_stopping_stops_what_runs() -> None:
    query = Query(is_active=True)
    restarts = Restarts(query)
    restarts.query.stop()
    restarts.poll_for(1)
    restarts.query.stop()
    assert query.is_stopped
