"""Who answers when: jobs that take long rest, and a window is done when the broker has the answers of all its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from tests.pipeline.analysis.support import START, CountJob, count_with_history, step_collector
from warrenmq.client import ConnectionFailed
from warrenmq.pipeline.analysis.analyst import REST, Analyst
from warrenmq.pipeline.analysis.answers import Answer
from warrenmq.pipeline.analysis.facts_store import FactsStore
from warrenmq.pipeline.analysis.times import Range, microseconds_of
from warrenmq.pipeline.facts import FACT_KEYS, SCHEMA
from warrenmq.pipeline.session import small_tables
from warrenmq.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEN = timedelta(seconds=10)


class Desk:
    """A store, two jobs of which one takes half a minute of a clock that stands still otherwise, and their answers."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.now = 1000.0
        self.lost: list[Exception] = []
        self.told: list[tuple[str, int, list[tuple[str, int, int]]]] = []
        self.store = FactsStore(folder)
        self._spark = small_tables(spark)
        self._batches = 0
        slow = replace(CountJob(), name="slow", run=self._count_slowly)
        self.analyst = Analyst(
            self._spark,
            self.store,
            (step_collector(),),
            (CountJob(), slow),
            Settings(),
            self._publish,
            lambda: self.now,
        )

    def _count_slowly(self, facts: DataFrame, settings: Settings) -> DataFrame:
        self.now += 30
        return count_with_history(facts, settings)

    def _publish(self, answer: Answer, number: int, covers: Range) -> None:
        if self.lost:
            raise self.lost.pop()
        rows = [(row["window_start"][17:19], row["count"], row["before"]) for row in answer.rows]
        self.told.append((answer.job, len(answer.windows), rows))

    def count(self, *counts: tuple[int, int]) -> None:
        """A micro-batch: by the number of the window, how many were published in it in all."""
        names = [field.name for field in SCHEMA]
        rows: list[tuple[Any, ...]] = []
        for window, count in counts:
            start = START + window * TEN
            row = {"window_start": start, "window_end": start + TEN, "part": 0, "fact": "step", "kind": "published"}
            rows.append(
                tuple((row | {"count": count}).get(name, "" if name in FACT_KEYS[3:8] else None) for name in names)
            )
        self.store.put("facts", self._batches, self._spark.createDataFrame(rows, SCHEMA).toArrow(), FACT_KEYS)
        self._batches += 1

    def answers(self, *, is_last: bool = False) -> list[tuple[str, int, list[tuple[str, int, int]]]]:
        """Who answered, for how many windows, with which counts."""
        self.told.clear()
        self.is_waiting = self.analyst.answer(is_last=is_last)
        return sorted(self.told)


@pytest.fixture
def desk(spark: SparkSession, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(spark, tmp_path / "checkpoint")
    yield made
    made.store.close()


def test_a_slow_job_rests_and_then_answers_for_all_that_it_missed(desk: Desk) -> None:
    desk.count((0, 5), (1, 7))
    both = [("00", 5, 0), ("10", 7, 5)]
    assert desk.answers() == [("counts", 2, both), ("slow", 2, both)]
    assert not desk.is_waiting
    assert desk.store.unanswered("facts") == {}

    desk.now += 5 * 30 - 1  # the quick job may have been timed over the other one's half minute
    desk.analyst._rests_until["counts"] = desk.now
    desk.count((1, 8))
    assert desk.answers() == [("counts", 1, [("10", 8, 5)])]
    assert desk.is_waiting
    assert list(desk.store.unanswered("facts")) == [microseconds_of(START + TEN)]

    desk.count((2, 1))
    desk.now += REST * 30
    assert desk.answers() == [("counts", 1, [("20", 1, 8)]), ("slow", 2, [("10", 8, 5), ("20", 1, 8)])]
    assert desk.store.unanswered("facts") == {}
    assert desk.answers() == []


def test_at_the_end_nobody_rests(desk: Desk) -> None:
    desk.count((0, 5))
    desk.answers()
    desk.count((0, 6))
    assert [job for job, _, _ in desk.answers(is_last=True)] == ["counts", "slow"]
    assert desk.store.unanswered("facts") == {}


def test_a_late_event_changes_the_answers_behind_it(desk: Desk) -> None:
    desk.count((0, 5), (1, 7), (2, 1))
    desk.answers()
    desk.count((0, 6))
    told = desk.answers(is_last=True)
    assert told[0] == ("counts", 3, [("00", 6, 0), ("10", 7, 6), ("20", 1, 7)])


def test_what_the_broker_did_not_confirm_is_answered_again(desk: Desk) -> None:
    desk.count((0, 5))
    desk.lost = [ConnectionFailed("nobody answers")]
    with pytest.raises(ConnectionFailed):
        desk.answers()
    assert len(desk.store.unanswered("facts")) == 1
    assert [job for job, _, _ in desk.answers(is_last=True)] == ["counts", "slow"]


def test_facts_are_kept_until_the_slowest_collector_is_past_them(spark: SparkSession, tmp_path: Path) -> None:
    """Else a job that needs both would answer for old windows with half of the facts, and its rows would be gone."""
    desk = Desk(spark, tmp_path / "checkpoint")
    slower = replace(step_collector(), name="slower")
    analyst = Analyst(
        small_tables(spark), desk.store, (step_collector(), slower), (CountJob(),), Settings(), desk._publish
    )
    two_hours = 720
    desk.count((0, 5), (two_hours, 1))
    analyst.answer(is_last=True)
    assert len(desk.store.starts("facts", 0, 2**62)) == 2
    table = desk.store.facts("facts", 0, 2**62)
    desk.store.put("slower", 0, table.slice(0, 1), FACT_KEYS)
    analyst.answer(is_last=True)
    assert len(desk.store.starts("facts", 0, 2**62)) == 2
    desk.store.put("slower", 1, table, FACT_KEYS)
    analyst.answer(is_last=True)
    assert desk.store.starts("facts", 0, 2**62) == [microseconds_of(START + two_hours * TEN)]
    desk.store.close()
