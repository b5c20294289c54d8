"""Runs a job over facts, in this process if the job can do that, else by Spark; its answer as plain rows.

Batch and --follow both run jobs through these functions, so they give the same answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.pipeline.jobs.tables import Row, since
from warrenmq.pipeline.times import iso

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import AnalysisOptions

MAX_PARALLEL_JOBS = 2  # planning a query takes one core


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a job; they are complete for `windows`."""

    job: str
    title: str
    chart: str
    keys: tuple[str, ...]
    rows: list[Row]
    windows: tuple[str, ...] = ()
    window_seconds: float | None = None


def run_job(
    job: Job, facts: pa.Table, options: AnalysisOptions, spark: SparkSession | None, since_us: int = 0
) -> pa.Table:
    """Run a job over a table of facts; return its rows for windows from this time on, sorted by its keys.

    `spark` runs jobs that only have a DataFrame form: best a session for small tables.
    """
    if job.answer is not None:
        return _sorted(job, job.answer(facts, options, since_us))
    assert spark is not None, f"the job {job.name} has no Arrow form"
    # Filtered here and not by Spark: the plan gets shorter, and planning is most of the cost of a small query.
    needed = facts.filter(pc.is_in(facts["fact"], pa.array(sorted(job.needs)))).combine_chunks()
    return since(run_job_on_spark(job, spark.createDataFrame(needed), options), since_us)


def run_job_on_spark(job: Job, facts: DataFrame, options: AnalysisOptions) -> pa.Table:
    """Run a job over a DataFrame of facts; return its rows sorted by its keys."""
    return _sorted(job, job.run(facts, options).toArrow())


def answer_of(job: Job, rows: list[Row], windows: tuple[str, ...], length: timedelta) -> Answer:
    """Return the rows of a job with its metadata."""
    return Answer(job.name, job.title, job.chart, tuple(job.keys), rows, windows, length.total_seconds())


def plain_rows(table: pa.Table) -> list[Row]:
    """Return rows of JSON values: times as ISO texts, NaN and infinity as null."""
    columns = [_plain_column(column) for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _sorted(job: Job, rows: pa.Table) -> pa.Table:
    return rows.sort_by([(key, "ascending") for key in job.keys])


def _plain_column(column: pa.ChunkedArray) -> list[Any]:
    """Convert a column; most types are converted at once, as answers may be long."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        times = column.cast(pa.timestamp("us", "UTC"))
        distinct = pc.unique(times)  # many rows share few windows
        found = pc.strftime(distinct, "%Y-%m-%dT%H:%M:%SZ").take(pc.index_in(times, distinct))
    elif pa.types.is_floating(kind):
        found = pc.if_else(pc.is_finite(column), column, None)
    elif pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        found = column
    else:
        return [_plain(value) for value in column.to_pylist()]
    values: list[Any] = found.to_pylist()
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"a job answered with {type(value).__name__}: answers hold text, numbers, times and lists of them")
