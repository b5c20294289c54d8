"""Failures in each queue: redeliveries, nacks, retries, expiries, drops, dead letters, with their reasons.

A nack with requeue has two events, `nacked` and `requeued`, so kinds must not be summed. The ratio is relative to the
queue's deliveries in the window, or to its arrivals if there were none. `top_key` is the routing key that failed most;
of equal ones the last by name.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import KEY, STEP
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    FAILURE_EVENTS,
    FLOAT,
    INT,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    concat,
    count_kinds,
    left_join,
    per_second,
    ratio,
    uid_texts,
    where,
    with_columns,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "queue", "kind", "reason")
COLUMNS = (
    WINDOW_COLUMNS
    | dict.fromkeys(("queue", "kind", "reason"), TEXT)
    | {"count": INT, "per_second": FLOAT, "failure_ratio": FLOAT, "top_key": TEXT, "top_key_count": INT}
    | {"example_uid": TEXT}
)
QUEUE = ("window_start", "vhost", "queue")


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    in_queues = facts.filter(pc.not_equal(facts["queue"], ""))
    steps, keys = where(in_queues, fact=STEP), where(in_queues, fact=KEY, kind=FAILURE_EVENTS)
    found = aggregate(_failures(steps), (*WINDOW, "queue", "kind", "reason"), count="sum", last_uid="max")
    found = left_join(left_join(found, _handled(steps), QUEUE), _top_keys(keys), KEYS)
    return with_columns(
        found,
        per_second=per_second(found, "count"),
        failure_ratio=ratio(found["count"], found["handled"]),
        example_uid=uid_texts(found["last_uid"]),
    )


def _failures(steps: pa.Table) -> pa.Table:
    """Return failure events; deliveries after the first count as redeliveries, too."""
    again = steps.filter(pc.greater(steps["redelivered"], 0))
    redelivered = with_columns(again, kind="redelivered", reason="", count=again["redelivered"])
    failed = where(steps, kind=FAILURE_EVENTS)
    return concat(failed.filter(pc.greater(failed["count"], 0)), redelivered)


def _handled(steps: pa.Table) -> pa.Table:
    """Return how many messages each queue delivered in a window, or else how many arrived."""
    counted = with_columns(
        steps, delivered=count_kinds(steps, "delivered"), arrived=count_kinds(steps, "enqueued", "requeued")
    )
    found = aggregate(counted, QUEUE, delivered="sum", arrived="sum")
    handled = pc.if_else(pc.greater(found["delivered"], 0), found["delivered"], found["arrived"])
    return with_columns(found, handled=handled).select([*QUEUE, "handled"])


def _top_keys(keys: pa.Table) -> pa.Table:
    by_key = aggregate(keys, (*KEYS, "name"), count="sum")
    in_order = by_key.sort_by([("count", "ascending"), ("name", "ascending")])
    return aggregate(with_columns(in_order, top_key=in_order["name"], top_key_count=in_order["count"]), KEYS,
                  top_key="last", top_key_count="last")  # fmt: skip


JOB = arrow_job("failures", "Failures", KEYS, for_all_windows(answer), COLUMNS, "bars", frozenset({STEP, KEY}))
