"""How far a --follow is, from Spark's reports; and the one line of a failure that says why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from warrenmq.pipeline.analysis.progress import AnalysisProgress, ProgressTracker, messages_in, status_answer
from warrenmq.pipeline.errors import short_reason
from warrenmq.pipeline.publish.results import Run


def report(start: Any, end: Any, latest: Any) -> dict[str, Any]:
    return {"sources": [{"startOffset": start, "endOffset": end, "latestOffset": latest}]}


@pytest.mark.parametrize(
    ("start", "end", "latest", "found"),
    [
        ({"a": 0}, {"a": 10}, {"a": 10}, (10, 0)),
        ({"a": 0}, {"a": 10}, {"a": 15}, (10, 5)),
        (None, {"a": 10, "b": 10}, {"a": 10, "b": 11}, (0, 1)),
        ('{"a": 4}', '{"a": 5}', '{"a": 7}', (1, 2)),
        ({"a": 0}, {"a": 10}, None, None),
        ({"a": 0}, "garbage", {"a": 10}, None),
    ],
)
def test_messages_read_and_left_in_a_report_of_sparks(start: Any, end: Any, latest: Any, found: Any) -> None:
    assert messages_in(report(start, end, latest)) == found


def test_a_tracker_sums_up_what_micro_batches_brought() -> None:
    reported: list[AnalysisProgress] = []
    tracker = ProgressTracker(reported.append)
    newest = datetime(2026, 11, 16, 10, 0, 0, 500_000, tzinfo=UTC)
    tracker.add_batch(100, newest, late=3)
    tracker.add_batch(0, None, late=0)  # nothing came
    tracker.add_batch(20, newest, late=1)
    tracker.on_query_progress(report({"a": 10}, {"a": 12}, {"a": 12}))
    assert [progress.events for progress in reported] == [100, 100, 120, 120]
    assert reported[-1] == tracker.progress
    assert (reported[-1].batches, reported[-1].events, reported[-1].lag, reported[-1].late) == (2, 120, 0, 4)
    assert reported[-1].newest == newest


def test_the_lag_in_events_is_estimated_from_the_messages_read() -> None:
    tracker = ProgressTracker(lambda progress: None)
    tracker.on_query_progress(report({"a": 0}, {"a": 0}, {"a": 3}))
    assert tracker.progress.lag is None  # nothing is known of messages yet
    tracker.add_batch(100, None, late=0)
    tracker.on_query_progress(report({"a": 0}, {"a": 10}, {"a": 15}))
    assert tracker.progress.lag == 50
    tracker.on_query_progress(report({"a": 10}, {"a": 15}, None))
    assert tracker.progress.lag is None


def test_the_status_says_how_it_goes() -> None:
    run = Run("run-1", "follow", datetime(2026, 11, 16, 9, tzinfo=UTC))
    answer = status_answer(run, AnalysisProgress("following", batches=2, events=120, lag=0), "failed", 10.0, "no disk")
    assert (answer.job, answer.chart, answer.keys) == ("status", "status", ("run",))
    assert answer.rows == [
        {
            "run": "run-1",
            "mode": "follow",
            "state": "failed",
            "started": "2026-11-16T09:00:00.000000Z",
            "batches": 2,
            "events": 120,
            "lag": 0,
            "newest_event": None,
            "late_events": 0,
            "error": "no disk",
            "window_seconds": 10.0,
        }
    ]


def test_the_reason_of_a_failure_is_the_last_line_of_the_python_side() -> None:
    text = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_ERROR] Failed when
Python streaming data source perform planPartitions: Traceback (most recent call last):
  File "reader.py", line 10, in partitions
    raise DataLost(...)
warrenmq.pipeline.errors.DataLost: offsets 3 to 7 of stream warren.events are gone
 SQLSTATE: 38000
\tat org.apache.spark.Foo.bar(Foo.scala:1)
Caused by: java.lang.IllegalStateException: something else
"""
    assert short_reason(text) == "offsets 3 to 7 of stream warren.events are gone"
    assert short_reason("  ValueError: the disk is full\n\tat x.y\n") == "ValueError: the disk is full"
    assert short_reason("just words") == "just words"
