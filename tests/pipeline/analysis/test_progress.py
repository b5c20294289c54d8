"""How far a --follow is, from Spark's reports; and the one line of a failure that says why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from warrenmq.pipeline.analysis.answers import Run
from warrenmq.pipeline.analysis.failures import reason_of
from warrenmq.pipeline.analysis.progress import Progress, Tracker, lag_of, status_answer


def report(batch: int, rows: int, start: Any, end: Any, latest: Any, late: int = 0) -> dict[str, Any]:
    source = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "sources": [source],
        "eventTime": {"max": "2026-11-16T10:00:00.500Z"} if rows else {},
        "stateOperators": [{"numRowsDroppedByWatermark": late}],
    }


@pytest.mark.parametrize(
    ("start", "end", "latest", "rows", "lag"),
    [
        ({"a": 0}, {"a": 10}, {"a": 10}, 100, 0),
        ({"a": 0}, {"a": 10}, {"a": 15}, 100, 50),
        (None, {"a": 10, "b": 10}, {"a": 10, "b": 11}, 0, None),
        ('{"a": 4}', '{"a": 5}', '{"a": 7}', 8, 16),
        ({"a": 0}, {"a": 10}, None, 100, None),
        ({"a": 0}, "garbage", {"a": 10}, 100, None),
    ],
)
def test_lag_is_counted_in_events(start: Any, end: Any, latest: Any, rows: int, lag: int | None) -> None:
    assert lag_of(report(1, rows, start, end, latest)) == lag


def test_a_tracker_sums_up_and_counts_a_batch_once() -> None:
    told: list[Progress] = []
    tracker = Tracker(told.append)
    tracker.note(report(0, 100, {"a": 0}, {"a": 10}, {"a": 12}, late=3))
    tracker.note(report(0, 0, {"a": 10}, {"a": 10}, {"a": 12}))
    tracker.note(report(1, 20, {"a": 10}, {"a": 12}, {"a": 12}, late=1))
    assert told[-1] == tracker.progress
    assert (told[-1].batches, told[-1].events, told[-1].lag, told[-1].late) == (2, 120, 0, 4)
    assert told[-1].newest == datetime(2026, 11, 16, 10, 0, 0, 500_000, tzinfo=UTC)


def test_the_status_says_how_it_goes() -> None:
    run = Run("run-1", "follow", datetime(2026, 11, 16, 9, tzinfo=UTC))
    answer = status_answer(run, Progress("following", batches=2, events=120, lag=0), "failed", 10.0, "no disk")
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
warrenmq.pipeline.source.errors.DataLost: offsets 3 to 7 of stream warren.events are gone
 SQLSTATE: 38000
\tat org.apache.spark.Foo.bar(Foo.scala:1)
Caused by: java.lang.IllegalStateException: something else
"""
    assert reason_of(text) == "offsets 3 to 7 of stream warren.events are gone"
    assert reason_of("  ValueError: the disk is full\n\tat x.y\n") == "ValueError: the disk is full"
    assert reason_of("just words") == "just words"
