"""The analysis that goes on for as long as events come: Structured Streaming, checkpointed.

One streaming query without state: events are counted where they are read, and what a micro-batch counts up to is added
to the facts store in the checkpoint folder. A thread of its own answers for what has changed, so that a micro-batch is
short however many jobs there are; another tells every few seconds that somebody is at work.

Nothing is lost and nothing counts twice when this process, an executor or the broker ends at any moment: the query goes
on from its checkpoint, the store knows the batches that it has, and answers replace those before. A broker that is
away is waited for; a query that fails while the broker is there is started again a few times, and then the failure is
raised.

Owned by the caller's thread: the query. Owned by the answering thread: the analyst.
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
from warrenmq.pipeline.analysis.collectors import Collector, counting_from, needed, needs_of
from warrenmq.pipeline.analysis.event_log import Events
from warrenmq.pipeline.analysis.incremental import Analyst, Told
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
from warrenmq.pipeline.analysis.restarts import FAILURES, KeptQuery
from warrenmq.pipeline.count.partials import pieces_in
from warrenmq.pipeline.failures import FollowFailed, OtherCheckpoint, reason_of
from warrenmq.pipeline.merge.facts_store import FactsStore
from warrenmq.pipeline.publish.answers import Run, document_of
from warrenmq.pipeline.spark.session import small_tables
from warrenmq.pipeline.times import Range, iso, moment_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import Settings

HEARTBEAT = 5.0
RESTING = 0.25  # until jobs that rest are looked at again
LOOK_EVERY = 0.25
QUERY = "query"  # its folder in the checkpoint
PAUSE = 1.0  # before jobs that failed, or answers that were not taken, are tried again

log = logging.getLogger("warrenmq.analysis")

Write = Callable[..., object]  # takes documents


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """`until_read`: end when all that is in the log has been read. `start` counts for a new checkpoint only."""

    checkpoint: Path
    start: datetime
    trigger: str = "1 second"
    until_read: bool = False


class Follow:
    """One --follow. `write` hands documents to the broker, `is_broker_there` asks whether it answers."""

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
        self._wanted = needs_of(jobs)
        self._settings = settings
        self._options = options
        self._write = write
        self._is_broker_there = is_broker_there
        self._tracker = Tracker(tell)
        self._store = FactsStore(options.checkpoint, settings)
        self._check_settings()
        self._start = datetime.fromisoformat(self._store.setting("start", iso(options.start)))
        self._run = Run(self._store.setting("run", str(uuid.uuid4())), "follow")
        self._analyst = Analyst(
            small_tables(spark), self._store, needed(collectors, jobs), jobs, settings, self._publish
        )
        self._changed = threading.Event()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Returns when `stop` is set, or all is read; raises FollowFailed."""
        listener = listener_for(lambda name: self._tracker if name == self._run.id else None)
        self._spark.streams.addListener(listener)
        threads = [
            threading.Thread(target=self._answer_until_over, name="warren-analyst"),
            threading.Thread(target=self._beat_until_over, name="warren-heartbeat"),
        ]
        for thread in threads:
            thread.start()
        state, error = FAILED, None
        try:
            self._keep_query(stop)
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

    # -- the query -----------------------------------------------------------------------------------------------------

    def _keep_query(self, stop: threading.Event) -> None:
        """It runs until all is read or `stop` is set."""
        query = KeptQuery(self._start_query, self._store.last_batch, self._is_broker_there, self._tracker.say)
        try:
            while not stop.is_set() and self._failure is None and query.look():
                stop.wait(LOOK_EVERY)
        finally:
            query.stop()

    def _start_query(self) -> StreamingQuery:
        pieces = self._events.since(self._spark, counting_from(self._start, self._wanted, self._settings))
        writer = (
            pieces.writeStream.queryName(self._run.id)
            .option("checkpointLocation", str(self._options.checkpoint / QUERY))
            .foreachBatch(self._keep)
        )
        trigger = (
            writer.trigger(availableNow=True)
            if self._options.until_read
            else writer.trigger(processingTime=self._options.trigger)
        )
        query = trigger.start()
        if self._store.setting("query", str(query.id)) != str(query.id):
            query.stop()
            raise OtherCheckpoint(
                f"a part of the checkpoint {self._options.checkpoint} is gone: delete the whole folder to begin anew"
            )
        return query

    def _keep(self, brought: DataFrame, batch: int) -> None:
        """What a micro-batch counts up to goes to the store; called by Spark."""
        added = self._store.put(batch, pieces_in(brought.toArrow()))
        if added is not None:
            self._tracker.count(added.events, moment_of(added.newest) if added.newest else None, added.late)
            self._changed.set()

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

    def _publish(self, told: Sequence[Told]) -> None:
        now = datetime.now(UTC)
        self._write(*(document_of(one.answer, self._run, one.number, one.covers, now) for one in told))

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

    def _check_settings(self) -> None:
        """Facts of other windows, or without what a new job needs, cannot be gone on with."""
        chosen = self._settings
        windows = f"{chosen.window} and {chosen.keyed_window}, lateness {chosen.lateness}, kept {chosen.kept}"
        for name, value in (("windows", windows), ("kinds of facts", " ".join(sorted(self._wanted)))):
            kept = self._store.setting(name, value)
            if kept != value:
                self._store.close()
                raise OtherCheckpoint(
                    f"the checkpoint {self._options.checkpoint} was made with other {name} ({kept}): "
                    "give the same again, or another --checkpoint"
                )
