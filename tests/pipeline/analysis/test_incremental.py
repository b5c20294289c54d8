"""When jobs run and what they publish: a window is answered once the broker has the answers of all its jobs."""

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
from warrenmq.pipeline.analysis.event_log import standard_groups
from warrenmq.pipeline.analysis.incremental import PAUSE_FACTOR, SPARK_PAUSE_FACTOR, AnswerUpdate, JobRunner
from warrenmq.pipeline.count.count_events import CountSpec, count_events
from warrenmq.pipeline.count.partials import partials_from_rows
from warrenmq.pipeline.facts import ALL
from warrenmq.pipeline.jobs.answers import plain_rows
from warrenmq.pipeline.jobs.job import Job, arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import INT, TEXT, WINDOW, WINDOW_COLUMNS, aggregate, left_join, where, with_columns
from warrenmq.pipeline.merge.facts import facts_from_events
from warrenmq.pipeline.merge.facts_store import FactsStore
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.publish.results import Run, document_of
from warrenmq.pipeline.spark.session import small_table_session
from warrenmq.pipeline.times import to_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEN = timedelta(seconds=10)
OPTIONS = AnalysisOptions()
Rows = list[tuple[str, int, int]]


def count(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    """How many messages were published in each window, and in that before: an answer with a history."""
    here = aggregate(where(facts, fact="step", kind="published"), (*WINDOW, "kind"), count="sum")
    before = with_columns(here, window_start=here["window_end"], before=here["count"]).select(
        ["window_start", "before"]
    )
    found = left_join(here, before, ["window_start"])
    return with_columns(found, before=pc.fill_null(found["before"], 0))


def one_window(options: AnalysisOptions) -> float:
    return options.window_seconds


def count_job(name: str = "counts", answer: Callable[[pa.Table, AnalysisOptions], pa.Table] = count) -> Job:
    columns = WINDOW_COLUMNS | {"kind": TEXT, "count": INT, "before": INT}
    keys = ("window_start", "kind")
    needs = frozenset({"step"})
    return arrow_job(name, "Counts", keys, for_all_windows(answer), columns, "table", needs, one_window)


def count_by_spark(facts: DataFrame, options: AnalysisOptions) -> DataFrame:
    counted = facts.where("kind = 'published'").groupBy("window_start", "window_end", "kind")
    return counted.sum("count").selectExpr("*", "`sum(count)` AS count", "0L AS before").drop("sum(count)")


class Harness:
    """A store, its job runner and what that publishes; the clock stands still unless a job moves it."""

    def __init__(self, folder: Path, jobs: Sequence[Job] = (), spark: Any = None) -> None:
        self.now = 1000.0
        self.is_waiting = False
        self.lost: list[Exception] = []
        self.rounds: list[list[AnswerUpdate]] = []
        self.store = FactsStore(folder, OPTIONS)
        self._jobs = jobs or (count_job(), count_job("slow", self._count_slowly))
        self._spark = spark
        self._batches = 0
        self.open()

    def open(self) -> None:
        """A runner that knows only what is in the store."""
        self.runner = JobRunner(
            self._spark, self.store, standard_groups(), self._jobs, OPTIONS, self._publish, lambda: self.now
        )

    def _count_slowly(self, facts: pa.Table, options: AnalysisOptions) -> pa.Table:
        self.now += 30
        return count(facts, options)

    def _publish(self, told: Sequence[AnswerUpdate]) -> None:
        if self.lost:
            raise self.lost.pop()
        self.rounds.append(list(told))

    def publish(self, *counts: tuple[int, int]) -> None:
        """A micro-batch: by the number of the window, how many messages were published in it."""
        self.add([row for window, count in counts for row in publishes(10 * window + 1, count)])

    def add(self, rows: list[dict[str, Any]]) -> None:
        events = pa.Table.from_pylist(rows, EVENTS)
        counted = pa.Table.from_batches(list(count_events(events.to_batches(), CountSpec.of(OPTIONS, ALL))))
        self.store.add_batch(self._batches, partials_from_rows(counted))
        self._batches += 1

    def answers(self, *, is_last: bool = False) -> dict[str, tuple[list[str], Rows]]:
        """By job: for which windows, and with which counts."""
        self.rounds.clear()
        self.is_waiting = self.runner.run_due(is_last=is_last)
        return {
            told.answer.job: (
                [window[17:19] for window in told.answer.windows],
                [(row["window_start"][17:19], row["count"], row["before"]) for row in told.answer.rows],
            )
            for told in (one for round_ in self.rounds for one in round_)
        }


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path / "checkpoint")
    yield made
    made.store.close()


