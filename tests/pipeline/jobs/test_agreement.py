"""A job says the same however it is asked: here or by Spark, of all facts or of those that its answer depends on."""

from __future__ import annotations

import random
from functools import cache

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'warrenmq[spark]'")
from pyspark.sql.pandas.types import to_arrow_schema

from tests.pipeline.jobs.rows import at, fact, fact_table
from warrenmq.pipeline import jobs
from warrenmq.pipeline.jobs.tables import since
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.times import to_us

OPTIONS = AnalysisOptions(
    baseline_windows=12,
    consumer_windows=8,
    stuck_after=30.0,
    id_window="10 seconds",
    depth_limit=500,
    top=3,
    max_per_group=4,
)
WINDOWS = 200


@cache
def some_facts(seed, windows=WINDOWS):
    """Facts as chance has it, with faults now and then, and times in which nothing is heard at all."""
    draw = random.Random(seed)
    rows = []
    for window in range(windows):
        if window // 20 % 4 != 3:
            for vhost, busy in (("/", 1.0), ("blue", 0.3)):
                rows += _facts_of_window(draw, window, vhost, busy)
    draw.shuffle(rows)
    return fact_table(rows)


def _facts_of_window(draw, window, vhost, busy):
    rows, burst = [], draw.choice((1, 1, 1, 1, 1, 1, 1, 12))

    def add(what, chance, most, **fields):
        if draw.random() < chance * busy:
            first, uid = draw.uniform(0, 9), draw.randrange(1, 10**6)
            times = {"first_time": at(10 * window + first), "last_time": at(10 * window + draw.uniform(first, 9.9))}
            counts = {"count": draw.randint(1, most * burst), "first_uid": uid, "last_uid": uid + 5, "bytes": 7}
            rows.append(fact(what, window, vhost=vhost, **counts, **times, **fields))

    for exchange in ("x", "y"):
        add("step", 0.9, 40, exchange=exchange, kind="published")
        add("step", 0.1, 9, exchange=exchange, kind="unroutable", reason="no_route")
        add("key", 0.2, 9, exchange=exchange, name="lost", kind="unroutable", reason="no_route")
        for key in ("a", "b", "c", "d"):
            add("key", 0.7, 20, exchange=exchange, name=key, kind="published")
            add("key", 0.2, 60, exchange=exchange, name=key, queue="q", kind="requeued", reason="client")
            add("key", 0.1, 9, exchange=exchange, name=key, queue="q", kind="dead_lettered", reason="delivery_limit")
    for queue in ("q", "r"):
        depth = {"depth_last": draw.randrange(300) * burst, "depth_max": 4000}
        add("step", 0.8, 40, exchange="x", queue=queue, kind="enqueued", **depth)
        add("step", 0.1, 9, exchange="x", queue=queue, kind="dropped", reason="duplicate")
        add("step", 0.1, 9, exchange="x", queue=queue, kind="retried", reason=draw.choice(("client", "channel_closed")))
        for consumer in ("c", "d"):
            who = {"queue": queue, "consumer": consumer, "connection": "n", "channel": 1}
            add("step", 0.6, 20, kind="delivered", redelivered=draw.randrange(3), **who)
            add("step", 0.5, 20, kind="acked", **who)
            add("step", 0.03, 1, kind="consumer_closed", **who)
        for bucket in draw.sample(range(100, 300), 4):
            name = draw.choice(("waiting", "end_to_end", "processing"))
            add(
                "time", 0.8, 20, queue=queue, name=name, bucket=bucket, total_us=draw.randrange(10**6), longest_us=10**6
            )
            if name == "waiting" and queue == "q":
                level = str(draw.choice((1, 5, 10)))
                add("priority", 0.5, 9, queue=queue, name=level, bucket=bucket, total_us=10**5, longest_us=10**6)
    for name in ("m", "n"):
        add("message", 0.2, 3, name=name)
        add("session", 0.6, 3, name=name, messages=2, settled=1, failed=draw.randrange(2))
    return rows


def rows_of(table, job):
    return table.sort_by([(key, "ascending") for key in job.keys]).to_pylist()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("job", jobs.ALL, ids=lambda job: job.name)
def test_an_answer_depends_on_its_window_and_the_history_before_it_alone(job, seed):
    """So a `--follow` may forget older events, and answers as a batch does."""
    facts = some_facts(seed)
    whole = rows_of(job.answer(facts, OPTIONS, 0), job)
    assert whole, f"seed {seed}: there is nothing to compare"
    for window in range(0, WINDOWS, 29):
        begin = to_us(at(10 * window))
        known = since(facts, begin - round(job.history(OPTIONS) * 1_000_000))
        wanted = [row for row in whole if row["window_start"] >= at(10 * window)]
        assert rows_of(job.answer(known, OPTIONS, begin), job) == wanted, f"seed {seed}, from window {window} on"


@pytest.mark.parametrize("job", jobs.ALL, ids=lambda job: job.name)
def test_the_order_of_facts_does_not_matter(job):
    facts = some_facts(5)
    shuffled = facts.take(random.Random(5).sample(range(facts.num_rows), facts.num_rows))
    assert rows_of(job.answer(shuffled, OPTIONS, 0), job) == rows_of(job.answer(facts, OPTIONS, 0), job)


def test_spark_says_the_same(spark):
    """Over several groups, as Spark cuts large tables of facts: hours, virtual hosts, or all in one."""
    facts = some_facts(6, windows=400)
    frame = spark.createDataFrame(facts).persist()
    for job in jobs.by_name(["throughput", "sessions", "anomalies", "priorities", "retries"]):
        assert rows_of(job.run(frame, OPTIONS).toArrow(), job) == rows_of(job.answer(facts, OPTIONS, 0), job)
    frame.unpersist()


def test_spark_knows_the_columns_of_every_answer(spark):
    facts = some_facts(6, windows=1)
    for job in jobs.ALL:
        found, here = job.run(spark.createDataFrame(facts), OPTIONS).schema, job.answer(facts, OPTIONS, 0).schema
        assert to_arrow_schema(found, timezone="UTC") == here
