"""Debian's Chromium without a screen, driven by Playwright; where either is missing these tests are skipped.

WARREN_TEST_SHOTS=DIR keeps the screenshots there, to be looked at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.management.fakes import FakeNode
from tests.management.serving import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTH, HEIGHT = 1280, 900
LIMIT_MS = 45_000


@pytest.fixture(scope="module")  # Playwright occupies the event loop of its thread: other tests want it back
def chromium() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (Debian and Ubuntu: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # no sandbox for root
        yield browser
        browser.close()


class Site:
    """One node's pages in one browser. `now` is the time of its sessions."""

    def __init__(self, chromium: Browser, scheme: str = "light", width: int = WIDTH) -> None:
        self.node = FakeNode()
        self.now = 1000.0
        self.url = ""
        self.complaints: list[str] = []
        self.context: BrowserContext = chromium.new_context(
            color_scheme=scheme,  # type: ignore[arg-type]
            viewport={"width": width, "height": HEIGHT},
            timezone_id="UTC",
        )
        self.context.set_default_timeout(LIMIT_MS)
        self.page: Page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))

    def sign_in(self, name: str = "guest", password: str = "guest") -> None:
        """Fill in the form that is shown."""
        self.page.fill("input[name=username]", name)
        self.page.fill("input[name=password]", password)
        self.page.click("text=Sign in")

    def open(self, path: str) -> Page:
        """Go to a page as guest. The form to sign in with has its own tests: here the session is just asked for."""
        if not self.context.cookies():
            answer = self.context.request.post(
                self.url + "/api/login",
                headers={"X-Warren-CSRF": "-"},
                data={"username": "guest", "password": "guest"},
            )
            assert answer.ok, answer.text()
        self.page.goto(self.url + path)
        self.page.wait_for_selector("header.top")
        return self.page

    def do_without_plotly(self) -> None:
        """As where it is not installed. It is large: a browser needs seconds for it that most tests can do without."""
        answer = {"reason": "not installed"}
        self.page.route("**/vendor/plotly.js", lambda route: route.fulfill(status=404, json=answer))

    def shoot(self, name: str) -> None:
        if folder := os.environ.get("WARREN_TEST_SHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)

    def _hear(self, message: ConsoleMessage) -> None:
        is_expected = message.text.startswith("Failed to load resource")  # an answer that is a refusal
        if message.type in ("error", "warning") and not is_expected:
            self.complaints.append(message.text)


OpenSite = Callable[..., Site]


@pytest.fixture
def open_site(chromium: Browser) -> Iterator[OpenSite]:
    """Makes a site for a node; at the end no page may have complained."""
    sites: list[Site] = []
    serving = []

    def start(node: FakeNode, scheme: str = "light", width: int = WIDTH, charts: bool = True) -> Site:
        site = Site(chromium, scheme, width)
        if not charts:
            site.do_without_plotly()
        sites.append(site)
        site.node = node
        service = served(node, lambda: site.now)
        site.url = service.__enter__()
        serving.append(service)
        return site

    yield start
    for site in sites:
        site.context.close()
    for service in serving:
        service.__exit__(None, None, None)
    assert [complaint for site in sites for complaint in site.complaints] == []