def test_the_answers_of_a_round_are_published_together(harness: Harness) -> None:
    harness.publish((0, 5), (1, 7))
    both = (["00", "10"], [("00", 5, 0), ("10", 7, 5)])
    assert harness.answers() == {"counts": both, "slow": both}
    assert len(harness.rounds) == 1
    assert not harness.is_waiting
    assert harness.store.unanswered("facts") == {}
    assert harness.answers() == {}, "nothing has changed since"


def test_a_round_that_took_long_is_rested_for_and_then_all_that_was_missed_is_answered(harness: Harness) -> None:
    harness.publish((0, 5))
    harness.answers()
    harness.now += PAUSE_FACTOR * 30 - 1
    harness.publish((0, 1))
    assert harness.answers() == {}
    assert harness.is_waiting
    assert list(harness.store.unanswered("facts")) == [to_us(START)]
    harness.publish((1, 2))
    harness.now += 1
    both = (["00", "10"], [("00", 6, 0), ("10", 2, 6)])
    assert harness.answers() == {"counts": both, "slow": both}
    assert harness.store.unanswered("facts") == {}


def test_at_the_end_every_window_is_answered(harness: Harness) -> None:
    harness.publish((0, 5))
    harness.answers()
    harness.publish((0, 1))
    assert set(harness.answers(is_last=True)) == {"counts", "slow"}
    assert harness.store.unanswered("facts") == {}


def test_a_late_event_changes_the_answers_behind_it_and_only_those_are_published(harness: Harness) -> None:
    harness.publish((0, 5), (1, 7), (2, 1))
    harness.answers()
    harness.publish((0, 1))
    assert harness.answers(is_last=True)["counts"] == (["00", "10"], [("00", 6, 0), ("10", 7, 6)])


def test_facts_that_change_no_answer_are_answered_by_silence(harness: Harness) -> None:
    harness.publish((0, 5))
    harness.answers()
    harness.add([event(2, schema.ACKED, queue="q")])
    assert list(harness.store.unanswered("facts")) == [to_us(START)]
    assert harness.answers(is_last=True) == {}
    assert harness.store.unanswered("facts") == {}


def test_a_window_without_rows_is_published_once(harness: Harness) -> None:
    """What another run told of it is gone then."""
    harness.add([event(2, schema.ACKED, queue="q")])
    assert harness.answers() == {"counts": (["00"], []), "slow": (["00"], [])}
    harness.add([event(3, schema.ACKED, queue="q")])
    assert harness.answers(is_last=True) == {}


def test_what_the_broker_did_not_confirm_is_answered_again(harness: Harness) -> None:
    harness.publish((0, 5))
    harness.lost = [ConnectionFailed("nobody answers")]
    with pytest.raises(ConnectionFailed):
        harness.answers()
    assert len(harness.store.unanswered("facts")) == 1
    assert harness.answers(is_last=True) == dict.fromkeys(("counts", "slow"), (["00"], [("00", 5, 0)]))


def test_a_new_start_publishes_answers_for_the_remaining_events_even_if_published_before(harness: Harness) -> None:
    harness.publish((0, 5), (1, 7))
    harness.answers()
    harness.publish((1, 1))
    harness.open()
    assert harness.answers()["counts"] == (["10"], [("10", 8, 5)])


def test_facts_that_no_answer_needs_any_more_go(tmp_path: Path) -> None:
    """Also where no ids come any more, whose facts have windows of their own."""
    harness = Harness(tmp_path / "checkpoint", (count_job(), replace(count_job("ids"), needs=frozenset({"message"}))))
    later = 1000  # windows: longer than facts are kept, and what the jobs look back
    harness.add([event(second, schema.PUBLISHED, message_id="again") for second in (1, 2)])
    assert set(harness.answers()) == {"counts", "ids"}
    assert harness.store.bounds("ids") is not None
    harness.publish((later, 1))
    harness.answers(is_last=True)
    newest = to_us(START + later * TEN)
    assert harness.store.bounds("facts") == (newest, newest)
    assert harness.store.bounds("ids") is None
    harness.store.close()


