"""The analysis of a time range, once: events -> facts -> one answer per job.

Facts are computed once and cached by Spark. Few facts, such as those of an hour, are copied to this process, where the
jobs run over them in parallel. The answers are those that a --follow over the same windows ends with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from warrenmq.pipeline.analysis.event_log import EventSource, FactGroup, count_between, needed_facts, window_of
from warrenmq.pipeline.analysis.progress import AnalysisProgress, ReportProgress
from warrenmq.pipeline.facts import STEP, merge_partials
from warrenmq.pipeline.jobs.answers import (
    MAX_PARALLEL_JOBS,
    Answer,
    answer_of,
    plain_rows,
    run_job,
    run_job_on_spark,
)
from warrenmq.pipeline.spark.session import small_table_session
from warrenmq.pipeline.times import TimeRange, from_us, widen, window_starts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import AnalysisOptions

MAX_LOCAL_FACTS = 300_000  # a few hundred megabytes in the driver at most


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's answer, as plain rows and as a table."""

    answer: Answer
    table: pa.Table


@dataclass(frozen=True, slots=True)
class RangeSummary:
    """The number of events in the range, and the time of the newest."""

    events: int
    newest: datetime | None


class BatchAnalysis:
    """One time range. A context manager: it caches facts in Spark's memory."""

    def __init__(
        self,
        spark: SparkSession,
        events: EventSource,
        groups: Sequence[FactGroup],
        jobs: Sequence[Job],
        options: AnalysisOptions,
        covers: TimeRange,
    ) -> None:
        self._small = small_table_session(spark)
        self._local_facts: pa.Table | None = None
        self._jobs = jobs
        self._options = options
        self._covers = covers
        self._groups = tuple(groups)
        fact_kinds = needed_facts(jobs) | {STEP}  # in which every event counts once
        self.facts = merge_partials(events.between(spark, count_between(covers, fact_kinds, options)), options)

    def __enter__(self) -> BatchAnalysis:
        self.facts = self.facts.persist()
        return self

    def __exit__(self, *_: object) -> None:
        self.facts.unpersist()

    def read_events(self) -> RangeSummary:
        """Read and count the events."""
        from pyspark.sql import functions

        is_step = functions.col("fact") == STEP
        row = self.facts.agg(
            functions.count("*").alias("facts"),
            functions.sum(functions.when(is_step, functions.col("count"))).alias("events"),
            functions.unix_micros(functions.max("last_time")).alias("newest"),
        ).first()
        if row is None or not row["facts"]:
            return RangeSummary(0, None)
        if row["facts"] <= MAX_LOCAL_FACTS:
            self._local_facts = self.facts.toArrow()
        return RangeSummary(row["events"] or 0, from_us(row["newest"]))

    def answers(self, report: ReportProgress) -> Iterator[JobResult]:
        """Run the jobs, after `read_events`; yield their answers in the order of the jobs."""
        workers = 1 if self._local_facts is None else MAX_PARALLEL_JOBS
        return run_jobs(self._jobs, self._run, workers, self._groups, self._options, self._covers, report)

    def _run(self, job: Job) -> pa.Table:
        from pyspark.sql import functions

        if self._local_facts is not None:
            return run_job(job, self._local_facts, self._options, self._small)
        needed = self.facts.where(functions.col("fact").isin(*sorted(job.needs)))
        return run_job_on_spark(job, needed, self._options)


def run_jobs(
    jobs: Sequence[Job],
    run: Callable[[Job], pa.Table],
    workers: int,
    groups: Sequence[FactGroup],
    options: AnalysisOptions,
    covers: TimeRange,
    report: ReportProgress,
) -> Iterator[JobResult]:
    """Run the jobs in this many threads; yield their answers in the order of the jobs."""
    with ThreadPoolExecutor(workers, thread_name_prefix="warren-job") as threads:
        for number, (job, table) in enumerate(zip(jobs, threads.map(run, jobs), strict=True)):
            report(AnalysisProgress(job.title, number + 1, len(jobs)))
            length = window_of(job, groups, options)
            windows = window_starts(widen(covers, length), length)
            yield JobResult(answer_of(job, plain_rows(table), windows, length), table)
