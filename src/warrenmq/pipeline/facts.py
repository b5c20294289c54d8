"""Facts: counts per window, which the jobs read instead of events. Their columns, and the way from events to them.

A fact is a row of counts of one window. One table holds several kinds: `step` (all events, by exchange, queue,
consumer, kind and reason), `key` (publishes and failures by routing key), `time` (durations, as exact counts in
logarithmic buckets), `priority` (waiting times of messages with a priority), `message` (ids published more than once)
and `session` (messages with the same correlation id). Key columns are never null.

All measures merge exactly and in any order: events are counted where they are read (count/), and the partial aggregates
are merged by window (merge/). The facts of a window may come in several parts, which add up (`part`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from warrenmq.events import schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.options import AnalysisOptions

STEP, KEY, TIME, PRIORITY, MESSAGE, SESSION = "step", "key", "time", "priority", "message", "session"
ALL = frozenset({STEP, KEY, TIME, PRIORITY, MESSAGE, SESSION})
WAITING, END_TO_END, PROCESSING = "waiting", "end_to_end", "processing"

# A bucket is 4 % wide, so its middle is within 2 % of all that is in it. Half of that makes twice as many facts.
GROWTH = 1.04
DEFAULT_EXCHANGE = "amq.default"
# The broker's own streams: otherwise the analysis would count its own reads and answers.
INTERNAL_STREAMS = (schema.STREAM_NAME, "warren.analysis")

ARRIVING = (schema.PUBLISHED, schema.REPUBLISHED)
FAILING = (
    schema.NACKED,
    schema.REJECTED,
    schema.REQUEUED,
    schema.RETRIED,
    schema.EXPIRED,
    schema.DROPPED,
    schema.DEAD_LETTERED,
)
# One such event may stand for many messages, which were only on disk.
REMOVING = (schema.EXPIRED, schema.DROPPED)
KINDS_WITH_KEY = (*ARRIVING, *FAILING, schema.UNROUTABLE, schema.RETURNED)

GROUP_KEYS = (
    "fact", "vhost", "exchange", "queue", "consumer", "connection", "channel", "kind", "reason", "name", "bucket",
)  # fmt: skip
FACT_KEYS = ("window_start", "window_end", "part", *GROUP_KEYS)
MEASURES = (
    "count", "messages", "settled", "failed", "redelivered", "bytes", "depth_max", "depth_last", "total_us",
    "longest_us", "first_uid", "last_uid", "first_time", "last_time",
)  # fmt: skip

_TYPES = {
    "window_start": TimestampType(),
    "window_end": TimestampType(),
    "part": LongType(),
    "channel": IntegerType(),
    "bucket": IntegerType(),
    "first_time": TimestampType(),
    "last_time": TimestampType(),
} | {name: LongType() for name in MEASURES[:-2]}
SCHEMA = StructType([StructField(name, _TYPES.get(name, StringType())) for name in (*FACT_KEYS, *MEASURES)])

# `depth_at` packs the time within a window and the depth into one number, so that its maximum holds the last depth.
# Among events of the same time the highest depth wins; among those that shorten a queue the lowest, as they have
# DEPTH_MASK - depth.
DEPTH_BITS = 31
DEPTH_MASK = (1 << DEPTH_BITS) - 1
SHORTENING = (schema.DELIVERED, schema.EXPIRED, schema.DROPPED, schema.DEAD_LETTERED)


def facts_of(events: DataFrame, options: AnalysisOptions, fact_kinds: Collection[str] = ALL) -> DataFrame:
    """Return the facts of a static DataFrame of events.

    At most `options.max_per_group` routing keys and sessions are kept per window and group.
    """
    from warrenmq.pipeline.count import count_events, partials

    spec = count_events.CountSpec.of(options, fact_kinds, count_events.MATCH_PARTITIONS)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return count_events.count_events(batches, spec)

    columns = [name for name in count_events.COLUMNS if name in events.columns]
    return merge_partials(events.select(*columns).mapInArrow(count, partials.DDL), options)


def merge_partials(rows: DataFrame, options: AnalysisOptions) -> DataFrame:
    """Merge partial aggregates to facts, grouped by kind and key."""
    from warrenmq.pipeline.count import partials
    from warrenmq.pipeline.merge.facts import facts_from_partials

    def merge(key: tuple[Any, ...], group: pa.Table) -> pa.Table:
        return facts_from_partials(partials.partials_from_rows(group), options)

    return rows.where(sf.col("kind") != partials.TOTALS).groupBy("kind", "key").applyInArrow(merge, SCHEMA)


def roll_up(facts: DataFrame, window: str) -> DataFrame:
    """Merge facts to longer windows; `window` is a multiple of theirs. For static DataFrames."""
    longer = facts.withColumn("window", sf.window("window_start", window))
    merged = longer.groupBy("window", "part", *GROUP_KEYS).agg(
        *(sf.sum(name).alias(name) for name in ("count", "messages", "settled", "failed", "redelivered", "bytes")),
        sf.max("depth_max").alias("depth_max"),
        sf.max_by("depth_last", sf.when(sf.col("depth_last").isNotNull(), sf.col("last_time"))).alias("depth_last"),
        sf.sum("total_us").alias("total_us"),
        sf.max("longest_us").alias("longest_us"),
        sf.min("first_uid").alias("first_uid"),
        sf.max("last_uid").alias("last_uid"),
        sf.min("first_time").alias("first_time"),
        sf.max("last_time").alias("last_time"),
    )
    bounds = merged.withColumn("window_start", sf.col("window.start")).withColumn("window_end", sf.col("window.end"))
    return bounds.select(*FACT_KEYS, *MEASURES)
