"""A history with known faults: each is found, at its time; and nothing is found where nothing is wrong."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.history import NO_FAULTS, POISON_KEY, START, make_history
from warrenmq.events import schema
from warrenmq.pipeline.options import AnalysisOptions

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'warrenmq[spark]'")

from warrenmq.pipeline import jobs
from warrenmq.pipeline.jobs.tables import TIMESTAMP, where, with_columns
from warrenmq.pipeline.merge.facts import facts_from_events

OPTIONS = AnalysisOptions()
MESSAGES = 40_000


@pytest.fixture(scope="module")
def history():
    return make_history(MESSAGES)


@pytest.fixture(scope="module")
def counted(history):
    return facts_from_events(history.table(), OPTIONS)


def answer(counted, name):
    [job] = jobs.by_name([name])
    return job.answer(counted, OPTIONS, 0).sort_by("window_start").to_pylist()


@pytest.fixture(scope="module")
def anomalies(counted):
    return answer(counted, "anomalies")


def told(anomalies, what, measure):
    return [row for row in anomalies if (row["what"], row["measure"]) == (what, measure)]


def test_the_spike_is_found_when_it_begins(anomalies, history):
    [spike] = told(anomalies, "exchange", "published")
    assert spike["window_start"] == history.truth.spike_at
    assert spike["value"] / spike["usual"] == pytest.approx(8, rel=0.3)
    assert spike["sentence"].startswith("exchange shop: publishes rose from ")
    assert spike["sentence"].endswith(" at 09:45:00")
    assert len(spike["example_uids"]) == 2


def test_the_poison_key_is_found_when_it_begins(anomalies, counted, history):
    [poison] = told(anomalies, "key", "poison")
    assert poison["window_start"] == history.truth.poison_at
    assert poison["name"] == f"shop / {POISON_KEY}"
    poisonous = [row for row in answer(counted, "hot_keys") if row["poison"]]
    assert {row["routing_key"] for row in poisonous} == {POISON_KEY}
    assert sum(row["failed"] for row in poisonous) == history.truth.poison_failures


def test_the_stuck_consumer_is_found_with_its_time_and_what_it_holds(anomalies, counted, history):
    truth = history.truth
    [stuck] = told(anomalies, "consumer", "stuck")
    assert truth.stuck_consumer in stuck["name"]
    assert stuck["value"] == truth.outstanding
    assert stuck["window_start"] - truth.stuck_at <= timedelta(seconds=OPTIONS.stuck_after + 20)
    rows = [row for row in answer(counted, "consumers") if row["stuck"]]
    assert {row["consumer"] for row in rows} == {truth.stuck_consumer}
    # It settled its last message just before, or got the first that it keeps just after.
    assert abs(rows[0]["stuck_since"] - truth.stuck_at) < timedelta(seconds=2)
    assert rows[-1]["outstanding"] == truth.outstanding


def test_the_slow_queue_is_found_when_it_begins(anomalies, history):
    slow = told(anomalies, "queue", "waiting_p95")
    assert [(row["name"], row["window_start"]) for row in slow] == [(history.truth.slow_queue, history.truth.slow_at)]


def test_nothing_else_is_reported(anomalies, history):
    truth = history.truth
    known = {truth.spike_at, truth.poison_at, truth.slow_at}
    assert [
        row["sentence"] for row in anomalies if row["window_start"] not in known and row["what"] != "consumer"
    ] == []


def test_duplicates_and_unroutable_messages_are_exactly_the_true_ones(counted, history):
    duplicates = answer(counted, "duplicates")
    assert {row["name"] for row in duplicates} == history.truth.duplicate_ids
    assert {row["times"] for row in duplicates} == {2}
    assert sum(row["count"] for row in answer(counted, "unroutable")) == history.truth.unroutable


def test_counts_are_exact(counted, history):
    rows, truth = answer(counted, "throughput"), history.truth
    assert sum(row["published"] for row in rows if row["what"] == "exchange") == truth.published
    queues = {row["name"] for row in rows if row["what"] == "queue"}
    by_queue = {name: sum(row["enqueued"] for row in rows if row["name"] == name) for name in queues}
    assert by_queue == truth.by_queue
    assert sum(row["acked"] for row in rows if row["what"] == "queue") == truth.acked


def test_percentiles_are_within_two_percent_of_the_exact_ones(counted, history):
    table = history.table().select(["kind", "time", "uid", "queue", "attempt", "publish_time", "enqueue_time"])
    delivered, exact = {}, {"waiting": [], "end_to_end": [], "processing": []}
    for row in table.filter(pc.equal(table["queue"], "orders")).to_pylist():
        if row["kind"] == schema.DELIVERED:
            delivered[row["uid"], row["attempt"]] = row["time"]
            if row["attempt"] == 1:
                exact["waiting"].append(row["time"] - row["enqueue_time"])
        elif row["kind"] in (schema.ACKED, schema.NACKED):
            exact["processing"].append(row["time"] - delivered[row["uid"], row["attempt"]])
            if row["kind"] == schema.ACKED:
                exact["end_to_end"].append(row["time"] - row["publish_time"])
    times = where(counted, fact="time")
    in_one_window = with_columns(times, window_start=pa.repeat(pa.scalar(START, TIMESTAMP), times.num_rows))
    [row] = [row for row in answer(in_one_window, "latency") if row["queue"] == "orders"]
    for name, durations in exact.items():
        in_order = sorted(round(duration / timedelta(microseconds=1)) for duration in durations)
        assert row[f"{name}_count"] == len(in_order)
        assert row[f"{name}_max_us"] == in_order[-1]
        for percent in (50, 90, 95, 99):
            true = in_order[-(-len(in_order) * percent // 100) - 1]
            assert abs(row[f"{name}_p{percent}_us"] - true) <= 0.02 * true + 1


def test_a_quiet_history_raises_no_alarm():
    quiet = facts_from_events(make_history(20_000, faults=NO_FAULTS, seed=11).table(), OPTIONS)
    assert answer(quiet, "anomalies") == []
    assert not any(row["stuck"] for row in answer(quiet, "consumers"))
    for name in ("failures", "duplicates", "unroutable"):
        assert answer(quiet, name) == []
