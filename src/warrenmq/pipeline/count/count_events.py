"""Counts a part of the event log into partial aggregates (partials.py), in the process that reads it.

Runs in Spark's Python workers, over Arrow batches: those of the event log as they are read (datasource.py), or rows of
a DataFrame (facts.facts_of). Each event counts by itself, so the result does not depend on how events are split into
parts; deliveries whose settlement is in another part are passed on unmatched (processing_times.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from warrenmq.pipeline.count.event_arrays import EventArrays, event_arrays_from
from warrenmq.pipeline.count.event_counts import EventCounts
from warrenmq.pipeline.count.ids import ids_of
from warrenmq.pipeline.count.partials import (
    COUNTS,
    TOTALS,
    UNMATCHED,
    Partial,
    merge_counts,
    merge_ids,
    pack,
    partials_to_rows,
    split_by_window,
)
from warrenmq.pipeline.count.processing_times import delivery_events, match_deliveries, partition_by_message
from warrenmq.pipeline.facts import KEY, MESSAGE, PRIORITY, SESSION, STEP, TIME

if TYPE_CHECKING:
    from warrenmq.pipeline.options import AnalysisOptions

COLUMNS = (
    "time", "kind", "uid", "message_id", "publish_time", "enqueue_time", "vhost", "exchange", "routing_key", "queue",
    "consumer", "connection", "channel", "size", "attempt", "reason", "correlation_id", "depth",
    "priority",
)  # fmt: skip
MAX_EVENTS = 1_000_000  # partials are emitted after this many events, which bounds memory
END_OF_TIME = 2**62
MATCH_PARTITIONS = 16  # in batch, unmatched deliveries are matched by Spark in this many partitions


@dataclass(frozen=True, slots=True)
class CountSpec:
    """What to count: kinds of facts, time ranges (us since 1970) and window lengths (us).

    The `id_` fields are for messages and sessions, whose windows are longer.
    """

    fact_kinds: tuple[str, ...]
    window_us: int
    id_window_us: int
    start: int = 0
    end: int = END_OF_TIME
    id_start: int = 0
    id_end: int = END_OF_TIME
    partitions: int = 1

    @classmethod
    def of(cls, options: AnalysisOptions, fact_kinds: Iterable[str], partitions: int = 1) -> CountSpec:
        return cls(tuple(sorted(fact_kinds)), options.window_us, options.id_window_us, partitions=partitions)

    @property
    def first(self) -> int:
        """The time from which events are needed."""
        return min(self.start, self.id_start)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CountSpec:
        values = json.loads(text)
        return cls(**values | {"fact_kinds": tuple(values["fact_kinds"])})


def count_events(batches: Iterable[pa.RecordBatch], spec: CountSpec) -> Iterator[pa.RecordBatch]:
    """Yield the partial aggregates of these events, as rows of partials.SCHEMA."""
    counter = _Counter(spec)
    for events in event_arrays_from(batches, COLUMNS):
        counter.add(events)
        if counter.events >= MAX_EVENTS:
            yield partials_to_rows(counter.partials())
            counter = _Counter(spec)
    yield partials_to_rows(counter.partials())


class _Counter:
    """Counts of some batches of events, until they are emitted as partials."""

    def __init__(self, spec: CountSpec) -> None:
        self.events = 0
        self._newest = 0
        self._spec = spec
        self._counts: list[pa.Table] = []
        self._deliveries: list[pa.Table] = []
        self._ids: dict[tuple[str, int], list[pa.Table]] = {}

    def add(self, events: EventArrays) -> None:
        spec = self._spec
        self._count(events.filter((events.time >= spec.start) & (events.time < spec.end)))
        self._count_ids(events.filter((events.time >= spec.id_start) & (events.time < spec.id_end)))

    def partials(self) -> list[Partial]:
        found = [Partial(TOTALS, 0, b"", self.events, self._newest)]
        if self._deliveries:
            counts, unmatched = match_deliveries(pa.concat_tables(self._deliveries), self._spec.window_us)
            self._counts.append(counts)
            parts = partition_by_message(unmatched, self._spec.partitions)
            found += [Partial(UNMATCHED, number, pack(part)) for number, part in parts]
        found += [Partial(COUNTS, start, pack(part)) for start, part in split_by_window(merge_counts(self._counts))]
        found += [Partial(kind, start, pack(merge_ids(ids))) for (kind, start), ids in self._ids.items()]
        return found

    def _count(self, events: EventArrays) -> None:
        if events.rows == 0:
            return
        self.events += events.rows
        self._newest = max(self._newest, int(events.time.max()))
        fact_kinds = self._spec.fact_kinds
        counts = EventCounts(events, self._spec.window_us)
        if STEP in fact_kinds:
            self._counts.append(counts.steps())
        if KEY in fact_kinds:
            self._counts.append(counts.keys())
        if TIME in fact_kinds:
            self._counts += [counts.waiting(), counts.end_to_end()]
            self._deliveries.append(delivery_events(events))
        if PRIORITY in fact_kinds and events.has_any("priority"):
            self._counts.append(counts.priorities())

    def _count_ids(self, events: EventArrays) -> None:
        for kind in (MESSAGE, SESSION):
            if kind in self._spec.fact_kinds:
                for start, ids in ids_of(events, kind, self._spec.id_window_us):
                    self._ids.setdefault((kind, start), []).append(ids)
