"""Runs the jobs over the facts of a --follow whenever they have changed, and hands the answers on.

An answer for a window depends on the facts of that window and of a history before it. So for each job the earliest
window that changed since its last answer is looked for, the facts from its history on are read, and all windows from
that one on are answered anew: late events change what counts as usual for the windows behind theirs. When no facts
change any more, the last answers are those of a batch.

A job that takes long rests for some multiple of that, so that it does not keep the others from being fresh. A window
counts as answered when the broker has confirmed the answers of all jobs; what a crash left unanswered is answered after
the restart. One thread calls; the jobs of a round run side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warrenmq.pipeline.analysis.answers import Answer, plain_rows
from warrenmq.pipeline.analysis.batch import SIDE_BY_SIDE, answer_of, of_kinds, sorted_answer
from warrenmq.pipeline.analysis.collectors import Collector, needed, window_of
from warrenmq.pipeline.analysis.facts_store import FactsStore
from warrenmq.pipeline.analysis.times import MICROSECOND, Range, moment_of, starts_between
from warrenmq.pipeline.settings import Settings, seconds_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from warrenmq.pipeline.jobs.job import Job

REST = 5.0  # times as long as a job took, before it runs again
FOREVER = 2**62
KEPT_US = 3600 * 1_000_000  # facts are kept for longer than answers depend on them

# An answer for a range, and the number of the round that found it.
Publish = Callable[[Answer, int, Range], None]
Changed = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Task:
    """A job to run: answer from this window on, as of this change."""

    job: Job
    start: int
    stamp: int


class Analyst:
    """Answers for what is in the store. `publish` returns when the broker has the answer, or raises."""

    def __init__(
        self,
        spark: SparkSession,
        store: FactsStore,
        collectors: Sequence[Collector],
        jobs: Sequence[Job],
        settings: Settings,
        publish: Publish,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._store = store
        self._collectors = collectors
        self._jobs = jobs
        self._settings = settings
        self._publish = publish
        self._clock = clock
        self._answered = dict.fromkeys((job.name for job in jobs), 0)  # the last change that was answered
        self._rests_until: dict[str, float] = {}

    def answer(self, *, is_last: bool = False) -> bool:
        """Answer for what has changed; True if something is left to be answered by a job that rests."""
        changed = {collector.name: self._store.unanswered(collector.name) for collector in self._collectors}
        tasks = [task for job in self._jobs if (task := self._task(job, changed)) is not None]
        due = [task for task in tasks if is_last or self._rests_until.get(task.job.name, 0.0) <= self._clock()]
        if due:
            self._run(due)
        if tasks:
            self._settle(changed)
        return len(due) < len(tasks)

    def _task(self, job: Job, changed: Changed) -> Task | None:
        """What this job has to answer anew, if anything."""
        found = [
            (start, stamp)
            for collector in self._serving(job)
            for start, stamp in changed[collector.name].items()
            if stamp > self._answered[job.name]
        ]
        if not found:
            return None
        return Task(job, min(start for start, _ in found), max(stamp for _, stamp in found))

    def _run(self, tasks: Sequence[Task]) -> None:
        facts = self._facts(tasks)
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="warren-job") as threads:
            for task, found in zip(tasks, threads.map(lambda task: self._answer(task, facts), tasks), strict=True):
                answer, covers = found
                self._publish(answer, task.stamp, covers)
                self._answered[task.job.name] = task.stamp

    def _answer(self, task: Task, facts: pa.Table) -> tuple[Answer, Range]:
        began = self._clock()
        job = task.job
        length = window_of(job, self._collectors, self._settings)
        covers = Range(moment_of(task.start), moment_of(self._newest(job)) + length)
        wanted = of_kinds(_from(facts, task.start - self._history_us(job)), job.needs)
        found = sorted_answer(job, self._spark.createDataFrame(wanted), self._settings)
        rows = plain_rows(_from(found, task.start))
        now = self._clock()
        self._rests_until[job.name] = now + REST * (now - began)
        return answer_of(job, rows, starts_between(covers, length), length), covers

    def _facts(self, tasks: Sequence[Task]) -> pa.Table:
        """What all these jobs need."""
        import pyarrow as pa

        first = min(task.start - self._history_us(task.job) for task in tasks)
        tables = [
            table
            for collector in needed(self._collectors, [task.job for task in tasks])
            if (table := self._store.facts(collector.name, first, FOREVER)) is not None
        ]
        return pa.concat_tables(tables)

    def _settle(self, changed: Changed) -> None:
        """Windows that all their jobs have answered are done; facts that nobody needs any more go."""
        for collector in self._collectors:
            reached = min(self._answered[job.name] for job in self._jobs if collector in self._serving(job))
            done = {start: stamp for start, stamp in changed[collector.name].items() if stamp <= reached}
            self._store.set_answered(collector.name, done)
        line = self._forgotten_before()
        if line is not None:
            for collector in self._collectors:
                self._store.forget_before(collector.name, line)

    def _forgotten_before(self) -> int | None:
        """Collectors go at paces of their own, and a job may need what several bring: the slowest says what can go."""
        bounds = {collector: self._store.bounds(collector.name) for collector in self._collectors}
        reached = [bound[1] for bound in bounds.values() if bound is not None]
        is_behind = any(not bound and self._store.last_batch(one.name) < 0 for one, bound in bounds.items())
        if is_behind or not reached:
            return None
        history = max(self._history_us(job) for job in self._jobs)
        late = round(seconds_of(self._settings.lateness) * 1_000_000)
        length = max(collector.window(self._settings) for collector in self._collectors) // MICROSECOND
        return min(reached) - KEPT_US - 2 * (history + late + length)

    def _newest(self, job: Job) -> int:
        bounds = [self._store.bounds(collector.name) for collector in self._serving(job)]
        return max(bound[1] for bound in bounds if bound is not None)

    def _serving(self, job: Job) -> tuple[Collector, ...]:
        return needed(self._collectors, (job,))

    def _history_us(self, job: Job) -> int:
        return round(job.history(self._settings) * 1_000_000)


def _from(table: pa.Table, start: int) -> pa.Table:
    """The rows of this window and later ones."""
    import pyarrow as pa
    from pyarrow import compute

    return table.filter(compute.greater_equal(table.column("window_start").cast(pa.int64()), start))
