"""Where messages go: exchange to queue, queue to consumer, and dead letters from a queue to an exchange, with rates."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import STEP
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    REAL,
    TEXT,
    WHOLE,
    WINDOW,
    WINDOW_COLUMNS,
    per_second,
    put,
    stacked,
    totals,
    where,
)
from warrenmq.pipeline.options import Settings

KEYS = ("window_start", "vhost", "source_kind", "source", "target_kind", "target")
COLUMNS = (
    WINDOW_COLUMNS
    | dict.fromkeys(("source_kind", "source", "target_kind", "target"), TEXT)
    | {"count": WHOLE, "octets": WHOLE, "per_second": REAL}
)
NO_CONSUMER = "basic.get"  # who takes messages one by one has no consumer tag


def answer(facts: pa.Table, settings: Settings) -> pa.Table:
    enqueued = where(facts, fact=STEP, kind="enqueued")
    delivered = where(facts, fact=STEP, kind="delivered")
    consumer = delivered["consumer"]
    taker = pc.if_else(pc.equal(consumer, ""), NO_CONSUMER, consumer)
    routed = where(facts, fact=STEP, kind="routed")
    dead = routed.filter(pc.not_equal(routed["queue"], ""))  # a queue has published them
    edges = stacked(
        put(dead, source_kind="queue", source=dead["queue"], target_kind="exchange", target=dead["exchange"]),
        put(
            enqueued, source_kind="exchange", source=enqueued["exchange"], target_kind="queue", target=enqueued["queue"]
        ),
        put(delivered, source_kind="queue", source=delivered["queue"], target_kind="consumer", target=taker),
    )
    found = totals(edges, (*WINDOW, *KEYS[2:]), count="sum", octets="sum")
    return put(found, per_second=per_second(found, "count"))


JOB = arrow_job("flow", "Flow", KEYS, for_all_windows(answer), COLUMNS, "flow", frozenset({STEP}))
