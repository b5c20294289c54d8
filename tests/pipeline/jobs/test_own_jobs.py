"""A user's own job, as docs/analysis-jobs.md shows it: the examples run, and both forms say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'warrenmq[spark]'")

from tests.pipeline.jobs.rows import at, fact, fact_table
from tests.support.history import make_history
from warrenmq import Broker
from warrenmq.pipeline.jobs.answers import run_job
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.spark.session import small_table_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "analysis-jobs.md"
DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"


def blocks() -> list[str]:
    """The Python of the page, but the last block, which makes a million messages up."""
    return re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)[:-1]


def test_the_examples_of_the_page_run(spark: SparkSession) -> None:
    with Broker() as broker:
        make_history(500, seconds=60).publish(broker.url)
        names: dict[str, Any] = {"spark": spark}
        found = []
        for code in blocks():
            exec(compile(code.replace(DEFAULT_URL, broker.url), str(DOCUMENT), "exec"), names)
            found.append(names.get("job"))
        counted = names["facts"].where("fact = 'step' AND kind = 'published'").agg({"count": "sum"}).first()
        names["facts"].unpersist()
    assert counted is not None
    assert counted[0] > 500, "faults come on top"
    of_frames, of_tables = found[-2:]
    facts = fact_table(
        [fact("step", window, queue=queue, kind="expired", count=3) for window in (0, 1) for queue in ("q", "q", "r")]
        + [fact("key", 0, queue="q", name="k", kind="expired", count=9), fact("step", 0, queue="q", kind="acked")]
    )
    asked = [
        run_job(job, facts, AnalysisOptions(), small_table_session(spark)).to_pylist() for job in (of_frames, of_tables)
    ]
    assert [tuple(row.values()) for row in asked[0]] == [tuple(row.values()) for row in asked[1]]
    assert [(row["window_start"], row["queue"], row["count"]) for row in asked[1]] == [
        (at(0), "q", 6), (at(0), "r", 3), (at(10), "q", 6), (at(10), "r", 3),
    ]  # fmt: skip
