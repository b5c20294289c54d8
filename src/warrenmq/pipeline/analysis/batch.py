"""The analysis of a range of time, once: events -> facts -> one answer per job.

The facts are computed once and kept by Spark while the jobs run over them. If they are few, as those of an hour are,
the jobs run over a copy in a session for small tables, side by side. What it gives is what a --follow over the same
windows ends with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from warrenmq.pipeline.analysis.answers import Answer, Row, plain_rows
from warrenmq.pipeline.analysis.collectors import Collector, needed, union, window_of
from warrenmq.pipeline.analysis.event_log import Events
from warrenmq.pipeline.analysis.progress import Progress, Tell
from warrenmq.pipeline.analysis.times import Range, moment_of, starts_between, widened
from warrenmq.pipeline.session import small_tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.settings import Settings

COUNTED = "step"  # the facts in which every event counts once
FEW_FACTS = 300_000  # some hundred megabytes in the driver at most
SIDE_BY_SIDE = 2  # planning a query is the work of one core


@dataclass(frozen=True, slots=True)
class Found:
    """A job's answer, as plain rows and as Spark gave it."""

    answer: Answer
    table: pa.Table


@dataclass(frozen=True, slots=True)
class Seen:
    """What the range held."""

    events: int
    newest: datetime | None


class Batch:
    """One range of time. Use it in a `with` block: it keeps facts in Spark's memory."""

    def __init__(
        self,
        spark: SparkSession,
        events: Events,
        collectors: Sequence[Collector],
        jobs: Sequence[Job],
        settings: Settings,
        covers: Range,
    ) -> None:
        self._small = small_tables(spark)
        self._few: pa.Table | None = None
        self._jobs = jobs
        self._settings = settings
        self._covers = covers
        used = needed(collectors, jobs)  # and those that tell how many events there were
        self._collectors = tuple(one for one in collectors if one in used or COUNTED in one.facts)
        self.facts = union(
            self._facts_of(collector, events.between(spark, self._widened(collector), collector.columns))
            for collector in self._collectors
        )

    def _widened(self, collector: Collector) -> Range:
        return widened(self._covers, collector.window(self._settings))

    def _facts_of(self, collector: Collector, events: DataFrame) -> DataFrame:
        return collector.finish(collector.collect(events, self._settings), self._settings, 0)

    def __enter__(self) -> Batch:
        self.facts = self.facts.persist()
        return self

    def __exit__(self, *_: object) -> None:
        self.facts.unpersist()

    def look(self) -> Seen:
        """Read the events, and say what was there."""
        from pyspark.sql import functions

        is_counted = functions.col("fact") == COUNTED
        row = self.facts.agg(
            functions.count("*").alias("facts"),
            functions.sum(functions.when(is_counted, functions.col("count"))).alias("events"),
            functions.unix_micros(functions.max("last_time")).alias("newest"),
        ).first()
        if row is None or not row["facts"]:
            return Seen(0, None)
        if row["facts"] <= FEW_FACTS:
            self._few = self.facts.toArrow()
        return Seen(row["events"] or 0, moment_of(row["newest"]))

    def answers(self, tell: Tell) -> Iterator[Found]:
        """Run the jobs, and give their answers in the order of the jobs. `look` comes first."""
        total = len(self._jobs)
        with ThreadPoolExecutor(1 if self._few is None else SIDE_BY_SIDE, thread_name_prefix="warren-job") as threads:
            for number, (job, table) in enumerate(zip(self._jobs, threads.map(self._run, self._jobs), strict=True)):
                tell(Progress(job.title, number + 1, total))
                length = window_of(job, self._collectors, self._settings)
                windows = starts_between(widened(self._covers, length), length)
                yield Found(answer_of(job, plain_rows(table), windows, length), table)

    def _run(self, job: Job) -> pa.Table:
        from pyspark.sql import functions

        if self._few is None:
            wanted = self.facts.where(functions.col("fact").isin(*sorted(job.needs)))
        else:
            wanted = self._small.createDataFrame(of_kinds(self._few, job.needs))
        return sorted_answer(job, wanted, self._settings)


def answer_of(job: Job, rows: list[Row], windows: tuple[str, ...], length: timedelta) -> Answer:
    """What a job found, with what is known of the job."""
    return Answer(job.name, job.title, job.chart, tuple(job.keys), rows, windows, length.total_seconds())


def of_kinds(facts: pa.Table, kinds: frozenset[str]) -> pa.Table:
    """Chosen here and not by Spark: that makes its plans shorter, and planning is most of what a small query takes."""
    import pyarrow as pa
    from pyarrow import compute

    return facts.filter(compute.is_in(facts.column("fact"), pa.array(sorted(kinds)))).combine_chunks()


def sorted_answer(job: Job, facts: DataFrame, settings: Settings) -> pa.Table:
    """The answer of a job over the facts that it needs, by the order of its keys."""
    return job.run(facts, settings).toArrow().sort_by([(key, "ascending") for key in job.keys])
