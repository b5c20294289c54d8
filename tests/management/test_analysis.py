"""GET /api/analysis: what the analysis wrote to its stream, and what becomes of everything else that is there."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.management.asking import GUEST, LIMITED, Browser
from tests.management.fakes import FakeNode
from tests.management.findings import BEGIN, answer, append, declare, iso, windowed
from warrenmq.core.restore import restore_queue
from warrenmq.management import analysis, analysis_reader
from warrenmq.management.analysis import MAX_JOBS, InvalidResult, ResultBoard, parse_result
from warrenmq.management.api.analysis import status_values

NAME = analysis_reader.STREAM_NAME


def asked(node: FakeNode, path: str = "/api/analysis", who: tuple[str, str] = GUEST) -> Any:
    response = Browser(node).get(path, auth=who)
    assert response.status_code == 200, response.text
    return response.json()


def rows_of(node: FakeNode, path: str = "/api/analysis/throughput", who: tuple[str, str] = GUEST) -> list[int]:
    return [row["count"] for row in asked(node, path, who)["rows"]]


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_where_there_is_no_stream_there_are_no_jobs() -> None:
    told = asked(FakeNode())
    assert (told["jobs"], told["status"], told["exists"], told["behind"]) == ([], None, False, 0)
    assert told["tracing"]["enabled"] is False


def test_jobs_are_listed_with_their_descriptions() -> None:
    node = FakeNode()
    append(node, answer("throughput", [windowed(0, count=7)], written=BEGIN), answer("flow", [], chart="flow"))
    first, second = asked(node)["jobs"]
    assert first.pop("age_seconds") >= 0
    assert first == {
        "job": "throughput",
        "title": "Throughput",
        "chart": "lines",
        "mode": "follow",
        "keys": ["window_start", "queue"],
        "written": iso(BEGIN),
        "revision": 1,
        "row_count": 1,
        "windows": [10.0],
    }
    assert (second["job"], second["row_count"]) == ("flow", 0)


def test_rows_are_given_as_they_were_written_the_oldest_window_first() -> None:
    node = FakeNode()
    late, early = windowed(3, count=2, name="\ud800<é>"), windowed(1, count=1, per_second=0.1, list=[0.5, None])
    append(node, answer("throughput", [late, early]))
    told = asked(node, "/api/analysis/throughput")
    assert told["rows"] == [early, late]
    assert (told["window_seconds"], told["complete"]) == (10.0, True)


def test_a_later_message_wins_row_by_row() -> None:
    node = FakeNode()
    append(node, answer("throughput", [windowed(0, count=1), windowed(0, "other", count=5)]))
    append(node, answer("throughput", [windowed(0, count=2)], batch=1))
    assert sorted(rows_of(node)) == [2, 5]


def test_complete_windows_replace_earlier_rows() -> None:
    node = FakeNode()
    append(node, answer("throughput", [windowed(0, count=1), windowed(0, "gone", count=5), windowed(1, count=3)]))
    append(node, answer("throughput", [windowed(0, count=2)], batch=1, windows=[0]))
    append(node, answer("throughput", [windowed(0, "more", count=4)], batch=1, windows=[0]))  # another part of it
    assert sorted(rows_of(node)) == [2, 3, 4]
    append(node, answer("throughput", [], batch=2, windows=[1], window_seconds=10))
    assert sorted(rows_of(node)) == [2, 4]


def test_windows_of_different_lengths_are_kept_apart() -> None:
    node = FakeNode()
    append(node, answer("throughput", [windowed(0, count=1)]))
    append(node, answer("throughput", [windowed(0, length=60, count=6)], run="batch", windows=[0]))
    assert rows_of(node) == [6]
    assert rows_of(node, "/api/analysis/throughput?window=10") == [1]
    assert asked(node)["jobs"][0]["windows"] == [10.0, 60.0]


@pytest.mark.parametrize(
    ("asked_for", "found"),
    [
        ("", [0, 1, 2, 3]),
        (f"?from={iso(BEGIN + 20_000_000)}", [2, 3]),
        (f"?to={iso(BEGIN + 10_000_000)}", [0, 1]),
        (f"?from={iso(BEGIN + 15_000_000)}&to={iso(BEGIN + 25_000_000)}", [1, 2]),
        ("?limit=3", [1, 2, 3]),
    ],
)
def test_a_time_and_a_number_of_rows_can_be_asked_for(asked_for: str, found: list[int]) -> None:
    node = FakeNode()
    append(node, answer("throughput", [windowed(n, count=n) for n in range(4)]))
    assert rows_of(node, "/api/analysis/throughput" + asked_for) == found
    assert asked(node, "/api/analysis/throughput?limit=3")["complete"] is False


def test_rows_after_a_revision_are_those_of_changed_windows() -> None:
    node = FakeNode()
    append(node, answer("throughput", [windowed(n, count=n) for n in range(4)]))
    browser = Browser(node)
    first = browser.get("/api/analysis/throughput", auth=GUEST).json()
    append(node, answer("throughput", [windowed(3, count=33), windowed(4, count=4)], batch=1, windows=[2, 3, 4]))
    told = browser.get(f"/api/analysis/throughput?after={first['revision']}", auth=GUEST).json()
    assert [row["count"] for row in told["rows"]] == [33, 4]
    starts = [windowed(n)["window_start"] for n in range(5)]
    assert told["changed"] == starts[3:]
    assert told["present"] == [*starts[:2], *starts[3:]]
    assert told["board"] == first["board"] != asked(node)["board"]


def test_rows_of_no_window_are_given_whatever_the_time() -> None:
    node = FakeNode()
    append(node, answer("throughput", [{"queue": "q", "count": 3}], keys=["queue"]))
    append(node, answer("throughput", [{"queue": "q", "count": 4}], keys=["queue"], batch=1))
    assert rows_of(node, "/api/analysis/throughput?from=1h") == [4]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/api/analysis/nothing", 404, "no results of a job 'nothing'"),
        ("/api/analysis/throughput?form=1h", 400, "unknown parameter 'form'; did you mean 'from'?"),
        ("/api/analysis/throughput?limit=0", 400, "'limit' must be a whole number from 1 to 10000"),
        ("/api/analysis/throughput?from=1h&to=2h", 400, "'from' is later than 'to'"),
        ("/api/analysis/throughput?window=ten", 400, "'window' must be a whole number"),
    ],
)
def test_invalid_requests_are_refused_with_the_expected_form(path: str, status: int, reason: str) -> None:
    node = FakeNode()
    append(node, answer("throughput", []))
    response = Browser(node).get(path, auth=GUEST)
    assert response.status_code == status
    assert response.json()["reason"].startswith(reason)


def test_anonymous_requests_are_refused() -> None:
    for path in ("/api/analysis", "/api/analysis/throughput", "/api/streams"):
        assert Browser().get(path).status_code == 401


def test_a_user_sees_rows_of_virtual_hosts_that_are_theirs() -> None:
    node = FakeNode()
    rows = [windowed(0, count=1, vhost="/"), windowed(0, "b", count=2, vhost="other"), windowed(0, "c", count=3)]
    append(node, answer("throughput", rows, keys=["window_start", "vhost", "queue"]))
    assert rows_of(node, who=LIMITED) == [2]
    assert rows_of(node) == [1, 2, 3]


@pytest.mark.parametrize(
    ("state", "age", "silent"), [("running", 31, True), ("running", 29, False), ("stopped", 99, False)]
)
def test_running_analysis_without_messages_is_silent(state: str, age: int, silent: bool) -> None:
    board = ResultBoard()
    row = {"run": "r", "state": state, "batches": 3}
    board.add([parse_result(json.dumps(answer("status", [row], keys=["run"], written=BEGIN)).encode())])
    told = status_values(board, BEGIN + age * 1_000_000)
    assert told is not None
    assert (told["silent"], told["age_seconds"], told["batches"]) == (silent, age, 3)
    assert board.jobs == {}
    later = answer("flow", [], written=BEGIN + age * 1_000_000)
    board.add([parse_result(json.dumps(later).encode())])
    told = status_values(board, BEGIN + age * 1_000_000)
    assert told is not None
    assert told["silent"] is False  # results are words, too


# -- what anybody may have published there -----------------------------------------------------------------------------

GOOD = answer("throughput", [windowed(0, count=1)])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b'{"version": 2}',
        json.dumps(GOOD | {"job": ""}).encode(),
        json.dumps(GOOD | {"job": "x" * 65}).encode(),
        json.dumps(GOOD | {"job": ["x"]}).encode(),
        json.dumps(GOOD | {"rows": 3}).encode(),
        json.dumps(GOOD | {"rows": [[1]]}).encode(),
        json.dumps(GOOD | {"rows": [{"a": {}}]}).encode(),
        json.dumps(GOOD | {"rows": [{"a": [[]]}]}).encode(),
        json.dumps(GOOD | {"rows": [{f"c{n}": n for n in range(65)}]}).encode(),
        json.dumps(GOOD | {"rows": [{"window_start": "yesterday"}]}).encode(),
        json.dumps(GOOD | {"rows": [{"window_start": 5}]}).encode(),
        json.dumps(GOOD | {"rows": [{"window_start": "0001-01-01T00:00:00+14:00"}]}).encode(),
        json.dumps(GOOD | {"written": "9999-12-31T23:59:59-14:00"}).encode(),
        json.dumps(GOOD | {"keys": "queue"}).encode(),
        json.dumps(GOOD | {"written": None}).encode(),
        json.dumps(GOOD | {"windows": [7]}).encode(),
        b'{"version":1,"job":"x","rows":[{"n":' + b"9" * 5000 + b"}]}",
    ],
)
def test_invalid_messages_are_skipped_and_counted(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidResult):
        parse_result(body)
    node = FakeNode()
    with caplog.at_level(logging.WARNING, "warrenmq"):
        append(node, body, GOOD, body)
        told = asked(node)
    assert (told["skipped"], len(told["jobs"]), bool(told["complaint"])) == (2, 1, True)
    assert len([record for record in caplog.records if record.name.startswith("warrenmq")]) == 1


def test_numbers_that_are_none_do_not_break_the_answer() -> None:
    node = FakeNode()
    body = json.dumps(GOOD).replace('"count": 1', '"count": 1, "a": NaN, "b": 1e999, "c": [-Infinity]')
    append(node, body.encode())
    row = asked(node, "/api/analysis/throughput")["rows"][0]
    assert (row["a"], row["b"], row["c"]) == (None, None, [None])


def test_a_message_that_is_too_large_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_reader, "MAX_MESSAGE_SIZE", 100)
    node = FakeNode()
    append(node, GOOD)
    assert asked(node)["skipped"] == 1


def test_memory_is_bounded_and_the_rows_written_longest_ago_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "MAX_ROWS", 10)
    node = FakeNode()
    for batch in range(6):
        append(node, answer("throughput", [windowed(batch, name, count=batch) for name in "abc"], batch=batch))
    assert rows_of(node) == [2, 3, 3, 3, 4, 4, 4, 5, 5, 5]
    monkeypatch.setattr(analysis, "MAX_ROWS", 10_000)
    monkeypatch.setattr(analysis, "MAX_BYTES", 700)
    append(node, answer("throughput", [windowed(9, count=9)], batch=9))
    assert 1 < len(rows_of(node)) < 7
    assert rows_of(node)[-1] == 9


def test_the_number_of_jobs_is_bounded() -> None:
    node = FakeNode()
    append(node, *(answer(f"job{n}", []) for n in range(MAX_JOBS + 3)))
    assert [job["job"] for job in asked(node)["jobs"]] == [f"job{n}" for n in range(3, MAX_JOBS + 3)]


# -- the stream --------------------------------------------------------------------------------------------------------


def test_later_messages_are_read_on_the_next_request() -> None:
    node = FakeNode()
    browser = Browser(node)
    for count in range(3):
        append(node, answer("throughput", [windowed(count, count=count)], batch=count))
        assert browser.get("/api/analysis", auth=GUEST).json()["jobs"][0]["revision"] == count + 1


def test_a_stream_that_was_deleted_is_forgotten_and_another_begins_anew() -> None:
    node = FakeNode()
    browser = Browser(node)
    append(node, answer("throughput", [windowed(0, count=1)]))
    assert browser.get("/api/analysis", auth=GUEST).json()["jobs"]
    vhost = node.broker.vhosts["/"]
    vhost.delete_queue(NAME, if_unused=False, if_empty=False, connection=None)
    told = browser.get("/api/analysis", auth=GUEST).json()
    assert (told["jobs"], told["exists"]) == ([], False)
    append(node, answer("flow", []), answer("flow", []))
    assert [job["job"] for job in browser.get("/api/analysis", auth=GUEST).json()["jobs"]] == ["flow"]


def test_a_queue_of_that_name_is_no_stream() -> None:
    node = FakeNode()
    restore_queue(node.broker.vhosts["/"], {"name": NAME, "auto_delete": False, "arguments": {}})  # of an older version
    assert asked(node)["exists"] is False


def test_after_a_restart_the_newest_messages_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_reader, "REREAD_MESSAGES", 5)
    node = FakeNode()
    for count in range(9):
        append(node, answer("throughput", [windowed(count, count=count)], batch=count))
    assert rows_of(node) == [4, 5, 6, 7, 8]


def test_trimmed_messages_are_skipped() -> None:
    node = FakeNode()
    declare(node, {"x-max-length-bytes": 20_000, "x-stream-max-segment-size-bytes": 5_000})
    browser = Browser(node)
    append(node, answer("throughput", [windowed(0, count=0)]))
    browser.get("/api/analysis", auth=GUEST)
    append(node, *(answer("throughput", [windowed(n, count=n, padding="x" * 900)], batch=n) for n in range(1, 200)))
    stream = node.broker.vhosts["/"].queues[NAME]
    assert stream.first_offset > 100
    told = browser.get("/api/analysis/throughput", auth=GUEST).json()
    assert told["rows"][-1]["count"] == 199
    assert 200 - len(told["rows"]) >= stream.first_offset - 1


def test_a_request_waits_for_a_limited_time_and_the_next_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_reader, "JOBS_TIMEOUT", 0.0)
    node = FakeNode()
    append(node, *(answer("throughput", [windowed(n, count=n)], batch=n) for n in range(9)))
    browser = Browser(node)
    assert browser.get("/api/analysis", auth=GUEST).json()["behind"] == 9
    monkeypatch.setattr(analysis_reader, "JOBS_TIMEOUT", 20.0)
    assert browser.get("/api/analysis", auth=GUEST).json()["behind"] == 0


# -- streams -----------------------------------------------------------------------------------------------------------


def test_streams_are_listed_for_users_with_access_to_their_vhost() -> None:
    node = FakeNode()
    append(node, GOOD, GOOD)
    node.broker.vhosts["/"].declare_queue("q", True, False, False, {}, connection=None)
    node.broker.vhosts["other"].declare_queue("orders", True, False, False, {"x-queue-type": "stream"}, connection=None)
    ours = {"name": NAME, "vhost": "/", "first_offset": 0, "next_offset": 2}
    theirs = {"name": "orders", "vhost": "other", "first_offset": 0, "next_offset": 0}
    assert asked(node, "/api/streams")["streams"] == [ours, theirs]
    assert asked(node, "/api/streams?vhost=/")["streams"] == [ours]
    assert asked(node, "/api/streams", LIMITED)["streams"] == [theirs]
    response = Browser(node).get("/api/streams?vhost=/", auth=LIMITED)
    assert (response.status_code, response.json()["reason"]) == (
        404,
        "no such virtual host, or no access to it: '/'",
    )
