"""Takes the pictures of the documents: a real broker, a real analysis, Chromium without a screen.

    .venv/bin/python tools/screenshots.py [--into docs/images] [--messages 20000]

A made-up hour of a shop with known faults (`tests.support.history`) is put into the event log, `warren analyze`
runs over it, and the pages and the report are photographed. Needs Spark, Java, Playwright and Chromium.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import warrenmq

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.history import make_history  # noqa: E402
from tests.ui.conftest import CHROMIUM  # noqa: E402
from tools.png_palette import shrink  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LIMIT_MS = 60_000
ANALYSIS_SECONDS = 900
LARGEST_PICTURE = 150_000
WIDTH = 1200


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    wanted.add_argument("--messages", type=int, default=20_000)
    flags = wanted.parse_args()
    flags.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, warrenmq.Broker(http=True, trace="all") as broker:
        report = Path(scratch) / "report.html"
        fill(broker.url, flags.messages)
        analyse(broker.url, report)
        photograph(broker.http_url, report, flags.into)
    for picture in sorted(flags.into.glob("*.png")):
        shrink(picture)
        size = picture.stat().st_size
        print(f"{picture.name}: {size:,} bytes" + (" (too large)" if size > LARGEST_PICTURE else ""))


def fill(url: str, messages: int) -> None:
    """An hour that ends now."""
    begin = (datetime.now(UTC) - timedelta(minutes=59)).replace(second=0, microsecond=0)
    history = make_history(messages, start=begin)
    history.publish(url)
    print(f"{history.rows:,} events", flush=True)


def analyse(url: str, report: Path) -> None:
    address = url.replace("guest:guest@", "")
    command = [sys.executable, "-m", "warrenmq", "analyze", "--url", address, "--last", "1h", "--window", "30s"]
    subprocess.run([*command, "--report", str(report)], check=True, timeout=ANALYSIS_SECONDS)


@contextmanager
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def photograph(url: str, report: Path, into: Path) -> None:
    with chromium() as browser:
        page = opened(browser, "light")
        page.goto(f"{url}/ui/traces.html?exchange=shop&kind=acked")
        page.fill("input[name=username]", "guest")
        page.fill("input[name=password]", "guest")
        page.click("text=Sign in")
        page.wait_for_selector("tbody a")
        shoot(page, into / "traces.png")
        page.click("tbody a >> nth=0")
        page.wait_for_selector(".chart .main-svg .xtick", state="attached")
        shoot(page, into / "biography.png", 1100)
        page.goto(f"{url}/ui/analysis.html")
        settle(page)
        shoot(page, into / "analysis-light.png", 1400)
        page.locator("#job-flow").screenshot(path=str(into / "flow.png"))
        page = opened(browser, "dark")
        page.goto(report.as_uri())
        settle(page)
        shoot(page, into / "report-dark.png", 1300)


def opened(browser: Browser, scheme: str) -> Page:
    context = browser.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": WIDTH, "height": 900},
        timezone_id="UTC",
    )
    context.set_default_timeout(LIMIT_MS)
    return context.new_page()


def settle(page: Page) -> None:
    """Let every card be seen, and drawn."""
    page.wait_for_selector(".job")
    page.set_viewport_size({"width": WIDTH, "height": 6000})
    page.wait_for_selector(".jobs:not(:has(.job[aria-busy]))")
    page.wait_for_timeout(500)  # plotly fits its charts to their cards


def shoot(page: Page, path: Path, height: int = 820) -> None:
    page.screenshot(path=str(path), clip={"x": 0, "y": 0, "width": WIDTH, "height": height}, full_page=True)


if __name__ == "__main__":
    main()
