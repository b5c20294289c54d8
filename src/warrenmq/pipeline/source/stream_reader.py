"""A streaming read: each micro-batch is a range per stream, planned on the driver from the broker's answers.

Offsets are {stream: offset of the next record}. A range that was planned is read the same way however often, so a
restart from the checkpoint gives each record once. The driver keeps one of these alive for a query, with a connection;
executors get it pickled, with nothing but options and schema, and only ever call `read`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from warrenmq.pipeline.errors import DataLost
from warrenmq.pipeline.source.batch_reader import RangePartition
from warrenmq.pipeline.source.broker import StreamAsker
from warrenmq.pipeline.source.decoding import batches_of, least_records
from warrenmq.pipeline.source.listing import streams_of
from warrenmq.pipeline.source.options import ReadOptions
from warrenmq.pipeline.source.places import LATEST, Places
from warrenmq.pipeline.source.ranges import Positions, limit_end, ranges_between, split
from warrenmq.pipeline.source.reader_note import ReaderNote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("warrenmq.pipeline")

# How often a pattern is compared with the streams that there are.
LIST_INTERVAL = 10.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._driver: _Driver | None = None

    # -- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        return self._planner().begin()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner().fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self._planner().plan(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._planner().tails

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pieces = split(ranges_between(start, end), self._options.partitions, least_records(self._options))
        return [RangePartition(piece) for piece in pieces]

    def commit(self, end: dict[str, Any]) -> None:
        self._planner().committed()

    def stop(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def _planner(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    # -- on executors ------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return batches_of(partition.span, self._options, self._schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_driver": None}


class _Driver:
    """What lives as long as a query: the connection, and what is known of the streams."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._asker = StreamAsker(options.access)
        self._target: Positions | None = None  # of a query that ends
        self.tails: Positions | None = None  # as last seen
        self._streams: tuple[str, ...] = ()
        self._listed = float("-inf")
        name = options.reader_name
        self._note = None if name is None else ReaderNote(self._asker.link, name)
        self._has_note = False

    def begin(self) -> Positions:
        """Where a new query begins; the same again where this reader has begun before."""
        places = self._options.starting or Places(LATEST)
        if self._note is None or places.is_fixed:
            return self._resolve(places)
        positions = self._note.read()
        if positions is None:
            positions = self._resolve(places)
            self._note.keep(positions)
        self._has_note = True
        return positions

    def fix_target(self) -> None:
        """Read up to here, and no further."""
        self._listed = float("-inf")
        self._target = {stream: self._asker.end(stream, is_exact=True) for stream in self._names()}
        self.tails = dict(self._target)

    def plan(self, start: Positions, limit: ReadLimit) -> Positions:
        """The end of the batch that begins at `start`; the same as `start` where there is nothing new."""
        tails = self._target
        if tails is None:
            tails = self.tails = {stream: self._asker.end(stream) for stream in self._names()}
        anew = self._made_anew(start, tails)
        end = limit_end(start, tails, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if isinstance(limit, ReadMinRows) and sum(end.values()) - sum(start.values()) < limit.min_rows:
            end = dict(start)
        for stream in anew | (tails.keys() - start.keys()):
            end[stream] = self._asker.first(stream)  # read from its beginning, in the batches that follow
        return end

    def committed(self) -> None:
        """A batch is in the checkpoint, and with it where the first one began."""
        if self._has_note and self._note is not None:
            self._note.forget()
            self._has_note = False

    def close(self) -> None:
        self._asker.close()

    def _resolve(self, places: Places) -> Positions:
        return {stream: self._asker.at(stream, places.of(stream)) for stream in self._names()}

    def _names(self) -> tuple[str, ...]:
        """The streams of this read; those of a pattern are looked for now and then."""
        now = time.monotonic()
        if self._options.pattern is None:
            return self._options.streams
        if now - self._listed >= LIST_INTERVAL:
            self._streams = streams_of(self._options)
            self._listed = now
        return self._streams

    def _made_anew(self, start: Positions, tails: Positions) -> set[str]:
        """A stream that ends before the place where it was read to is another one of the same name."""
        anew: set[str] = set()
        for stream, position in start.items():
            tail = tails.get(stream, position)
            if tail >= position:
                continue
            text = f"the stream {stream!r} ends at {tail}, but was read up to {position}: it was deleted and made anew"
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"{text}. Begin with a new checkpoint, or read it from its beginning with failOnDataLoss=false"
                )
            log.warning("%s; read from its beginning, as failOnDataLoss is false", text)
            anew.add(stream)
        return anew
