"""How long messages took: from publish to ack, waiting in the queue, with a consumer; percentiles by queue.

Nearest-rank percentiles of exact counts in buckets that are 4 % wide: within 2 % of the exact ones (or 1 us); the
mean and the maximum are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from warrenmq.pipeline.facts import END_TO_END, PROCESSING, TIME, WAITING
from warrenmq.pipeline.jobs.arrow_tables import Row, answer_by_vhost, to_time
from warrenmq.pipeline.jobs.durations import COLUMNS, durations_of
from warrenmq.pipeline.jobs.job import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "queue")
TIMES = (END_TO_END, WAITING, PROCESSING)
PERCENTS = (50, 90, 95, 99)

_SCHEMA = {"window_start": "timestamp", "window_end": "timestamp", "vhost": "string", "queue": "string"}
for _name in TIMES:
    _SCHEMA |= {f"{_name}_count": "bigint", f"{_name}_mean_us": "double"}
    _SCHEMA |= {f"{_name}_p{percent}_us": "bigint" for percent in PERCENTS} | {f"{_name}_max_us": "bigint"}


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    return answer_by_vhost(facts.where(f"fact = '{TIME}'"), COLUMNS, answer, _SCHEMA, settings)


def answer(table: pa.Table, settings: Settings) -> list[Row]:
    """The answer of one virtual host."""
    vhost = table["vhost"][0].as_py()
    rows: dict[tuple[int, str], Row] = {}
    for found in durations_of(table, PERCENTS):
        place = (found.window_us, found.queue)
        if place not in rows:
            rows[place] = {
                "window_start": to_time(found.window_us),
                "window_end": to_time(found.window_end_us),
                "vhost": vhost,
                "queue": found.queue,
                **{f"{name}_count": 0 for name in TIMES},
            }
        values = zip(PERCENTS, found.percentiles_us, strict=True)
        rows[place] |= {
            f"{found.name}_count": found.count,
            f"{found.name}_mean_us": found.mean_us,
            **{f"{found.name}_p{percent}_us": value for percent, value in values},
            f"{found.name}_max_us": found.longest_us,
        }
    return list(rows.values())


JOB = Job("latency", "Latency", KEYS, run, "percentiles", frozenset({TIME}))
