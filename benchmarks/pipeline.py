"""The pipeline on Spark: how fast events come into it, what a micro-batch takes, how old answers are under load.

    python benchmarks/pipeline.py             a million events, three rounds; then 45 s of 50,000 events/s
    python benchmarks/pipeline.py --quick     a tenth of it
    python benchmarks/pipeline.py --only source,batch,latency,follow

A broker as a process of its own, Spark on all cores of this machine, a made-up history as events. Kept as
results/pipeline.json. Ends with 2 when a target was missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import machine
from brokers import running_warren
from pyspark.sql import DataFrame, SparkSession
from report import RESULTS, short, wide_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from warrenmq import client
from warrenmq.events import schema
from warrenmq.pipeline import facts, jobs
from warrenmq.pipeline.analysis.batch import BatchAnalysis
from warrenmq.pipeline.analysis.event_log import EventLog, count_since, standard_groups
from warrenmq.pipeline.analysis.follow import FollowAnalysis, FollowOptions
from warrenmq.pipeline.analysis.local import LocalAnalysis
from warrenmq.pipeline.count.partials import partials_from_rows
from warrenmq.pipeline.merge.facts_store import FactsStore
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.spark.session import make_session
from warrenmq.pipeline.times import TimeRange, from_us, iso, window_floor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.support.history import NO_FAULTS, START, History, make_history

# What is asked for: (measure, at least or at most, target)
TARGETS = {
    "source": ("rows/s", 500_000, True),
    "latency": ("ms", 500, False),
    "follow": ("s", 5.0, False),
}
EVENTS_PER_MESSAGE = 4.2
RATE = 50_000
SEVERAL = 20


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45.0, help="of load")
    parser.add_argument("--rate", type=int, default=RATE, help="events per second")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="source,batch,latency,follow")
    options = parser.parse_args(arguments)
    if options.quick:
        options.events, options.rounds, options.seconds = options.events // 10, 1, options.seconds / 3
    console = wide_console()
    found: dict[str, dict[str, float]] = {}
    spark = make_session("local[*]", "WarrenMQ benchmark")
    try:
        for name in options.only.split(","):
            with broker() as url:
                found[name] = MEASURES[name](spark, url, options)
            console.print(f"{name}: " + ", ".join(f"{what} {short(value)}" for what, value in found[name].items()))
    finally:
        spark.stop()
    show(console, found)
    if not options.quick:
        kept = {"machine": machine.describe(), "figures": found}
        (RESULTS / "pipeline.json").write_text(json.dumps(kept, indent=2) + "\n")
    return 2 if any(is_missed(name, figures) for name, figures in found.items()) else 0


@contextmanager
def broker() -> Iterator[str]:
    with running_warren() as endpoint:
        yield f"amqp://guest:guest@127.0.0.1:{endpoint.port}/"


# -- the measures ------------------------------------------------------------------------------------------------------


def measure_source(spark: SparkSession, url: str, options: argparse.Namespace) -> dict[str, float]:
    """The event log into Spark and nowhere: all columns, as Arrow batches."""
    events = publish_all(url, history_of(options.events))
    rates = []
    for _ in range(options.rounds + 1):
        began = time.perf_counter()
        log_of(spark, url).write.format("noop").mode("overwrite").save()
        rates.append(events / (time.perf_counter() - began))
    return {"rows/s": median(rates[1:]), "events": events}


def measure_batch(spark: SparkSession, url: str, options: argparse.Namespace) -> dict[str, float]:
    """All jobs over the same, as `warren analyze` runs them: on Spark, and in this process."""
    events = publish_all(url, history_of(options.events))
    covers = TimeRange(START, START + timedelta(minutes=61))  # what was published last is acked a little later
    taken = []
    for _ in range(2):  # the second one is warm
        began = time.perf_counter()
        with BatchAnalysis(
            spark, EventLog({"url": url}), standard_groups(), jobs.ALL, AnalysisOptions(), covers
        ) as batch:
            assert batch.read_events().events == events
            read = time.perf_counter() - began
            for _found in batch.answers(lambda progress: None):
                pass
        taken.append((read, time.perf_counter() - began))
    began = time.perf_counter()
    here = LocalAnalysis(EventLog({"url": url}), standard_groups(), jobs.ALL, AnalysisOptions(), covers)
    assert here.read_events().events == events
    for _found in here.answers(lambda progress: None):
        pass
    local = time.perf_counter() - began
    return {
        "events": events,
        "facts s": taken[1][0],
        "all s": taken[1][1],
        "first all s": taken[0][1],
        "local s": local,
    }


def measure_latency(spark: SparkSession, url: str, options: argparse.Namespace) -> dict[str, float]:
    """A few events at a time: from the trigger of a micro-batch to its facts in the store."""
    bodies = list(make_history(SEVERAL * 20, seconds=60, faults=NO_FAULTS).batches(SEVERAL))
    arrived = threading.Event()
    with publisher(url) as publish, tempfile.TemporaryDirectory() as folder:
        store = FactsStore(Path(folder, "facts"), AnalysisOptions())

        def keep(brought: DataFrame, batch: int) -> None:
            store.add_batch(batch, partials_from_rows(brought.toArrow()))
            arrived.set()

        publish(bodies[0])
        pieces = EventLog({"url": url}).since(spark, count_since(START, facts.ALL, AnalysisOptions()))
        stream = pieces.writeStream.foreachBatch(keep).option("checkpointLocation", str(Path(folder, "query")))
        query = stream.trigger(processingTime="0 seconds").start()
        try:
            for body in bodies[1:]:
                assert arrived.wait(120), query.exception()
                arrived.clear()
                publish(body)
            assert arrived.wait(120), query.exception()
            reports = [report for report in query.recentProgress if report["numInputRows"]]
        finally:
            query.stop()
            store.close()
    taken = [report["durationMs"]["triggerExecution"] for report in reports]
    return {"ms": median(taken[len(taken) // 3 :]), "batches": len(taken)}


def measure_follow(spark: SparkSession, url: str, options: argparse.Namespace) -> dict[str, float]:
    """How old the answers are while events come at a rate: of throughput, from the newest event that is counted."""
    ages = Ages()
    stop = threading.Event()
    feeder = threading.Thread(target=feed, args=(url, options, ages, stop))
    with tempfile.TemporaryDirectory() as folder, publisher(url):
        following = FollowAnalysis(
            spark,
            EventLog({"url": url}),
            standard_groups(),
            jobs.ALL,
            AnalysisOptions(),
            FollowOptions(Path(folder), datetime.now(UTC) - timedelta(seconds=120), "500 milliseconds"),
            ages.note,
            lambda: True,
            lambda progress: None,
        )
        feeder.start()
        following.run(stop)
        feeder.join()
    found = ages.ages or [float("inf")]
    return {"s": median(found), "worst s": max(found), "answers": len(ages.ages), "events": ages.events}


MEASURES = {"source": measure_source, "batch": measure_batch, "latency": measure_latency, "follow": measure_follow}


class Ages:
    """How old an answer is when it is written: from the publish that it counts last."""

    def __init__(self) -> None:
        self.is_warm = threading.Event()  # something was answered
        self.ages: list[float] = []
        self.events = 0
        self._times: list[int] = []
        self._first = ""
        self._counts: dict[str, int] = {}

    def begin(self, history: History) -> None:
        """From now on this is what is counted. The first third is left out: more of Spark warms up in it."""
        kinds, times = history.columns["kind"], history.columns["time"]
        self._first = iso(window_floor(from_us(int(times[0])), timedelta(seconds=AnalysisOptions().window_seconds)))
        self.events = history.rows
        self._times = [int(time) for time in times[kinds == schema.PUBLISHED]]

    def note(self, *documents: dict[str, Any]) -> None:
        for document in documents:
            if document["job"] == "throughput":
                self.is_warm.set()
                self._note(document)

    def _note(self, document: dict[str, Any]) -> None:
        for window in document["windows"]:
            self._counts[window] = 0
        for row in document["rows"]:
            if row["what"] == "exchange":
                self._counts[row["window_start"]] += row["published"]
        counted = sum(count for window, count in self._counts.items() if self._times and window >= self._first)
        if counted == 0:
            return
        now = time.time() * 1_000_000
        began, ended = self._times[0], self._times[-1]
        if began + (ended - began) / 3 < now < ended:
            self.ages.append((now - self._times[min(counted, len(self._times)) - 1]) / 1_000_000)


def feed(url: str, options: argparse.Namespace, ages: Ages, stop: threading.Event) -> None:
    """A few events until something is answered; then those of the load, when they have happened; then an end."""
    rows = 8_192
    try:
        with publisher(url) as publish:
            before = datetime.now(UTC) - timedelta(seconds=100)
            for body in make_history(1000, start=before, seconds=10, faults=NO_FAULTS).batches():
                publish(body)
            assert ages.is_warm.wait(180), "nothing was answered"
            start = datetime.now(UTC) + timedelta(seconds=10)  # making it up takes some seconds
            messages = round(options.rate * options.seconds / EVENTS_PER_MESSAGE)
            history = make_history(messages, start=start, seconds=options.seconds, faults=NO_FAULTS)
            ages.begin(history)
            times = history.columns["time"]
            ends = [int(times[min(first + rows, history.rows) - 1]) for first in range(0, history.rows, rows)]
            for end, body in zip(ends, history.batches(rows), strict=True):
                time.sleep(max(0.0, end / 1_000_000 - time.time()))
                publish(body)
            time.sleep(5)
    finally:
        stop.set()


# -- parts -------------------------------------------------------------------------------------------------------------


def history_of(events: int) -> History:
    return make_history(round(events / EVENTS_PER_MESSAGE))


def publish_all(url: str, history: History) -> int:
    with publisher(url) as publish:
        for body in history.batches():
            publish(body)
    return history.rows


@contextmanager
def publisher(url: str) -> Iterator[Any]:
    """What appends a batch of events to the event log; all are confirmed at the end."""
    properties = client.Properties(content_type=schema.CONTENT_TYPE, delivery_mode=2)
    with client.connect(url) as connection, connection.channel() as channel:
        channel.queue_declare(schema.STREAM_NAME, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_select()
        yield lambda body: channel.publish("", schema.STREAM_NAME, body, properties)
        channel.wait_for_confirms(60)


def log_of(spark: SparkSession, url: str) -> DataFrame:
    options = {"url": url, "stream": schema.STREAM_NAME, "payload": "arrow"}
    return spark.read.format("warrenmq").options(**options).load()


def is_missed(name: str, figures: dict[str, float]) -> bool:
    if name not in TARGETS:
        return False
    what, target, is_least = TARGETS[name]
    return figures[what] < target if is_least else figures[what] > target


def show(console: Console, found: dict[str, dict[str, float]]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for column in ("measure", "figure", "target", ""):
        table.add_column(column)
    for name, figures in found.items():
        first, *rest = [f"{short(value)} {what}" for what, value in figures.items()]
        target = TARGETS.get(name)
        wanted = "" if target is None else f"{'at least' if target[2] else 'at most'} {short(target[1])} {target[0]}"
        verdict = "" if target is None else "missed" if is_missed(name, figures) else "reached"
        table.add_row(name, f"{first} ({', '.join(rest)})", wanted, verdict)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
