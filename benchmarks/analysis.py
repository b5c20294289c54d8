"""A million messages with known faults: what the analysis costs, and whether it finds each of them.

    python benchmarks/analysis.py                      a million messages, about four million events
    python benchmarks/analysis.py --messages 100000    fewer

The history lies in a Parquet file, so that no broker's work is measured; `pipeline.py` measures the way from a broker.
CPU seconds are those of this process, which is where the jobs answer; Spark's work is in the other processes. Ends with
2 when a fault is not found, something is reported that is none, a count is wrong, or a percentile is not within 2 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from report import wide_console
from rich.box import SIMPLE_HEAD
from rich.table import Table

from warrenmq.events import schema
from warrenmq.pipeline import jobs
from warrenmq.pipeline.facts import facts_of
from warrenmq.pipeline.jobs.answers import run_job
from warrenmq.pipeline.jobs.latency import PERCENTS
from warrenmq.pipeline.jobs.tables import since, to_ints
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.spark.session import make_session

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.support.history import POISON_KEY, History, Truth, make_history

Result = TypeVar("Result")
Answers = dict[str, list[dict[str, Any]]]
Numbers = NDArray[np.int64]
OPTIONS = AnalysisOptions()
STATED_ERROR = 0.02  # of percentiles; or 1 us, if that is more


class Stages:
    """What each stage took; the table is drawn at the end."""

    def __init__(self) -> None:
        self.table = Table("stage", "rows", "seconds", "CPU seconds here", box=SIMPLE_HEAD)

    def run(self, name: str, work: Callable[[], Result], size: Callable[[Result], int]) -> Result:
        begin, used = time.perf_counter(), time.process_time()
        result = work()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - used
        self.table.add_row(name, f"{size(result):,}", f"{seconds:.2f}", f"{cpu:.2f}")
        return result


def all_answers(facts: pa.Table, spark: Any, since_us: int) -> dict[str, pa.Table]:
    """As a --follow answers: from that window on, with the facts that each job's answer depends on."""
    return {
        job.name: run_job(
            job, since(facts, since_us - round(job.history(OPTIONS) * 1_000_000)), OPTIONS, spark, since_us
        )
        for job in jobs.ALL
    }


def missed(answers: Answers, truth: Truth) -> list[str]:
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


# -- exact percentiles -------------------------------------------------------------------------------------------------


def wrong_percentiles(rows: list[dict[str, Any]], history: History) -> list[str]:
    """Percentiles that are farther from the exact ones than is stated, and counts that are not exact."""
    told = {(round(row["window_start"].timestamp() * 1_000_000), row["queue"]): row for row in rows}
    wrong = []
    for name, (times, queues, durations) in exact_times(history).items():
        for window, queue, in_order in split_by_window(times, queues, durations):
            row = told[window, history.names[queue]]
            if row[f"{name}_count"] != len(in_order) or row[f"{name}_max_us"] != in_order[-1]:
                wrong.append(f"how many {name} times, or the longest, of {row['queue']} at {row['window_start']}")
            for percent in PERCENTS:
                exact = int(in_order[-(-len(in_order) * percent // 100) - 1])
                if abs(row[f"{name}_p{percent}_us"] - exact) > max(STATED_ERROR * exact, 1):
                    wrong.append(f"{name} p{percent} of {row['queue']} at {row['window_start']}: not {exact}")
    return wrong


def exact_times(history: History) -> dict[str, tuple[Numbers, Numbers, Numbers]]:
    """By measure: when each was counted, in which queue, and how long it was."""
    columns = history.columns
    time_us, kind, queue, attempt = (columns[name] for name in ("time", "kind", "queue", "attempt"))
    first = (kind == schema.DELIVERED) & (attempt == 1)
    acked = kind == schema.ACKED
    delivered, settled = np.flatnonzero(kind == schema.DELIVERED), np.flatnonzero(acked | (kind == schema.NACKED))
    # A delivery and its settlement have the same uid and attempt; uids are unique here.
    delivered, settled = (at[np.lexsort((attempt[at], columns["uid"][at]))] for at in (delivered, settled))
    is_settled = np.isin(_leg(columns, delivered), _leg(columns, settled))
    processing = time_us[settled] - time_us[delivered[is_settled]]
    return {
        "waiting": (time_us[first], queue[first], (time_us - columns["enqueue_time"])[first]),
        "end_to_end": (time_us[acked], queue[acked], (time_us - columns["publish_time"])[acked]),
        "processing": (time_us[settled], queue[settled], processing),
    }


def _leg(columns: dict[str, Numbers], at: Numbers) -> Numbers:
    """One number of a uid and an attempt. The highest bits of uids, which are lost, are the same in a history."""
    found: Numbers = columns["uid"][at] * 1024 + columns["attempt"][at]
    return found


def split_by_window(times: Numbers, queues: Numbers, durations: Numbers) -> Any:
    """Window, queue and durations in order, of all windows and queues."""
    window = times // OPTIONS.window_us * OPTIONS.window_us
    order = np.lexsort((durations, queues, window))
    window, queues, durations = window[order], queues[order], durations[order]
    first = np.flatnonzero(np.append(True, (np.diff(window) != 0) | (np.diff(queues) != 0)))
    for begin, end in zip(first, np.append(first[1:], len(window)), strict=True):
        yield int(window[begin]), int(queues[begin]), durations[begin:end]


# ----------------------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[*]")
    chosen = parser.parse_args()
    stages, console = Stages(), wide_console()
    history = stages.run("made up", lambda: make_history(chosen.messages), lambda history: history.rows)
    spark = make_session(chosen.master, "WarrenMQ benchmark", conf={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "events.parquet")
        pq.write_table(history.table(), path, row_group_size=250_000)
        events = spark.read.parquet(str(path))
        stages.run("read by Spark", events.count, int)
        facts = stages.run("facts", lambda: facts_of(events, OPTIONS).toArrow(), lambda table: table.num_rows)
    facts = facts.sort_by("window_start")
    answers: Answers = {}
    for job in jobs.ALL:
        found = stages.run(
            job.name,
            lambda job=job: run_job(job, facts, OPTIONS, spark),
            lambda table: table.num_rows,  # type: ignore[misc]
        )
        answers[job.name] = found.sort_by("window_start").to_pylist()
    newest = int(to_ints(facts["window_start"]).max())
    last = newest - OPTIONS.window_us
    stages.run(
        "all jobs, the last two windows",
        lambda: all_answers(facts, spark, last),
        lambda found: sum(map(len, found.values())),
    )
    spark.stop()
    console.print(stages.table)
    for row in answers["anomalies"]:
        console.print(f"  {row['sentence']}")
    wrong = missed(answers, history.truth) + wrong_percentiles(answers["latency"], history)
    console.print(
        f"not as it should be: {', '.join(wrong[:20])}"
        if wrong
        else "each fault is found, and nothing else; counts are exact, percentiles within 2 % of the exact ones"
    )
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
