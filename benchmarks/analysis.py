"""A million messages with known faults: what the analysis costs, and whether it finds each of them.

    python benchmarks/analysis.py                      a million messages, about four million events
    python benchmarks/analysis.py --messages 100000    fewer

The history lies in a Parquet file, so that only Spark's work is measured; `pipeline.py` measures the way from a broker.
Ends with 2 when a fault is not found, or something is told that is none.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow.parquet as pq
from report import wide_console
from rich.box import SIMPLE_HEAD
from rich.table import Table

from warrenmq.pipeline import facts, jobs, keyed, legs
from warrenmq.pipeline.history import POISON_KEY, Truth, make_history
from warrenmq.pipeline.session import make_session
from warrenmq.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Result = TypeVar("Result")
SETTINGS = Settings()


class Stages:
    """What each stage took; the table is drawn at the end."""

    def __init__(self) -> None:
        self.table = Table("stage", "rows", "seconds", box=SIMPLE_HEAD)

    def run(self, name: str, work: Callable[[], Result], size: Callable[[Result], int]) -> Result:
        begin = time.perf_counter()
        result = work()
        self.table.add_row(name, f"{size(result):,}", f"{time.perf_counter() - begin:.2f}")
        return result


def all_facts(events: DataFrame) -> DataFrame:
    found = facts.facts_of(events, SETTINGS).unionByName(keyed.keyed_facts_of(events, SETTINGS))
    return facts.bound(found.unionByName(legs.processing_facts(legs.legs_of(events, SETTINGS), SETTINGS, 0)), SETTINGS)


def missed(answers: dict[str, list[dict[str, Any]]], truth: Truth) -> list[str]:
    """What was not found, or is not true."""
    anomalies = answers["anomalies"]

    def begins(what: str, measure: str, name: str) -> list[Any]:
        return [
            row["window_start"]
            for row in anomalies
            if (row["what"], row["measure"]) == (what, measure) and name in row["name"]
        ]

    stuck = [row for row in answers["consumers"] if row["stuck"]]
    checks = {
        "the spike": begins("exchange", "published", "shop") == [truth.spike_at],
        "the poison key": begins("key", "poison", POISON_KEY) == [truth.poison_at],
        "the slow queue": begins("queue", "waiting_p95", truth.slow_queue) == [truth.slow_at],
        "the stuck consumer": {row["consumer"] for row in stuck} == {truth.stuck_consumer}
        and abs(stuck[0]["stuck_since"] - truth.stuck_at) < timedelta(seconds=2)
        and stuck[-1]["outstanding"] == truth.outstanding,
        "the duplicates": {row["name"] for row in answers["duplicates"]} == truth.duplicate_ids,
        "the unroutable": sum(row["count"] for row in answers["unroutable"]) == truth.unroutable,
        "all publishes": sum(row["published"] for row in answers["throughput"] if row["what"] == "exchange")
        == truth.published,
        "all acks": sum(row["acked"] for row in answers["throughput"] if row["what"] == "queue") == truth.acked,
        "nothing else": {row["window_start"] for row in anomalies if row["what"] != "consumer"}
        <= {truth.spike_at, truth.poison_at, truth.slow_at},
    }
    return [name for name, is_right in checks.items() if not is_right]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[*]")
    chosen = parser.parse_args()
    stages, console = Stages(), wide_console()
    history = stages.run("made up", lambda: make_history(chosen.messages), lambda history: history.rows)
    spark = make_session(chosen.master, "WarrenMQ benchmark", settings={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "events.parquet")
        pq.write_table(history.table(), path, row_group_size=250_000)
        events = spark.read.parquet(str(path))
        stages.run("read by Spark", events.count, int)
        table = stages.run("facts", lambda: all_facts(events).toArrow(), lambda table: table.num_rows)
        found = spark.createDataFrame(table).persist()
        answers = {}
        for job in jobs.ALL:
            run = job.run
            rows = stages.run(job.name, lambda run=run: run(found, SETTINGS).toArrow(), lambda rows: rows.num_rows)  # type: ignore[misc]
            answers[job.name] = rows.sort_by("window_start").to_pylist()
        spark.stop()
    console.print(stages.table)
    for row in answers["anomalies"]:
        console.print(f"  {row['sentence']}")
    wrong = missed(answers, history.truth)
    console.print(
        f"not as it should be: {', '.join(wrong)}" if wrong else "each fault is found, and nothing else is told"
    )
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
