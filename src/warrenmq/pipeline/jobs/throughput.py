"""How many messages go through exchanges, queues and routing keys, window by window.

Exchanges and queues have rows for all windows; of routing keys, the `top` most published of each window.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import KEY, STEP
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    FLOAT,
    INT,
    PUBLISHES,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    concat,
    count_kinds,
    per_second,
    where,
    with_columns,
    with_rank,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "what", "exchange", "name")
COUNTS = ("published", "enqueued", "delivered", "acked")
COLUMNS = (
    WINDOW_COLUMNS
    | dict.fromkeys(("what", "exchange", "name"), TEXT)
    | dict.fromkeys((*COUNTS, "bytes"), INT)
    | {f"{count}_per_second": FLOAT for count in COUNTS}
)


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    found = aggregate(
        _counted(_rows_by_subject(facts)),
        (*WINDOW, "what", "exchange", "name"),
        **dict.fromkeys((*COUNTS, "bytes"), "sum"),
    )
    first = with_rank(found, ("window_start", "what"), ("-published", "vhost", "exchange", "name"))
    kept = first.filter(pc.or_(pc.not_equal(first["what"], "key"), pc.less_equal(first["rank"], options.top)))
    return with_columns(kept, **{f"{count}_per_second": per_second(kept, count) for count in COUNTS})


def _rows_by_subject(facts: pa.Table) -> pa.Table:
    """Assign publishes to exchanges and routing keys, all other events to queues."""
    published = where(facts, fact=STEP, kind=PUBLISHES)
    moved = where(facts, fact=STEP, kind=COUNTS[1:])
    return concat(
        with_columns(published, what="exchange", name=published["exchange"]),
        with_columns(moved, what="queue", exchange="", name=moved["queue"]),
        with_columns(where(facts, fact=KEY, kind=PUBLISHES), what="key"),
    )


def _counted(rows: pa.Table) -> pa.Table:
    return with_columns(
        rows,
        published=count_kinds(rows, *PUBLISHES),
        **{kind: count_kinds(rows, kind) for kind in COUNTS[1:]},
        bytes=count_kinds(rows, *PUBLISHES, "enqueued", measure="bytes"),
    )


JOB = arrow_job("throughput", "Throughput", KEYS, for_all_windows(answer), COLUMNS, "lines", frozenset({STEP, KEY}))