def with_priorities(events: pa.Table) -> pa.Table:
    """Of each four messages three have one: 1, 2 or 3."""
    levels = np.asarray(events["uid"]) // 64 % 4
    place = events.schema.get_field_index("priority")
    return events.set_column(place, "priority", pa.array(levels, pa.int32(), mask=levels == 0))


def test_in_the_end_all_jobs_have_said_what_they_say_to_all_facts_at_once(tmp_path: Path) -> None:
    """Whatever micro-batches the events came in: a history with faults, answered for again and again as it grows."""
    options = AnalysisOptions(baseline_windows=12, consumer_windows=20, stuck_after=40.0)
    faults = Faults(spike_at=200, poison_at=350, stuck_at=450, slow_at=600, poison_attempts=60, duplicates=9)
    events = with_priorities(make_history(4000, seconds=800, faults=faults).table())
    run = Run("run", "follow")
    documents: list[dict[str, Any]] = []

    def keep(told: Sequence[AnswerUpdate]) -> None:
        documents.extend(document_of(one.answer, run, one.number, one.covers, START) for one in told)

    store = FactsStore(tmp_path / "checkpoint", options)
    runner = JobRunner(None, store, standard_groups(), jobs.ALL, options, keep)  # type: ignore[arg-type]
    for batch, begin in enumerate(range(0, events.num_rows, 1700)):
        some = events.slice(begin, 1700)
        counted = count_events(some.to_batches(), CountSpec.of(options, ALL))
        store.add_batch(batch, partials_from_rows(pa.Table.from_batches(list(counted))))
        runner.run_due(is_last=True)
    store.close()
    facts = facts_from_events(events, options)
    for job in jobs.ALL:
        assert job.answer is not None
        at_once = plain_rows(job.answer(facts, options, 0))
        assert at_once, f"{job.name} has nothing to say"
        told = kept_rows([document for document in documents if document["job"] == job.name])
        assert told == sorted(at_once, key=lambda row: str(tuple(row[key] for key in job.keys)))


@pytest.mark.parametrize("kind", sorted(schema.KIND_CODES.values()), ids=schema.kind_name)
def test_events_of_one_kind_only_are_answered_by_all_jobs(kind: int, tmp_path: Path) -> None:
    """Unique message ids become no facts at all; some kinds have no queue, others no acks."""
    harness = Harness(tmp_path / "checkpoint", jobs.ALL)
    queue = {"queue": "q", "consumer": "c", "connection": "n", "channel": 1, "depth": 1, "routing_key": "k"}
    harness.add([event(second, kind, uid=second + 1, message_id=f"m-{second}", **queue) for second in range(20)])
    harness.runner.run_due()
    for group in standard_groups():
        assert harness.store.unanswered(group.name) == {}
    harness.store.close()


def test_a_window_whose_ids_are_no_facts_is_answered_without_rows(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "checkpoint", jobs.by_name(["duplicates", "sessions"]))
    harness.add([event(1, schema.PUBLISHED, message_id="once")])
    harness.runner.run_due()
    answers = [update.answer for round_ in harness.rounds for update in round_]
    assert [(answer.job, answer.rows, answer.windows) for answer in answers] == [
        (job, [], ("2026-11-16T10:00:00.000000Z",)) for job in ("duplicates", "sessions")
    ]
    harness.store.close()


def test_a_job_that_only_spark_can_run_comes_after_the_others_and_rests_longer(
    spark: SparkSession, tmp_path: Path
) -> None:
    def count_slowly(facts: DataFrame, options: AnalysisOptions) -> DataFrame:
        harness.now += 30
        return count_by_spark(facts, options)

    own = replace(count_job("own"), run=count_slowly, answer=None)
    harness = Harness(tmp_path / "checkpoint", (own, count_job()), small_table_session(spark))
    harness.publish((0, 5), (1, 7))
    told = harness.answers()
    assert told["own"] == (["00", "10"], [("00", 5, 0), ("10", 7, 0)])
    assert [[one.answer.job for one in round_] for round_ in harness.rounds] == [["counts"], ["own"]]
    harness.publish((1, 1))
    harness.now += SPARK_PAUSE_FACTOR * 30 - 1
    assert set(harness.answers()) == {"counts"}
    assert harness.is_waiting
    harness.now += 1
    assert harness.answers() == {"own": (["10"], [("10", 8, 0)])}
    harness.store.close()
