"""How a job is asked: in this process where it can answer from a table, else by Spark.

A batch over few facts, a batch over many and a --follow all ask here, so that they say the same. Nothing is owned.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.jobs.tables import since
from warrenmq.pipeline.publish.answers import Answer, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import Settings

SIDE_BY_SIDE = 2  # planning a query is the work of one core


def answered(job: Job, facts: pa.Table, settings: Settings, spark: SparkSession, since_us: int = 0) -> pa.Table:
    """The answer of a job to facts that are in this process, for windows from this time on, by the order of its keys.

    `spark` is asked where a job has nothing but its DataFrame form: best a session for small tables.
    """
    if job.answer is not None:
        return _in_order(job, job.answer(facts, settings, since_us))
    # Chosen here and not by Spark: that makes its plans shorter, and planning is most of what a small query takes.
    wanted = facts.filter(pc.is_in(facts["fact"], pa.array(sorted(job.needs)))).combine_chunks()
    return since(answered_by_spark(job, spark.createDataFrame(wanted), settings), since_us)


def answered_by_spark(job: Job, facts: DataFrame, settings: Settings) -> pa.Table:
    """The answer of a job to facts that Spark has, by the order of its keys."""
    return _in_order(job, job.run(facts, settings).toArrow())


def answer_of(job: Job, rows: list[Row], windows: tuple[str, ...], length: timedelta) -> Answer:
    """What a job found, with what is known of the job."""
    return Answer(job.name, job.title, job.chart, tuple(job.keys), rows, windows, length.total_seconds())


def _in_order(job: Job, found: pa.Table) -> pa.Table:
    return found.sort_by([(key, "ascending") for key in job.keys])
