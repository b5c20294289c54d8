"""`warren analyze` up to the point where Spark starts, and how it draws what it found.

With Spark it runs in tests/pipeline/analysis.
"""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

import warrenmq
from warrenmq.cli.analyze import ANALYSIS_FAILED, NO_EVENTS, AnalyzeOptions, analyze
from warrenmq.cli.analyze_view import duration, progress_text, progress_view, show_anomalies, show_findings
from warrenmq.pipeline.analysis.progress import AnalysisProgress
from warrenmq.pipeline.spark import session

NOWHERE = "amqp://127.0.0.1:1"
WINDOW = {"window_start": "2026-11-16T10:00:00.000000Z", "window_end": "2026-11-16T10:00:10.000000Z", "vhost": "/"}


def refused(capsys: pytest.CaptureFixture[str], **flags: Any) -> str:
    """What is said instead of an analysis."""
    wanted = AnalyzeOptions(**({"url": NOWHERE, "user": "guest:guest"} | flags))
    assert analyze(wanted) == ANALYSIS_FAILED
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"follow": True, "report": "x.html"}, "--report is for a time range"),
        ({"follow": True, "end": "10m"}, "leave out --to or --follow"),
        ({"once": True}, "--once is for --follow"),
        ({"trigger": "1s"}, "add --follow or leave out --trigger"),
        ({"follow": True, "once": True, "trigger": "1s"}, "leave out one of them"),
        ({"start": "1h", "last": "1h"}, "give --from or --last, not both"),
        ({"last": "soon"}, "'soon' is not a duration"),
        ({"start": "soon"}, "2026-11-16T10:00:00Z"),
        ({"url": "http://127.0.0.1:15672"}, "give the AMQP port"),
        ({"url": "amqp://host:port"}, "port"),
        ({"user": "guest"}, "use --user guest:PASSWORD"),
        ({"conf": ("memory=1g",)}, "spark.executor.memory=2g"),
    ],
)
def test_contradictory_flags_are_refused(flags: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, **flags)
    assert said in told
    assert "Traceback" not in told


def test_without_spark_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'warrenmq[spark]'" in refused(capsys)


def test_an_unknown_job_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    assert "there is no job 'speed'; there are throughput, latency" in refused(capsys, jobs="latency,speed")
    assert "names no job" in refused(capsys, jobs=",")
    assert "an hour at most" in refused(capsys, window="2h")


def test_an_unreachable_broker_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    told = refused(capsys)
    assert "cannot connect to the broker at 127.0.0.1:1" in told
    assert "guest" not in told


