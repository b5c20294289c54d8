"""What a job is: a question with a name, answered from facts.

A job is a function of DataFrames. The answer of a window depends on the facts of that window and of `history` seconds
before it, and on nothing else: so whoever follows the events answers again from the first window that changed, with
that much of the past, and says in the end exactly what a batch says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warrenmq.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def no_history(settings: Settings) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """`keys` name a row of the answer; the columns of an answer have plain types, and times end with their unit."""

    name: str
    title: str
    keys: tuple[str, ...]
    run: Callable[[DataFrame, Settings], DataFrame]
    chart: str  # how it is drawn: lines, percentiles, bars, flow, anomalies, table
    needs: frozenset[str]  # the kinds of facts that it looks at
    history: Callable[[Settings], float] = no_history
