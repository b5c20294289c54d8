"""Why messages were dead-lettered: by queue, reason, and the exchange and routing key they were published with.

The most frequent causes of each window, with uids of the first and the last message.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import KEY
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    FLOAT,
    INT,
    TEXT,
    TEXT_LIST,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    iter_rows,
    per_second,
    uid_list,
    where,
    with_columns,
    with_rank,
)
from warrenmq.pipeline.options import AnalysisOptions

CAUSE = ("queue", "reason", "exchange", "routing_key")
KEYS = ("window_start", "vhost", *CAUSE)
COLUMNS = WINDOW_COLUMNS | dict.fromkeys(CAUSE, TEXT) | {"count": INT, "per_second": FLOAT, "example_uids": TEXT_LIST}


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    dead = where(facts, fact=KEY, kind="dead_lettered")
    named = with_columns(dead, routing_key=dead["name"])
    found = aggregate(named, (*WINDOW, *CAUSE), count="sum", first_uid="min", last_uid="max")
    ranked = with_rank(found, ("window_start",), ("-count", "vhost", *CAUSE))
    kept = ranked.filter(pc.less_equal(ranked["rank"], options.top))
    examples = [uid_list(uids) for uids in iter_rows(kept, ("first_uid", "last_uid"))]
    return with_columns(kept, per_second=per_second(kept, "count"), example_uids=pa.array(examples, TEXT_LIST))


JOB = arrow_job("dead_letters", "Dead letters", KEYS, for_all_windows(answer), COLUMNS, "bars", frozenset({KEY}))
