"""Where messages go: exchange to queue, queue to consumer, and dead letters from a queue to an exchange, with rates."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import STEP
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    FLOAT,
    INT,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    concat,
    per_second,
    where,
    with_columns,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "source_kind", "source", "target_kind", "target")
COLUMNS = (
    WINDOW_COLUMNS
    | dict.fromkeys(("source_kind", "source", "target_kind", "target"), TEXT)
    | {"count": INT, "bytes": INT, "per_second": FLOAT}
)
NO_CONSUMER = "basic.get"  # basic.get has no consumer tag


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    enqueued = where(facts, fact=STEP, kind="enqueued")
    delivered = where(facts, fact=STEP, kind="delivered")
    consumer = delivered["consumer"]
    consumer_name = pc.if_else(pc.equal(consumer, ""), NO_CONSUMER, consumer)
    routed = where(facts, fact=STEP, kind="routed")
    dead = routed.filter(pc.not_equal(routed["queue"], ""))  # published by a queue
    edges = concat(
        with_columns(dead, source_kind="queue", source=dead["queue"], target_kind="exchange", target=dead["exchange"]),
        with_columns(
            enqueued, source_kind="exchange", source=enqueued["exchange"], target_kind="queue", target=enqueued["queue"]
        ),
        with_columns(
            delivered, source_kind="queue", source=delivered["queue"], target_kind="consumer", target=consumer_name
        ),
    )
    found = aggregate(edges, (*WINDOW, *KEYS[2:]), count="sum", bytes="sum")
    return with_columns(found, per_second=per_second(found, "count"))


JOB = arrow_job("flow", "Flow", KEYS, for_all_windows(answer), COLUMNS, "flow", frozenset({STEP}))
