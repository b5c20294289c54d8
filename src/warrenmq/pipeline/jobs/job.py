"""A job: a named question, answered from facts.

The answer for a window depends only on the facts of that window and of `history` seconds before it. So a --follow runs
a job again from the first changed window on, with that much of the past, and ends with the answers of a batch.

A job is a function of DataFrames (`run`). The jobs of this package are functions of Arrow tables (`answer`), from which
`arrow_job` makes `run`: few facts are answered in the process that has them, without a plan and in milliseconds; many
by Spark with the same function, group by group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warrenmq.pipeline.jobs.tables import Columns, conform, since
from warrenmq.pipeline.options import AnalysisOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    # Returns rows for windows from this time on (us since 1970); older windows may be omitted.
    Answer = Callable[[pa.Table, AnalysisOptions, int], pa.Table]

# What one call of `answer` must get together, as SQL expressions: whole windows, a virtual host, or all facts.
PER_WINDOW, PER_VHOST, ALL_FACTS = "date_trunc('hour', window_start)", "vhost", "true"


def no_history(options: AnalysisOptions) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """`keys` identify a row of the answer. Columns have plain types; names of durations end with their unit."""

    name: str
    title: str
    keys: tuple[str, ...]
    run: Callable[[DataFrame, AnalysisOptions], DataFrame]
    chart: str  # how it is displayed: lines, percentiles, bars, flow, anomalies, table
    needs: frozenset[str]  # kinds of facts that it reads
    history: Callable[[AnalysisOptions], float] = no_history
    answer: Answer | None = None  # the same over an Arrow table, if the job has that form


def arrow_job(
    name: str,
    title: str,
    keys: tuple[str, ...],
    answer: Answer,
    columns: Columns,
    chart: str,
    needs: frozenset[str],
    history: Callable[[AnalysisOptions], float] = no_history,
    together: str = PER_WINDOW,
) -> Job:
    """Return a job that computes its answer from an Arrow table; `columns` are those of the answer."""

    def answer_since(facts: pa.Table, options: AnalysisOptions, since_us: int) -> pa.Table:
        return conform(since(answer(facts, options, since_us), since_us), columns)

    def run(facts: DataFrame, options: AnalysisOptions) -> DataFrame:
        return _by_group(facts, needs, together, columns, lambda table: answer_since(table, options, 0))

    return Job(name, title, keys, run, chart, needs, history, answer_since)


def for_all_windows(answer: Callable[[pa.Table, AnalysisOptions], pa.Table]) -> Answer:
    """Adapt a job that always answers for all windows, as that costs it little."""
    return lambda facts, options, since_us: answer(facts, options)


def _by_group(
    facts: DataFrame,
    needs: frozenset[str],
    together: str,
    columns: Columns,
    answer: Callable[[pa.Table], pa.Table],
) -> DataFrame:
    """Compute the answer of each group in a Python worker of Spark."""
    import pyarrow as pa
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = facts.where(sf.col("fact").isin(*sorted(needs)))
    return wanted.groupBy(sf.expr(together)).applyInArrow(answer, from_arrow_schema(pa.schema(list(columns.items()))))
