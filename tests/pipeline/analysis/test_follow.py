"""A --follow over files instead of a broker: it ends with the answers of a batch, whatever happens on the way."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from tests.pipeline.analysis.support import (
    START,
    Heard,
    ParquetEvents,
    count_job,
    event,
    publishes,
)
from warrenmq.client import ConnectionFailed
from warrenmq.events import schema
from warrenmq.pipeline.analysis.batch import BatchAnalysis
from warrenmq.pipeline.analysis.event_log import standard_groups
from warrenmq.pipeline.analysis.follow import FollowAnalysis, FollowOptions
from warrenmq.pipeline.errors import CheckpointMismatch, FollowFailed
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.times import TimeRange, parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = AnalysisOptions()
COUNTS = count_job()


@pytest.fixture
def events(tmp_path: Path) -> ParquetEvents:
    return ParquetEvents(tmp_path / "events")


def follow(spark: SparkSession, events: Any, checkpoint: Path, heard: Heard, **changes: Any) -> FollowAnalysis:
    options = FollowOptions(checkpoint, START, until_read=True)
    given: dict[str, Any] = {
        "groups": standard_groups(),
        "jobs": (COUNTS,),
        "options": OPTIONS,
        "follow": options,
        "write": heard.write,
        "is_broker_reachable": lambda: True,
        "report": lambda progress: None,
    }
    return FollowAnalysis(spark, events, **(given | changes))


def batch_rows(spark: SparkSession, events: ParquetEvents) -> list[dict[str, Any]]:
    covers = TimeRange(START, START + parse_duration("1h"))
    with BatchAnalysis(spark, events, standard_groups(), (COUNTS,), OPTIONS, covers) as batch:
        assert batch.read_events().events > 0
        (found,) = batch.answers(lambda progress: None)
    return sorted(found.answer.rows, key=lambda row: str(tuple(row[key] for key in COUNTS.keys)))


def test_follow_ends_with_the_answers_of_a_batch(spark: SparkSession, events: ParquetEvents, tmp_path: Path) -> None:
    """Three micro-batches; the second changes a window of the first, whose change shows in the window behind it."""
    events.add(publishes(1, 3) + publishes(12, 2))
    events.add([*publishes(5, 4), event(13, schema.ACKED, queue="q", depth=0)])
    events.add(publishes(31, 1))
    heard = Heard()
    follow(spark, events, tmp_path / "checkpoint", heard).run(threading.Event())
    expected = batch_rows(spark, events)
    assert heard.rows("counts") == expected
    assert [(row["kind"], row["count"], row["before"]) for row in expected] == [
        ("published", 7, 0),
        ("acked", 1, 0),
        ("published", 2, 7),
        ("published", 1, 0),
    ]
    assert heard.states()[0] == "running"
    assert heard.states()[-1] == "finished"

    # Started again it goes on, and a broker that is away for a while gets the answers when it is back.
    events.add(publishes(33, 5))
    expected = batch_rows(spark, events)
    lost = [ConnectionFailed("nobody answers")] * 2

    def write(*documents: dict[str, Any]) -> None:
        if documents[0]["job"] != "status" and lost:
            raise lost.pop()
        heard.write(*documents)

    follow(spark, events, tmp_path / "checkpoint", heard, write=write, follow=_endless(tmp_path)).run(
        _stop_when(lambda: heard.rows("counts") == expected)
    )
    assert heard.rows("counts") == expected
    assert not lost
    assert heard.states()[-1] == "stopped"
    assert len({document["run"] for document in heard.documents}) == 1


def test_a_checkpoint_is_for_the_settings_that_made_it(
    spark: SparkSession, events: ParquetEvents, tmp_path: Path
) -> None:
    follow(spark, events, tmp_path / "checkpoint", Heard())._store.close()
    with pytest.raises(CheckpointMismatch, match=r"other windows \(10 seconds"):
        follow(spark, events, tmp_path / "checkpoint", Heard(), options=AnalysisOptions(window="5 seconds"))
    with pytest.raises(CheckpointMismatch, match=r"other kinds of facts \(step\)"):
        follow(spark, events, tmp_path / "checkpoint", Heard(), jobs=(count_job(["step", "time"]),))


def test_late_events_are_counted_up_to_the_lateness_and_reported_beyond_it(
    spark: SparkSession, events: ParquetEvents, tmp_path: Path
) -> None:
    events.add(publishes(100, 1))
    events.add([*publishes(99, 2), *publishes(71, 3), *publishes(69, 4), *publishes(5, 5)])  # the line is at 70
    events.add(publishes(75, 6))
    heard = Heard()
    follow(spark, events, tmp_path / "checkpoint", heard).run(threading.Event())
    assert {row["window_start"][17:19]: row["count"] for row in heard.rows("counts")} == {"10": 9, "30": 2, "40": 1}
    [status] = [document for document in heard.documents if document["job"] == "status"][-1]["rows"]
    assert (status["events"], status["late_events"], status["batches"]) == (21, 9, 3)
    assert status["newest_event"] == "2026-11-16T10:01:40.000000Z"


def test_a_query_that_fails_again_and_again_ends_the_follow_with_the_reason(
    spark: SparkSession, events: ParquetEvents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.add(publishes(1, 1))
    monkeypatch.setattr("warrenmq.pipeline.analysis.restarts.FIRST_DELAY", 0.01)
    monkeypatch.setattr("warrenmq.pipeline.analysis.restarts.MAX_FAILURES", 2)
    heard = Heard()
    following = follow(spark, events, tmp_path / "checkpoint", heard)

    def refuse(*_: object) -> bool:
        raise ValueError("the disk is full")

    monkeypatch.setattr(following._store, "add_batch", refuse)
    with pytest.raises(FollowFailed, match="ValueError: the disk is full"):
        following.run(threading.Event())
    assert heard.states()[-1] == "failed"


def _endless(folder: Path) -> FollowOptions:
    return FollowOptions(folder / "checkpoint", START, trigger="100 milliseconds")


def _stop_when(is_so: Any) -> threading.Event:
    """An event that is set when something is so, or after two minutes."""
    stop = threading.Event()

    def look() -> None:
        for _ in range(1200):
            if stop.wait(0.1) or is_so():
                break
        stop.set()

    threading.Thread(target=look, daemon=True).start()
    return stop
