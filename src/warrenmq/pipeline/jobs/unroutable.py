"""Unroutable messages by exchange and routing key: the most frequent of each window."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import KEY
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    FLOAT,
    INT,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    count_kinds,
    per_second,
    uid_texts,
    where,
    with_columns,
    with_rank,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "exchange", "routing_key")
COLUMNS = WINDOW_COLUMNS | {
    "exchange": TEXT, "routing_key": TEXT, "count": INT, "returned": INT, "per_second": FLOAT, "example_uid": TEXT,
}  # fmt: skip


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    lost = where(facts, fact=KEY, kind=("unroutable", "returned"))
    counted = with_columns(
        lost, routing_key=lost["name"], count=count_kinds(lost, "unroutable"), returned=count_kinds(lost, "returned")
    )
    found = aggregate(counted, (*WINDOW, "exchange", "routing_key"), count="sum", returned="sum", last_uid="max")
    first = with_rank(found, ("window_start",), ("-count", "vhost", "exchange", "routing_key"))
    kept = first.filter(pc.less_equal(first["rank"], options.top))
    return with_columns(kept, per_second=per_second(kept, "count"), example_uid=uid_texts(kept["last_uid"]))


JOB = arrow_job("unroutable", "Unroutable messages", KEYS, for_all_windows(answer), COLUMNS, "bars", frozenset({KEY}))
