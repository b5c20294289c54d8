"""A batch read: ranges fixed when it is planned, on the driver; read by executors.

Pickled to the executors with nothing but its options and schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from warrenmq.pipeline.errors import DataLost
from warrenmq.pipeline.source.broker import StreamAsker
from warrenmq.pipeline.source.decoding import batches_of, least_records
from warrenmq.pipeline.source.listing import streams_of
from warrenmq.pipeline.source.options import ReadOptions
from warrenmq.pipeline.source.places import EARLIEST, Places
from warrenmq.pipeline.source.ranges import Positions, Range, ranges_between, split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class RangePartition(InputPartition):
    """A range as a task gets it."""

    def __init__(self, span: Range) -> None:
        super().__init__(span)
        self.span = span


class BatchReader(DataSourceReader):
    """`spark.read`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        asker = StreamAsker(self._options.access)
        try:
            start, end = self._bounds(asker)
        finally:
            asker.close()
        pieces = split(ranges_between(start, end), self._options.partitions, least_records(self._options))
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):  # Spark's way to say that there was none
            return iter(())
        return batches_of(partition.span, self._options, self._schema)

    def _bounds(self, asker: StreamAsker) -> tuple[Positions, Positions]:
        options = self._options
        starting = options.starting or Places(EARLIEST)
        start: Positions = {}
        end: Positions = {}
        for stream in streams_of(options):
            start[stream] = asker.at(stream, starting.of(stream))
            end[stream] = self._end(asker, stream)
        return start, end

    def _end(self, asker: StreamAsker, stream: str) -> int:
        place = self._options.ending.of(stream)
        end = asker.at(stream, place)
        if not isinstance(place, int):
            return end
        tail = asker.end(stream)
        if end > tail and self._options.fail_on_data_loss:
            raise DataLost(
                f"endingOffsets wants the stream {stream!r} up to {end}, but it ends at {tail}: "
                "give it as `latest`, or add failOnDataLoss=false to read what there is"
            )
        return min(end, tail)
