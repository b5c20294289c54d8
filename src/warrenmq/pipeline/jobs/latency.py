"""Durations by queue: from publish to ack (end to end), in the queue (waiting), at a consumer (processing).

Nearest-rank percentiles of exact counts in buckets 4 % wide: within 2 % of the exact ones (or 1 us). Mean and maximum
are exact.
"""

from __future__ import annotations

import pyarrow as pa

from warrenmq.pipeline.facts import END_TO_END, PROCESSING, TIME, WAITING
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.percentiles import DurationStats, duration_stats
from warrenmq.pipeline.jobs.tables import (
    FLOAT,
    INT,
    TEXT,
    WINDOW_COLUMNS,
    Row,
    split_by_vhost,
    to_table,
    to_time,
    where,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "queue")
TIMES = (END_TO_END, WAITING, PROCESSING)
PERCENTS = (50, 90, 95, 99)

COLUMNS = WINDOW_COLUMNS | {"queue": TEXT}
for _name in TIMES:
    COLUMNS |= {f"{_name}_count": INT, f"{_name}_mean_us": FLOAT}
    COLUMNS |= {f"{_name}_p{percent}_us": INT for percent in PERCENTS} | {f"{_name}_max_us": INT}


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    rows: dict[tuple[int, str, str], Row] = {}
    for vhost, times in split_by_vhost(where(facts, fact=TIME)):
        for found in duration_stats(times, PERCENTS):
            key = (found.window_us, vhost, found.queue)
            if key not in rows:
                rows[key] = _empty_row(found, vhost)
            rows[key] |= _columns(found)
    return to_table(list(rows.values()), COLUMNS)


def _empty_row(found: DurationStats, vhost: str) -> Row:
    window = {"window_start": to_time(found.window_us), "window_end": to_time(found.window_end_us)}
    return window | {"vhost": vhost, "queue": found.queue} | {f"{name}_count": 0 for name in TIMES}


def _columns(found: DurationStats) -> Row:
    values = zip(PERCENTS, found.percentiles_us, strict=True)
    return {
        f"{found.name}_count": found.count,
        f"{found.name}_mean_us": found.mean_us,
        **{f"{found.name}_p{percent}_us": value for percent, value in values},
        f"{found.name}_max_us": found.longest_us,
    }


JOB = arrow_job("latency", "Latency", KEYS, for_all_windows(answer), COLUMNS, "percentiles", frozenset({TIME}))
