"""Classic queues in batches: taken, worked on, and only then acked.

A queue forgets what is acked, so no source of Spark could read it again after a failure. Here the driver takes the
messages, hands them to Spark as one DataFrame, and acks them when the caller's function has returned: at least once,
and bounded by what the driver may hold at a time. One thread.
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

MOST_BYTES = 256 << 20  # of bodies in a batch
MOST_PREFETCH = 65535

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
    if not 0 < max_records <= MOST_PREFETCH:
        raise BadOption(f"max_records is a number from 1 to {MOST_PREFETCH}, not {max_records}")
    acked = 0
    number = 0
    # Without recovery: after a loss the broker delivers again what was not acked, and the caller begins anew.
    with client.connect(url, name=f"spark drains {queue}", recovery=False) as connection:
        channel = connection.channel()
        channel.qos(prefetch_count=max_records)
        consumer = channel.consume(queue, timeout=wait)
        while max_batches is None or number < max_batches:
            taken = _take(consumer, max_records, wait)
            if not taken:
                break
            batches = RecordBatches(schema, queue).of((0, delivery) for delivery in taken)
            function(spark.createDataFrame(pa.Table.from_batches(batches, schema)), number)
            # Not acked if the function raised: closing the connection gives the batch back.
            channel.ack(taken[-1], multiple=True)
            acked += len(taken)
            number += 1
        channel.close()  # answered behind the acks: they have been heard
    return acked


def _take(consumer: client.Consumer, most: int, wait: float) -> list[client.Delivery]:
    """Up to so many messages, less where nothing more comes for a while, or where they are large."""
    taken: list[client.Delivery] = []
    octets = 0
    deadline: float | None = None
    for delivery in consumer:
        if OFFSET in delivery.headers:
            raise NotAStream(f"{consumer.queue!r} is a stream: read it with spark.read.format('warrenmq')")
        taken.append(delivery)
        octets += len(delivery.body)
        now = time.monotonic()
        deadline = now + wait if deadline is None else deadline
        # A queue that is filled slowly all the time gives what came within the wait.
        if len(taken) >= most or octets >= MOST_BYTES or now > deadline:
            break
    return taken


def _schema(columns: Sequence[str]) -> pa.Schema:
    unknown = [name for name in columns if name not in QUEUE_COLUMNS]
    if unknown:
        raise BadOption(f"no column {', '.join(unknown)}: there are {', '.join(QUEUE_COLUMNS)}")
    return pa.schema([(name, _TYPES.get(QUEUE_COLUMNS[name], _HEADERS)) for name in columns or QUEUE_COLUMNS])
