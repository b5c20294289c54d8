"""Facts: what the jobs of the analysis look at instead of events. The words for them, and the way from events to them.

A fact is a row of counts of one window. There are kinds of facts, in one table: `step` (what happened where: all
events, by exchange, queue, consumer, kind and reason), `key` (publishes and failures by routing key), `time` (how long
messages took: exact counts in logarithmic buckets), `priority` (how long those with a priority waited), `message` (ids
that were published more than once) and `session` (what happened to the messages of one correlation id). No key is null.

All measures merge exactly and in any order, so facts are the same whatever parts the events were read in: events are
counted where they are read (count_events.py), and what that gives (partials.py) is put together by window. Facts of a
window may come in parts, which add up (`part`).

Nothing is owned here: DataFrames and tables go in and come out.
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

    from warrenmq.pipeline.options import Settings

STEP, KEY, TIME, PRIORITY, MESSAGE, SESSION = "step", "key", "time", "priority", "message", "session"
ALL = frozenset({STEP, KEY, TIME, PRIORITY, MESSAGE, SESSION})
WAITING, END_TO_END, PROCESSING = "waiting", "end_to_end", "processing"

# A bucket is 4 % wide, so its middle is within 2 % of all that is in it. Half of that makes twice as many facts.
GROWTH = 1.04
DEFAULT_EXCHANGE = "amq.default"
# The broker's own streams: who follows the analysis would feed on the answers.
OWN_STREAMS = (schema.STREAM_NAME, "warren.analysis")

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
# What one event may tell of many messages, which were on disk only.
REMOVING = (schema.EXPIRED, schema.DROPPED)
KINDS_WITH_KEY = (*ARRIVING, *FAILING, schema.UNROUTABLE, schema.RETURNED)

GROUP_KEYS = (
    "fact", "vhost", "exchange", "queue", "consumer", "connection", "channel", "kind", "reason", "name", "bucket",
)  # fmt: skip
FACT_KEYS = ("window_start", "window_end", "part", *GROUP_KEYS)
MEASURES = (
    "count", "messages", "settled", "failed", "redelivered", "octets", "depth_max", "depth_last", "total_us",
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

# Of `depth_last`: the time within a window and the depth, in one number whose greatest is the last depth. Of events of
# the same time the deepest counts; of those that make a queue shorter the least deep: these have DEPTH_MASK - depth.
DEPTH_BITS = 31
DEPTH_MASK = (1 << DEPTH_BITS) - 1
SHORTENING = (schema.DELIVERED, schema.EXPIRED, schema.DROPPED, schema.DEAD_LETTERED)


def facts_of(events: DataFrame, settings: Settings, wanted: Collection[str] = ALL) -> DataFrame:
    """What happened in each window, for a static DataFrame of events: the facts of these kinds.

    Of routing keys and sessions at most `settings.kept` per window and group.
    """
    from warrenmq.pipeline.count import count_events, partials

    chosen = count_events.Counting.of(settings, wanted, count_events.SHELVES)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return count_events.count_events(batches, chosen)

    known = [name for name in count_events.COLUMNS if name in events.columns]
    return facts_of_pieces(events.select(*known).mapInArrow(count, partials.DDL), settings)


def facts_of_pieces(found: DataFrame, settings: Settings) -> DataFrame:
    """The facts that pieces make, those of one place together."""
    from warrenmq.pipeline.count import count_events, partials

    def together(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        return count_events.facts_of_place(partials.pieces_in(rows), settings)

    wanted = found.where(sf.col("kind") != partials.SEEN)
    return wanted.groupBy("kind", "place").applyInArrow(together, SCHEMA)


def facts_table(events: pa.Table, settings: Settings, wanted: Collection[str] = ALL) -> pa.Table:
    """The same of a table of events, in this process."""
    from warrenmq.pipeline.count import count_events

    return count_events.facts_table(events, settings, wanted)


def roll_up(facts: DataFrame, window: str) -> DataFrame:
    """The same facts in longer windows, `window` being a multiple of theirs. For static DataFrames."""
    longer = facts.withColumn("window", sf.window("window_start", window))
    merged = longer.groupBy("window", "part", *GROUP_KEYS).agg(
        *(sf.sum(name).alias(name) for name in ("count", "messages", "settled", "failed", "redelivered", "octets")),
        sf.max("depth_max").alias("depth_max"),
        sf.max_by("depth_last", sf.when(sf.col("depth_last").isNotNull(), sf.col("last_time"))).alias("depth_last"),
        sf.sum("total_us").alias("total_us"),
        sf.max("longest_us").alias("longest_us"),
        sf.min("first_uid").alias("first_uid"),
        sf.max("last_uid").alias("last_uid"),
        sf.min("first_time").alias("first_time"),
        sf.max("last_time").alias("last_time"),
    )
    timed = merged.withColumn("window_start", sf.col("window.start")).withColumn("window_end", sf.col("window.end"))
    return timed.select(*FACT_KEYS, *MEASURES)
