"""Runs the jobs over the facts of a --follow whenever they have changed, and hands the answers on.

An answer for a window depends on the facts of that window and of a history before it. So for each job the earliest
window that changed since its last answer is looked for, the facts from its history on are read, and all windows from
that one on are answered anew: late events change what counts as usual for the windows behind theirs. Windows whose
rows are those that were told last are not told again. When no facts change any more, the last answers are those of a
batch.

Jobs answer in this process, all of them in a fraction of a second. Those that only Spark can run come after them, side
by side. Who has answered rests as long as it took, and some multiple of that where Spark had to plan: what reads the
events needs the machine, too. A window counts as answered when the broker has confirmed the answers of all jobs; what a
crash left unanswered is answered after the restart. One thread calls.
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

from warrenmq.pipeline.analysis.collectors import Collector, needed, window_of
from warrenmq.pipeline.jobs.answering import SIDE_BY_SIDE, answer_of, answered
from warrenmq.pipeline.jobs.tables import numbers, since, stacked
from warrenmq.pipeline.options import Settings, seconds_of
from warrenmq.pipeline.publish.answers import Answer, Row, plain_rows
from warrenmq.pipeline.times import MICROSECOND, Range, iso, moment_of, starts_between

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.merge.facts_store import FactsStore

REST, REST_OF_SPARK = 1.0, 5.0  # times as long as it took, before jobs run again
FOREVER = 2**62
KEPT_US = 3600 * 1_000_000  # facts are kept for longer than answers depend on them


@dataclass(frozen=True, slots=True)
class Told:
    """An answer for a range, and the number of the change that it answers."""

    answer: Answer
    number: int
    covers: Range


@dataclass(frozen=True, slots=True)
class Task:
    """A job to run: answer from this window on, as of this change."""

    job: Job
    start: int
    stamp: int


Publish = Callable[[Sequence[Told]], None]
Changed = Mapping[str, Mapping[int, int]]


class Analyst:
    """Answers for what is in the store. `publish` returns when the broker has the answers, or raises."""

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
        self._collectors = needed(collectors, jobs)
        self._jobs = jobs
        self._settings = settings
        self._publish = publish
        self._clock = clock
        self._answered = dict.fromkeys((job.name for job in jobs), 0)  # the last change that was answered
        self._memory = {job.name: Memory() for job in jobs}
        self._rests_until: dict[str, float] = {}
        self._line = 0  # what is older was forgotten

    def answer(self, *, is_last: bool = False) -> bool:
        """Answer for what has changed; True if something is left to be answered by a job that rests."""
        changed = {collector.name: self._store.unanswered(collector.name) for collector in self._collectors}
        tasks = [task for job in self._jobs if (task := self._task(job, changed)) is not None]
        due = [task for task in tasks if is_last or self._rests_until.get(task.job.name, 0.0) <= self._clock()]
        if due:
            facts = self._facts(due)
            self._answer_here([task for task in due if task.job.answer is not None], facts)
            self._answer_by_spark([task for task in due if task.job.answer is None], facts)
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

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answer_here(self, tasks: Sequence[Task], facts: Mapping[str, pa.Table]) -> None:
        """One after the other, and told together: each alone would wait for the broker's disk."""
        began = self._clock()
        found = [self._news(task, facts) for task in tasks]
        self._tell(tasks, found)
        now = self._clock()
        for task in tasks:
            self._rests_until[task.job.name] = now + REST * (now - began)

    def _answer_by_spark(self, tasks: Sequence[Task], facts: Mapping[str, pa.Table]) -> None:
        if not tasks:
            return

        def news(task: Task) -> Told | None:
            began = self._clock()
            found = self._news(task, facts)
            now = self._clock()
            self._rests_until[task.job.name] = now + REST_OF_SPARK * (now - began)
            return found

        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="warren-job") as threads:
            for task, found in zip(tasks, threads.map(news, tasks), strict=True):
                self._tell([task], [found])

    def _tell(self, tasks: Sequence[Task], found: Sequence[Told | None]) -> None:
        """Publish what is new; then the tasks are answered."""
        told = [one for one in found if one is not None]
        if told:
            self._publish(told)
        for one in told:
            self._memory[one.answer.job].keep(one.answer)
        for task in tasks:
            self._answered[task.job.name] = task.stamp

    def _news(self, task: Task, facts: Mapping[str, pa.Table]) -> Told | None:
        """The windows that have other rows than were told last; None: there are none."""
        job = task.job
        first = task.start - self._history_us(job)
        known = stacked(*(since(facts[one.name], first) for one in self._serving(job) if one.name in facts))
        rows = plain_rows(answered(job, known, self._settings, self._spark, task.start))
        length = window_of(job, self._collectors, self._settings)
        covers = Range(moment_of(task.start), moment_of(int(numbers(known["window_start"]).max())) + length)
        windows = self._memory[job.name].other(rows, starts_between(covers, length))
        if not windows:
            return None
        new = set(windows)
        answer = answer_of(job, [row for row in rows if row["window_start"] in new], windows, length)
        return Told(answer, task.stamp, covers)

    # -- facts ---------------------------------------------------------------------------------------------------------

    def _facts(self, tasks: Sequence[Task]) -> dict[str, pa.Table]:
        """What these jobs need, by the name of the collector, in the order of time."""
        found = {}
        for collector in needed(self._collectors, [task.job for task in tasks]):
            first = min(
                task.start - self._history_us(task.job) for task in tasks if collector in self._serving(task.job)
            )
            table = self._store.facts(collector.name, first, FOREVER)
            if table is not None:
                found[collector.name] = table.combine_chunks()
        return found

    def _settle(self, changed: Changed) -> None:
        """Windows that all their jobs have answered are done; facts that nobody needs any more go."""
        for collector in self._collectors:
            reached = min(self._answered[job.name] for job in self._jobs if collector in self._serving(job))
            done = {start: stamp for start, stamp in changed[collector.name].items() if stamp <= reached}
            self._store.set_answered(collector.name, done)
        line = self._forgotten_before()
        if line > self._line:
            self._line = line
            for collector in self._collectors:
                self._store.forget_before(collector.name, line)
            for memory in self._memory.values():
                memory.forget_before(iso(moment_of(line)))

    def _forgotten_before(self) -> int:
        newest = [bound[1] for one in self._collectors if (bound := self._store.bounds(one.name)) is not None]
        history = max(self._history_us(job) for job in self._jobs)
        late = round(seconds_of(self._settings.lateness) * 1_000_000)
        length = max(collector.window(self._settings) for collector in self._collectors) // MICROSECOND
        return max(newest) - KEPT_US - 2 * (history + late + length)

    def _serving(self, job: Job) -> tuple[Collector, ...]:
        return needed(self._collectors, (job,))

    def _history_us(self, job: Job) -> int:
        return round(job.history(self._settings) * 1_000_000)


class Memory:
    """What was told of each window by one job, as digests: some bytes stand for any number of rows."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}

    def other(self, rows: Sequence[Row], windows: Sequence[str]) -> tuple[str, ...]:
        """Those of the windows whose rows are not the ones that were told last."""
        found = _digests(rows, windows)
        return tuple(window for window in windows if self._digests.get(window) != found[window])

    def keep(self, answer: Answer) -> None:
        self._digests |= _digests(answer.rows, answer.windows)

    def forget_before(self, window: str) -> None:
        self._digests = {kept: digest for kept, digest in self._digests.items() if kept >= window}


def _digests(rows: Sequence[Row], windows: Sequence[str]) -> dict[str, bytes]:
    by_window: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_window[row["window_start"]].append(row)
    return {window: blake2b(repr(by_window[window]).encode(), digest_size=16).digest() for window in windows}
