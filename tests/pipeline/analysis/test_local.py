"""Few events are analysed in this process, with the answers that Spark gives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from tests.pipeline.analysis.processes import Analysis as AnalysisProcess
from tests.support.history import START, Faults, History, make_history
from warrenmq import Broker
from warrenmq.cli.analyze import ANSWERED, NO_EVENTS, AnalyzeOptions, analyze
from warrenmq.pipeline import jobs
from warrenmq.pipeline.analysis.batch import BatchAnalysis
from warrenmq.pipeline.analysis.event_log import EventLog, standard_groups
from warrenmq.pipeline.analysis.local import LocalAnalysis, TooManyEvents
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.times import TimeRange, iso

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 13  # of the event log
COVERS = TimeRange(START + timedelta(seconds=60), START + timedelta(seconds=700))
Analysis = LocalAnalysis | BatchAnalysis


@pytest.fixture(scope="module")
def history() -> History:
    faults = Faults(spike_at=200, poison_at=350, stuck_at=450, slow_at=600, poison_attempts=60, duplicates=9)
    return make_history(2000, seconds=800, faults=faults)


@pytest.fixture(scope="module")
def broker(history: History) -> Iterator[Broker]:
    with Broker() as running:
        history.publish(running.url, rows=-(-history.rows // MESSAGES))
        yield running


def local(broker: Broker, **limits: int) -> LocalAnalysis:
    return LocalAnalysis(
        EventLog({"url": broker.url}), standard_groups(), jobs.ALL, AnalysisOptions(), COVERS, **limits
    )


def answers(analysis: Analysis) -> list[Any]:
    return [result.answer for result in analysis.answers(lambda progress: None)]


def test_the_answers_are_those_of_spark(broker: Broker, spark: SparkSession) -> None:
    """Of a part of the history, so that most messages begin or end outside of it."""
    here = local(broker)
    there = BatchAnalysis(spark, EventLog({"url": broker.url}), standard_groups(), jobs.ALL, AnalysisOptions(), COVERS)
    with there:
        assert here.read_events() == there.read_events()
        assert answers(here) == answers(there)


@pytest.mark.parametrize("limits", [{"max_messages": MESSAGES - 1}, {"max_events": 5000}])
def test_more_than_the_limits_is_refused(limits: dict[str, int], broker: Broker, history: History) -> None:
    assert history.rows > 5000
    with pytest.raises(TooManyEvents):
        local(broker, **limits).read_events()
    assert local(broker, max_messages=MESSAGES, max_events=history.rows).read_events().events > 0


def run_command(broker: Broker, **flags: Any) -> int:
    return analyze(AnalyzeOptions(broker.url, "guest:guest", start=iso(COVERS.start), end=iso(COVERS.end), **flags))


def test_the_command_does_not_start_spark_for_few_events(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(broker) == ANSWERED
    said = capsys.readouterr()
    steps = said.err.splitlines()
    assert steps[0] == "warren: reading events"
    assert steps[-1] == f"warren: {jobs.ALL[-1].title} · {len(jobs.ALL)} of {len(jobs.ALL)}"
    assert not any("Spark" in step for step in steps)
    assert "orders" in said.out


def test_the_command_starts_spark_where_a_flag_is_for_spark(
    broker: Broker, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`spark`: where there is one."""
    flags = ["--from", iso(COVERS.start), "--to", iso(COVERS.end), "--no-publish"]
    with AnalysisProcess(broker.url, tmp_path / "log", *flags, "--master", "local[1]") as process:
        assert process.end() == ANSWERED, process.log()
    steps = [line for line in process.log().splitlines() if line.startswith("warren: ")]
    assert steps[:2] == ["warren: starting Spark", "warren: reading events"]
    assert run_command(broker) == ANSWERED
    findings = capsys.readouterr().out
    assert process.log().endswith(findings)


def test_an_empty_range_of_the_log_is_reported(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    flags = AnalyzeOptions(broker.url, "guest:guest", start="2020-01-01T00:00:00Z", end="2020-01-01T01:00:00Z")
    assert analyze(flags) == NO_EVENTS
    assert "no events from 2020-01-01" in capsys.readouterr().err
