"""The event log of a broker as DataFrames: a range of time at once, or from a moment on for ever.

The URL, which holds a password, never becomes a part of a plan or of a command line: the source finds it in the
environment of its processes under the name URL_VARIABLE. Both ways give the events of whole windows only from the
begin on, so that both give the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from warrenmq.events import schema
from warrenmq.pipeline.analysis.times import Range, iso

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# The name tells Spark to hide the value wherever it shows an environment.
URL_VARIABLE = "WARRENMQ_URL_SECRET"

# Messages of the event log, each up to 8,192 events: what one micro-batch takes at most when it has to catch up.
MESSAGES_PER_BATCH = 128


class Events(Protocol):
    """Where events come from."""

    def between(self, spark: SparkSession, covers: Range, columns: Sequence[str]) -> DataFrame:
        """The events of a range of time."""

    def since(self, spark: SparkSession, start: datetime, columns: Sequence[str]) -> DataFrame:
        """The events from a moment on, as a streaming DataFrame."""


class EventLog:
    """The stream `warren.events` of a broker. `access` says where its URL is: an option of the source."""

    def __init__(self, access: Mapping[str, str] | None = None) -> None:
        self._options = {"stream": schema.STREAM_NAME, "payload": "arrow"} | dict(access or {"urlEnv": URL_VARIABLE})

    def between(self, spark: SparkSession, covers: Range, columns: Sequence[str]) -> DataFrame:
        # The end is not given to the source: after a crash, events are written to the log long after their time.
        reader = spark.read.format("warrenmq").options(**self._options)
        events = reader.options(startingTimestamp=iso(covers.start), columns=",".join(columns)).load()
        return events.where((events.time >= _literal(covers.start)) & (events.time < _literal(covers.end)))

    def since(self, spark: SparkSession, start: datetime, columns: Sequence[str]) -> DataFrame:
        reader = spark.readStream.format("warrenmq").options(**self._options)
        events = reader.options(
            startingTimestamp=iso(start),
            columns=",".join(columns),
            maxRecordsPerBatch=str(MESSAGES_PER_BATCH),
        ).load()
        return events.where(events.time >= _literal(start))


def _literal(moment: datetime) -> Column:
    from pyspark.sql import functions

    return functions.lit(iso(moment)).cast("timestamp")
