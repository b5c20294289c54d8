"""Who answers when and what is told: a window is done when the broker has the answers of all its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.pipeline.analysis.support import EVENTS, START, event, kept_rows, publishes
from tests.support.history import Faults, make_history
from warrenmq.client import ConnectionFailed
from warrenmq.events import schema
from warrenmq.pipeline import jobs
from warrenmq.pipeline.analysis.collectors import standard
from warrenmq.pipeline.analysis.incremental import REST, REST_OF_SPARK, Analyst, Told
from warrenmq.pipeline.count.count_events import Counting, count_events
from warrenmq.pipeline.count.partials import pieces_in
from warrenmq.pipeline.facts import ALL, facts_table
from warrenmq.pipeline.jobs.job import Job, arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import TEXT, WHOLE, WINDOW, WINDOW_COLUMNS, joined, put, totals, where
from warrenmq.pipeline.merge.facts_store import FactsStore
from warrenmq.pipeline.options import Settings
from warrenmq.pipeline.publish.answers import Run, document_of, plain_rows
from warrenmq.pipeline.spark.session import small_tables
from warrenmq.pipeline.times import microseconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEN = timedelta(seconds=10)
SETTINGS = Settings()
Rows = list[tuple[str, int, int]]


def count(facts: pa.Table, settings: Settings) -> pa.Table:
    """How many messages were published in each window, and in that before: an answer with a history."""
    here = totals(where(facts, fact="step", kind="published"), (*WINDOW, "kind"), count="sum")
    before = put(here, window_start=here["window_end"], before=here["count"]).select(["window_start", "before"])
    found = joined(here, before, ["window_start"])
    return put(found, before=pc.fill_null(found["before"], 0))


def one_window(settings: Settings) -> float:
    return settings.window_seconds


def count_job(name: str = "counts", answer: Callable[[pa.Table, Settings], pa.Table] = count) -> Job:
    columns = WINDOW_COLUMNS | {"kind": TEXT, "count": WHOLE, "before": WHOLE}
    keys = ("window_start", "kind")
    needs = frozenset({"step"})
    return arrow_job(name, "Counts", keys, for_all_windows(answer), columns, "table", needs, one_window)


def count_by_spark(facts: DataFrame, settings: Settings) -> DataFrame:
    counted = facts.where("kind = 'published'").groupBy("window_start", "window_end", "kind")
    return counted.sum("count").selectExpr("*", "`sum(count)` AS count", "0L AS before").drop("sum(count)")


class Desk:
    """A store, its analyst and what it tells; the clock stands still unless a job moves it."""

    def __init__(self, folder: Path, jobs: Sequence[Job] = (), spark: Any = None) -> None:
        self.now = 1000.0
        self.is_waiting = False
        self.lost: list[Exception] = []
        self.rounds: list[list[Told]] = []
        self.store = FactsStore(folder, SETTINGS)
        self._jobs = jobs or (count_job(), count_job("slow", self._count_slowly))
        self._spark = spark
        self._batches = 0
        self.open()

    def open(self) -> None:
        """An analyst who knows nothing but what is in the store."""
        self.analyst = Analyst(
            self._spark, self.store, standard(), self._jobs, SETTINGS, self._publish, lambda: self.now
        )

    def _count_slowly(self, facts: pa.Table, settings: Settings) -> pa.Table:
        self.now += 30
        return count(facts, settings)

    def _publish(self, told: Sequence[Told]) -> None:
        if self.lost:
            raise self.lost.pop()
        self.rounds.append(list(told))

    def publish(self, *counts: tuple[int, int]) -> None:
        """A micro-batch: by the number of the window, how many messages were published in it."""
        self.add([row for window, count in counts for row in publishes(10 * window + 1, count)])

    def add(self, rows: list[dict[str, Any]]) -> None:
        events = pa.Table.from_pylist(rows, EVENTS)
        counted = pa.Table.from_batches(list(count_events(events.to_batches(), Counting.of(SETTINGS, ALL))))
        self.store.put(self._batches, pieces_in(counted))
        self._batches += 1

    def answers(self, *, is_last: bool = False) -> dict[str, tuple[list[str], Rows]]:
        """By job: for which windows, and with which counts."""
        self.rounds.clear()
        self.is_waiting = self.analyst.answer(is_last=is_last)
        return {
            told.answer.job: (
                [window[17:19] for window in told.answer.windows],
                [(row["window_start"][17:19], row["count"], row["before"]) for row in told.answer.rows],
            )
            for told in (one for round_ in self.rounds for one in round_)
        }


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "checkpoint")
    yield made
    made.store.close()


def test_the_answers_of_a_round_are_told_together(desk: Desk) -> None:
    desk.publish((0, 5), (1, 7))
    both = (["00", "10"], [("00", 5, 0), ("10", 7, 5)])
    assert desk.answers() == {"counts": both, "slow": both}
    assert len(desk.rounds) == 1
    assert not desk.is_waiting
    assert desk.store.unanswered("facts") == {}
    assert desk.answers() == {}, "nothing has changed since"


def test_a_round_that_took_long_is_rested_for_and_then_all_that_was_missed_is_answered(desk: Desk) -> None:
    desk.publish((0, 5))
    desk.answers()
    desk.now += REST * 30 - 1
    desk.publish((0, 1))
    assert desk.answers() == {}
    assert desk.is_waiting
    assert list(desk.store.unanswered("facts")) == [microseconds_of(START)]
    desk.publish((1, 2))
    desk.now += 1
    both = (["00", "10"], [("00", 6, 0), ("10", 2, 6)])
    assert desk.answers() == {"counts": both, "slow": both}
    assert desk.store.unanswered("facts") == {}


def test_at_the_end_nobody_rests(desk: Desk) -> None:
    desk.publish((0, 5))
    desk.answers()
    desk.publish((0, 1))
    assert set(desk.answers(is_last=True)) == {"counts", "slow"}
    assert desk.store.unanswered("facts") == {}


def test_a_late_event_changes_the_answers_behind_it_and_only_those_are_told(desk: Desk) -> None:
    desk.publish((0, 5), (1, 7), (2, 1))
    desk.answers()
    desk.publish((0, 1))
    assert desk.answers(is_last=True)["counts"] == (["00", "10"], [("00", 6, 0), ("10", 7, 6)])


def test_facts_that_change_no_answer_are_answered_by_silence(desk: Desk) -> None:
    desk.publish((0, 5))
    desk.answers()
    desk.add([event(2, schema.ACKED, queue="q")])
    assert list(desk.store.unanswered("facts")) == [microseconds_of(START)]
    assert desk.answers(is_last=True) == {}
    assert desk.store.unanswered("facts") == {}


def test_a_window_that_has_nothing_to_tell_is_told_once(desk: Desk) -> None:
    """What another run told of it is gone then."""
    desk.add([event(2, schema.ACKED, queue="q")])
    assert desk.answers() == {"counts": (["00"], []), "slow": (["00"], [])}
    desk.add([event(3, schema.ACKED, queue="q")])
    assert desk.answers(is_last=True) == {}


def test_what_the_broker_did_not_confirm_is_answered_again(desk: Desk) -> None:
    desk.publish((0, 5))
    desk.lost = [ConnectionFailed("nobody answers")]
    with pytest.raises(ConnectionFailed):
        desk.answers()
    assert len(desk.store.unanswered("facts")) == 1
    assert desk.answers(is_last=True) == dict.fromkeys(("counts", "slow"), (["00"], [("00", 5, 0)]))


def test_who_begins_anew_answers_for_what_is_left_and_tells_it_whatever_was_told_before(desk: Desk) -> None:
    desk.publish((0, 5), (1, 7))
    desk.answers()
    desk.publish((1, 1))
    desk.open()
    assert desk.answers()["counts"] == (["10"], [("10", 8, 5)])


def test_facts_that_no_answer_needs_any_more_go(tmp_path: Path) -> None:
    """Also where no ids come any more, whose facts have windows of their own."""
    desk = Desk(tmp_path / "checkpoint", (count_job(), replace(count_job("ids"), needs=frozenset({"message"}))))
    later = 1000  # windows: longer than facts are kept, and what the jobs look back
    desk.add([event(second, schema.PUBLISHED, message_id="again") for second in (1, 2)])
    assert set(desk.answers()) == {"counts", "ids"}
    assert desk.store.bounds("keyed") is not None
    desk.publish((later, 1))
    desk.answers(is_last=True)
    newest = microseconds_of(START + later * TEN)
    assert desk.store.bounds("facts") == (newest, newest)
    assert desk.store.bounds("keyed") is None
    desk.store.close()


def with_priorities(events: pa.Table) -> pa.Table:
    """Of each four messages three have one: 1, 2 or 3."""
    levels = np.asarray(events["uid"]) // 64 % 4
    place = events.schema.get_field_index("priority")
    return events.set_column(place, "priority", pa.array(levels, pa.int32(), mask=levels == 0))


def test_in_the_end_all_jobs_have_said_what_they_say_to_all_facts_at_once(tmp_path: Path) -> None:
    """Whatever micro-batches the events came in: a history with faults, answered for again and again as it grows."""
    settings = Settings(baseline_windows=12, consumer_windows=20, stuck_after=40.0)
    faults = Faults(spike_at=200, poison_at=350, stuck_at=450, slow_at=600, poison_attempts=60, duplicates=9)
    events = with_priorities(make_history(4000, seconds=800, faults=faults).table())
    run = Run("run", "follow")
    documents: list[dict[str, Any]] = []

    def keep(told: Sequence[Told]) -> None:
        documents.extend(document_of(one.answer, run, one.number, one.covers, START) for one in told)

    store = FactsStore(tmp_path / "checkpoint", settings)
    analyst = Analyst(None, store, standard(), jobs.ALL, settings, keep)  # type: ignore[arg-type]
    for batch, begin in enumerate(range(0, events.num_rows, 1700)):
        some = events.slice(begin, 1700)
        counted = count_events(some.to_batches(), Counting.of(settings, ALL))
        store.put(batch, pieces_in(pa.Table.from_batches(list(counted))))
        analyst.answer(is_last=True)
    store.close()
    facts = facts_table(events, settings)
    for job in jobs.ALL:
        assert job.answer is not None
        at_once = plain_rows(job.answer(facts, settings, 0))
        assert at_once, f"{job.name} has nothing to say"
        told = kept_rows([document for document in documents if document["job"] == job.name])
        assert told == sorted(at_once, key=lambda row: str(tuple(row[key] for key in job.keys)))


def test_a_job_that_only_spark_can_run_comes_after_the_others_and_rests_longer(
    spark: SparkSession, tmp_path: Path
) -> None:
    def count_slowly(facts: DataFrame, settings: Settings) -> DataFrame:
        desk.now += 30
        return count_by_spark(facts, settings)

    own = replace(count_job("own"), run=count_slowly, answer=None)
    desk = Desk(tmp_path / "checkpoint", (own, count_job()), small_tables(spark))
    desk.publish((0, 5), (1, 7))
    told = desk.answers()
    assert told["own"] == (["00", "10"], [("00", 5, 0), ("10", 7, 0)])
    assert [[one.answer.job for one in round_] for round_ in desk.rounds] == [["counts"], ["own"]]
    desk.publish((1, 1))
    desk.now += REST_OF_SPARK * 30 - 1
    assert set(desk.answers()) == {"counts"}
    assert desk.is_waiting
    desk.now += 1
    assert desk.answers() == {"own": (["10"], [("10", 8, 0)])}
    desk.store.close()
