"""Incremental answers of a --follow: runs the jobs whose facts have changed, and publishes what is new.

The answer for a window depends on the facts of that window and of a history before it. So for each job the facts are
read from that history before its earliest changed window, and all windows from there on are answered again: late
events change what counts as usual for the windows after theirs. Windows whose rows did not change are not published
again. Once no facts change any more, the last answers are those of a batch.

Most jobs run in this process, all of them in a fraction of a second; those that only Spark can run follow, in parallel.
A job then pauses for as long as it took, and for a multiple of that if Spark had to plan, because reading events needs
the machine, too. A window counts as answered when the broker has confirmed the answers of all jobs; what a crash left
unanswered is answered after the restart. For one thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import pyarrow as pa

from warrenmq.pipeline.analysis.event_log import FactGroup, groups_for, window_of
from warrenmq.pipeline.jobs.answers import MAX_PARALLEL_JOBS, Answer, answer_of, plain_rows, run_job
from warrenmq.pipeline.jobs.tables import Row, concat, since, to_ints
from warrenmq.pipeline.times import MICROSECOND, TimeRange, from_us, iso, window_starts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.merge.facts_store import FactsStore
    from warrenmq.pipeline.options import AnalysisOptions

PAUSE_FACTOR, SPARK_PAUSE_FACTOR = 1.0, 5.0  # times the duration of a run, before the job runs again
END_OF_TIME = 2**62
RETENTION_US = 3600 * 1_000_000  # facts are kept for this much longer than answers depend on them


@dataclass(frozen=True, slots=True)
class AnswerUpdate:
    """An answer for a range, and the number of the change up to which it is current."""

    answer: Answer
    number: int
    covers: TimeRange


@dataclass(frozen=True, slots=True)
class Task:
    """A job to run: from the first changed window on, at least to the last, up to this change."""

    job: Job
    start: int
    last: int
    change: int


Publish = Callable[[Sequence[AnswerUpdate]], None]
Changed = Mapping[str, Mapping[int, int]]


class JobRunner:
    """Answers for the facts in the store. `publish` returns when the broker has the answers, or raises."""

    def __init__(
        self,
        spark: SparkSession,
        store: FactsStore,
        groups: Sequence[FactGroup],
        jobs: Sequence[Job],
        options: AnalysisOptions,
        publish: Publish,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._store = store
        self._groups = groups_for(groups, jobs)
        self._jobs = jobs
        self._options = options
        self._publish = publish
        self._clock = clock
        self._answered = dict.fromkeys((job.name for job in jobs), 0)  # number of the last change answered
        self._published = {job.name: PublishedWindows() for job in jobs}
        self._paused_until: dict[str, float] = {}
        self._retained_from = 0

    def run_due(self, *, is_last: bool = False) -> bool:
        """Run the jobs whose facts have changed; return True if a paused job still has to run."""
        changed = {group.name: self._store.unanswered(group.name) for group in self._groups}
        tasks = [task for job in self._jobs if (task := self._task(job, changed)) is not None]
        due = [task for task in tasks if is_last or self._paused_until.get(task.job.name, 0.0) <= self._clock()]
        if due:
            facts = self._facts(due)
            self._run_here([task for task in due if task.job.answer is not None], facts)
            self._run_on_spark([task for task in due if task.job.answer is None], facts)
        if tasks:
            self._mark_answered(changed)
        return len(due) < len(tasks)

    def _task(self, job: Job, changed: Changed) -> Task | None:
        """Return what this job has to answer again, if anything."""
        found = [
            (start, change)
            for group in self._groups_of(job)
            for start, change in changed[group.name].items()
            if change > self._answered[job.name]
        ]
        if not found:
            return None
        starts, changes = zip(*found, strict=True)
        return Task(job, min(starts), max(starts), max(changes))

    # -- answers -------------------------------------------------------------------------------------------------------

    def _run_here(self, tasks: Sequence[Task], facts: Mapping[str, pa.Table]) -> None:
        """Run one job after the other and publish all answers together, which waits for the broker's disk once."""
        started = self._clock()
        updates = [self._update(task, facts) for task in tasks]
        self._publish_updates(tasks, updates)
        now = self._clock()
        for task in tasks:
            self._paused_until[task.job.name] = now + PAUSE_FACTOR * (now - started)

    def _run_on_spark(self, tasks: Sequence[Task], facts: Mapping[str, pa.Table]) -> None:
        if not tasks:
            return

        def run(task: Task) -> AnswerUpdate | None:
            started = self._clock()
            update = self._update(task, facts)
            now = self._clock()
            self._paused_until[task.job.name] = now + SPARK_PAUSE_FACTOR * (now - started)
            return update

        with ThreadPoolExecutor(MAX_PARALLEL_JOBS, thread_name_prefix="warren-job") as threads:
            for task, update in zip(tasks, threads.map(run, tasks), strict=True):
                self._publish_updates([task], [update])

    def _publish_updates(self, tasks: Sequence[Task], results: Sequence[AnswerUpdate | None]) -> None:
        """Publish what is new; then the tasks are answered."""
        updates = [update for update in results if update is not None]
        if updates:
            self._publish(updates)
        for update in updates:
            self._published[update.answer.job].record(update.answer)
        for task in tasks:
            self._answered[task.job.name] = task.change

    def _update(self, task: Task, facts: Mapping[str, pa.Table]) -> AnswerUpdate | None:
        """Run a job; return the windows whose rows differ from those published last, or None if there are none."""
        job = task.job
        first = task.start - self._history_us(job)
        known = concat(*(since(facts[group.name], first) for group in self._groups_of(job) if group.name in facts))
        rows = plain_rows(run_job(job, known, self._options, self._spark, task.start))
        length = window_of(job, self._groups, self._options)
        # A changed window may have no facts: its ids are unique.
        last = int(to_ints(known["window_start"]).max(initial=task.last))
        covers = TimeRange(from_us(task.start), from_us(last) + length)
        windows = self._published[job.name].changed(rows, window_starts(covers, length))
        if not windows:
            return None
        is_new = set(windows)
        answer = answer_of(job, [row for row in rows if row["window_start"] in is_new], windows, length)
        return AnswerUpdate(answer, task.change, covers)

    # -- facts ---------------------------------------------------------------------------------------------------------

    def _facts(self, tasks: Sequence[Task]) -> dict[str, pa.Table]:
        """Return the facts that these jobs need, by group, in order of time."""
        facts = {}
        for group in groups_for(self._groups, [task.job for task in tasks]):
            first = min(task.start - self._history_us(task.job) for task in tasks if group in self._groups_of(task.job))
            table = self._store.facts(group.name, first, END_OF_TIME)
            if table is not None:
                facts[group.name] = table.combine_chunks()
        return facts

    def _mark_answered(self, changed: Changed) -> None:
        """Mark the windows that all their jobs have answered, and drop facts that no job needs any more."""
        for group in self._groups:
            answered = min(self._answered[job.name] for job in self._jobs if group in self._groups_of(job))
            windows = {start: change for start, change in changed[group.name].items() if change <= answered}
            self._store.set_answered(group.name, windows)
        retained_from = self._needed_from()
        if retained_from > self._retained_from:
            self._retained_from = retained_from
            for group in self._groups:
                self._store.drop_before(group.name, retained_from)
            for published in self._published.values():
                published.drop_before(iso(from_us(retained_from)))

    def _needed_from(self) -> int:
        newest = [bounds[1] for group in self._groups if (bounds := self._store.bounds(group.name)) is not None]
        history = max(self._history_us(job) for job in self._jobs)
        length = max(group.window(self._options) for group in self._groups) // MICROSECOND
        return max(newest) - RETENTION_US - 2 * (history + self._options.lateness_us + length)

    def _groups_of(self, job: Job) -> tuple[FactGroup, ...]:
        return groups_for(self._groups, (job,))

    def _history_us(self, job: Job) -> int:
        return round(job.history(self._options) * 1_000_000)


class PublishedWindows:
    """What one job published for each window, as digests of the rows."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}

    def changed(self, rows: Sequence[Row], windows: Sequence[str]) -> tuple[str, ...]:
        """Return those of the windows whose rows differ from the published ones."""
        digests = _digests(rows, windows)
        return tuple(window for window in windows if self._digests.get(window) != digests[window])

    def record(self, answer: Answer) -> None:
        self._digests |= _digests(answer.rows, answer.windows)

    def drop_before(self, start: str) -> None:
        self._digests = {window: digest for window, digest in self._digests.items() if window >= start}


def _digests(rows: Sequence[Row], windows: Sequence[str]) -> dict[str, bytes]:
    by_window: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_window[row["window_start"]].append(row)
    return {window: blake2b(repr(by_window[window]).encode(), digest_size=16).digest() for window in windows}
