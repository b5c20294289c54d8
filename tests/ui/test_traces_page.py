"""The trace page in a browser: finding messages, the story of one, and what stands where there is nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.management.fakes import (
    UID,
    FakeNode,
    begun,
    dead_story,
    killed_story,
    purged_story,
    retried_story,
    scheduled_story,
    story,
)
from tests.ui.conftest import LIMIT_MS, OpenSite, Site
from warrenmq.tracing.rules import TraceRule

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

EVIL = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script><a href='javascript:hacked=1'>x</a>"
ALL = (TraceRule("all"),)
HOVERS = 5
# Asked of Python, not of the code under test: a lookup that finds nothing must fail here, not skip.
needs_plotly = pytest.mark.skipif(find_spec("plotly") is None, reason="plotly is not installed")


def rows(site: Site) -> list[str]:
    return [" ".join(text.split()) for text in site.page.locator("tbody tr").all_inner_texts()]


def titles(site: Site) -> list[str]:
    return site.page.locator("section h2").all_inner_texts()


def hover_over(mark: Locator, page: Page) -> str:
    """Point at a part of the chart, and read what it says; again if the chart moved away under the mouse."""
    from playwright.sync_api import TimeoutError as NothingCame

    tip = page.locator(".hoverlayer .hovertext").first
    for _ in range(HOVERS):
        page.mouse.move(0, 0)
        mark.hover(force=True)  # plotly lays a surface over the chart that hears the mouse
        try:
            tip.wait_for(timeout=LIMIT_MS / HOVERS)
        except NothingCame:
            continue
        return tip.text_content() or ""
    raise AssertionError("the chart says nothing")


# -- one message -------------------------------------------------------------------------------------------------------


@needs_plotly
def test_a_biography_is_shown_as_figures_a_timeline_and_tables(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), rules=ALL))
    page = site.open("/ui/traces.html?id=order-17")
    page.wait_for_selector(".chart .barlayer .point")
    assert page.locator(".figure").all_inner_texts() == [
        "18.5 ms\nfirst to last event",
        "9.72 ms\nwaiting in queues",
        "20.6 ms\nwith consumers",
        "5\ndeliveries",
        "acked\nlast event",
    ]
    assert titles(site) == ["Properties", "Timeline", "Queues", "Events"]
    assert page.locator(".chart .ytick").all_text_contents() == ["publisher", "shipping", "billing", "audit"]
    assert page.locator(".chart .barlayer .point").count() == 9
    assert page.locator(".chart .scatterlayer .point").count() == 17
    told = rows(site)
    assert told[0] == "shipping 4.08 ms 10.1 ms 2 packer-1, packer-2 acked"
    assert told[2] == "audit 1.78 ms \u2013 1 auditor delivered"
    assert len(told) == 4 + 17
    assert told[13].startswith("04:50:00.130856 7.4 ms requeued shipping packer-1 1 connection-closed")


def test_a_priority_that_all_events_have_is_shown_once(open_site: OpenSite) -> None:
    plain = story()
    events = [replace(event, priority=7) for event in plain.events]
    page = open_site(FakeNode(replace(plain, events=events), rules=ALL)).open("/ui/traces.html?id=order-17")
    page.wait_for_selector("tbody tr")
    assert page.locator("dl.facts dt:has-text('Priority') + dd").inner_text() == "7"
    assert page.locator("main").inner_text().lower().count("priority") == 1


def test_where_messages_have_different_priorities_each_event_shows_its_own(open_site: OpenSite) -> None:
    plain = story()
    events = [replace(event, priority=7 if event.uid == UID else None) for event in plain.events]
    site = open_site(FakeNode(replace(plain, events=events), rules=ALL))
    page = site.open("/ui/traces.html?id=order-17")
    page.wait_for_selector("tbody tr")
    assert page.locator("dl.facts dt:has-text('Priority') + dd").inner_text() == "7"
    heads = page.locator("section", has_text="Events").last.locator("th").all_inner_texts()
    at = [head.lower() for head in heads].index("priority")
    told = [row.locator("td").nth(at).inner_text() for row in page.locator("section").last.locator("tbody tr").all()]
    assert told == ["7" if event.uid == UID else "\u2013" for event in events]


def test_without_a_priority_nothing_is_said_of_it(open_site: OpenSite) -> None:
    page = open_site(FakeNode(story(), rules=ALL)).open("/ui/traces.html?id=order-17")
    page.wait_for_selector("tbody tr")
    assert "priority" not in page.locator("main").inner_text().lower()


@needs_plotly
def test_a_bar_of_the_timeline_says_what_it_is(open_site: OpenSite) -> None:
    page = open_site(FakeNode(story(), rules=ALL)).open("/ui/traces.html?id=order-17")
    page.wait_for_selector(".chart .barlayer .point")
    hover = hover_over(page.locator(".chart .barlayer .trace").nth(1).locator(".point").first, page)
    assert "processing 5 ms" in hover
    assert "consumer packer-1" in hover


def test_without_plotly_the_page_draws_the_timeline_itself_and_says_so(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), rules=ALL), charts=False)
    page = site.open("/ui/traces.html?id=order-17")
    page.wait_for_selector("text=pip install 'warrenmq[ui]'")
    assert page.locator(".chart svg .lane").all_text_contents() == [
        "publisherpublisher",  # its tooltip, and itself
        "shippingshipping",
        "billingbilling",
        "auditaudit",
    ]
    assert page.locator(".chart rect").count() == 9
    assert page.locator(".chart circle").count() == 17
    site.shoot("biography-without-plotly")


def test_a_message_that_still_waits_is_drawn_and_said_to_be_under_way(open_site: OpenSite) -> None:
    site = open_site(FakeNode(begun(story().events[:3]), rules=ALL), charts=False)
    page = site.open("/ui/traces.html?id=order-17")
    page.wait_for_selector("text=still in a queue or with a consumer")
    assert rows(site)[0].endswith("waiting")


@pytest.mark.parametrize("with_plotly", [pytest.param(True, marks=needs_plotly), False])
def test_a_consumer_that_the_broker_was_killed_under_is_marked_as_lost(open_site: OpenSite, with_plotly: bool) -> None:
    site = open_site(FakeNode(killed_story(), rules=ALL), charts=with_plotly)
    page = site.open("/ui/traces.html?id=order-18")
    page.wait_for_selector("text=The broker stopped while a consumer had this message")
    marks = ".chart .scatterlayer .point" if with_plotly else ".chart circle"
    page.wait_for_selector(marks)
    assert page.locator(marks).count() == 5 + 1  # its events, and the loss
    assert rows(site)[0] == "shipping 1.98 ms 3 ms 2 packer-1, packer-2 acked"
    assert " 2 " in rows(site)[-1].split("packer-2")[1]
    bars = ".chart .barlayer .point path" if with_plotly else ".chart rect"
    opacities = page.locator(bars).evaluate_all("bars => bars.map((bar) => Number(getComputedStyle(bar).opacity))")
    assert sorted(opacities) == [0.35, 1, 1]
    site.shoot("biography-killed" if with_plotly else "biography-killed-without-plotly")


@pytest.mark.parametrize("with_plotly", [pytest.param(True, marks=needs_plotly), False])
def test_a_message_that_is_retried_shows_its_notes_and_when_it_returns(open_site: OpenSite, with_plotly: bool) -> None:
    site = open_site(FakeNode(retried_story(), rules=ALL), charts=with_plotly)
    page = site.open("/ui/traces.html?id=order-21")
    page.wait_for_selector("text=/Now waiting in shipping for retry 1 of 16, due now, for \\d+ d/")
    page.wait_for_selector("td:text-is('for 04:50:01, in 1.5 s')")
    page.wait_for_selector("td:text-is('retry 1 of 16 in 4 s, because rejected')")
    page.wait_for_selector("td:has-text('no such account')")
    assert "1.5 s\nscheduled or before a retry" in page.locator(".figure").all_inner_texts()
    assert rows(site)[:2] == [
        "warren.scheduled \u2013 \u2013 1.5 s 0 \u2013 routed",
        "shipping 99.9 ms 100.02 ms \u2013 1 packer-1 delayed",
    ]
    bars = ".chart .barlayer .point" if with_plotly else ".chart rect"
    page.wait_for_selector(bars, state="attached")  # the first is short
    assert page.locator(bars).count() == 4
    site.shoot("biography-retried" if with_plotly else "biography-retried-without-plotly")


def test_a_scheduled_message_says_when_it_is_due(open_site: OpenSite) -> None:
    site = open_site(FakeNode(scheduled_story(), rules=ALL), charts=False)
    page = site.open("/ui/traces.html?id=order-22")
    page.wait_for_selector("text=/Now scheduled for 2026-11-17 04:50:00, due /")
    page.wait_for_selector("td:text-is('for 2026-11-17 04:50:00, in 1 d')")


def test_a_purge_says_how_many_messages_it_dropped(open_site: OpenSite) -> None:
    site = open_site(FakeNode(purged_story(), rules=ALL), charts=False)
    page = site.open("/ui/traces.html?id=order-19")
    page.wait_for_selector("td:text-is('purged, 12,000 messages')")
    assert rows(site)[0] == "shipping 5 ms \u2013 0 \u2013 dropped"
    assert page.locator("text=The broker stopped").count() == 0


def test_a_dead_letter_says_where_it_went_and_that_it_may_have_been_removed_there(open_site: OpenSite) -> None:
    site = open_site(FakeNode(dead_story(), purged_story(), rules=ALL), charts=False)
    page = site.open("/ui/traces.html?id=order-20")
    page.wait_for_selector("td:text-is('to exchange dlx')")
    page.wait_for_selector("td:text-is('expired, 4,000 messages')")
    page.wait_for_selector("text=It is unknown whether this message was among them")
    assert [row.rsplit(" ", 1)[1] for row in rows(site)[:2]] == ["dead-lettered", "waiting"]
    page.wait_for_selector("svg circle title", state="attached")  # the chart is drawn after the tables
    marks = page.locator("svg circle title").all_text_contents()
    assert [mark.split("\n")[0] for mark in marks].count("dead-lettered") == 1
    assert not any(mark.startswith("routed") for mark in marks), "it would hide that it is dead-lettered"
    site.shoot("biography-dead-letter")
    page = site.open("/ui/traces.html?id=order-19")
    page.wait_for_selector("td:text-is('purged, 12,000 messages')")
    assert page.locator("text=It is unknown whether this").count() == 0


@pytest.mark.parametrize("with_plotly", [pytest.param(True, marks=needs_plotly), False])
def test_names_that_carry_script_are_shown_and_do_nothing(open_site: OpenSite, with_plotly: bool) -> None:
    wild = story(EVIL, queue=EVIL)
    names = {"consumer": EVIL, "exchange": EVIL, "routing_key": EVIL, "correlation_id": EVIL, "connection": EVIL}
    site = open_site(FakeNode(begun([replace(event, **names) for event in wild.events]), rules=ALL), charts=with_plotly)
    page = site.open("/ui/traces.html")
    page.click(f"tbody a >> text={EVIL[:10]}")
    page.wait_for_selector(".chart .barlayer .point" if with_plotly else ".chart rect")
    if with_plotly:
        hover_over(page.locator(".chart .barlayer .point").first, page)
        assert "<img src=x" in page.locator(".chart .ytick").all_text_contents()[1]
    assert EVIL in page.locator("h1 >> nth=1").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, a[href^=javascript]").count() == 0
    site.shoot("evil-names")


@needs_plotly
def test_tags_that_plotly_knows_are_shown_as_they_are_written(open_site: OpenSite) -> None:
    marked = "<b>x</b> &lt; <a href='http://e.example/'>"
    page = open_site(FakeNode(story(queue=marked), rules=ALL)).open("/ui/traces.html?id=order-17")
    page.wait_for_selector(".chart .barlayer .point")
    assert page.locator(".chart .ytick").nth(1).text_content() == marked[:31] + "…"
    assert page.locator(".chart svg a").count() == 0


# -- finding -----------------------------------------------------------------------------------------------------------


def test_a_search_stands_in_the_address_and_back_goes_back(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), story("other", UID + 1, queue="elsewhere"), rules=ALL), charts=False)
    page = site.open("/ui/traces.html")
    page.wait_for_selector("text=Latest messages")
    assert len(rows(site)) == 2
    page.fill("input[name=queue]", "elsewhere")
    page.select_option("select[name=kind]", "acked")
    page.select_option("select[name=age]", "24h")
    page.click("button:has-text('Search')")
    page.wait_for_selector("text=Messages found")
    assert page.url.endswith("?queue=elsewhere&kind=acked&from=24h")
    page.click("tbody a")
    page.wait_for_selector("h1:has-text('other')")
    assert page.input_value("input[name=id]") == "other"
    page.go_back()
    page.wait_for_selector("text=Messages found")
    assert page.input_value("input[name=queue]") == "elsewhere"
    page.click("text=Clear")
    page.wait_for_selector("text=Latest messages")


def test_a_time_between_two_is_asked_for_in_utc_and_shown_again(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), rules=ALL))
    page = site.open("/ui/traces.html")
    page.select_option("select[name=age]", "between")
    page.fill("input[name=from]", "2026-11-16T04:00:00")
    page.fill("input[name=to]", "2026-11-16T05:00:00")
    page.click("button:has-text('Search')")
    page.wait_for_selector("text=Messages found")
    query = site.node.reader.queries[-1]
    assert (query.start, query.end) == (1_794_801_600_000_000, 1_794_805_200_000_000)
    page.reload()
    page.wait_for_selector("text=Messages found")
    assert page.input_value("input[name=from]") == "2026-11-16T04:00"


def test_older_messages_are_a_page_further(open_site: OpenSite) -> None:
    site = open_site(FakeNode(*(story(f"m{n}", UID + n) for n in range(60)), rules=ALL))
    page = site.open("/ui/traces.html")
    page.click("text=Older")
    page.wait_for_selector("tbody a:text-is('m50')")
    assert len(rows(site)) == 10
    page.click("text=Newest")
    page.wait_for_selector("tbody a:text-is('m0')")


def test_a_link_leads_to_all_messages_of_one_correlation(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), story("other", UID + 1), rules=ALL), charts=False)
    page = site.open("/ui/traces.html?id=order-17")
    page.click("dd a:has-text('basket-9')")
    page.wait_for_selector("text=Messages found")
    assert len(rows(site)) == 2


# -- nothing, not yet, not at all --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/ui/traces.html", "/ui/traces.html?id=gone"])
def test_where_tracing_is_off_the_page_says_how_to_switch_it_on(open_site: OpenSite, path: str) -> None:
    site = open_site(FakeNode())
    page = site.open(path)
    page.wait_for_selector("text=Tracing is off")
    assert "warren serve --trace all" in page.inner_text("pre")
    page.click("text=Add rule")
    page.wait_for_selector("dialog")


def test_where_nothing_fits_the_page_says_so(open_site: OpenSite) -> None:
    page = open_site(FakeNode(story(), rules=ALL)).open("/ui/traces.html?queue=none")
    page.wait_for_selector("text=No matching messages")


def test_a_search_that_is_not_at_its_end_can_go_on(open_site: OpenSite) -> None:
    site = open_site(FakeNode(*(story(f"m{n}", UID + n) for n in range(3)), rules=ALL))
    site.node.reader.page_size = 0
    page = site.open("/ui/traces.html")
    page.wait_for_selector("text=No match so far")
    site.node.reader.page_size = 50
    page.click("text=Search older events")
    page.wait_for_selector("tbody tr")


def test_what_the_broker_refuses_is_shown_in_its_words(open_site: OpenSite) -> None:
    page = open_site(FakeNode(story(), rules=ALL)).open("/ui/traces.html?trace_id=xyz")
    page.wait_for_selector("text='trace_id' must be 32 hexadecimal digits")


def test_a_broker_that_does_not_answer_can_be_tried_again(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), rules=ALL))
    page = site.open("/ui/traces.html")
    page.route("**/api/traces*", lambda route: route.abort())
    page.click("text=Clear")
    page.wait_for_selector("text=Cannot reach the broker")
    site.shoot("failed")
    page.unroute("**/api/traces*")
    page.click("text=Try again")
    page.wait_for_selector("text=Latest messages")


def test_a_slow_answer_is_waited_for_visibly(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), rules=ALL))
    answer = threading.Event()
    held = site.node.reader.search

    async def slow(query: object) -> object:
        import asyncio

        await asyncio.get_running_loop().run_in_executor(None, answer.wait, 20)
        return await held(query)  # type: ignore[arg-type]

    site.node.reader.search = slow  # type: ignore[assignment, method-assign]
    page = site.open("/ui/traces.html")
    page.wait_for_selector(".spinner")
    site.shoot("loading")
    answer.set()
    page.wait_for_selector("text=Latest messages")


def test_a_failed_event_log_is_reported(open_site: OpenSite) -> None:
    node = FakeNode()
    node.log_failure = "no space left on the device"
    page = open_site(node).open("/ui/traces.html")
    page.wait_for_selector("text=The event log failed, no events are recorded: no space left on the device")
