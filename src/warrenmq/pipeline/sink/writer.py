"""Spark's writers: each task publishes its rows, and ends when the broker has confirmed all of them.

There is no rollback: a failed task may have published some of its rows, and its retry publishes them again with the
same ids (messages.py). A stream, queue or exchange with `x-message-deduplication` then keeps each row once
(docs/deduplication.md); others keep it at least once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from warrenmq import client
from warrenmq.pipeline.errors import PipelineError
from warrenmq.pipeline.sink.messages import MessageBuilder, OutgoingMessage
from warrenmq.pipeline.sink.options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StreamWriter", "parse_write_options"]

# Set by Spark for the tasks of a micro-batch. The id of a query is in its checkpoint, so it survives restarts.
BATCH_PROPERTY = "streaming.sql.batchId"
QUERY_PROPERTY = "sql.streaming.queryId"

# Unconfirmed messages at a time; they are kept in memory, to be published again after an outage.
UNCONFIRMED = 10_000


@dataclass(frozen=True)
class RowsWritten(WriterCommitMessage):
    """Reported by a task to the driver."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. Retried tasks write with the same ids; another write has new ids, unless it has a `writerName`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._writer = options.writer_name or ""
        if options.batch_id is None:
            self._writer += f"#{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        batch = self._options.batch_id
        origin = f"{self._writer}/{'' if batch is None else batch}/{_context().partitionId()}"
        return _write(iterator, self._options, origin)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        context = _context()
        batch = context.getLocalProperty(BATCH_PROPERTY)
        writer = self._options.writer_name or context.getLocalProperty(QUERY_PROPERTY)
        if batch is None or writer is None:
            raise PipelineError("Spark does not provide the micro-batch id: the sink needs PySpark 4.3")
        return _write(iterator, self._options, f"{writer}/{batch}/{context.partitionId()}")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # Spark calls writers only in tasks
    return context


def _write(batches: Iterator[pa.RecordBatch], options: WriteOptions, origin: str) -> RowsWritten:
    """Publish all rows and wait for their confirms."""
    timeout = options.access.retry_timeout
    factory = options.access.factory(f"writes {origin}").with_(
        recovery=client.Recovery(initial=0.1, longest=5.0, jitter=0.2), unconfirmed="resend", call_timeout=timeout
    )
    rows = 0
    with factory.connect() as connection:
        channel = connection.channel()
        if options.declare is not None:
            _declare(channel, options)
        channel.confirm_select()
        for message in MessageBuilder(options, origin).build_all(batches):
            _publish(channel, message, options.is_mandatory)
            rows += 1
            if rows % UNCONFIRMED == 0:
                channel.wait_for_confirms(timeout)
        channel.wait_for_confirms(timeout)
    return RowsWritten(rows)


def _publish(channel: client.Channel, message: OutgoingMessage, is_mandatory: bool) -> None:
    channel.publish(message.exchange, message.routing_key, message.body, message.properties, mandatory=is_mandatory)


def _declare(channel: client.Channel, options: WriteOptions) -> None:
    assert options.routing_key is not None
    try:
        channel.queue_declare(options.routing_key, durable=True, arguments=options.declared_arguments())
    except client.PreconditionFailed as error:
        raise PipelineError(
            f"{options.routing_key!r} exists with other arguments: leave out the option declare, or delete it ({error})"
        ) from None
