"""The analysis of a range of time, once: events -> facts -> one answer per job.

The facts are computed once and kept by Spark while the jobs run over them. If they are few, as those of an hour are,
the jobs run over a copy in a session for small tables, side by side. What it gives is what a --follow over the same
windows ends with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from warrenmq.pipeline.analysis.collectors import Collector, counting_between, needs_of, window_of
from warrenmq.pipeline.analysis.event_log import Events
from warrenmq.pipeline.analysis.progress import Progress, Tell
from warrenmq.pipeline.facts import facts_of_pieces
from warrenmq.pipeline.jobs.answering import SIDE_BY_SIDE, answer_of, answered, answered_by_spark
from warrenmq.pipeline.publish.answers import Answer, plain_rows
from warrenmq.pipeline.spark.session import small_tables
from warrenmq.pipeline.times import Range, moment_of, starts_between, widened

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import Settings

COUNTED = "step"  # the facts in which every event counts once
FEW_FACTS = 300_000  # some hundred megabytes in the driver at most


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
        self._collectors = tuple(collectors)
        wanted = needs_of(jobs) | {COUNTED}
        self.facts = facts_of_pieces(events.between(spark, counting_between(covers, wanted, settings)), settings)

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

        if self._few is not None:
            return answered(job, self._few, self._settings, self._small)
        wanted = self.facts.where(functions.col("fact").isin(*sorted(job.needs)))
        return answered_by_spark(job, wanted, self._settings)
