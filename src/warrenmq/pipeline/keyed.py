"""Facts that need the events of one id together: duplicates by message id, sessions by correlation id.

As many groups as there are ids: so the windows are short (`settings.keyed_window`), and of message ids only those that
came more than once leave the aggregation. Streaming: in update mode, with the state of about one window and the
lateness; `facts.bound` keeps sessions few.

Nothing is owned here: DataFrames go in and come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from warrenmq.events import schema
from warrenmq.pipeline.facts import (
    ARRIVING,
    FAILING,
    MESSAGE,
    SESSION,
    ordered,
    own_events_left_out,
    text_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from warrenmq.pipeline.settings import Settings

FACTS = frozenset({MESSAGE, SESSION})
EVENT_COLUMNS = (
    "time", "kind", "uid", "message_id", "vhost", "exchange", "routing_key", "queue", "size", "attempt",
    "correlation_id",
)  # fmt: skip

_IN_SESSION = (*ARRIVING, schema.DELIVERED, schema.ACKED, *FAILING, schema.UNROUTABLE)


def keyed_facts_of(events: DataFrame, settings: Settings) -> DataFrame:
    """Message ids that were published more than once, and sessions, of each window."""
    rows = own_events_left_out(events).withWatermark("time", settings.lateness)
    exploded = rows.where(_is_message() | _is_session()).select(
        sf.window("time", settings.keyed_window).alias("window"), "*", sf.explode(_facts_of_event()).alias("fact")
    )
    name = sf.when(sf.col("fact") == MESSAGE, sf.col("message_id")).otherwise(sf.col("correlation_id"))
    named = exploded.withColumn("name", name).withColumn("vhost", text_of("vhost"))
    grouped = named.groupBy("window", "fact", "vhost", "name").agg(*_measures())
    return _as_facts(grouped.where((sf.col("fact") == SESSION) | (sf.col("count") > 1)))


def _is_message() -> Column:
    """A message that is published again by the broker, or says where it comes from, is no duplicate."""
    return (sf.col("kind") == schema.PUBLISHED) & sf.col("message_id").isNotNull()


def _is_session() -> Column:
    return sf.col("kind").isin(*_IN_SESSION) & sf.col("correlation_id").isNotNull()


def _facts_of_event() -> Column:
    message, session = sf.lit(MESSAGE), sf.lit(SESSION)
    return (
        sf.when(_is_message() & _is_session(), sf.array(message, session))
        .when(_is_message(), sf.array(message))
        .otherwise(sf.array(session))
    )


def _measures() -> list[Column]:
    kind = sf.col("kind")
    return [
        sf.count(sf.lit(1)).alias("count"),
        _count_if(kind.isin(*ARRIVING)).alias("messages"),
        _count_if(kind == schema.ACKED).alias("settled"),
        _count_if(kind.isin(*FAILING)).alias("failed"),
        _count_if((kind == schema.DELIVERED) & (sf.col("attempt") > 1)).alias("redelivered"),
        sf.sum(sf.when(kind.isin(*ARRIVING), sf.coalesce("size", sf.lit(0))).otherwise(0)).cast("long").alias("octets"),
        sf.min("uid").alias("first_uid"),
        sf.max("uid").alias("last_uid"),
        sf.min("time").alias("first_time"),
        sf.max("time").alias("last_time"),
    ]


def _count_if(condition: Column) -> Column:
    return sf.sum(sf.when(condition, 1).otherwise(0)).cast("long")


def _as_facts(grouped: DataFrame) -> DataFrame:
    empty = ("exchange", "queue", "consumer", "connection", "kind", "reason")
    return ordered(
        grouped.withColumns(
            {
                "window_start": sf.col("window.start"),
                "window_end": sf.col("window.end"),
                "part": sf.lit(0).cast("long"),
                "channel": sf.lit(0),
                "bucket": sf.lit(0),
                **{name: sf.lit("") for name in empty},
                **{name: sf.lit(None).cast("long") for name in ("depth_max", "depth_last", "total_us", "longest_us")},
            }
        )
    )
