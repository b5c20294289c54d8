"""The analysis that continues as long as events come: Structured Streaming with a checkpoint.

One streaming query without state: events are counted where they are read, and the partials of a micro-batch are added
to the facts store in the checkpoint folder. A second thread runs the jobs, so a micro-batch is short however many jobs
there are; a third publishes a heartbeat.

Nothing is lost or counted twice if this process, an executor or the broker dies at any moment: the query resumes from
its checkpoint, the store knows which batches it has, and answers replace earlier ones. If the broker is away, the query
waits; if it fails while the broker answers, it is restarted a few times, and then the failure is raised.

Owned by the caller's thread: the query. Owned by the job thread: the job runner.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from warrenmq.client import ClientError
from warrenmq.pipeline.analysis.event_log import EventSource, FactGroup, count_since, groups_for, needed_facts
from warrenmq.pipeline.analysis.incremental import AnswerUpdate, JobRunner
from warrenmq.pipeline.analysis.progress import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    ProgressTracker,
    ReportProgress,
    listener_for,
    status_answer,
)
from warrenmq.pipeline.analysis.restarts import MAX_FAILURES, RestartingQuery
from warrenmq.pipeline.count.partials import partials_from_rows
from warrenmq.pipeline.errors import CheckpointMismatch, FollowFailed, short_reason
from warrenmq.pipeline.merge.facts_store import FactsStore
from warrenmq.pipeline.publish.results import Run, document_of
from warrenmq.pipeline.spark.session import small_table_session
from warrenmq.pipeline.times import TimeRange, from_us, iso

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import AnalysisOptions

HEARTBEAT = 5.0
PAUSED_JOBS_INTERVAL = 0.25  # between checks whether paused jobs are due
POLL_INTERVAL = 0.25
QUERY = "query"  # its folder in the checkpoint
RETRY_DELAY = 1.0  # after jobs failed, or answers could not be published

log = logging.getLogger("warrenmq.analysis")

Write = Callable[..., object]  # takes documents


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """`until_read`: end when the whole log has been read. `start` only applies to a new checkpoint."""

    checkpoint: Path
    start: datetime
    trigger: str = "1 second"
    until_read: bool = False


class FollowAnalysis:
    """One --follow. `write` publishes documents, `is_broker_reachable` probes the broker."""

    def __init__(
        self,
        spark: SparkSession,
        events: EventSource,
        groups: Sequence[FactGroup],
        jobs: Sequence[Job],
        options: AnalysisOptions,
        follow: FollowOptions,
        write: Write,
        is_broker_reachable: Callable[[], bool],
        report: ReportProgress,
    ) -> None:
        self._spark = spark
        self._events = events
        self._fact_kinds = needed_facts(jobs)
        self._options = options
        self._follow = follow
        self._write = write
        self._is_broker_reachable = is_broker_reachable
        self._tracker = ProgressTracker(report)
        self._store = FactsStore(follow.checkpoint, options)
        self._check_options()
        self._start = datetime.fromisoformat(self._store.option("start", iso(follow.start)))
        self._run = Run(self._store.option("run", str(uuid.uuid4())), "follow")
        self._job_runner = JobRunner(
            small_table_session(spark), self._store, groups_for(groups, jobs), jobs, options, self._publish
        )
        self._changed = threading.Event()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Return when `stop` is set or the whole log has been read; raise FollowFailed."""
        listener = listener_for(lambda name: self._tracker if name == self._run.id else None)
        self._spark.streams.addListener(listener)
        threads = [
            threading.Thread(target=self._run_jobs_until_over, name="warren-jobs"),
            threading.Thread(target=self._heartbeat_until_over, name="warren-heartbeat"),
        ]
        for thread in threads:
            thread.start()
        state, error = FAILED, None
        try:
            self._run_query(stop)
            state = FINISHED if self._follow.until_read and not stop.is_set() else STOPPED
        except FollowFailed as failure:
            error = str(failure)
            raise
        finally:
            self._is_over.set()
            self._changed.set()
            for thread in threads:
                thread.join()
            self._spark.streams.removeListener(listener)
            if self._failure is not None:
                state, error = FAILED, f"{type(self._failure).__name__}: {self._failure}"
            self._publish_status(state, error)
            self._store.close()
        if self._failure is not None:
            raise self._failure

    # -- the query -----------------------------------------------------------------------------------------------------

    def _run_query(self, stop: threading.Event) -> None:
        """Keep the query running until the whole log has been read or `stop` is set."""
        query = RestartingQuery(
            self._start_query, self._store.last_batch, self._is_broker_reachable, self._tracker.set_activity
        )
        try:
            while not stop.is_set() and self._failure is None and query.poll():
                stop.wait(POLL_INTERVAL)
        finally:
            query.stop()

    def _start_query(self) -> StreamingQuery:
        partials = self._events.since(self._spark, count_since(self._start, self._fact_kinds, self._options))
        writer = (
            partials.writeStream.queryName(self._run.id)
            .option("checkpointLocation", str(self._follow.checkpoint / QUERY))
            .foreachBatch(self._add_batch)
        )
        trigger = (
            writer.trigger(availableNow=True)
            if self._follow.until_read
            else writer.trigger(processingTime=self._follow.trigger)
        )
        query = trigger.start()
        if self._store.option("query", str(query.id)) != str(query.id):
            query.stop()
            raise CheckpointMismatch(
                f"a part of the checkpoint {self._follow.checkpoint} is gone: delete the whole folder to start over"
            )
        return query

    def _add_batch(self, rows: DataFrame, batch: int) -> None:
        """Add the partials of a micro-batch to the store; called by Spark."""
        added = self._store.add_batch(batch, partials_from_rows(rows.toArrow()))
        if added is not None:
            self._tracker.add_batch(added.events, from_us(added.newest) if added.newest else None, added.late)
            self._changed.set()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _run_jobs_until_over(self) -> None:
        """The job thread. While the broker is away, windows stay unanswered and are retried."""
        from pyspark.errors import PySparkException

        failures = 0
        try:
            while True:
                is_last = self._is_over.is_set()
                self._changed.clear()
                pause = HEARTBEAT
                try:
                    if self._job_runner.run_due(is_last=is_last):
                        pause = PAUSED_JOBS_INTERVAL
                    failures = 0
                except ClientError as lost:
                    log.warning("the answers wait for the broker: %s", lost)
                    pause = RETRY_DELAY
                except PySparkException as failure:
                    failures += 1
                    if failures >= MAX_FAILURES:
                        raise FollowFailed(short_reason(str(failure))) from failure
                    log.warning("running the jobs again: %s", short_reason(str(failure)))
                    self._is_over.wait(RETRY_DELAY)
                    continue
                if is_last:
                    return
                self._changed.wait(pause)
        except BaseException as failure:  # noqa: BLE001 - raised by the thread that started this one
            self._failure = failure

    def _publish(self, updates: Sequence[AnswerUpdate]) -> None:
        now = datetime.now(UTC)
        self._write(*(document_of(one.answer, self._run, one.number, one.covers, now) for one in updates))

    def _heartbeat_until_over(self) -> None:
        """The heartbeat thread: shows that the analysis is alive, even while jobs take long."""
        self._publish_status(RUNNING)
        while not self._is_over.wait(HEARTBEAT):
            self._publish_status(RUNNING)

    def _publish_status(self, state: str, error: str | None = None) -> None:
        """Publish the job `status`; if that fails, the next heartbeat makes up for it."""
        now = datetime.now(UTC)
        answer = status_answer(self._run, self._tracker.progress, state, self._options.window_seconds, error)
        number = int(now.timestamp() * 1000)
        try:
            self._write(document_of(answer, self._run, number, TimeRange(self._run.started, now), now))
        except ClientError as lost:
            log.warning("the status of the analysis could not be published: %s", lost)

    def _check_options(self) -> None:
        """Raise if the checkpoint has facts of other windows, or lacks facts that a new job needs."""
        options = self._options
        windows = f"{options.window} and {options.id_window}, lateness {options.lateness}, kept {options.max_per_group}"
        for name, value in (("windows", windows), ("kinds of facts", " ".join(sorted(self._fact_kinds)))):
            stored = self._store.option(name, value)
            if stored != value:
                self._store.close()
                raise CheckpointMismatch(
                    f"the checkpoint {self._follow.checkpoint} was made with other {name} ({stored}): "
                    "give the same again, or another --checkpoint"
                )
