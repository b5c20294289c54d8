"""kill -9 of the broker, the driver and an executor in the middle: the answers are those of a batch all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from tests.pipeline.analysis.processes import (
    Analysis,
    BrokerAt,
    Cluster,
    answers_of,
    free_port,
    publish_history,
    read_documents,
    wait_until,
)
from tests.pipeline.analysis.support import kept_rows
from tests.support.history import START, History, make_history
from warrenmq.events import schema
from warrenmq.pipeline import jobs
from warrenmq.pipeline.analysis.batch import BatchAnalysis
from warrenmq.pipeline.analysis.event_log import EventLog, standard_groups
from warrenmq.pipeline.analysis.follow import FollowAnalysis, FollowOptions
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.publish.results import ResultWriter
from warrenmq.pipeline.times import TimeRange, iso

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

END = datetime(2026, 3, 2, 11, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def history() -> History:
    return make_history(4_000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[list[BrokerAt]]:
    """The broker, in a list: a test that kills it puts its successor there."""
    running = [BrokerAt(tmp_path / "data", free_port())]
    yield running
    running[-1].kill()


def flags(tmp_path: Path, *more: str) -> list[str]:
    return ["--follow", "--from", iso(START), "--checkpoint", str(tmp_path / "checkpoint"), "--trigger", "200ms", *more]


def batch_rows(spark: SparkSession, url: str) -> dict[str, list[dict[str, Any]]]:
    """What a batch in the tests' own session says about the same events."""
    found = {}
    with BatchAnalysis(
        spark, EventLog({"url": url}), standard_groups(), jobs.ALL, AnalysisOptions(), TimeRange(START, END)
    ) as batch:
        assert batch.read_events().events > 0
        for answer in (found.answer for found in batch.answers(lambda progress: None)):
            found[answer.job] = sorted(answer.rows, key=lambda row: str(tuple(row[key] for key in answer.keys)))
    return found


def followed_rows(url: str) -> dict[str, list[dict[str, Any]]]:
    documents = read_documents(url)
    return {job.name: kept_rows(answers_of(documents, job.name)) for job in jobs.ALL}


def wait_for_answers(url: str, analysis: Analysis, history: History, share: float) -> None:
    """Wait until the answers cover this first part of the history."""
    kinds = history.columns["kind"][: round(share * history.rows)]
    wanted = int(np.isin(kinds, (schema.PUBLISHED, schema.DELIVERED)).sum())

    def is_counted() -> bool:
        rows = kept_rows(answers_of(read_documents(url), "throughput"))
        published = sum(row["published"] for row in rows if row["what"] == "exchange")
        return published + sum(row["delivered"] for row in rows if row["what"] == "queue") >= wanted

    wait_until(lambda: analysis.is_dead or is_counted(), f"{share:.0%} of the history is counted")
    assert not analysis.is_dead, analysis.log()


def test_executor_broker_and_driver_are_killed_and_the_answers_are_those_of_a_batch(
    spark: SparkSession, broker: list[BrokerAt], history: History, tmp_path: Path
) -> None:
    """All jobs; one event missed, or counted twice, and some answer would differ."""
    url, port = broker[0].url, int(broker[0].url.rstrip("/").rsplit(":", 1)[1])
    publish_history(url, history, 0.0, 0.3)
    with Cluster(tmp_path) as cluster:
        on_cluster = ["--master", cluster.url, "--conf", "spark.executor.memory=512m", "--conf", "spark.cores.max=2"]
        with Analysis(url, tmp_path / "first.log", *flags(tmp_path, *on_cluster)) as first:
            wait_for_answers(url, first, history, 0.2)

            # An executor goes, with its worker, while there is something to read.
            publish_history(url, history, 0.3, 0.5)
            cluster.workers[0].kill()
            wait_for_answers(url, first, history, 0.4)

            # The broker goes and comes back; the same driver goes on, until it is asked to end.
            broker[-1].kill()
            broker.append(BrokerAt(tmp_path / "data", port))
            publish_history(url, history, 0.5, 0.6)
            wait_for_answers(url, first, history, 0.55)
            assert first.interrupt() == 0, first.log()
    assert states(url)[-1] == "stopped"

    # Another driver goes on, and goes with its JVM in the middle of what comes.
    with Analysis(url, tmp_path / "second.log", *flags(tmp_path)) as second:
        publish_history(url, history, 0.6, 0.8)
        wait_for_answers(url, second, history, 0.7)
        publish_history(url, history, 0.8, 0.95)
        second.kill()
    publish_history(url, history, 0.95, 1.0)
    follow_to_the_end(spark, url, tmp_path)
    expected = batch_rows(spark, url)
    published = sum(row["published"] for row in expected["throughput"] if row["what"] == "exchange")
    assert published == history.truth.published
    taken = sum(row["processing_count"] for row in expected["latency"])
    assert taken == history.truth.acked + history.truth.poison_failures
    assert followed_rows(url) == expected
    assert states(url)[-1] == "finished"


def follow_to_the_end(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """A driver in this process, which ends when all is read."""
    options = FollowOptions(tmp_path / "checkpoint", START, until_read=True)
    with ResultWriter(url) as writer:
        events = EventLog({"url": url})
        following = FollowAnalysis(
            spark,
            events,
            standard_groups(),
            jobs.ALL,
            AnalysisOptions(),
            options,
            writer.write,
            lambda: True,
            lambda progress: None,
        )
        following.run(threading.Event())


def states(url: str) -> list[str]:
    return [row["state"] for answer in answers_of(read_documents(url), "status") for row in answer["rows"]]
