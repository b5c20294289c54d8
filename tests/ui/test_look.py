"""Light and dark, wide and narrow. Screenshots go to WARREN_TEST_SHOTS, where they are looked at."""

from __future__ import annotations

import pytest

from tests.management.fakes import UID, FakeNode, story
from tests.ui.conftest import OpenSite, Site
from warrenmq.tracing.rules import TraceRule

RULES = (
    TraceRule("settings", ratio=0.01, is_fixed=True),
    TraceRule("big customers", queue="orders.*", header={"tenant": "acme"}),
    TraceRule("off for now", vhost="/", exchange="news", ratio=0.25, enabled=False),
)
PAGES = {
    "traces": "/ui/traces.html",
    "biography": "/ui/traces.html?id=order-17",
    "nothing": "/ui/traces.html?id=gone",
    "rules": "/ui/trace_rules.html",
    "new-rule": "/ui/trace_rules.html?new",
    "analysis": "/ui/analysis.html",
}


def settled(site: Site, path: str) -> None:
    """Open the page and wait until it is drawn."""
    page = site.open(path)
    page.wait_for_selector("tbody tr, .state h2")
    if "order-17" in path:
        page.wait_for_selector(".chart .main-svg .xtick, .chart rect", state="attached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_follows_the_system_and_is_readable(open_site: OpenSite, scheme: str) -> None:
    site = open_site(FakeNode(story(), *(story(f"order-{n}", UID + n) for n in range(18, 30)), rules=RULES), scheme)
    site.page.goto(site.url + "/")
    site.page.wait_for_selector("input[name=password]")
    site.shoot(f"sign-in-{scheme}")
    for name, path in PAGES.items():
        settled(site, path)
        assert site.page.evaluate("document.documentElement.dataset.theme") == scheme
        site.shoot(f"{name}-{scheme}")
    assert least_contrast(site) >= 4.5  # WCAG AA for text


def test_off_looks_like_off(open_site: OpenSite) -> None:
    for scheme in ("light", "dark"):
        site = open_site(FakeNode(), scheme)
        settled(site, "/ui/traces.html")
        site.shoot(f"off-{scheme}")


def test_the_switch_is_remembered_and_the_chart_follows_it(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), rules=RULES))
    settled(site, PAGES["biography"])
    page = site.page
    page.click(".who >> text=Dark")
    page.wait_for_selector(".who >> text=Light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 23)"
    page.wait_for_selector(".chart svg")
    page.reload()
    page.wait_for_selector(".who >> text=Light")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_no_page_is_wider_than_the_window(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), story("m" * 200, UID + 1, queue="q" * 200), rules=RULES))
    for width in (390, 1280):
        site.page.set_viewport_size({"width": width, "height": 900})
        for name, path in PAGES.items():
            settled(site, path)
            if width < 1000:
                site.shoot(f"{name}-narrow")
            assert site.page.evaluate("document.documentElement.scrollWidth") <= width


def least_contrast(site: Site) -> float:
    """The least contrast of a text colour on the surfaces it stands on."""
    least: float = site.page.evaluate(
        """() => {
            const style = getComputedStyle(document.documentElement);
            const light = (name) => {
                const hex = style.getPropertyValue(name).trim().slice(1);
                const part = (at) => {
                    const value = parseInt(hex.slice(at, at + 2), 16) / 255;
                    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
                };
                return 0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4);
            };
            const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
            const texts = ["--text", "--muted", "--accent", "--info", "--ok", "--warn", "--bad", "--quiet"];
            const grounds = ["--surface", "--raised", "--ground"];
            const pairs = texts.flatMap((text) => grounds.map((ground) => contrast(text, ground)));
            return Math.min(...pairs, contrast("--accent-text", "--accent"));
        }"""
    )
    return least
