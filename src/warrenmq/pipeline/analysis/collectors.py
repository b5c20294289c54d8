"""What makes facts of events, in batch and in --follow alike: three collectors, each a query of its own.

A collector has a streaming half (`collect`, events in, aggregates out) and a half for what is complete (`finish`, on a
range, or on what one micro-batch changed). In batch one follows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.settings import Settings


@dataclass(frozen=True, slots=True)
class Collector:
    """`name` is its folder in the checkpoint; `facts` are the kinds of facts that it brings."""

    name: str
    facts: frozenset[str]
    columns: tuple[str, ...]
    mode: str  # of the streaming query: "update" or "append"
    window: Callable[[Settings], timedelta]
    collect: Callable[[DataFrame, Settings], DataFrame]
    finish: Callable[[DataFrame, Settings, int], DataFrame]


def standard() -> tuple[Collector, ...]:
    """The collectors of the jobs that come with the package."""
    from warrenmq.pipeline import facts, keyed, legs

    return (
        Collector("facts", facts.FACTS, facts.EVENT_COLUMNS, "update", window_length, facts.facts_of, _bounded),
        Collector("keyed", keyed.FACTS, keyed.EVENT_COLUMNS, "update", keyed_length, keyed.keyed_facts_of, _bounded),
        Collector("legs", legs.FACTS, legs.EVENT_COLUMNS, "append", window_length, legs.legs_of, legs.processing_facts),
    )


def window_length(settings: Settings) -> timedelta:
    return timedelta(seconds=settings.window_seconds)


def keyed_length(settings: Settings) -> timedelta:
    return timedelta(seconds=settings.keyed_seconds)


def needed(collectors: Iterable[Collector], jobs: Iterable[Job]) -> tuple[Collector, ...]:
    """Those that bring something that one of the jobs needs."""
    wanted: frozenset[str] = frozenset().union(*(job.needs for job in jobs))
    return tuple(collector for collector in collectors if collector.facts & wanted)


def window_of(job: Job, collectors: Iterable[Collector], settings: Settings) -> timedelta:
    """How long the windows are that a job answers for: those of the facts that it needs."""
    return min(collector.window(settings) for collector in needed(collectors, (job,)))


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """All facts in one table: they have one schema."""
    return reduce(lambda left, right: left.unionByName(right), frames)


def _bounded(changed: DataFrame, settings: Settings, batch: int) -> DataFrame:
    from warrenmq.pipeline.facts import bound

    return bound(changed, settings)
