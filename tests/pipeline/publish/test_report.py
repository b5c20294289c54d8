"""The report as a file: what is in it, and that nothing in it comes from elsewhere. tests/ui opens it in a browser."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.management.findings import answer, shop, status, windowed
from warrenmq.pipeline.publish import report
from warrenmq.pipeline.publish.report import import_map, report_page, write_report

ABOUT = {
    "range": ["2026-11-16T04:50:00.000000Z", "2026-11-16T05:05:00.000000Z"],
    "events": 1_234_567,
    "url": "amqp://b/",
}


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_parts_of_an_answer_are_joined() -> None:
    parts = [answer("throughput", [windowed(1, count=2)]), answer("throughput", [windowed(0, count=1)])]
    data = data_of(report_page([*parts, status(), *shop(3)[1:2]], ABOUT))
    assert data["about"] == ABOUT
    assert [found["job"] for found in data["answers"]] == ["throughput"]
    rows = data["answers"][0]["rows"]
    assert [row["window_start"] for row in rows] == sorted(row["window_start"] for row in rows)
    assert len(rows) == 2 + 3 * 10


def test_names_cannot_end_the_element_they_stand_in() -> None:
    evil = "</script><script>alert(1)</script><!-- \u2028 \ud800"
    page = report_page([answer("throughput", [windowed(0, count=1, name=evil)], title=evil)], {"url": evil})
    assert data_of(page)["answers"][0]["rows"][0]["name"] == evil
    page.encode("utf-8")  # a name that is no text does not break the file
    assert "alert(1)</script>" not in page


def test_scripts_end_where_their_elements_do() -> None:
    page = report_page([], {})
    opened = re.findall(r"<script\b", page.split("</head>")[0] + page.split('id="data"')[1][:50])
    assert opened
    assert len(re.findall(r"</script>", page, re.IGNORECASE)) == 5
    assert len(re.findall(r"</style>", page, re.IGNORECASE)) == 1


def test_the_content_policy_forbids_requests() -> None:
    page = report_page([], {})
    head = page.split("<style>")[0]
    assert (
        "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:" in head
    )
    assert not re.search(r"<(script|link|img|iframe)[^>]* (src|href)=", page.split("<style>")[0])


def test_only_the_newest_rows_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_ROWS", 3)
    found = data_of(report_page([answer("throughput", [windowed(n, count=n) for n in range(5)])], {}))["answers"][0]
    assert ([row["count"] for row in found["rows"]], found["left_out"]) == ([2, 3, 4], 2)


def test_the_file_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, shop(2), ABOUT)
    first = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_report(path, [answer("throughput", [windowed(0, count=float("nan"))])], {})
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path / "missing" / "report.html", [], {})


def test_without_plotly_the_file_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert len(report_page([], {})) < 200_000


def test_modules_import_each_other_by_names_of_the_import_map() -> None:
    modules = import_map()["imports"]
    for name, url in modules.items():
        text = base64.b64decode(url.removeprefix("data:text/javascript;base64,")).decode()
        assert set(re.findall(r'^import .*"(.*)";', text, re.MULTILINE)) <= set(modules), name
    assert "ui/report.js" in modules
