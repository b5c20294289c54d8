"""Duplicates: messages published with the same message id, or dropped by the broker's deduplication.

An id is a duplicate within one window of `id_window`. Dropped messages are counted by queue, or by the exchange that
dropped them. Of each window, the `max_per_group` most frequent of both are kept.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import MESSAGE, STEP
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    INT,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    concat,
    times_to_us,
    uid_texts,
    where,
    with_columns,
    with_rank,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "what", "name")
COLUMNS = WINDOW_COLUMNS | {
    "what": TEXT, "name": TEXT, "times": INT, "first_uid": TEXT, "last_uid": TEXT, "apart_us": INT,
}  # fmt: skip


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    found = aggregate(
        concat(_published(facts), _dropped(facts)), (*WINDOW, "what", "name"),
        count="sum", first_uid="min", last_uid="max", first_time="min", last_time="max",
    )  # fmt: skip
    first = with_rank(found, ("window_start", "what"), ("-count", "vhost", "name"))
    kept = first.filter(pc.less_equal(first["rank"], options.max_per_group))
    return with_columns(
        kept,
        times=kept["count"],
        first_uid=uid_texts(kept["first_uid"]),
        last_uid=uid_texts(kept["last_uid"]),
        apart_us=pc.subtract(times_to_us(kept["last_time"]), times_to_us(kept["first_time"])),
    )


def _published(facts: pa.Table) -> pa.Table:
    messages = where(facts, fact=MESSAGE)
    return with_columns(messages.filter(pc.greater(messages["count"], 1)), what="published")


def _dropped(facts: pa.Table) -> pa.Table:
    dropped = where(facts, fact=STEP, kind="dropped", reason="duplicate")
    in_exchange = pc.equal(dropped["queue"], "")
    return with_columns(dropped, what="dropped", name=pc.if_else(in_exchange, dropped["exchange"], dropped["queue"]))


JOB = arrow_job("duplicates", "Duplicates", KEYS, for_all_windows(answer), COLUMNS, "table", frozenset({MESSAGE, STEP}))
