"""The event log as partial aggregates: of a time range, or from a time on as a stream.

Which facts are counted, and in which windows, follows from the jobs: `FactGroup`. The URL, which holds a password,
never becomes part of a plan or a command line: the source reads it from the environment variable URL_VARIABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from warrenmq.events import schema
from warrenmq.pipeline.times import TimeRange, from_us, iso, to_us, widen, window_floor

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from warrenmq.pipeline.count.count_events import CountSpec
    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import AnalysisOptions

# Spark redacts variables with this word in their names wherever it shows an environment.
URL_VARIABLE = "WARRENMQ_URL_SECRET"

# Messages of the event log, of up to 8,192 events each: the most that a micro-batch reads while it catches up.
MESSAGES_PER_BATCH = 128


class EventSource(Protocol):
    """Where events are read and counted."""

    def between(self, spark: SparkSession, spec: CountSpec) -> DataFrame:
        """Return the partials of a time range."""

    def since(self, spark: SparkSession, spec: CountSpec) -> DataFrame:
        """Return the partials from a time on, as a streaming DataFrame."""


class EventLog:
    """The stream `warren.events` of a broker. `access` holds the option of the source that says where its URL is."""

    def __init__(self, access: Mapping[str, str] | None = None) -> None:
        self._access = dict(access or {"urlEnv": URL_VARIABLE})

    def between(self, spark: SparkSession, spec: CountSpec) -> DataFrame:
        # Read to the end of the log: after a crash, events are written to it long after their time.
        return spark.read.format(_source_name(spark)).options(**self._options(spec)).load()

    def since(self, spark: SparkSession, spec: CountSpec) -> DataFrame:
        options = self._options(spec) | {"maxRecordsPerBatch": str(MESSAGES_PER_BATCH)}
        return spark.readStream.format(_source_name(spark)).options(**options).load()

    def read_here(self, spec: CountSpec, max_messages: int) -> Iterator[pa.RecordBatch] | None:
        """Return the events of a time range, to be read by this process; None if they are in more messages."""
        from pyspark.sql.types import StructType

        from warrenmq.pipeline.count.datasource import read_events
        from warrenmq.pipeline.source.options import parse_read_options
        from warrenmq.pipeline.source.readers import BatchReader

        options = parse_read_options(self._read_options(spec), is_streaming=False)
        spans = [partition.span for partition in BatchReader(options, StructType()).partitions()]
        if sum(map(len, spans)) > max_messages:
            return None
        return chain.from_iterable(read_events(span, options) for span in spans)

    def _options(self, spec: CountSpec) -> dict[str, str]:
        return self._read_options(spec) | {"counting": spec.to_json()}

    def _read_options(self, spec: CountSpec) -> dict[str, str]:
        return self._access | {
            "stream": schema.STREAM_NAME,
            "payload": "arrow",
            "startingTimestamp": iso(from_us(spec.first)),
        }


def _source_name(spark: SparkSession) -> str:
    """Register the counting source in this session and return its name."""
    from warrenmq.pipeline.count.datasource import EventCountSource

    spark.dataSource.register(EventCountSource)
    return EventCountSource.name()


@dataclass(frozen=True, slots=True)
class FactGroup:
    """Kinds of facts with the same window length. `name` is the kind of window in the facts store."""

    name: str
    facts: frozenset[str]
    window: Callable[[AnalysisOptions], timedelta]


def standard_groups() -> tuple[FactGroup, ...]:
    """Return the groups of the jobs of this package."""
    from warrenmq.pipeline.facts import KEY, MESSAGE, PRIORITY, SESSION, STEP, TIME

    return (
        FactGroup("facts", frozenset({STEP, KEY, TIME, PRIORITY}), window_duration),
        FactGroup("ids", frozenset({MESSAGE, SESSION}), id_window_duration),
    )


def window_duration(options: AnalysisOptions) -> timedelta:
    return timedelta(seconds=options.window_seconds)


def id_window_duration(options: AnalysisOptions) -> timedelta:
    return timedelta(seconds=options.id_window_seconds)


def groups_for(groups: Iterable[FactGroup], jobs: Iterable[Job]) -> tuple[FactGroup, ...]:
    """Return the groups that one of the jobs needs."""
    facts = needed_facts(jobs)
    return tuple(group for group in groups if group.facts & facts)


def needed_facts(jobs: Iterable[Job]) -> frozenset[str]:
    """Return the kinds of facts that these jobs read."""
    return frozenset().union(*(job.needs for job in jobs))


def window_of(job: Job, groups: Iterable[FactGroup], options: AnalysisOptions) -> timedelta:
    """Return the window length of a job's answers: that of the facts it reads."""
    return min(group.window(options) for group in groups_for(groups, (job,)))


def count_since(start: datetime, fact_kinds: Iterable[str], options: AnalysisOptions) -> CountSpec:
    """Count from the window on that contains this time."""
    from warrenmq.pipeline.count.count_events import CountSpec

    facts, ids = (to_us(window_floor(start, length(options))) for length in (window_duration, id_window_duration))
    return replace(CountSpec.of(options, fact_kinds), start=facts, id_start=ids)


def count_between(covers: TimeRange, fact_kinds: Iterable[str], options: AnalysisOptions) -> CountSpec:
    """Count a range, widened to whole windows."""
    from warrenmq.pipeline.count.count_events import MATCH_PARTITIONS, CountSpec

    facts, ids = (widen(covers, length(options)) for length in (window_duration, id_window_duration))
    return replace(
        CountSpec.of(options, fact_kinds, MATCH_PARTITIONS),
        start=to_us(facts.start),
        end=to_us(facts.end),
        id_start=to_us(ids.start),
        id_end=to_us(ids.end),
    )
