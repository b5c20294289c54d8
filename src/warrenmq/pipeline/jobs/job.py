"""What a job is: a question with a name, answered from facts.

The answer of a window depends on the facts of that window and of `history` seconds before it, and on nothing else: so
whoever follows the events answers again from the first window that changed, with that much of the past, and says in
the end exactly what a batch says.

A job is a function of DataFrames (`run`). Those that come with the package are functions of Arrow tables first
(`answer`), and `arrow_job` makes `run` of that: few facts are answered in the process that has them, without a plan
and in milliseconds, and many by Spark with the same function, group by group.
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

    # The rows of windows from that time on (in us since 1970); those of older ones may be left out.
    Answer = Callable[[pa.Table, AnalysisOptions, int], pa.Table]

# What one call of `answer` must see together, as expressions of SQL: whole windows, a virtual host, or all facts.
PER_WINDOW, PER_VHOST, ALL_FACTS = "date_trunc('hour', window_start)", "vhost", "true"


def no_history(options: AnalysisOptions) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """`keys` name a row of the answer; the columns of an answer have plain types, and times end with their unit."""

    name: str
    title: str
    keys: tuple[str, ...]
    run: Callable[[DataFrame, AnalysisOptions], DataFrame]
    chart: str  # how it is drawn: lines, percentiles, bars, flow, anomalies, table
    needs: frozenset[str]  # the kinds of facts that it looks at
    history: Callable[[AnalysisOptions], float] = no_history
    answer: Answer | None = None  # the same of facts that are in this process, if the job can do that


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
    """A job whose answer is computed from a table; `columns` are those of the answer."""

    def answer_since(facts: pa.Table, options: AnalysisOptions, since_us: int) -> pa.Table:
        return conform(since(answer(facts, options, since_us), since_us), columns)

    def run(facts: DataFrame, options: AnalysisOptions) -> DataFrame:
        return _by_group(facts, needs, together, columns, lambda table: answer_since(table, options, 0))

    return Job(name, title, keys, run, chart, needs, history, answer_since)


def for_all_windows(answer: Callable[[pa.Table, AnalysisOptions], pa.Table]) -> Answer:
    """For jobs that need not know which windows are asked for, as others cost them little."""
    return lambda facts, options, since_us: answer(facts, options)


def _by_group(
    facts: DataFrame,
    needs: frozenset[str],
    together: str,
    columns: Columns,
    answer: Callable[[pa.Table], pa.Table],
) -> DataFrame:
    """The answers of all groups, each computed by one Python process of Spark's."""
    import pyarrow as pa
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = facts.where(sf.col("fact").isin(*sorted(needs)))
    return wanted.groupBy(sf.expr(together)).applyInArrow(answer, from_arrow_schema(pa.schema(list(columns.items()))))
