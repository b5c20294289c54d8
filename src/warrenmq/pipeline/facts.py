"""Events to facts: the one aggregation of the analysis, the same in batch and in streaming.

A fact is a row of counts of one window. There are kinds of facts, in one table: `step` (what happened where: all
events, by exchange, queue, consumer, kind and reason), `key` (publishes and failures by routing key), `time` (how long
messages took: exact counts in logarithmic buckets). `keyed.py` and `legs.py` add those that need the events of one
message together. No key is null, so a table of facts can be kept by its keys: a later row replaces the one before.

All measures merge exactly and in any order. That is why the times are counts in fixed buckets and no sketch: sketches
of quantiles are random or depend on the order, and then a restarted query would not agree with a batch.

Nothing is owned here: DataFrames go in and come out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from warrenmq.events import schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from warrenmq.pipeline.settings import Settings

STEP, KEY, TIME, MESSAGE, SESSION = "step", "key", "time", "message", "session"
FACTS = frozenset({STEP, KEY, TIME})  # which of them are made here
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
_WITH_KEY = (*ARRIVING, *FAILING, schema.UNROUTABLE, schema.RETURNED)

EVENT_COLUMNS = (
    "time", "kind", "uid", "publish_time", "enqueue_time", "vhost", "exchange", "routing_key", "queue", "consumer",
    "connection", "channel", "size", "attempt", "reason", "depth",
)  # fmt: skip

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

# What an event counts as, as numbers while it is counted.
_STEP, _KEY, _WAITING, _END_TO_END = range(4)

_DEPTH_BITS = 31
_DEPTH_MASK = (1 << _DEPTH_BITS) - 1


def facts_of(events: DataFrame, settings: Settings) -> DataFrame:
    """What happened in each window. Streaming: in update mode, a row that changed is given whole."""
    rows = own_events_left_out(events).withWatermark("time", settings.lateness)
    exploded = rows.select(
        sf.window("time", settings.window).alias("window"), "*", sf.explode(_facts_of_event()).alias("fact_code")
    )
    counted = exploded.select("window", *_group_columns(), *_measured_columns())
    grouped = counted.groupBy("window", "fact_code", *GROUP_KEYS[1:]).agg(*_measures())
    return _named(grouped)


def own_events_left_out(events: DataFrame) -> DataFrame:
    """Without what concerns the streams that the analysis reads and writes."""
    queue, key = sf.coalesce("queue", sf.lit("")), sf.coalesce("routing_key", sf.lit(""))
    is_default = sf.coalesce("exchange", sf.lit("")) == ""
    return events.where(~queue.isin(*OWN_STREAMS) & ~(is_default & key.isin(*OWN_STREAMS)))


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
    return ordered(
        merged.withColumn("window_start", sf.col("window.start")).withColumn("window_end", sf.col("window.end"))
    )


def bound(facts: DataFrame, settings: Settings) -> DataFrame:
    """The same facts with at most `settings.kept` routing keys or sessions per window and group.

    For a static DataFrame: in streaming, the changed rows of a micro-batch. Measures only grow, so a row that is among
    the first at the end is among the first of those that changed when it changed last: nothing is missed.
    """
    is_many = sf.col("fact").isin(KEY, SESSION)
    group = Window.partitionBy("window_start", "fact", "vhost", "exchange", "queue", "kind", "reason")
    duration = sf.unix_micros("last_time") - sf.unix_micros("first_time")
    first = sf.when(sf.col("fact") == SESSION, sf.col("failed")).otherwise(sf.col("count")).desc()
    second = sf.when(sf.col("fact") == SESSION, duration).otherwise(sf.lit(0)).desc()
    # In one pass, also over the facts that are all kept: two would run a micro-batch twice, from its source on.
    ranked = facts.withColumn("rank", sf.row_number().over(group.orderBy(first, second, "name")))
    return ranked.where(~is_many | (sf.col("rank") <= settings.kept)).drop("rank")


def bucket_of(duration_us: Column) -> Column:
    """The number of the bucket of a duration: bucket b holds what is above GROWTH**(b-1) and not above GROWTH**b."""
    return sf.when(duration_us <= 1, sf.lit(0)).otherwise(sf.ceil(sf.ln(duration_us) / math.log(GROWTH))).cast("int")


def kind_names(code: Column) -> Column:
    return _names_of(code, schema.KIND_NAMES, "kind-")


def reason_names(code: Column) -> Column:
    return sf.when(code == 0, sf.lit("")).otherwise(_names_of(code, schema.REASON_NAMES, "reason-"))


def micros_since(earlier: str) -> Column:
    """How long before the event that was; a clock that was set back counts as no time."""
    return sf.greatest(sf.unix_micros("time") - sf.unix_micros(earlier), sf.lit(0))


def ordered(facts: DataFrame) -> DataFrame:
    """Exactly the columns of a fact, in their order."""
    return facts.select(*FACT_KEYS, *MEASURES)


def text_of(column: str) -> Column:
    return sf.coalesce(sf.col(column), sf.lit(""))


def exchange_name() -> Column:
    """'' where no exchange is concerned; the default exchange has its name of the HTTP API."""
    return sf.when(sf.col("exchange") == "", sf.lit(DEFAULT_EXCHANGE)).otherwise(text_of("exchange"))


def _facts_of_event() -> Column:
    """What an event counts as. The arrays are constants, so that nothing is allocated per event."""
    kind, attempt = sf.col("kind"), sf.coalesce("attempt", sf.lit(1))
    in_queue = sf.col("depth").isNotNull()  # a reader of a stream begins where it likes: its times say nothing
    waited = in_queue & (kind == schema.DELIVERED) & (attempt == 1) & sf.col("enqueue_time").isNotNull()
    is_auto = (kind == schema.DELIVERED) & (sf.coalesce("reason", sf.lit(0)) == schema.R_AUTO_ACK)
    ended = in_queue & ((kind == schema.ACKED) | is_auto) & sf.col("publish_time").isNotNull()
    return (
        sf.when(kind.isin(*_WITH_KEY), _codes(_STEP, _KEY))
        .when(waited & ended, _codes(_STEP, _WAITING, _END_TO_END))
        .when(waited, _codes(_STEP, _WAITING))
        .when(ended, _codes(_STEP, _END_TO_END))
        .otherwise(_codes(_STEP))
    )


def _codes(*codes: int) -> Column:
    return sf.array(*(sf.lit(code) for code in codes))


def _group_columns() -> list[Column]:
    code = sf.col("fact_code")
    is_step, is_kind = code == _STEP, code <= _KEY
    has_consumer = is_step & sf.col("consumer").isNotNull()
    duration = sf.when(code == _WAITING, micros_since("enqueue_time")).when(
        code == _END_TO_END, micros_since("publish_time")
    )
    return [
        code,
        text_of("vhost").alias("vhost"),
        sf.when(is_kind, exchange_name()).otherwise("").alias("exchange"),
        text_of("queue").alias("queue"),
        sf.when(has_consumer, sf.col("consumer")).otherwise("").alias("consumer"),
        sf.when(has_consumer, text_of("connection")).otherwise("").alias("connection"),
        sf.when(has_consumer, sf.coalesce("channel", sf.lit(0))).otherwise(0).alias("channel"),
        sf.when(is_kind, sf.col("kind").cast("int")).otherwise(0).alias("kind"),
        sf.when(is_kind, sf.coalesce(sf.col("reason").cast("int"), sf.lit(0))).otherwise(0).alias("reason"),
        sf.when(code == _KEY, text_of("routing_key")).otherwise("").alias("name"),
        sf.when(is_kind, sf.lit(0)).otherwise(bucket_of(duration)).alias("bucket"),
        duration.alias("duration"),
    ]


def _measured_columns() -> list[Column]:
    since_start = sf.unix_micros("time") - sf.unix_micros("window.start")
    # A queue that drops what lies on disk tells one event of no message, whose depth is how many these were.
    is_many = (sf.col("kind") == schema.DROPPED) & (sf.col("uid") == 0) & sf.col("depth").isNotNull()
    depth = sf.when(~is_many, sf.col("depth").cast("long"))
    return [
        sf.when(is_many, sf.col("depth").cast("long")).otherwise(1).alias("times"),
        sf.col("time"),
        sf.when(sf.col("uid") != 0, sf.col("uid")).alias("uid"),
        sf.coalesce("size", sf.lit(0)).cast("long").alias("size"),
        ((sf.col("kind") == schema.DELIVERED) & (sf.col("attempt") > 1)).alias("is_again"),
        depth.alias("depth"),
        (sf.shiftleft(since_start, _DEPTH_BITS) + depth).alias("depth_at"),
    ]


def _measures() -> list[Column]:
    """Numbers only: what else is kept in a group makes Spark sort instead of hash."""
    return [
        sf.sum("times").alias("count"),
        sf.sum(sf.when(sf.col("is_again"), 1).otherwise(0)).alias("redelivered"),
        sf.sum("size").alias("octets"),
        sf.max("depth").alias("depth_max"),
        sf.max("depth_at").alias("depth_at"),
        sf.sum("duration").alias("total_us"),
        sf.max("duration").alias("longest_us"),
        sf.min("uid").alias("first_uid"),
        sf.max("uid").alias("last_uid"),
        sf.min("time").alias("first_time"),
        sf.max("time").alias("last_time"),
    ]


def _named(grouped: DataFrame) -> DataFrame:
    """The groups as facts: codes become names, and what follows from the kind is filled in."""
    code, count, kind = sf.col("fact_code"), sf.col("count"), sf.col("kind")
    measure = sf.when(code == _WAITING, sf.lit(WAITING)).when(code == _END_TO_END, sf.lit(END_TO_END))
    named = (
        grouped.withColumn("window_start", sf.col("window.start"))
        .withColumn("window_end", sf.col("window.end"))
        .withColumn("part", sf.lit(0).cast("long"))
        .withColumn(
            "fact", sf.when(code == _STEP, sf.lit(STEP)).when(code == _KEY, sf.lit(KEY)).otherwise(sf.lit(TIME))
        )
        .withColumn("name", sf.coalesce(measure, sf.col("name")))
        .withColumn("messages", sf.when(kind.isin(*ARRIVING), count).otherwise(0))
        .withColumn("settled", sf.when(kind == schema.ACKED, count).otherwise(0))
        .withColumn("failed", sf.when(kind.isin(*FAILING), count).otherwise(0))
        .withColumn("depth_last", sf.col("depth_at").bitwiseAND(_DEPTH_MASK))
        .withColumn("kind", sf.when(kind == 0, sf.lit("")).otherwise(kind_names(kind)))
        .withColumn("reason", reason_names(sf.col("reason")))
    )
    return ordered(named)


def _names_of(code: Column, names: dict[int, str], other: str) -> Column:
    pairs = [sf.lit(part) for pair in names.items() for part in pair]
    known = sf.try_element_at(sf.create_map(*pairs), code)
    return sf.coalesce(known, sf.concat(sf.lit(other), code.cast("string")))
