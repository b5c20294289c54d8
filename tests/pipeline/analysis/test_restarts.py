"""When a query is started again, and when it is given up. Queries are made up; the clock is the test's."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkValueError

from warrenmq.pipeline.analysis.restarts import TOO_BUSY, KeptQuery
from warrenmq.pipeline.failures import FollowFailed


class Query:
    def __init__(self, failure: str | None = None, is_active: bool = False) -> None:
        self.isActive = is_active
        self._failure = failure
        self.is_stopped = False

    def exception(self) -> str | None:
        return self._failure

    def stop(self) -> None:
        self.is_stopped = True


class Keeper:
    """A kept query whose lives are given beforehand."""

    def __init__(self, *lives: Any) -> None:
        self.lives = list(lives)
        self.started: list[float] = []
        self.said: list[str] = []
        self.now = 100.0
        self.done = 0
        self.is_broker_there = True
        self.kept = KeptQuery(
            self._start, lambda: self.done, lambda: self.is_broker_there, self.said.append, lambda: self.now
        )

    def _start(self) -> Any:
        self.started.append(self.now)
        life = self.lives.pop(0)
        if isinstance(life, Exception):
            raise life
        return life

    def look(self, seconds: int) -> None:
        """Look every second for so long."""
        for _ in range(seconds):
            assert self.kept.look()
            self.now += 1


def test_a_query_that_ended_well_is_done() -> None:
    keeper = Keeper(Query())
    assert keeper.kept.look()  # started
    assert not keeper.kept.look()


def test_a_query_that_cannot_be_started_or_fails_is_started_again_with_growing_pauses() -> None:
    keeper = Keeper(PySparkValueError("no"), Query("ValueError: disk"), Query(is_active=True))
    keeper.look(20)
    assert keeper.started == [100, 101, 104]
    assert keeper.said == ["starting again", "following", "starting again", "following"]


def test_a_query_that_gets_nowhere_is_given_up_with_the_reason() -> None:
    keeper = Keeper(*(Query("ValueError: the disk is full") for _ in range(9)))
    with pytest.raises(FollowFailed, match="the disk is full"):
        keeper.look(60)
    assert len(keeper.started) == 3


def test_progress_in_between_counts_anew() -> None:
    keeper = Keeper(*(Query("ValueError: now and then") for _ in range(9)), Query(is_active=True))
    for _ in range(9):
        keeper.done += 1
        keeper.look(3)
    assert len(keeper.started) > 3


def test_a_broker_that_is_away_is_waited_for() -> None:
    keeper = Keeper(*(Query("ConnectionFailed: nobody answers") for _ in range(9)), Query(is_active=True))
    keeper.is_broker_there = False
    keeper.look(200)
    assert len(keeper.started) == 10
    assert keeper.said[0:3] == ["following", "waiting for the broker", "following"]
    assert max(after - before for before, after in zip(keeper.started, keeper.started[1:], strict=False)) <= 17


def test_a_machine_that_is_too_busy_is_given_more_time() -> None:
    keeper = Keeper(*(Query(f"SparkException: {TOO_BUSY}.") for _ in range(40)))
    with pytest.raises(FollowFailed):
        keeper.look(1000)
    assert len(keeper.started) == 30


def test_stopping_stops_what_runs() -> None:
    query = Query(is_active=True)
    keeper = Keeper(query)
    keeper.kept.stop()
    keeper.look(1)
    keeper.kept.stop()
    assert query.is_stopped