def test_without_an_event_log_it_says_how_to_switch_tracing_on(
    warren: warrenmq.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    assert analyze(AnalyzeOptions(url=warren.url, user="guest:guest")) == NO_EVENTS
    told = capsys.readouterr().err
    assert "has no event log" in told
    assert "warren serve --trace all" in told


# -- what is drawn -----------------------------------------------------------------------------------------------------


def document(job: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"job": job, "rows": [WINDOW | row for row in rows]}


def drawn(*documents: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    show_findings(documents, {"Events": "1,234", "TimeRange": "10:00 to 11:00"}, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= 80 for line in text.splitlines())
    return str(text)


def test_findings_fit_into_80_columns() -> None:
    text = drawn(
        document(
            "throughput",
            {"what": "queue", "name": "orders" * 9, "enqueued": 123_456, "delivered": 9, "acked": 8},
            {"what": "exchange", "name": "shop", "published": 1000, "bytes": 5_000_000},
            {"what": "exchange", "name": "quiet", "published": 0, "bytes": 0},
        ),
        document("latency", {"queue": "orders" * 9, "waiting_p95_us": 4_110_000, "end_to_end_p95_us": 950}),
        document(
            "priorities",
            *(
                {"queue": "orders" * 9, "priority": level, "delivered": 123_456}
                | {f"waiting_{each}_us": 59_123_456 // (level + 1) for each in ("mean", "p50", "p99", "max")}
                for level in (0, 9, 255)
            ),
        ),
        document("backlog", {"queue": "orders" * 9, "depth": 17}),
        document(
            "failures", {"queue": "orders", "kind": "nacked", "reason": "", "count": 400, "top_key": "orders.broken"}
        ),
        document(
            "retries",
            *(
                {"what": what, "queue": "orders" * 9, "name": name, "returned": 120, "per_second": 120.0}
                | {"usual_per_second": usual, "reason": "consumer_timeout", "storm": storm}
                for what, name, usual, storm in (
                    ("queue", "orders" * 9, 0.3, False),
                    ("key", "orders.broken" * 3, None, True),
                    ("key", "orders.fine", 0.0, False),
                )
            ),
        ),
        document(
            "dead_letters",
            *(
                {"queue": "orders" * 9, "reason": "delivery_limit", "exchange": "shop" * 9, "routing_key": "broken" * 9}
                | {"count": count, "example_uids": uids}
                for count, uids in ((3, ["0A1B2C3D4E5F6", "0A1B2C3D4E5F7"]), (4, []))
            ),
        ),
        document(
            "hot_keys",
            {"exchange": "shop", "routing_key": "orders.eu", "published": 900, "failed": 0, "poison": False},
            {"exchange": "shop", "routing_key": "orders.broken", "published": 5, "failed": 400, "poison": True},
        ),
        document(
            "consumers",
            {
                "queue": "orders",
                "consumer": "packer-2",
                "connection": "c",
                "channel": 1,
                "stuck": True,
                "stuck_since": WINDOW["window_start"],
                "outstanding": 20,
            },
        ),
        document(
            "anomalies", {"score": 7.0, "sentence": "queue orders: waiting time p95 rose from 12 ms to 4.1 s at 10:00"}
        ),
    )
    assert "1,234 events, 10:00 to 11:00" in text
    assert "123,456" in text
    levels = re.findall(r" (\d+) +123,456 +([\d.]+ \w+) +([\d.]+ \w+) +([\d.]+ \w+) *$", text, re.MULTILINE)
    assert levels == [("255", *["231 ms"] * 3), ("9", *["5.91 s"] * 3), ("0", *["59.1 s"] * 3)]
    assert "4.11 s" in text
    assert "950 us" in text
    assert "17" in text
    assert text.index("orders.broken") < text.rindex("orders.eu")  # what fails comes first
    assert "poison" in text
    assert re.search(
        r"orders.* orders.* 120 +7,200 +consumer_timeout +storm *\n.* 120 +7,200 +18 +consumer_timeout", text
    )
    assert "orders.fine" not in text, "a routing key is shown if it makes a storm"
    assert re.search(r" delivery_limit .* 7 +0A1B2C3D4E5F7 *$", text, re.MULTILINE)
    assert "packer-2" in text
    assert "waiting time p95 rose from 12 ms to 4.1 s" in text
    assert "quiet" not in text


def test_no_anomalies_are_said_and_jobs_that_did_not_run_are_not() -> None:
    text = drawn(document("anomalies"))
    assert "No anomalies." in text
    assert "Queues" not in text


def test_names_that_would_move_the_cursor_are_shown_inert() -> None:
    row = {"exchange": "shop\x1b[2J", "routing_key": "[red]a\x07", "count": 1, "returned": 0}
    text = drawn(document("unroutable", row))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "shop\\x1b[2J" in text
    assert "[red]a" in text


def test_more_rows_than_fit_are_counted() -> None:
    rows = [{"what": "published", "name": f"id-{number}", "times": 2} for number in range(12)]
    assert "and 4 more" in drawn(document("duplicates", *rows))


def test_a_follow_shows_the_anomalies_of_the_newest_window() -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    old = {"window_start": "2026-11-16T09:00:00.000000Z", "sentence": "old news"}
    show_anomalies(document("anomalies", {"sentence": "queue orders grew"}) | {}, console)
    show_anomalies({"job": "anomalies", "rows": [old, WINDOW | {"sentence": "and again"}]}, console)
    show_anomalies(document("latency", {}), console)
    assert console.file.getvalue() == "10:00:00 queue orders grew\n10:00:00 and again\n"  # type: ignore[attr-defined]


def test_durations_have_three_digits() -> None:
    assert [duration(value) for value in (0, 999, 1_500, 4_110_000, 119_000_000, 7_200_000_000, None)] == [
        "0 us",
        "999 us",
        "1.5 ms",
        "4.11 s",
        "119 s",
        "120 min",
        "",
    ]


def test_progress_contains_batches_events_and_lag(capsys: pytest.CaptureFixture[str]) -> None:
    following = AnalysisProgress("following", batches=3, events=12_345, lag=67, late=2)
    assert progress_text(following) == "following · batches 3 · events 12,345 · lag 67 · late 2"
    assert progress_text(AnalysisProgress("Latency", 1, 11)) == "Latency · 1 of 11"
    with progress_view() as tell:  # no terminal here: a line for what is new, not for every report
        tell(following)
        tell(following)
        tell(AnalysisProgress("waiting for the broker", batches=3, events=12_345))
    assert capsys.readouterr().err.splitlines() == [
        "warren: following · batches 3 · events 12,345 · lag 67 · late 2",
        "warren: waiting for the broker · batches 3 · events 12,345 · lag ?",
    ]
