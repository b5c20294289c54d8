"""From the messages of a range to the batches that Spark gets, by payload. Runs on executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from warrenmq.pipeline.source.options import ReadOptions
from warrenmq.pipeline.source.range_reader import PREFETCH_BATCHES, PREFETCH_MESSAGES, read_range
from warrenmq.pipeline.source.ranges import LEAST_BATCHES, LEAST_MESSAGES, Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from warrenmq.pipeline.source.arrow_body import ArrowBatches
    from warrenmq.pipeline.source.records import RecordBatches


def batches_of(span: Range, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of a range as batches of exactly this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    decoder = decoder_of(options, to_arrow_schema(schema, timezone="UTC"), span.stream)
    prefetch = options.prefetch or (PREFETCH_BATCHES if options.payload == "arrow" else PREFETCH_MESSAGES)
    return decoder.of(read_range(span, options.access, prefetch, options.fail_on_data_loss))


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


def least_records(options: ReadOptions) -> int:
    """How many records are worth a task of their own."""
    return LEAST_BATCHES if options.payload == "arrow" else LEAST_MESSAGES
