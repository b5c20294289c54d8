"""Messages that belong together by their correlation id: how long such a session took, and what became of it.

A session goes on over the ends of windows, and ends when nothing is heard of it for `session_gap` seconds; each window
in which it did something tells it as it is then. Of each window, those that failed most and took longest are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.pipeline.facts import SESSION
from warrenmq.pipeline.jobs.job import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "correlation_id")
_REACH_WINDOWS = 30  # a session is known as far back as this

# The window in which it began names a session.
_SQL = """
WITH parts AS (
    SELECT *, unix_micros(first_time) - unix_micros(lag(last_time) OVER in_time) AS silence_us
    FROM {facts} WHERE fact = 'session'
    WINDOW in_time AS (PARTITION BY vhost, name ORDER BY window_start)
), named AS (
    SELECT *, last_value(if(silence_us <= {gap}, null, window_start), true) OVER in_time AS session
    FROM parts WINDOW in_time AS (PARTITION BY vhost, name ORDER BY window_start)
), told AS (
    SELECT window_start, window_end, vhost, name AS correlation_id, min(first_time) OVER so_far AS started,
           max(last_time) OVER so_far AS ended, sum(messages) OVER so_far AS messages,
           sum(settled) OVER so_far AS settled, sum(failed) OVER so_far AS failed
    FROM named
    WINDOW so_far AS (PARTITION BY vhost, name, session ORDER BY unix_micros(window_start)
                      RANGE BETWEEN {reach} PRECEDING AND CURRENT ROW)
), timed AS (
    SELECT *, unix_micros(ended) - unix_micros(started) AS duration_us FROM told
), ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY window_start ORDER BY failed DESC, duration_us DESC, vhost, correlation_id
    ) AS rank FROM timed
)
SELECT window_start, window_end, vhost, correlation_id, started, ended, duration_us, messages, settled, failed
FROM ranked WHERE rank <= {top}
"""


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    sql = _SQL.replace("{reach}", f"{round(history(settings) * 1_000_000)}L")
    gap = round(settings.session_gap * 1_000_000)
    return facts.sparkSession.sql(sql, facts=facts, gap=gap, top=settings.top)


def history(settings: Settings) -> float:
    return _REACH_WINDOWS * settings.keyed_seconds


JOB = Job("sessions", "Sessions", KEYS, run, "table", frozenset({SESSION}), history)
