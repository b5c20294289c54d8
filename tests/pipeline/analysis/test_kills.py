"""kill -9 of the broker, the driver and an executor in the middle: the answers are those of a batch all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from warrenmq.pipeline import jobs
from warrenmq.pipeline.analysis.batch import Batch
from warrenmq.pipeline.analysis.collectors import standard
from warrenmq.pipeline.analysis.event_log import EventLog
from warrenmq.pipeline.analysis.times import Range, iso
from warrenmq.pipeline.history import START, History, make_history
from warrenmq.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

JOBS = ("throughput", "duplicates")  # each brings a query of its own
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


def flags(tmp_path: Path, names: Sequence[str], *more: str) -> list[str]:
    chosen = ["--jobs", ",".join(names), "--from", iso(START), "--checkpoint", str(tmp_path / "checkpoint")]
    return ["--follow", *chosen, *more]


def batch_rows(spark: SparkSession, url: str, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """What a batch in the tests' own session says about the same events."""
    chosen = jobs.by_name(names)
    found = {}
    with Batch(spark, EventLog({"url": url}), standard(), chosen, Settings(), Range(START, END)) as batch:
        assert batch.look().events > 0
        for answer in (found.answer for found in batch.answers(lambda progress: None)):
            found[answer.job] = sorted(answer.rows, key=lambda row: str(tuple(row[key] for key in answer.keys)))
    return found


def followed_rows(url: str, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    documents = read_documents(url)
    return {job: kept_rows(answers_of(documents, job)) for job in names}


def test_broker_and_driver_are_killed_and_the_answers_agree_with_a_batch(
    spark: SparkSession, broker: list[BrokerAt], history: History, tmp_path: Path
) -> None:
    url, port = broker[0].url, int(broker[0].url.rstrip("/").rsplit(":", 1)[1])
    publish_history(url, history, 0.0, 0.3)
    with Analysis(url, tmp_path / "first.log", *flags(tmp_path, JOBS, "--trigger", "200ms")) as first:
        wait_until(lambda: answers_of(read_documents(url), "throughput") != [] or first.is_dead, "answers come")
        assert not first.is_dead, first.log()

        # The broker goes and comes back; the same driver goes on.
        broker[-1].kill()
        broker.append(BrokerAt(tmp_path / "data", port))
        seen = len(answers_of(read_documents(url), "throughput"))
        publish_history(url, history, 0.3, 0.6)
        wait_until(
            lambda: len(answers_of(read_documents(url), "throughput")) > seen or first.is_dead, "answers come again"
        )
        assert not first.is_dead, first.log()

        # The driver goes with its JVM, in the middle of what comes now.
        publish_history(url, history, 0.6, 0.8)
        first.kill()
    publish_history(url, history, 0.8, 1.0)
    with Analysis(url, tmp_path / "second.log", *flags(tmp_path, JOBS, "--once")) as second:
        assert second.end() == 0, second.log()
    expected = batch_rows(spark, url, JOBS)
    assert sum(row["published"] for row in expected["throughput"] if row["what"] == "exchange") > 4_000
    assert followed_rows(url, JOBS) == expected
    states = [row["state"] for answer in answers_of(read_documents(url), "status") for row in answer["rows"]]
    assert states[-1] == "finished"


def test_on_a_cluster_a_worker_is_killed_and_the_answers_agree_with_a_batch(
    spark: SparkSession, broker: list[BrokerAt], history: History, tmp_path: Path
) -> None:
    url, one = broker[0].url, ("throughput",)
    publish_history(url, history, 0.0, 0.5)
    with Cluster(tmp_path) as cluster:
        settings = ["--master", cluster.url, "--conf", "spark.executor.memory=512m", "--conf", "spark.cores.max=2"]
        with Analysis(url, tmp_path / "follow.log", *flags(tmp_path, one, "--trigger", "200ms", *settings)) as analysis:
            wait_until(lambda: answers_of(read_documents(url), "throughput") != [] or analysis.is_dead, "answers come")
            assert not analysis.is_dead, analysis.log()
            publish_history(url, history, 0.5, 1.0)
            cluster.workers[0].kill()
            expected = batch_rows(spark, url, one)
            wait_until(
                lambda: followed_rows(url, one) == expected or analysis.is_dead, "the answers are those of a batch"
            )
            assert not analysis.is_dead, analysis.log()
            assert analysis.interrupt() == 0, analysis.log()
    states = [row["state"] for answer in answers_of(read_documents(url), "status") for row in answer["rows"]]
    assert states[-1] == "stopped"
