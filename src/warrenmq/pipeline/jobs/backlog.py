"""How many messages wait in each queue, whether that grows, and where it leads.

The slope is that of a line through the depths at the ends of the last windows (least squares). A queue that grows is
forecast to reach the limit of the settings, one that shrinks to be empty. Streams are left out: nothing waits there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.pipeline.facts import STEP
from warrenmq.pipeline.jobs.job import Job
from warrenmq.pipeline.jobs.sql import count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "queue")

# Two points are always a line: so at least three.
_SQL = f"""
WITH depths AS (
    SELECT window_start, window_end, vhost, queue,
           max(if(depth_last IS NULL, null, struct(last_time, depth_last))).depth_last AS depth,
           max(depth_max) AS depth_max, {count_of("enqueued", "requeued")} AS arrived,
           {count_of("delivered", "expired", "dropped", "dead_lettered")} AS left
    FROM {{facts}} WHERE fact = 'step' AND queue <> '' GROUP BY window_start, window_end, vhost, queue
), sloped AS (
    SELECT *, if(count(depth) OVER recent >= 3,
                 regr_slope(depth, unix_micros(window_end) / 1000000) OVER recent, null) AS slope_per_second,
           nullif({{limit}}, 0L) AS limit
    FROM depths WHERE depth IS NOT NULL
    WINDOW recent AS (PARTITION BY vhost, queue ORDER BY unix_micros(window_start)
                      RANGE BETWEEN {{reach}} PRECEDING AND CURRENT ROW)
)
SELECT window_start, window_end, vhost, queue, depth, depth_max, arrived, left, slope_per_second,
       if(slope_per_second < 0, depth / -slope_per_second, null) AS empty_in_seconds,
       if(slope_per_second > 0 AND limit > 0, greatest((limit - depth) / slope_per_second, 0D), null)
           AS full_in_seconds, limit
FROM sloped
"""


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    sql = _SQL.replace("{reach}", f"{_reach_us(settings)}L").replace("{limit}", f"{settings.depth_limit}L")
    return facts.sparkSession.sql(sql, facts=facts)


def history(settings: Settings) -> float:
    return _reach_us(settings) / 1_000_000


def _reach_us(settings: Settings) -> int:
    return (settings.forecast_windows - 1) * settings.window_us


JOB = Job("backlog", "Backlog and forecast", KEYS, run, "lines", frozenset({STEP}), history)
