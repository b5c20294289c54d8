"""A Spark data source that counts the event log as it reads it: its rows are partial aggregates, not events.

Internal to the analysis (analysis/event_log.py): moving events into Spark as rows costs more than counting them. It
takes the options of the format "warrenmq", and `counting`, a CountSpec as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from warrenmq.pipeline.count.count_events import CountSpec, count_events
from warrenmq.pipeline.count.partials import DDL
from warrenmq.pipeline.source.arrow_body import batches_in
from warrenmq.pipeline.source.offsets import OffsetRange
from warrenmq.pipeline.source.options import ReadOptions, parse_read_options
from warrenmq.pipeline.source.range_reader import PREFETCH_BATCHES, read_range
from warrenmq.pipeline.source.readers import BatchReader, RangePartition, StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "warrenmq_counted"
COUNTING = "counting"


class EventCountSource(DataSource):
    """Partial aggregates of the events of a stream."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return EventCountBatchReader(self._read_options(is_streaming=False), schema, self._spec())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return EventCountStreamReader(self._read_options(is_streaming=True), schema, self._spec())

    def _read_options(self, *, is_streaming: bool) -> ReadOptions:
        given = {name: value for name, value in self.options.items() if name.lower() != COUNTING}
        return parse_read_options(given, is_streaming=is_streaming)

    def _spec(self) -> CountSpec:
        return CountSpec.from_json(self.options[COUNTING])


class EventCountBatchReader(BatchReader):
    """Counts a fixed range of the log."""

    def __init__(self, options: ReadOptions, schema: StructType, spec: CountSpec) -> None:
        super().__init__(options, schema)
        self._spec = spec

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):  # Spark passes another type when there are no partitions
            return iter(())
        return count_range(partition.span, self._options, self._spec)


class EventCountStreamReader(StreamReader):
    """Counts the log in micro-batches."""

    def __init__(self, options: ReadOptions, schema: StructType, spec: CountSpec) -> None:
        super().__init__(options, schema)
        self._spec = spec

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return count_range(partition.span, self._options, self._spec)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_spec": self._spec}


def count_range(span: OffsetRange, options: ReadOptions, spec: CountSpec) -> Iterator[pa.RecordBatch]:
    """Yield the partial aggregates of a range of the log."""
    return count_events(read_events(span, options), spec)


def read_events(span: OffsetRange, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the events of a range of the log."""
    records = read_range(span, options.access, options.prefetch or PREFETCH_BATCHES, options.fail_on_data_loss)
    return (batch for offset, delivery in records for batch in batches_in(delivery.body, offset, span.stream))
