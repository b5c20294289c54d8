"""Which routing keys are published most, and which fail most.

A key fails when a message of it comes back to its queue (requeued, retried) or is lost (expired, dropped,
dead-lettered). It is poison where that happens often, and far more often than it is published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.pipeline.facts import KEY, STEP
from warrenmq.pipeline.jobs.job import Job
from warrenmq.pipeline.jobs.sql import count_of, listed, octets_of
from warrenmq.pipeline.jobs.unusual import POISON_LEAST, POISON_RATIO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "exchange", "routing_key")
PUBLISHES = ("published", "republished")
# Each failed delivery is one of these; `nacked` and `rejected` come before and would count it twice.
FAILURES = ("requeued", "retried", "expired", "dropped", "dead_lettered")

# A row of an exchange without a key tells how much was published to it in all.
_SQL = f"""
WITH counted AS (
    SELECT window_start, window_end, vhost, exchange, fact, if(fact = 'key', name, '') AS routing_key,
           {count_of(*PUBLISHES)} AS published, {octets_of(*PUBLISHES)} AS octets, {count_of(*FAILURES)} AS failed
    FROM {{facts}} WHERE fact = 'key' OR (fact = 'step' AND kind IN ({listed(PUBLISHES)}))
    GROUP BY window_start, window_end, vhost, exchange, fact, if(fact = 'key', name, '')
), whole AS (
    SELECT *, sum(if(fact = 'step', published, 0L)) OVER (PARTITION BY window_start, vhost, exchange) AS all_published
    FROM counted
), ranked AS (
    SELECT *,
           row_number() OVER (PARTITION BY window_start ORDER BY published DESC, vhost, exchange, routing_key) AS rank,
           row_number() OVER (PARTITION BY window_start ORDER BY failed DESC, vhost, exchange, routing_key) AS worst
    FROM whole WHERE fact = 'key' AND (published > 0 OR failed > 0)
)
SELECT window_start, window_end, vhost, exchange, routing_key, published, octets, failed, CAST(rank AS BIGINT) AS rank,
       coalesce(try_divide(published, all_published), 0D) AS share_ratio,
       failed >= {POISON_LEAST} AND failed >= published * {POISON_RATIO} AS poison
FROM ranked WHERE rank <= {{top}} OR (worst <= {{top}} AND failed > 0)
"""


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    return facts.sparkSession.sql(_SQL, facts=facts, top=settings.top)


JOB = Job("hot_keys", "Hot keys", KEYS, run, "bars", frozenset({STEP, KEY}))
