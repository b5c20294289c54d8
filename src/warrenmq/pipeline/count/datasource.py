"""The event log, counted where it is read: what leaves Spark's Python processes is pieces (pieces.py), not events.

A source of its own, for `analysis/event_log.py` only: events as rows cost Spark more to move than to count. It reads as
the format "warrenmq" does, with its options; the option `counting` says what is counted (counting.Counting).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from warrenmq.pipeline.count.count_events import Counting, count_events
from warrenmq.pipeline.count.partials import DDL
from warrenmq.pipeline.source.arrow_body import batches_in
from warrenmq.pipeline.source.batch_reader import BatchReader, RangePartition
from warrenmq.pipeline.source.options import ReadOptions, parse_read_options
from warrenmq.pipeline.source.range_reader import PREFETCH_BATCHES, read_range
from warrenmq.pipeline.source.ranges import Range
from warrenmq.pipeline.source.stream_reader import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "warrenmq_counted"
COUNTING = "counting"


class CountedEvents(DataSource):
    """Pieces of the events of a stream."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return CountedBatchReader(self._read_options(is_streaming=False), schema, self._counting())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return CountedStreamReader(self._read_options(is_streaming=True), schema, self._counting())

    def _read_options(self, *, is_streaming: bool) -> ReadOptions:
        given = {name: value for name, value in self.options.items() if name.lower() != COUNTING}
        return parse_read_options(given, is_streaming=is_streaming)

    def _counting(self) -> Counting:
        return Counting.from_text(self.options[COUNTING])


class CountedBatchReader(BatchReader):
    """A range of the log at once."""

    def __init__(self, options: ReadOptions, schema: StructType, counting: Counting) -> None:
        super().__init__(options, schema)
        self._counting = counting

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):  # Spark's way to say that there was none
            return iter(())
        return counted(partition.span, self._options, self._counting)


class CountedStreamReader(StreamReader):
    """The log in micro-batches."""

    def __init__(self, options: ReadOptions, schema: StructType, counting: Counting) -> None:
        super().__init__(options, schema)
        self._counting = counting

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return counted(partition.span, self._options, self._counting)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_counting": self._counting}


def counted(span: Range, options: ReadOptions, counting: Counting) -> Iterator[pa.RecordBatch]:
    """The pieces of a range of the log."""
    records = read_range(span, options.access, options.prefetch or PREFETCH_BATCHES, options.fail_on_data_loss)
    batches = (batch for offset, delivery in records for batch in batches_in(delivery.body, offset, span.stream))
    return count_events(batches, counting)
