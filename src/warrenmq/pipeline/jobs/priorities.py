"""Deliveries and waiting times by queue and priority: whether high priorities wait less.

Facts of kind `priority` count messages with a priority, those of kind `time` all messages: the difference is the lowest
priority, 0. A queue has rows in a window if it delivered a message with a priority in that window or within `history`
before; after that only messages without one are left, which waited longest. Percentiles are as exact as in latency.py,
means are exact; maxima too, except that of priority 0 if a message with a priority waited as long: within 2 %.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import PRIORITY, TIME, WAITING
from warrenmq.pipeline.jobs.job import PER_VHOST, arrow_job
from warrenmq.pipeline.jobs.percentiles import DurationStats, bucket_values, duration_stats
from warrenmq.pipeline.jobs.tables import (
    FLOAT,
    INT,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    Row,
    aggregate,
    concat,
    iter_rows,
    left_join,
    since,
    split_by_vhost,
    to_ints,
    to_table,
    to_time,
    where,
    with_columns,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "queue", "priority")
PERCENTS = (50, 99)
LOWEST = "0"

COLUMNS = WINDOW_COLUMNS | {"queue": TEXT, "priority": INT, "delivered": INT, "waiting_mean_us": FLOAT}
COLUMNS |= {f"waiting_p{percent}_us": INT for percent in PERCENTS} | {"waiting_max_us": INT}

_KEYS = (*WINDOW, "queue")
_MEASURES = {"count": "sum", "total_us": "sum", "longest_us": "max", "last_uid": "max"}


def answer(facts: pa.Table, options: AnalysisOptions, since_us: int) -> pa.Table:
    known = aggregate(where(facts, fact=PRIORITY), (*_KEYS, "name", "bucket"), **_MEASURES)
    if known.num_rows == 0:
        return to_table([], COLUMNS)
    waited = since(where(facts, fact=TIME, name=WAITING), since_us)
    lowest = _lowest(
        _of_queues_with_priorities(aggregate(waited, (*_KEYS, "bucket"), **_MEASURES), known, options), known
    )
    ranked = since(known, since_us)
    rows = [
        _row_of(found, vhost)
        for vhost, times in split_by_vhost(concat(ranked, lowest.select(ranked.column_names)))
        for found in duration_stats(times, PERCENTS)
    ]
    return to_table(rows, COLUMNS)


def history(options: AnalysisOptions) -> float:
    return options.consumer_windows * options.window_seconds


def _of_queues_with_priorities(waited: pa.Table, known: pa.Table, options: AnalysisOptions) -> pa.Table:
    """Return the waiting times in the queues and windows that have rows."""
    with_priorities: dict[tuple[str, str], list[int]] = {}
    for start, vhost, queue in sorted(set(iter_rows(known, ("window_start", "vhost", "queue")))):
        with_priorities.setdefault((vhost, queue), []).append(start)
    lookback_us = round(history(options) * 1_000_000)
    has_rows: dict[tuple[int, str, str], bool] = {}
    keys = list(iter_rows(waited, ("window_start", "vhost", "queue")))
    for start, vhost, queue in set(keys):
        starts = with_priorities.get((vhost, queue), [])
        before = bisect_right(starts, start)
        has_rows[start, vhost, queue] = before > 0 and start - starts[before - 1] <= lookback_us
    return waited.filter(pa.array([has_rows[key] for key in keys], pa.bool_()))


def _lowest(waited: pa.Table, ranked: pa.Table) -> pa.Table:
    """Subtract the messages with a priority from all messages."""
    of_ranked = aggregate(ranked, (*_KEYS, "bucket"), **_MEASURES)
    names = {name: f"ranked_{name}" for name in _MEASURES}
    of_ranked = of_ranked.rename_columns([names.get(name, name) for name in of_ranked.column_names])
    both = left_join(waited, of_ranked, (*_KEYS, "bucket"))
    count = to_ints(both["count"]) - to_ints(both["ranked_count"])
    total = to_ints(both["total_us"]) - to_ints(both["ranked_total_us"])
    longest = to_ints(both["longest_us"])
    is_ambiguous = longest == to_ints(both["ranked_longest_us"])  # the longest wait may be of a message with a priority
    estimate = np.where(count == 1, total, np.minimum(bucket_values(to_ints(both["bucket"])), longest))
    rest = with_columns(
        both,
        name=LOWEST,
        count=pa.array(count),
        total_us=pa.array(total),
        longest_us=pa.array(np.where(is_ambiguous, estimate, longest)),
    )
    return rest.filter(pc.greater(rest["count"], 0))


def _row_of(found: DurationStats, vhost: str) -> Row:
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


JOB = arrow_job(
    "priorities", "Priorities", KEYS, answer, COLUMNS, "lines", frozenset({TIME, PRIORITY}), history, PER_VHOST
)
