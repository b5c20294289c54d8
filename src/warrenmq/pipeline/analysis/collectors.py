"""What is collected for the jobs: which facts belong together in a window, and what has to be counted for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from warrenmq.pipeline.times import Range, floor, microseconds_of, widened

if TYPE_CHECKING:
    from warrenmq.pipeline.count.count_events import Counting
    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import Settings


@dataclass(frozen=True, slots=True)
class Collector:
    """Kinds of facts whose windows have the same length. `name` is theirs in the facts store."""

    name: str
    facts: frozenset[str]
    window: Callable[[Settings], timedelta]


def standard() -> tuple[Collector, ...]:
    """Those of the jobs that come with the package."""
    from warrenmq.pipeline.facts import KEY, MESSAGE, PRIORITY, SESSION, STEP, TIME

    return (
        Collector("facts", frozenset({STEP, KEY, TIME, PRIORITY}), window_length),
        Collector("keyed", frozenset({MESSAGE, SESSION}), keyed_length),
    )


def window_length(settings: Settings) -> timedelta:
    return timedelta(seconds=settings.window_seconds)


def keyed_length(settings: Settings) -> timedelta:
    return timedelta(seconds=settings.keyed_seconds)


def needed(collectors: Iterable[Collector], jobs: Iterable[Job]) -> tuple[Collector, ...]:
    """Those that bring something that one of the jobs needs."""
    wanted = needs_of(jobs)
    return tuple(collector for collector in collectors if collector.facts & wanted)


def needs_of(jobs: Iterable[Job]) -> frozenset[str]:
    """The kinds of facts that these jobs look at."""
    return frozenset().union(*(job.needs for job in jobs))


def window_of(job: Job, collectors: Iterable[Collector], settings: Settings) -> timedelta:
    """How long the windows are that a job answers for: those of the facts that it needs."""
    return min(collector.window(settings) for collector in needed(collectors, (job,)))


def counting_from(start: datetime, wanted: Iterable[str], settings: Settings) -> Counting:
    """Everything from the window on that this moment is in."""
    from warrenmq.pipeline.count.count_events import Counting

    begin, keyed = (microseconds_of(floor(start, length(settings))) for length in (window_length, keyed_length))
    return replace(Counting.of(settings, wanted), start=begin, keyed_start=keyed)


def counting_between(covers: Range, wanted: Iterable[str], settings: Settings) -> Counting:
    """What is in a range, widened to whole windows."""
    from warrenmq.pipeline.count.count_events import SHELVES, Counting

    windows, keyed = (widened(covers, length(settings)) for length in (window_length, keyed_length))
    return replace(
        Counting.of(settings, wanted, SHELVES),
        start=microseconds_of(windows.start),
        end=microseconds_of(windows.end),
        keyed_start=microseconds_of(keyed.start),
        keyed_end=microseconds_of(keyed.end),
    )
