"""Messages that no queue was bound for, by exchange and routing key: the most frequent of each window."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import KEY
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    REAL,
    TEXT,
    WHOLE,
    WINDOW,
    WINDOW_COLUMNS,
    count_of,
    per_second,
    put,
    ranked,
    totals,
    uid_texts,
    where,
)
from warrenmq.pipeline.options import Settings

KEYS = ("window_start", "vhost", "exchange", "routing_key")
COLUMNS = WINDOW_COLUMNS | {
    "exchange": TEXT, "routing_key": TEXT, "count": WHOLE, "returned": WHOLE, "per_second": REAL, "example_uid": TEXT,
}  # fmt: skip


def answer(facts: pa.Table, settings: Settings) -> pa.Table:
    lost = where(facts, fact=KEY, kind=("unroutable", "returned"))
    counted = put(
        lost, routing_key=lost["name"], count=count_of(lost, "unroutable"), returned=count_of(lost, "returned")
    )
    found = totals(counted, (*WINDOW, "exchange", "routing_key"), count="sum", returned="sum", last_uid="max")
    first = ranked(found, ("window_start",), ("-count", "vhost", "exchange", "routing_key"))
    kept = first.filter(pc.less_equal(first["rank"], settings.top))
    return put(kept, per_second=per_second(kept, "count"), example_uid=uid_texts(kept["last_uid"]))


JOB = arrow_job("unroutable", "Unroutable messages", KEYS, for_all_windows(answer), COLUMNS, "bars", frozenset({KEY}))
