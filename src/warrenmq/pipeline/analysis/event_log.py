"""The event log of a broker as pieces (pieces.py): of a range of time at once, or from a moment on for ever.

The URL, which holds a password, never becomes a part of a plan or of a command line: the source finds it in the
environment of its processes under the name URL_VARIABLE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from warrenmq.events import schema
from warrenmq.pipeline.times import iso, moment_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from warrenmq.pipeline.count.count_events import Counting

# The name tells Spark to hide the value wherever it shows an environment.
URL_VARIABLE = "WARRENMQ_URL_SECRET"

# Messages of the event log, each up to 8,192 events: what one micro-batch takes at most when it has to catch up.
MESSAGES_PER_BATCH = 128


class Events(Protocol):
    """Where events come from, counted as they are read."""

    def between(self, spark: SparkSession, counting: Counting) -> DataFrame:
        """The pieces of the events of a range of time."""

    def since(self, spark: SparkSession, counting: Counting) -> DataFrame:
        """The same from a moment on, as a streaming DataFrame: those of each micro-batch."""


class EventLog:
    """The stream `warren.events` of a broker. `access` says where its URL is: an option of the source."""

    def __init__(self, access: Mapping[str, str] | None = None) -> None:
        self._access = dict(access or {"urlEnv": URL_VARIABLE})

    def between(self, spark: SparkSession, counting: Counting) -> DataFrame:
        # The end is not given to the source: after a crash, events are written to the log long after their time.
        return spark.read.format(_source(spark)).options(**self._options(counting)).load()

    def since(self, spark: SparkSession, counting: Counting) -> DataFrame:
        options = self._options(counting) | {"maxRecordsPerBatch": str(MESSAGES_PER_BATCH)}
        return spark.readStream.format(_source(spark)).options(**options).load()

    def _options(self, counting: Counting) -> dict[str, str]:
        return self._access | {
            "stream": schema.STREAM_NAME,
            "payload": "arrow",
            "startingTimestamp": iso(moment_of(counting.first)),
            "counting": counting.as_text(),
        }


def _source(spark: SparkSession) -> str:
    """The name of the source that counts, made known to this session."""
    from warrenmq.pipeline.count.datasource import CountedEvents

    spark.dataSource.register(CountedEvents)
    return CountedEvents.name()
