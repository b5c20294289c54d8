"""Legs: how long a consumer had a message, from the delivery to its ack, nack or reject.

No event tells both ends, so they are paired by message, queue and attempt. In batch that is an aggregation. In
streaming each queue has a state: the deliveries that are not settled yet, however long that takes; so it is as large as
what consumers hold, and not as what went by.

`legs_of` gives one row per leg (append mode), `processing_facts` counts them as facts. In streaming those of one
micro-batch are a part of their window (`part` is the number of the batch): a batch that is repeated replaces its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from warrenmq.events import schema
from warrenmq.pipeline.facts import PROCESSING, TIME, bucket_of, ordered, own_events_left_out, text_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.state import GroupState

    from warrenmq.pipeline.settings import Settings

FACTS = frozenset({TIME})
EVENT_COLUMNS = ("time", "kind", "uid", "vhost", "exchange", "routing_key", "queue", "attempt", "reason", "depth")

# Deliveries of one queue that are held in memory for their settlement; of more, the oldest are given up.
MOST_OPEN = 200_000

_SETTLED = (schema.ACKED, schema.NACKED, schema.REJECTED)
_OVER = (*_SETTLED, schema.REQUEUED)  # what comes back by itself ends a leg that is not measured
_LEG = "time timestamp, uid bigint, vhost string, queue string, processing_us bigint"
# Rows of uid, attempt and time, 64 bits each: PySpark 4.3 cannot read arrays back from a state.
_STATE = "held binary"


def legs_of(events: DataFrame, settings: Settings) -> DataFrame:
    """A row for each delivery that was settled: when, of which message and queue, and how long it took."""
    kind = sf.col("kind").cast("int")
    is_manual = sf.coalesce(sf.col("reason").cast("int"), sf.lit(0)) != schema.R_AUTO_ACK
    is_wanted = kind.isin(schema.DELIVERED, *_OVER) & is_manual & sf.col("depth").isNotNull()
    steps = own_events_left_out(events).where(is_wanted).select(
        text_of("vhost").alias("vhost"), text_of("queue").alias("queue"), "uid",
        sf.coalesce("attempt", sf.lit(1)).cast("long").alias("attempt"), kind.alias("kind"),
        sf.unix_micros("time").alias("at"),
    )  # fmt: skip
    return _paired_over_time(steps) if events.isStreaming else _paired(steps)


def processing_facts(legs: DataFrame, settings: Settings, part: int) -> DataFrame:
    """Facts of kind `time` that say how long consumers had messages. For a static DataFrame."""
    window = sf.window("time", settings.window)
    grouped = legs.groupBy(window.alias("window"), "vhost", "queue", bucket_of(sf.col("processing_us")).alias("bucket"))
    counted = grouped.agg(
        sf.count(sf.lit(1)).alias("count"),
        sf.sum("processing_us").alias("total_us"),
        sf.max("processing_us").alias("longest_us"),
        sf.min("uid").alias("first_uid"),
        sf.max("uid").alias("last_uid"),
        sf.min("time").alias("first_time"),
        sf.max("time").alias("last_time"),
    )
    return ordered(counted.withColumns(_constants(part)))


def _constants(part: int) -> dict[str, Column]:
    texts = ("exchange", "consumer", "connection", "kind", "reason")
    counts = ("messages", "settled", "failed", "redelivered", "octets")
    return {
        "window_start": sf.col("window.start"),
        "window_end": sf.col("window.end"),
        "part": sf.lit(part).cast("long"),
        "fact": sf.lit(TIME),
        "name": sf.lit(PROCESSING),
        "channel": sf.lit(0),
        **{name: sf.lit("") for name in texts},
        **{name: sf.lit(0).cast("long") for name in counts},
        **{name: sf.lit(None).cast("long") for name in ("depth_max", "depth_last")},
    }


def _paired(steps: DataFrame) -> DataFrame:
    kind, at = sf.col("kind"), sf.col("at")
    legs = steps.groupBy("vhost", "queue", "uid", "attempt").agg(
        sf.min(sf.when(kind == schema.DELIVERED, at)).alias("delivered"),
        sf.min(sf.when(kind.isin(*_SETTLED), at)).alias("settled"),
    )
    return legs.where("delivered IS NOT NULL AND settled IS NOT NULL").select(
        sf.timestamp_micros("settled").alias("time"), "uid", "vhost", "queue",
        sf.greatest(sf.col("settled") - sf.col("delivered"), sf.lit(0)).alias("processing_us"),
    )  # fmt: skip


def _paired_over_time(steps: DataFrame) -> DataFrame:
    return steps.groupBy("vhost", "queue").applyInPandasWithState(
        _pair_in_state, _LEG, _STATE, "append", "NoTimeout"
    )  # fmt: skip


def _pair_in_state(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The legs of one queue that end in this micro-batch; those that do not end stay in the state."""
    import numpy as np
    import pandas as pd

    held = np.frombuffer(state.get[0] if state.exists else b"", np.int64).reshape(-1, 3)
    before = pd.DataFrame(held, columns=["uid", "attempt", "at"]).assign(kind=schema.DELIVERED)
    steps = pd.concat([frame for frame in (before, *frames) if len(frame)], ignore_index=True)
    legs, still_held = pair(steps)
    still_held = still_held.nlargest(MOST_OPEN, "at") if len(still_held) > MOST_OPEN else still_held
    state.update((still_held.to_numpy(np.int64).tobytes(),))
    vhost, queue = key
    yield pd.DataFrame(
        {
            "time": pd.to_datetime(legs["settled"], unit="us", utc=True),
            "uid": legs["uid"],
            "vhost": vhost,
            "queue": queue,
            "processing_us": legs["processing_us"],
        }
    )


def pair(steps: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Legs that have both ends, and the deliveries that have none yet, of steps with uid, attempt, kind and at."""
    by_leg = ["uid", "attempt"]
    delivered = steps[steps["kind"] == schema.DELIVERED].groupby(by_leg, as_index=False)["at"].min()
    over = steps[steps["kind"].isin(_OVER)]
    settled = over[over["kind"].isin(_SETTLED)].groupby(by_leg, as_index=False)["at"].min()
    legs = delivered.merge(settled.rename(columns={"at": "settled"}), on=by_leg)
    legs["processing_us"] = (legs["settled"] - legs["at"]).clip(lower=0)
    ended = delivered.merge(over[by_leg].drop_duplicates(), on=by_leg, how="left", indicator=True)
    still_held = ended.loc[ended["_merge"] == "left_only", ["uid", "attempt", "at"]]
    return legs, still_held
