"""How many messages go through exchanges, queues and routing keys, window by window.

Exchanges and queues have all their rows; of routing keys the `top` most published of each window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.pipeline.facts import KEY, STEP
from warrenmq.pipeline.jobs.job import Job
from warrenmq.pipeline.jobs.sql import SECONDS, count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "what", "exchange", "name")

_SQL = f"""
WITH placed AS (
    SELECT window_start, window_end, vhost, kind, count, octets,
           CASE WHEN fact = 'key' THEN 'key' WHEN queue = '' THEN 'exchange' ELSE 'queue' END AS what,
           if(fact = 'step' AND queue <> '', '', exchange) AS exchange,
           CASE WHEN fact = 'key' THEN name WHEN queue = '' THEN exchange ELSE queue END AS name
    FROM {{facts}}
    WHERE (fact IN ('step', 'key') AND kind IN ('published', 'republished'))
       OR (fact = 'step' AND queue <> '' AND kind IN ('enqueued', 'delivered', 'acked'))
), counted AS (
    SELECT window_start, window_end, vhost, what, exchange, name,
           {count_of("published", "republished")} AS published, {count_of("enqueued")} AS enqueued,
           {count_of("delivered")} AS delivered, {count_of("acked")} AS acked,
           sum(if(kind IN ('published', 'republished', 'enqueued'), octets, 0L)) AS octets
    FROM placed GROUP BY ALL
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY window_start, what ORDER BY published DESC, vhost, exchange, name) AS rank
    FROM counted
)
SELECT window_start, window_end, vhost, what, exchange, name, published, enqueued, delivered, acked, octets,
       published / {SECONDS} AS published_per_second, enqueued / {SECONDS} AS enqueued_per_second,
       delivered / {SECONDS} AS delivered_per_second, acked / {SECONDS} AS acked_per_second
FROM ranked WHERE what <> 'key' OR rank <= {{top}}
"""


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    return facts.sparkSession.sql(_SQL, facts=facts, top=settings.top)


JOB = Job("throughput", "Throughput", KEYS, run, "lines", frozenset({STEP, KEY}))
