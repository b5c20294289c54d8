"""Documents of the stream warren.analysis: plain values, bounded messages, nothing lost by splitting."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from warrenmq.pipeline.jobs.answers import Answer, plain_rows
from warrenmq.pipeline.publish.results import Run, document_of, split
from warrenmq.pipeline.times import TimeRange

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

START = datetime(2026, 11, 16, 10, tzinfo=UTC)
RUN = Run("run-1", "follow", START)


def document(rows: list[dict[str, object]], windows: tuple[str, ...] = ()) -> dict[str, object]:
    answer = Answer("latency", "Latency", "percentiles", ("window_start", "queue"), rows, windows, 10.0)
    return document_of(answer, RUN, 7, TimeRange(START, START), START)


def test_rows_hold_what_json_has() -> None:
    table = pa.table(
        {
            "time": pa.array([START], pa.timestamp("us", tz="UTC")),
            "name": ["a"],
            "nothing": pa.array([None], pa.string()),
            "not_a_number": [float("nan")],
            "endless": [float("inf")],
            "list": [[1.5, float("nan")]],
            "yes": [True],
        }
    )
    assert plain_rows(table) == [
        {
            "time": "2026-11-16T10:00:00.000000Z",
            "name": "a",
            "nothing": None,
            "not_a_number": None,
            "endless": None,
            "list": [1.5, None],
            "yes": True,
        }
    ]


def test_a_job_that_answers_with_bytes_is_an_error() -> None:
    with pytest.raises(TypeError, match="answers hold text, numbers, times"):
        plain_rows(pa.table({"bytes": [b"x"]}))


def test_a_short_answer_is_one_message() -> None:
    (message,) = split(document([{"queue": "q", "p95": 1}], ("2026-11-16T10:00:00.000000Z",)))
    told = json.loads(message.body)
    assert message.id == "run-1/7/latency/0"
    assert told | {"rows": []} == {
        "version": 1,
        "job": "latency",
        "title": "Latency",
        "chart": "percentiles",
        "mode": "follow",
        "run": "run-1",
        "batch": 7,
        "written": "2026-11-16T10:00:00.000000Z",
        "range": ["2026-11-16T10:00:00.000000Z", "2026-11-16T10:00:00.000000Z"],
        "keys": ["window_start", "queue"],
        "windows": ["2026-11-16T10:00:00.000000Z"],
        "window_seconds": 10.0,
        "part": 0,
        "parts": 1,
        "rows": [],
    }
    assert told["rows"] == [{"queue": "q", "p95": 1}]


def test_no_rows_are_an_answer_too() -> None:
    (message,) = split(document([]))
    assert json.loads(message.body)["rows"] == []


def test_a_long_answer_is_split_and_nothing_is_lost() -> None:
    rows: list[dict[str, object]] = [{"queue": "ü" * 50, "number": number} for number in range(100)]
    windows = tuple(f"window {number}" for number in range(1000))
    messages = split(document(rows, windows), max_bytes=1500)
    told = [json.loads(message.body) for message in messages]
    assert len(messages) > 5
    assert all(len(message.body) < 1500 + 1500 + 1000 for message in messages)
    assert [row for part in told for row in part["rows"]] == rows
    assert [window for part in told for window in part["windows"]] == list(windows)
    assert [(part["part"], part["parts"]) for part in told] == [(n, len(told)) for n in range(len(told))]
    assert len({message.id for message in messages}) == len(messages)
