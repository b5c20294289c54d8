"""Classic queues in batches, acked after processing.

A queue drops acked messages, so a Spark source could not read them again after a failure. Here the driver fetches
messages, passes them to Spark as a DataFrame, and acks them when the caller's function has returned: at least once, in
batches that fit into the driver's memory. For one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from warrenmq import client
from warrenmq.pipeline.errors import BadOption, NotAStream
from warrenmq.pipeline.source.broker import OFFSET
from warrenmq.pipeline.source.columns import QUEUE_COLUMNS
from warrenmq.pipeline.source.records import RecordBatches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_BATCH_BYTES = 256 << 20  # of bodies
MAX_PREFETCH = 65535

_TYPES: dict[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def drain(
    spark: SparkSession,
    url: str,
    queue: str,
    function: Callable[[DataFrame, int], object],
    max_records: int,
    max_batches: int | None,
    wait: float,
    columns: Sequence[str],
) -> int:
    """See warrenmq.pipeline.drain."""
    schema = _schema(columns)
    if not 0 < max_records <= MAX_PREFETCH:
        raise BadOption(f"max_records is a number from 1 to {MAX_PREFETCH}, not {max_records}")
    acked = 0
    number = 0
    # Without recovery: after a lost connection the broker redelivers unacked messages, and the caller starts over.
    with client.connect(url, name=f"spark drains {queue}", recovery=False) as connection:
        channel = connection.channel()
        channel.qos(prefetch_count=max_records)
        consumer = channel.consume(queue, timeout=wait)
        while max_batches is None or number < max_batches:
            deliveries = _take(consumer, max_records, wait)
            if not deliveries:
                break
            batches = RecordBatches(schema, queue).decode((0, delivery) for delivery in deliveries)
            function(spark.createDataFrame(pa.Table.from_batches(batches, schema)), number)
            # If the function raises, closing the connection requeues the batch.
            channel.ack(deliveries[-1], multiple=True)
            acked += len(deliveries)
            number += 1
        channel.close()  # the reply comes after the acks were processed
    return acked


def _take(consumer: client.Consumer, max_records: int, wait: float) -> list[client.Delivery]:
    """Return up to `max_records` messages; fewer if no more come within `wait` seconds, or if they are large."""
    taken: list[client.Delivery] = []
    size = 0
    deadline: float | None = None
    for delivery in consumer:
        if OFFSET in delivery.headers:
            raise NotAStream(f"{consumer.queue!r} is a stream: read it with spark.read.format('warrenmq')")
        taken.append(delivery)
        size += len(delivery.body)
        now = time.monotonic()
        deadline = now + wait if deadline is None else deadline
        # The deadline also ends a batch of a queue that is filled slowly all the time.
        if len(taken) >= max_records or size >= MAX_BATCH_BYTES or now > deadline:
            break
    return taken


def _schema(columns: Sequence[str]) -> pa.Schema:
    unknown = [name for name in columns if name not in QUEUE_COLUMNS]
    if unknown:
        raise BadOption(f"no column {', '.join(unknown)}: there are {', '.join(QUEUE_COLUMNS)}")
    return pa.schema([(name, _TYPES.get(QUEUE_COLUMNS[name], _HEADERS)) for name in columns or QUEUE_COLUMNS])
