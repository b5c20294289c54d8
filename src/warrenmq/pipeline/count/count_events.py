"""Counts events: a part of the event log becomes pieces (pieces.py), where the events are read.

Runs in Spark's Python processes, over Arrow batches of events: those of the event log as they come
(source/counted.py), or rows of a DataFrame (facts.facts_of). Each event counts alone, so it does not matter how the
events are cut into parts; deliveries whose ack is in another part are handed on as ends (processing_times.py).

Owned by one call of `count_events`: what it has counted and not handed on yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from warrenmq.pipeline.count.event_arrays import Chunk, chunks_of
from warrenmq.pipeline.count.event_counts import Steps
from warrenmq.pipeline.count.ids import ids_of
from warrenmq.pipeline.count.partials import (
    COUNTS,
    ENDS,
    FACT_SCHEMA,
    SEEN,
    Piece,
    by_window,
    facts_of_counts,
    facts_of_ids,
    merged_counts,
    merged_ids,
    packed,
    pieces_in,
    rows_of,
)
from warrenmq.pipeline.count.processing_times import ends_of, pair, shelved
from warrenmq.pipeline.facts import KEY, MESSAGE, PRIORITY, SESSION, STEP, TIME

if TYPE_CHECKING:
    from warrenmq.pipeline.options import Settings

COLUMNS = (
    "time", "kind", "uid", "message_id", "publish_time", "enqueue_time", "vhost", "exchange", "routing_key", "queue",
    "consumer", "connection", "channel", "size", "attempt", "reason", "correlation_id", "depth",
    "priority",
)  # fmt: skip
MOST_EVENTS = 1_000_000  # so many are counted before pieces are handed on: what is held stays bounded
FAR = 2**62
SHELVES = 16  # in batch the ends lie on so many shelves, which Spark pairs side by side


@dataclass(frozen=True, slots=True)
class Counting:
    """What is counted: which kinds of facts, of which times (us since 1970), in windows of which length (us).

    `keyed_…` is for messages and sessions, whose windows are longer.
    """

    wanted: tuple[str, ...]
    window_us: int
    keyed_us: int
    start: int = 0
    end: int = FAR
    keyed_start: int = 0
    keyed_end: int = FAR
    shelves: int = 1

    @classmethod
    def of(cls, settings: Settings, wanted: Iterable[str], shelves: int = 1) -> Counting:
        return cls(tuple(sorted(wanted)), settings.window_us, settings.keyed_us, shelves=shelves)

    @property
    def first(self) -> int:
        """Before this nothing is counted."""
        return min(self.start, self.keyed_start)

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Counting:
        values = json.loads(text)
        return cls(**values | {"wanted": tuple(values["wanted"])})


def count_events(batches: Iterable[pa.RecordBatch], counting: Counting) -> Iterator[pa.RecordBatch]:
    """The pieces of these events, as rows of pieces.SCHEMA."""
    counted = _Counted(counting)
    for events in chunks_of(batches, COLUMNS):
        counted.add(events)
        if counted.events >= MOST_EVENTS:
            yield rows_of(counted.pieces())
            counted = _Counted(counting)
    yield rows_of(counted.pieces())


def facts_of_place(found: Sequence[Piece], settings: Settings) -> pa.Table:
    """The facts that all pieces of one kind and place make together."""
    kind, place = found[0].kind, found[0].place
    tables = [piece.table() for piece in found]
    if kind == COUNTS:
        return facts_of_counts(merged_counts(tables), settings.window_us, settings.kept)
    if kind == ENDS:
        counts, _ = pair(pa.concat_tables(tables), settings.window_us)
        return facts_of_counts(counts, settings.window_us, settings.kept, part=place + 1)
    return facts_of_ids(kind, merged_ids(tables), place, settings.keyed_us, settings.kept)


def facts_table(events: pa.Table, settings: Settings, wanted: Iterable[str]) -> pa.Table:
    """The facts of a table of events, in this process."""
    places: dict[tuple[str, int], list[Piece]] = {}
    for rows in count_events(events.to_batches(), Counting.of(settings, wanted)):
        for piece in pieces_in(rows):
            places.setdefault((piece.kind, piece.place), []).append(piece)
    tables = [facts_of_place(found, settings) for (kind, _), found in places.items() if kind != SEEN]
    return pa.concat_tables([FACT_SCHEMA.empty_table(), *tables])


class _Counted:
    """What some chunks of events count up to."""

    def __init__(self, counting: Counting) -> None:
        self.events = 0
        self._newest = 0
        self._counting = counting
        self._counts: list[pa.Table] = []
        self._ends: list[pa.Table] = []
        self._ids: dict[tuple[str, int], list[pa.Table]] = {}

    def add(self, events: Chunk) -> None:
        counting = self._counting
        self._count(events.where((events.time >= counting.start) & (events.time < counting.end)))
        self._count_ids(events.where((events.time >= counting.keyed_start) & (events.time < counting.keyed_end)))

    def pieces(self) -> list[Piece]:
        found = [Piece(SEEN, 0, b"", self.events, self._newest)]
        if self._ends:
            times, ends = pair(pa.concat_tables(self._ends), self._counting.window_us)
            self._counts.append(times)
            found += [Piece(ENDS, shelf, packed(part)) for shelf, part in shelved(ends, self._counting.shelves)]
        found += [Piece(COUNTS, start, packed(part)) for start, part in by_window(merged_counts(self._counts))]
        found += [Piece(kind, start, packed(merged_ids(ids))) for (kind, start), ids in self._ids.items()]
        return found

    def _count(self, events: Chunk) -> None:
        if events.rows == 0:
            return
        self.events += events.rows
        self._newest = max(self._newest, int(events.time.max()))
        wanted = self._counting.wanted
        steps = Steps(events, self._counting.window_us)
        if STEP in wanted:
            self._counts.append(steps.steps())
        if KEY in wanted:
            self._counts.append(steps.keys())
        if TIME in wanted:
            self._counts += [steps.waiting(), steps.end_to_end()]
            self._ends.append(ends_of(events))
        if PRIORITY in wanted and events.has_any("priority"):
            self._counts.append(steps.priorities())

    def _count_ids(self, events: Chunk) -> None:
        for kind in (MESSAGE, SESSION):
            if kind in self._counting.wanted:
                for start, ids in ids_of(events, kind, self._counting.keyed_us):
                    self._ids.setdefault((kind, start), []).append(ids)
