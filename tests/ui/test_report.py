"""The report in a browser that has no network, opened from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.management.findings import BEGIN, SECOND, iso, shop
from tests.ui.conftest import LIMIT_MS
from tests.ui.test_analysis_page import EVIL, needs_plotly
from warrenmq.pipeline.publish import report
from warrenmq.pipeline.publish.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

ABOUT = {"range": [iso(BEGIN), iso(BEGIN + 900 * SECOND)], "events": 1_234_567, "window": "10 seconds", "url": EVIL}


class Reading:
    """A report opened from a file; what it asks for and complains of is noted."""

    def __init__(self, chromium: Browser, path: Path, scheme: str = "light") -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.context = chromium.new_context(
            color_scheme=scheme,  # type: ignore[arg-type]
            viewport={"width": 1280, "height": 900},
            timezone_id="UTC",
            offline=True,
        )
        self.context.set_default_timeout(LIMIT_MS)
        self.page: Page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.route("**/*", self._ask)
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(".jobs:not(:has(.job[aria-busy]))", state="attached", timeout=3 * LIMIT_MS)

    def _ask(self, route: Route) -> None:
        self.asked.append(route.request.url)
        route.continue_()

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
        assert len(self.asked) == 1  # itself


@needs_plotly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_shows_the_same_charts_with_no_network(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "report.html"
    write_report(path, shop(), ABOUT)
    reading = Reading(chromium, path, scheme)
    page = reading.page
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.locator(".job h2").count() == 14
    assert page.locator("#job-throughput .scatterlayer .trace").count() == 4
    assert page.locator("#job-flow .band").count() == 11
    assert page.locator(".anomalies li").count() == 5
    assert "1,234,567" in page.inner_text("dl")
    assert EVIL in page.inner_text("dl")
    assert page.locator("main a:not([href^='#'])").count() == 0
    page.locator("#job-latency select[name=queue]").select_option("billing")
    page.wait_for_selector("#job-latency .legendtext >> text=p99")
    page.click("text=Light or dark")
    other = "dark" if scheme == "light" else "light"
    page.wait_for_selector(f"html[data-theme={other}]")
    assert page.evaluate("window.hacked") is None
    reading.close()


def test_without_plotly_a_report_has_tables(chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    path = tmp_path / "report.html"
    write_report(path, shop(5), ABOUT)
    reading = Reading(chromium, path)
    assert reading.page.locator("#job-throughput tbody tr").count() == 50
    assert "pip install 'warrenmq[ui]'" in reading.page.inner_text("#job-throughput")
    reading.close()


def test_a_report_of_nothing_says_so(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, [], {})
    reading = Reading(chromium, path)
    assert "No results" in reading.page.inner_text("main")
    reading.close()
