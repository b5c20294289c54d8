"""How many messages go through exchanges, queues and routing keys, window by window.

Exchanges and queues have all their rows; of routing keys the `top` most published of each window.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import KEY, STEP
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.kinds import PUBLISHES
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
    stacked,
    totals,
    where,
)
from warrenmq.pipeline.options import Settings

KEYS = ("window_start", "vhost", "what", "exchange", "name")
COUNTS = ("published", "enqueued", "delivered", "acked")
COLUMNS = (
    WINDOW_COLUMNS
    | dict.fromkeys(("what", "exchange", "name"), TEXT)
    | dict.fromkeys((*COUNTS, "octets"), WHOLE)
    | {f"{count}_per_second": REAL for count in COUNTS}
)


def answer(facts: pa.Table, settings: Settings) -> pa.Table:
    found = totals(
        _counted(_placed(facts)), (*WINDOW, "what", "exchange", "name"), **dict.fromkeys((*COUNTS, "octets"), "sum")
    )
    first = ranked(found, ("window_start", "what"), ("-published", "vhost", "exchange", "name"))
    kept = first.filter(pc.or_(pc.not_equal(first["what"], "key"), pc.less_equal(first["rank"], settings.top)))
    return put(kept, **{f"{count}_per_second": per_second(kept, count) for count in COUNTS})


def _placed(facts: pa.Table) -> pa.Table:
    """Each fact with what it tells of: publishes of an exchange and a key, the rest of a queue."""
    published = where(facts, fact=STEP, kind=PUBLISHES)
    moved = where(facts, fact=STEP, kind=COUNTS[1:])
    return stacked(
        put(published, what="exchange", name=published["exchange"]),
        put(moved, what="queue", exchange="", name=moved["queue"]),
        put(where(facts, fact=KEY, kind=PUBLISHES), what="key"),
    )


def _counted(placed: pa.Table) -> pa.Table:
    return put(
        placed,
        published=count_of(placed, *PUBLISHES),
        **{kind: count_of(placed, kind) for kind in COUNTS[1:]},
        octets=count_of(placed, *PUBLISHES, "enqueued", measure="octets"),
    )


JOB = arrow_job("throughput", "Throughput", KEYS, for_all_windows(answer), COLUMNS, "lines", frozenset({STEP, KEY}))
