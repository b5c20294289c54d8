"""The analysis that goes on for as long as events come: Structured Streaming, checkpointed.

Each collector is one streaming query; what a micro-batch changes goes to the facts store in the checkpoint folder. A
thread of its own answers for what has changed, so that a micro-batch is short however many jobs there are; another
tells every few seconds that somebody is at work.

Nothing is lost and nothing counts twice when this process, an executor or the broker ends at any moment: the queries go
on from their checkpoints, the store knows the batches that it has, and answers replace those before. A broker that is
away is waited for; a query that fails while the broker is there is started again a few times, and then the failure is
raised.

Owned by the caller's thread: the queries. Owned by the answering thread: the analyst.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warrenmq.client import ClientError
from warrenmq.pipeline.analysis.analyst import Analyst
from warrenmq.pipeline.analysis.answers import Answer, Run, document_of
from warrenmq.pipeline.analysis.collectors import Collector, needed
from warrenmq.pipeline.analysis.event_log import Events
from warrenmq.pipeline.analysis.facts_store import FactsStore
from warrenmq.pipeline.analysis.failures import FollowFailed, OtherCheckpoint, reason_of
from warrenmq.pipeline.analysis.progress import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    Tell,
    Tracker,
    listener_for,
    status_answer,
)
from warrenmq.pipeline.analysis.queries import FAILURES, KeptQuery
from warrenmq.pipeline.analysis.times import Range, floor, iso
from warrenmq.pipeline.session import small_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.settings import Settings

HEARTBEAT = 5.0
RESTING = 1.0  # until jobs that rest are looked at again
LOOK_EVERY = 0.25
PAUSE = 1.0  # before jobs that failed, or answers that were not taken, are tried again
SOURCE_LIMIT = 15.0

log = logging.getLogger("warrenmq.analysis")

Write = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """`until_read`: end when all that is in the log has been read. `start` counts for a new checkpoint only."""

    checkpoint: Path
    start: datetime
    trigger: str = "1 second"
    until_read: bool = False


class Follow:
    """One --follow. `write` hands a document to the broker, `is_broker_there` asks whether it answers."""

    def __init__(
        self,
        spark: SparkSession,
        events: Events,
        collectors: Sequence[Collector],
        jobs: Sequence[Job],
        settings: Settings,
        options: FollowOptions,
        write: Write,
        is_broker_there: Callable[[], bool],
        tell: Tell,
    ) -> None:
        self._spark = spark
        self._events = events
        self._collectors = needed(collectors, jobs)
        self._settings = settings
        self._options = options
        self._write = write
        self._is_broker_there = is_broker_there
        self._tracker = Tracker(tell)
        self._store = FactsStore(options.checkpoint)
        self._check_settings(jobs)
        self._start = datetime.fromisoformat(self._store.setting("start", iso(options.start)))
        self._run = Run(self._store.setting("run", str(uuid.uuid4())), "follow")
        self._analyst = Analyst(small_tables(spark), self._store, self._collectors, jobs, settings, self._publish)
        self._changed = threading.Event()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Returns when `stop` is set, or all is read; raises FollowFailed."""
        listener = listener_for(lambda name: self._tracker if name == self._query_name(self._collectors[0]) else None)
        self._spark.streams.addListener(listener)
        threads = [
            threading.Thread(target=self._answer_until_over, name="warren-analyst"),
            threading.Thread(target=self._beat_until_over, name="warren-heartbeat"),
        ]
        for thread in threads:
            thread.start()
        state, error = FAILED, None
        try:
            self._keep_queries(stop)
            state = FINISHED if self._options.until_read and not stop.is_set() else STOPPED
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
            self._say_status(state, error)
            self._store.close()
        if self._failure is not None:
            raise self._failure

    # -- queries -------------------------------------------------------------------------------------------------------

    def _keep_queries(self, stop: threading.Event) -> None:
        """Queries run until all is read or `stop` is set."""
        queries = [self._kept_query(collector) for collector in self._collectors]
        try:
            while not stop.is_set() and self._failure is None:
                goes_on = [query.look() for query in queries]
                if not any(goes_on):
                    return
                stop.wait(LOOK_EVERY)
        finally:
            for query in queries:
                query.stop()

    def _kept_query(self, collector: Collector) -> KeptQuery:
        return KeptQuery(
            partial(self._start_query, collector),
            partial(self._store.last_batch, collector.name),
            self._is_broker_there,
            self._tracker.say,
        )

    def _start_query(self, collector: Collector) -> StreamingQuery:
        start = floor(self._start, collector.window(self._settings))
        events = self._events.since(self._spark, start, collector.columns)
        writer = (
            collector.collect(events, self._settings)
            .writeStream.queryName(self._query_name(collector))
            .outputMode(collector.mode)
            .option("checkpointLocation", str(self._options.checkpoint / collector.name))
            .foreachBatch(partial(self._keep, collector))
        )
        trigger = (
            writer.trigger(availableNow=True)
            if self._options.until_read
            else writer.trigger(processingTime=self._options.trigger)
        )
        query = trigger.start()
        self._wait_for_source(query)
        if self._store.setting(f"query {collector.name}", str(query.id)) != str(query.id):
            query.stop()
            raise OtherCheckpoint(
                f"a part of the checkpoint {self._options.checkpoint} is gone: delete the whole folder to begin anew"
            )
        return query

    def _wait_for_source(self, query: StreamingQuery) -> None:
        """Sources one after the other: Spark gives each Python process ten seconds to start, however busy all are."""
        end = time.monotonic() + SOURCE_LIMIT
        while query.isActive and query.status["message"].startswith("Initializing") and time.monotonic() < end:
            time.sleep(LOOK_EVERY)

    def _keep(self, collector: Collector, changed: DataFrame, batch: int) -> None:
        """What a micro-batch has changed goes to the store; called by Spark."""
        from warrenmq.pipeline.facts import FACT_KEYS

        facts = collector.finish(changed, self._settings, batch).toArrow()
        if self._store.put(collector.name, batch, facts, FACT_KEYS):
            self._changed.set()

    def _query_name(self, collector: Collector) -> str:
        return f"{self._run.id} {collector.name}"

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answer_until_over(self) -> None:
        """The answering thread. A broker that is away is waited for: what is unanswered stays so."""
        from pyspark.errors import PySparkException

        failures = 0
        try:
            while True:
                is_last = self._is_over.is_set()
                self._changed.clear()
                pause = HEARTBEAT
                try:
                    if self._analyst.answer(is_last=is_last):
                        pause = RESTING
                    failures = 0
                except ClientError as lost:
                    log.warning("the answers wait for the broker: %s", lost)
                    pause = PAUSE
                except PySparkException as failure:
                    failures += 1
                    if failures >= FAILURES:
                        raise FollowFailed(reason_of(str(failure))) from failure
                    log.warning("the jobs are run again: %s", reason_of(str(failure)))
                    self._is_over.wait(PAUSE)
                    continue
                if is_last:
                    return
                self._changed.wait(pause)
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that owns this one, which raises it
            self._failure = failure

    def _publish(self, answer: Answer, number: int, covers: Range) -> None:
        self._write(document_of(answer, self._run, number, covers, datetime.now(UTC)))

    def _beat_until_over(self) -> None:
        """The heartbeat's thread: jobs may take long, and whoever looks must see that somebody is at work."""
        self._say_status(RUNNING)
        while not self._is_over.wait(HEARTBEAT):
            self._say_status(RUNNING)

    def _say_status(self, state: str, error: str | None = None) -> None:
        """The heartbeat; a broker that does not hear it now will hear the next."""
        now = datetime.now(UTC)
        answer = status_answer(self._run, self._tracker.progress, state, self._settings.window_seconds, error)
        number = int(now.timestamp() * 1000)
        try:
            self._write(document_of(answer, self._run, number, Range(self._run.started, now), now))
        except ClientError as lost:
            log.warning("the broker does not hear how the analysis goes: %s", lost)

    def _check_settings(self, jobs: Sequence[Job]) -> None:
        """Facts of other windows, or without what a new job needs, cannot be gone on with."""
        names = " ".join(sorted(collector.name for collector in self._collectors))
        chosen = self._settings
        facts = f"windows of {chosen.window} and {chosen.keyed_window}, lateness {chosen.lateness}, kept {chosen.kept}"
        for name, value in (("facts", facts), ("collectors", names)):
            kept = self._store.setting(name, value)
            if kept != value:
                self._store.close()
                raise OtherCheckpoint(
                    f"the checkpoint {self._options.checkpoint} was made with other {name} ({kept}): "
                    "give the same again, or another --checkpoint"
                )
