"""The writers of Spark: each task publishes its rows, and ends when the broker has confirmed all of them.

Nothing is taken back: a task that fails may have written some of its rows, and the one that Spark runs in its place
writes them again, with the same ids (messages.py). A stream, queue or exchange with `x-message-deduplication` then
keeps each row once (docs/deduplication.md); others keep it at least once.
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
from warrenmq.pipeline.sink.messages import OutMessage, RowMessages
from warrenmq.pipeline.sink.options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StreamWriter", "parse_write_options"]

# Set by Spark for the tasks of a micro-batch. The id of a query is kept in its checkpoint: restarts have the same.
BATCH_PROPERTY = "streaming.sql.batchId"
QUERY_PROPERTY = "sql.streaming.queryId"

# Messages without a confirm at a time: they are kept, to be sent again after an outage.
UNCONFIRMED = 10_000


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. Tasks that Spark repeats write with the same ids; a second write has others, unless it is named."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._writer = options.writer_name or ""
        if options.batch_id is None:
            self._writer += f"#{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        batch = self._options.batch_id
        origin = f"{self._writer}/{'' if batch is None else batch}/{_context().partitionId()}"
        return _write(iterator, self._options, origin)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        batch = context.getLocalProperty(BATCH_PROPERTY)
        writer = self._options.writer_name or context.getLocalProperty(QUERY_PROPERTY)
        if batch is None or writer is None:
            raise PipelineError("Spark does not tell which micro-batch this is: the sink needs PySpark 4.3")
        return _write(iterator, self._options, f"{writer}/{batch}/{context.partitionId()}")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # Spark calls writers in tasks only
    return context


def _write(batches: Iterator[pa.RecordBatch], options: WriteOptions, origin: str) -> Written:
    """Publish all, and wait for the broker's word on all."""
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
        for message in RowMessages(options, origin).of(batches):
            _publish(channel, message, options.is_mandatory)
            rows += 1
            if rows % UNCONFIRMED == 0:
                channel.wait_for_confirms(timeout)
        channel.wait_for_confirms(timeout)
    return Written(rows)


def _publish(channel: client.Channel, message: OutMessage, is_mandatory: bool) -> None:
    channel.publish(message.exchange, message.routing_key, message.body, message.properties, mandatory=is_mandatory)


def _declare(channel: client.Channel, options: WriteOptions) -> None:
    assert options.routing_key is not None
    try:
        channel.queue_declare(options.routing_key, durable=True, arguments=options.declared_arguments())
    except client.PreconditionFailed as error:
        raise PipelineError(
            f"{options.routing_key!r} is there already with other arguments: leave out the option declare, "
            f"or delete it ({error})"
        ) from None
