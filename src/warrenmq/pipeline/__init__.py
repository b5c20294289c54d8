"""The broker's data on Apache Spark: events, streams and queues as DataFrames, and DataFrames as messages.

>>> from warrenmq.pipeline import events
>>> events(spark, url).groupBy("queue", "kind_name").count().show()  # doctest: +SKIP

Needs the extra `warrenmq[spark]`; importing this alone does not load Spark. docs/spark.md has the options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["drain", "events", "streams"]

URL = "amqp://guest:guest@127.0.0.1:5672/"


def events(
    spark: SparkSession,
    url: str | None = None,
    *,
    streaming: bool = False,
    columns: Sequence[str] = (),
    **options: str | int | float | bool,
) -> DataFrame:
    """What happened in the broker: one row per event, from its event log (docs/formats/events.md).

    `streaming` gives a streaming DataFrame, which begins with what is kept unless `startingOffsets` says otherwise.
    `columns` reads only those, which is quicker. Options are those of the source, by their names there.
    """
    from warrenmq.events.schema import STREAM_NAME

    if "startingTimestamp" not in options:
        options.setdefault("startingOffsets", "earliest")
    return streams(spark, url, STREAM_NAME, streaming=streaming, columns=columns, payload="arrow", **options)


def streams(
    spark: SparkSession,
    url: str | None,
    name: str | Sequence[str],
    *,
    streaming: bool = False,
    columns: Sequence[str] = (),
    **options: str | int | float | bool,
) -> DataFrame:
    """The messages of a stream, or of several: one row per message, or the rows in it (option `payload`).

    `url` None: that of a broker on this machine, or where the options urlFile or urlEnv say.
    """
    chosen = {option: _text(value) for option, value in options.items()}
    if url is not None or not chosen.keys() & {"urlFile", "urlEnv"}:
        chosen["url"] = URL if url is None else url
    chosen["stream"] = name if isinstance(name, str) else ",".join(name)
    if columns:
        chosen["columns"] = ",".join(columns)
    reader = spark.readStream if streaming else spark.read
    return reader.format("warrenmq").options(**chosen).load()


def drain(
    spark: SparkSession,
    url: str | None,
    queue: str,
    function: Callable[[DataFrame, int], object],
    *,
    max_records: int = 10_000,
    max_batches: int | None = None,
    wait: float = 1.0,
    columns: Sequence[str] = (),
) -> int:
    """Take the messages of a classic queue batch by batch; each is acked when the function has returned.

    Calls `function(dataframe, number)` with up to `max_records` messages at a time, until nothing came for `wait`
    seconds or `max_batches` were taken. If it raises, its batch goes back to the queue: every message is worked on at
    least once. Gives the number of messages that were acked.
    """
    from warrenmq.pipeline.source.drain import drain as drain_queue

    return drain_queue(spark, URL if url is None else url, queue, function, max_records, max_batches, wait, columns)


def _text(value: str | int | float | bool) -> str:
    """As Spark writes options."""
    return str(value).lower() if isinstance(value, bool) else str(value)
