"""Whether high priorities wait less: deliveries and waits by queue and priority, where messages have priorities.

Facts of kind `priority` count messages that have a priority, and those of kind `time` all: the difference is the lowest
priority, 0. A queue has rows in a window if a message with a priority was delivered from it in that window or within
`history` before: what is left when all of these are delivered are the messages that waited longest. Percentiles are as
exact as those of latency.py, means are exact; so is the maximum, but for that of priority 0 where a message with a
priority waited as long, which is within 2 %.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import PRIORITY, TIME, WAITING
from warrenmq.pipeline.jobs.job import VHOST, arrow_job
from warrenmq.pipeline.jobs.percentiles import Durations, bucket_values, durations_of
from warrenmq.pipeline.jobs.tables import (
    REAL,
    TEXT,
    WHOLE,
    WINDOW,
    WINDOW_COLUMNS,
    Row,
    by_vhost,
    columns_of,
    joined,
    numbers,
    put,
    since,
    stacked,
    table_of,
    to_time,
    totals,
    where,
)
from warrenmq.pipeline.options import Settings

KEYS = ("window_start", "vhost", "queue", "priority")
PERCENTS = (50, 99)
LOWEST = "0"

COLUMNS = WINDOW_COLUMNS | {"queue": TEXT, "priority": WHOLE, "delivered": WHOLE, "waiting_mean_us": REAL}
COLUMNS |= {f"waiting_p{percent}_us": WHOLE for percent in PERCENTS} | {"waiting_max_us": WHOLE}

_PLACE = (*WINDOW, "queue")
_MEASURES = {"count": "sum", "total_us": "sum", "longest_us": "max", "last_uid": "max"}


def answer(facts: pa.Table, settings: Settings, since_us: int) -> pa.Table:
    known = totals(where(facts, fact=PRIORITY), (*_PLACE, "name", "bucket"), **_MEASURES)
    if known.num_rows == 0:
        return table_of([], COLUMNS)
    waited = since(where(facts, fact=TIME, name=WAITING), since_us)
    lowest = _lowest(_of_places(totals(waited, (*_PLACE, "bucket"), **_MEASURES), known, settings), known)
    ranked = since(known, since_us)
    rows = [
        _row_of(found, vhost)
        for vhost, times in by_vhost(stacked(ranked, lowest.select(ranked.column_names)))
        for found in durations_of(times, PERCENTS)
    ]
    return table_of(rows, COLUMNS)


def history(settings: Settings) -> float:
    return settings.consumer_windows * settings.window_seconds


def _of_places(waited: pa.Table, known: pa.Table, settings: Settings) -> pa.Table:
    """The waits in the queues and windows that have rows."""
    with_priorities: dict[tuple[str, str], list[int]] = {}
    for start, vhost, queue in sorted(set(columns_of(known, ("window_start", "vhost", "queue")))):
        with_priorities.setdefault((vhost, queue), []).append(start)
    longest_ago = round(history(settings) * 1_000_000)
    has_rows: dict[tuple[int, str, str], bool] = {}
    places = list(columns_of(waited, ("window_start", "vhost", "queue")))
    for start, vhost, queue in set(places):
        starts = with_priorities.get((vhost, queue), [])
        before = bisect_right(starts, start)
        has_rows[start, vhost, queue] = before > 0 and start - starts[before - 1] <= longest_ago
    return waited.filter(pa.array([has_rows[place] for place in places], pa.bool_()))


def _lowest(waited: pa.Table, ranked: pa.Table) -> pa.Table:
    """What all messages waited, without those that have a priority."""
    of_ranked = totals(ranked, (*_PLACE, "bucket"), **_MEASURES)
    names = {name: f"ranked_{name}" for name in _MEASURES}
    of_ranked = of_ranked.rename_columns([names.get(name, name) for name in of_ranked.column_names])
    both = joined(waited, of_ranked, (*_PLACE, "bucket"))
    count = numbers(both["count"]) - numbers(both["ranked_count"])
    total = numbers(both["total_us"]) - numbers(both["ranked_total_us"])
    longest = numbers(both["longest_us"])
    is_other = longest == numbers(both["ranked_longest_us"])  # the longest of all may be one with a priority
    likely = np.where(count == 1, total, np.minimum(bucket_values(numbers(both["bucket"])), longest))
    rest = put(
        both,
        name=LOWEST,
        count=pa.array(count),
        total_us=pa.array(total),
        longest_us=pa.array(np.where(is_other, likely, longest)),
    )
    return rest.filter(pc.greater(rest["count"], 0))


def _row_of(found: Durations, vhost: str) -> Row:
    percentiles = zip(PERCENTS, found.percentiles_us, strict=True)
    return {
        "window_start": to_time(found.window_us),
        "window_end": to_time(found.window_end_us),
        "vhost": vhost,
        "queue": found.queue,
        "priority": int(found.name),
        "delivered": found.count,
        "waiting_mean_us": found.mean_us,
        **{f"waiting_p{percent}_us": value for percent, value in percentiles},
        "waiting_max_us": found.longest_us,
    }


JOB = arrow_job("priorities", "Priorities", KEYS, answer, COLUMNS, "lines", frozenset({TIME, PRIORITY}), history, VHOST)
