"""How long messages took: from publish to ack, waiting in the queue, with a consumer; percentiles by queue.

Nearest-rank percentiles of exact counts in buckets that are 4 % wide: within 2 % of the exact ones (or 1 us); the
mean and the maximum are exact.
"""

from __future__ import annotations

import pyarrow as pa

from warrenmq.pipeline.facts import END_TO_END, PROCESSING, TIME, WAITING
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.percentiles import Durations, durations_of
from warrenmq.pipeline.jobs.tables import REAL, TEXT, WHOLE, WINDOW_COLUMNS, Row, by_vhost, table_of, to_time, where
from warrenmq.pipeline.options import Settings

KEYS = ("window_start", "vhost", "queue")
TIMES = (END_TO_END, WAITING, PROCESSING)
PERCENTS = (50, 90, 95, 99)

COLUMNS = WINDOW_COLUMNS | {"queue": TEXT}
for _name in TIMES:
    COLUMNS |= {f"{_name}_count": WHOLE, f"{_name}_mean_us": REAL}
    COLUMNS |= {f"{_name}_p{percent}_us": WHOLE for percent in PERCENTS} | {f"{_name}_max_us": WHOLE}


def answer(facts: pa.Table, settings: Settings) -> pa.Table:
    rows: dict[tuple[int, str, str], Row] = {}
    for vhost, times in by_vhost(where(facts, fact=TIME)):
        for found in durations_of(times, PERCENTS):
            place = (found.window_us, vhost, found.queue)
            if place not in rows:
                rows[place] = _no_times(found, vhost)
            rows[place] |= _told(found)
    return table_of(list(rows.values()), COLUMNS)


def _no_times(found: Durations, vhost: str) -> Row:
    window = {"window_start": to_time(found.window_us), "window_end": to_time(found.window_end_us)}
    return window | {"vhost": vhost, "queue": found.queue} | {f"{name}_count": 0 for name in TIMES}


def _told(found: Durations) -> Row:
    values = zip(PERCENTS, found.percentiles_us, strict=True)
    return {
        f"{found.name}_count": found.count,
        f"{found.name}_mean_us": found.mean_us,
        **{f"{found.name}_p{percent}_us": value for percent, value in values},
        f"{found.name}_max_us": found.longest_us,
    }


JOB = arrow_job("latency", "Latency", KEYS, for_all_windows(answer), COLUMNS, "percentiles", frozenset({TIME}))
