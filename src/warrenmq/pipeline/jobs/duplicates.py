"""Messages that came more than once: published with the same message id, or dropped by the broker as seen before.

The same id counts as a duplicate within one window of `keyed_window`. What the broker dropped is counted by queue, or
by exchange where that dropped it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.pipeline.facts import MESSAGE, STEP
from warrenmq.pipeline.jobs.job import Job
from warrenmq.pipeline.jobs.sql import uid_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "what", "name")

_SQL = f"""
WITH told AS (
    SELECT window_start, window_end, vhost, if(fact = 'message', 'published', 'dropped') AS what,
           CASE WHEN fact = 'message' THEN name WHEN queue = '' THEN exchange ELSE queue END AS name,
           count, first_uid, last_uid, first_time, last_time
    FROM {{facts}}
    WHERE (fact = 'message' AND count > 1) OR (fact = 'step' AND kind = 'dropped' AND reason = 'duplicate')
), counted AS (
    SELECT window_start, window_end, vhost, what, name, sum(count) AS times,
           min(first_uid) AS first, max(last_uid) AS last,
           unix_micros(max(last_time)) - unix_micros(min(first_time)) AS apart_us
    FROM told GROUP BY window_start, window_end, vhost, what, name
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY window_start, what ORDER BY times DESC, vhost, name) AS rank FROM counted
)
SELECT window_start, window_end, vhost, what, name, times, {uid_text("first")} AS first_uid,
       {uid_text("last")} AS last_uid, apart_us
FROM ranked WHERE rank <= {{kept}}
"""


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    return facts.sparkSession.sql(_SQL, facts=facts, kept=settings.kept)


JOB = Job("duplicates", "Duplicates", KEYS, run, "table", frozenset({MESSAGE, STEP}))
