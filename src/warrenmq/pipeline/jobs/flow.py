"""Where messages go: exchange to queue, queue to consumer, with rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.pipeline.facts import STEP
from warrenmq.pipeline.jobs.job import Job
from warrenmq.pipeline.jobs.sql import SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "source_kind", "source", "target_kind", "target")

# Who takes messages one by one has no consumer tag.
_SQL = f"""
WITH edges AS (
    SELECT window_start, window_end, vhost, count, octets,
           if(kind = 'enqueued', 'exchange', 'queue') AS source_kind,
           if(kind = 'enqueued', exchange, queue) AS source,
           if(kind = 'enqueued', 'queue', 'consumer') AS target_kind,
           CASE WHEN kind = 'enqueued' THEN queue WHEN consumer = '' THEN 'basic.get' ELSE consumer END AS target
    FROM {{facts}} WHERE fact = 'step' AND kind IN ('enqueued', 'delivered')
), counted AS (
    SELECT window_start, window_end, vhost, source_kind, source, target_kind, target,
           sum(count) AS count, sum(octets) AS octets
    FROM edges GROUP BY window_start, window_end, vhost, source_kind, source, target_kind, target
)
SELECT *, count / {SECONDS} AS per_second FROM counted
"""


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    return facts.sparkSession.sql(_SQL, facts=facts)


JOB = Job("flow", "Flow", KEYS, run, "flow", frozenset({STEP}))
