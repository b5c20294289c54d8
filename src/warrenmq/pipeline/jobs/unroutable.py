"""Messages that no queue was bound for, by exchange and routing key: the most frequent of each window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.pipeline.facts import KEY
from warrenmq.pipeline.jobs.job import Job
from warrenmq.pipeline.jobs.sql import SECONDS, count_of, uid_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "exchange", "routing_key")

_SQL = f"""
WITH counted AS (
    SELECT window_start, window_end, vhost, exchange, name AS routing_key, {count_of("unroutable")} AS count,
           {count_of("returned")} AS returned, max(last_uid) AS example
    FROM {{facts}} WHERE fact = 'key' AND kind IN ('unroutable', 'returned')
    GROUP BY window_start, window_end, vhost, exchange, name
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY window_start ORDER BY count DESC, vhost, exchange, routing_key) AS rank
    FROM counted
)
SELECT window_start, window_end, vhost, exchange, routing_key, count, returned, count / {SECONDS} AS per_second,
       {uid_text("example")} AS example_uid
FROM ranked WHERE rank <= {{top}}
"""


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    return facts.sparkSession.sql(_SQL, facts=facts, top=settings.top)


JOB = Job("unroutable", "Unroutable messages", KEYS, run, "bars", frozenset({KEY}))
