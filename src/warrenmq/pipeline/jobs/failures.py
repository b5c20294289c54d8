"""What went wrong in each queue: redeliveries, nacks, retries, expiries, drops, dead letters, with their reasons.

A nack that gives a message back tells two events, `nacked` and `requeued`: kinds are not to be added up. The ratio is
of the queue's deliveries in that window, or of its arrivals where nothing was delivered. The routing key that failed
most often stands beside it; of equal ones the last by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.events import schema
from warrenmq.pipeline.facts import FAILING, KEY, STEP
from warrenmq.pipeline.jobs.job import Job
from warrenmq.pipeline.jobs.sql import SECONDS, listed, uid_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "queue", "kind", "reason")
KINDS = tuple(schema.KIND_NAMES[kind] for kind in FAILING)

# A delivery tells of the kind "delivered" and, if it is not the first, of a redelivery: so it becomes two rows.
_SQL = f"""
WITH told AS (
    SELECT window_start, window_end, vhost, queue, kind, reason, fact, name, count, last_uid,
           fact = 'step' AND kind = 'delivered' AS is_delivery,
           fact = 'step' AND kind IN ('enqueued', 'requeued') AS is_arrival
    FROM {{facts}} WHERE fact IN ('step', 'key') AND queue <> ''
    UNION ALL
    SELECT window_start, window_end, vhost, queue, 'redelivered', '', fact, '', redelivered, last_uid, false, false
    FROM {{facts}} WHERE fact = 'step' AND queue <> '' AND redelivered > 0
), by_key AS (
    SELECT window_start, window_end, vhost, queue, kind, reason, fact, name, sum(count) AS count,
           max(last_uid) AS last_uid, sum(if(is_delivery, count, 0L)) AS delivered,
           sum(if(is_arrival, count, 0L)) AS arrived
    FROM told GROUP BY window_start, window_end, vhost, queue, kind, reason, fact, name
), by_kind AS (
    SELECT window_start, window_end, vhost, queue, kind, reason, sum(if(fact = 'step', count, 0L)) AS count,
           max(if(fact = 'step', last_uid, null)) AS last_uid, sum(delivered) AS delivered, sum(arrived) AS arrived,
           max(if(fact = 'key', struct(count, name), null)) AS top
    FROM by_key GROUP BY window_start, window_end, vhost, queue, kind, reason
), whole AS (
    SELECT *, sum(delivered) OVER place AS all_delivered, sum(arrived) OVER place AS all_arrived
    FROM by_kind WINDOW place AS (PARTITION BY window_start, window_end, vhost, queue)
)
SELECT window_start, window_end, vhost, queue, kind, reason, count, count / {SECONDS} AS per_second,
       coalesce(try_divide(count, if(all_delivered > 0, all_delivered, all_arrived)), 0D) AS failure_ratio,
       top.name AS top_key, top.count AS top_key_count, {uid_text("last_uid")} AS example_uid
FROM whole WHERE count > 0 AND kind IN ('redelivered', {listed(KINDS)})
"""


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    return facts.sparkSession.sql(_SQL, facts=facts)


JOB = Job("failures", "Failures", KEYS, run, "bars", frozenset({STEP, KEY}))
