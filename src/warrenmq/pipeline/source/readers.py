"""Batch and streaming reads: offset ranges planned on the driver, read by executors.

Offsets are {stream: offset of the next record}. A planned range is read the same way however often, so a restart from
the checkpoint delivers each record once. Readers are pickled to executors with their options and schema only; the
driver keeps one stream reader per query, with a connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from warrenmq.pipeline.errors import DataLost
from warrenmq.pipeline.source.broker import SavedStart, StreamOffsets, streams_of
from warrenmq.pipeline.source.offsets import (
    EARLIEST,
    LATEST,
    MIN_BATCHES,
    MIN_MESSAGES,
    OffsetRange,
    Offsets,
    StreamPositions,
    batch_end,
    ranges_between,
    split,
)
from warrenmq.pipeline.source.options import ReadOptions
from warrenmq.pipeline.source.range_reader import PREFETCH_BATCHES, PREFETCH_MESSAGES, read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from warrenmq.pipeline.source.arrow_body import ArrowBatches
    from warrenmq.pipeline.source.records import RecordBatches

log = logging.getLogger("warrenmq.pipeline")

# How often streams are listed for a pattern.
LIST_INTERVAL = 10.0


class RangePartition(InputPartition):
    """The offset range of one task."""

    def __init__(self, span: OffsetRange) -> None:
        super().__init__(span)
        self.span = span


class BatchReader(DataSourceReader):
    """`spark.read`: ranges are fixed when the read is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[RangePartition]:
        offsets = StreamOffsets(self._options.access)
        try:
            start, end = self._bounds(offsets)
        finally:
            offsets.close()
        return partitions_between(start, end, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):  # Spark passes another type when there are no partitions
            return iter(())
        return read_batches(partition.span, self._options, self._schema)

    def _bounds(self, offsets: StreamOffsets) -> tuple[Offsets, Offsets]:
        starting = self._options.starting or StreamPositions(EARLIEST)
        start: Offsets = {}
        end: Offsets = {}
        for stream in streams_of(self._options):
            start[stream] = offsets.resolve(stream, starting.of(stream))
            end[stream] = self._end(offsets, stream)
        return start, end

    def _end(self, offsets: StreamOffsets, stream: str) -> int:
        position = self._options.ending.of(stream)
        end = offsets.resolve(stream, position)
        if not isinstance(position, int):
            return end
        latest = offsets.end(stream)
        if end > latest and self._options.fail_on_data_loss:
            raise DataLost(
                f"endingOffsets is {end} for the stream {stream!r}, which ends at {latest}: "
                "use `latest`, or failOnDataLoss=false to read what there is"
            )
        return min(end, latest)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: each micro-batch is a range per stream."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: _Planner | None = None

    # -- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        return self._get_planner().initial_offsets()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        max_records = self._options.max_records
        return ReadAllAvailable() if max_records is None else ReadMaxRows(max_records)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._get_planner().fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self._get_planner().plan_batch(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._get_planner().latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return partitions_between(start, end, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        self._get_planner().on_commit()

    def stop(self) -> None:
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()

    def _get_planner(self) -> _Planner:
        if self._planner is None:
            self._planner = _Planner(self._options)
        return self._planner

    # -- on executors ------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_batches(partition.span, self._options, self._schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_planner": None}


class _Planner:
    """Plans the micro-batches of a query; owns its connection and what is known of the streams."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._offsets = StreamOffsets(options.access)
        self._target: Offsets | None = None  # where a query with trigger availableNow ends
        self.latest: Offsets | None = None  # ends of the streams as last seen
        self._streams: tuple[str, ...] = ()
        self._listed_at = float("-inf")
        name = options.reader_name
        self._saved_start = None if name is None else SavedStart(self._offsets.client, name)
        self._has_saved_start = False

    def initial_offsets(self) -> Offsets:
        """Return where a new query begins: where this reader began before, if its start was saved."""
        positions = self._options.starting or StreamPositions(LATEST)
        if self._saved_start is None or positions.is_fixed:
            return self._resolve(positions)
        offsets = self._saved_start.load()
        if offsets is None:
            offsets = self._resolve(positions)
            self._saved_start.save(offsets)
        self._has_saved_start = True
        return offsets

    def fix_target(self) -> None:
        """Read up to the current ends of the streams, and no further."""
        self._listed_at = float("-inf")
        self._target = {stream: self._offsets.end(stream, is_exact=True) for stream in self._names()}
        self.latest = dict(self._target)

    def plan_batch(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the batch that begins at `start`; `start` itself if there is nothing new."""
        latest = self._target
        if latest is None:
            latest = self.latest = {stream: self._offsets.end(stream) for stream in self._names()}
        recreated = self._recreated(start, latest)
        end = batch_end(start, latest, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if isinstance(limit, ReadMinRows) and sum(end.values()) - sum(start.values()) < limit.min_rows:
            end = dict(start)
        for stream in recreated | (latest.keys() - start.keys()):
            end[stream] = self._offsets.first(stream)  # read from its beginning by the following batches
        return end

    def on_commit(self) -> None:
        """A batch is in the checkpoint, and with it where the first one began."""
        if self._has_saved_start and self._saved_start is not None:
            self._saved_start.delete()
            self._has_saved_start = False

    def close(self) -> None:
        self._offsets.close()

    def _resolve(self, positions: StreamPositions) -> Offsets:
        return {stream: self._offsets.resolve(stream, positions.of(stream)) for stream in self._names()}

    def _names(self) -> tuple[str, ...]:
        """Return the streams to read; those of a pattern are listed every LIST_INTERVAL."""
        now = time.monotonic()
        if self._options.pattern is None:
            return self._options.streams
        if now - self._listed_at >= LIST_INTERVAL:
            self._streams = streams_of(self._options)
            self._listed_at = now
        return self._streams

    def _recreated(self, start: Offsets, latest: Offsets) -> set[str]:
        """Return the streams that end before the offset they were read to: others of the same name."""
        recreated: set[str] = set()
        for stream, offset in start.items():
            end = latest.get(stream, offset)
            if end >= offset:
                continue
            text = f"the stream {stream!r} ends at {end}, but was read up to {offset}: it was deleted and created again"
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"{text}. Start with a new checkpoint, or read it from its beginning with failOnDataLoss=false"
                )
            log.warning("%s; reading it from its beginning, as failOnDataLoss is false", text)
            recreated.add(stream)
        return recreated


def partitions_between(start: Offsets, end: Offsets, options: ReadOptions) -> list[RangePartition]:
    """Split the records between these offsets into tasks."""
    min_records = MIN_BATCHES if options.payload == "arrow" else MIN_MESSAGES
    return [RangePartition(span) for span in split(ranges_between(start, end), options.partitions, min_records)]


def read_batches(span: OffsetRange, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read a range into batches of exactly this schema; runs on executors."""
    from pyspark.sql.pandas.types import to_arrow_schema

    decoder = decoder_of(options, to_arrow_schema(schema, timezone="UTC"), span.stream)
    prefetch = options.prefetch or (PREFETCH_BATCHES if options.payload == "arrow" else PREFETCH_MESSAGES)
    return decoder.decode(read_range(span, options.access, prefetch, options.fail_on_data_loss))


def decoder_of(options: ReadOptions, schema: pa.Schema, stream: str) -> ArrowBatches | RecordBatches:
    from warrenmq.pipeline.source.arrow_body import ArrowBatches
    from warrenmq.pipeline.source.json_body import JsonBody
    from warrenmq.pipeline.source.records import RecordBatches

    if options.payload == "arrow":
        return ArrowBatches(schema, stream, options.conditions, options.is_event_log)
    if options.payload == "json" and "value" in schema.names:
        body = JsonBody(schema.field("value").type, options.mode, stream)
        return RecordBatches(schema, stream, options.conditions, body)
    return RecordBatches(schema, stream, options.conditions)
