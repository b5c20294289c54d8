"""The analysis page, drawn in a real browser: every job, live, and what is shown where there is nothing to show."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import warrenmq
from tests.management.fakes import FakeNode, story
from tests.management.findings import SECOND, UIDS, answer, append, shop, status, windowed
from tests.ui.conftest import LIMIT_MS, OpenSite, Site
from warrenmq import client
from warrenmq.events.ids import parse_uid
from warrenmq.management import pages
from warrenmq.tracing.rules import TraceRule

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ALL = (TraceRule("all"),)
PATH = "/ui/analysis.html"
EVIL = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script><a href='javascript:hacked=1'>x</a>"
needs_plotly = pytest.mark.skipif(pages.plotly_file() is None, reason="plotly is not installed")


def now_us() -> int:
    return int(time.time() * 1e6)


def analysed(*documents: dict[str, Any] | bytes, rules: tuple[TraceRule, ...] = ALL) -> FakeNode:
    node = FakeNode(rules=rules)
    append(node, *(documents or (*shop(), status(written=now_us()))))
    return node


def card(page: Page, job: str) -> Any:
    """Scroll to a job: what cannot be seen is not drawn."""
    found = page.locator(f"#job-{job}")
    # Playwright's own scrolling waits for animation frames, which a busy machine may not get for a long time.
    found.evaluate("element => element.scrollIntoView({block: 'center'})")
    return found


def show_everything(page: Page, width: int = 1280) -> None:
    """A window so high that every card is seen."""
    page.wait_for_selector(".job")
    page.set_viewport_size({"width": width, "height": 8000})
    page.wait_for_selector(".jobs:not(:has(.job[aria-busy]))", timeout=3 * LIMIT_MS)


# -- what is drawn -----------------------------------------------------------------------------------------------------


@needs_plotly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_job_is_drawn(open_site: OpenSite, scheme: str) -> None:
    site = open_site(analysed(), scheme)
    page = site.open(PATH)
    show_everything(page)
    assert page.locator(".job h2").all_inner_texts() == [
        "Anomalies",
        "Throughput",
        "Latency",
        "Priorities",
        "Backlog",
        "Failures",
        "Retries",
        "Flow",
        "Consumers",
        "Hot keys",
        "Dead letters",
        "Unroutable messages",
        "Duplicates",
        "Sessions",
    ]
    page.wait_for_selector("#job-unroutable .barlayer .point", state="attached")
    assert page.locator("#job-throughput .scatterlayer .trace").count() == 4
    assert page.locator("#job-latency .scatterlayer .trace").count() == 4
    assert page.locator("#job-failures .barlayer .trace").count() == 3
    assert page.locator("#job-retries .scatterlayer .trace").count() == 1
    storm = page.inner_text("#job-retries .notes")
    assert re.search(r"^Retry storm in orders: [\d.,]+/s at 2026-11-16 \d\d:\d\d:\d\d.*; most often rejected\.", storm)
    assert page.locator("#job-dead_letters .barlayer .point").count() == 2
    assert page.locator("#job-hot_keys .barlayer .point").count() == 4
    assert page.locator("#job-flow .band").count() == 11
    assert page.locator("#job-consumers tbody tr").first.inner_text().split("\t")[:2] == ["orders", "packer-2"]
    assert "stuck since 2026-11-16 05:00:00" in page.inner_text("#job-consumers")
    assert "orders grows by 38/s and reaches its limit in" in page.inner_text("#job-backlog .notes")
    assert "Poison key shop \u00b7 order.poison: 17,000 failures." in page.inner_text("#job-hot_keys")
    assert "following \u00b7 1,234,567 events \u00b7 900 batches" in page.inner_text(".facts-line")
    site.shoot(f"analysis-{scheme}")


def test_of_many_anomalies_the_newest_are_shown_and_the_others_are_a_click_away(open_site: OpenSite) -> None:
    rows = [windowed(n, sentence=f"number {n}", score=7.0, example_uids=[]) for n in range(9)]
    node = analysed(answer("anomalies", rows, chart="anomalies", keys=["window_start"]))
    page = open_site(node, charts=False).open(PATH)
    page.wait_for_selector("text=number 8")
    assert page.locator("text=number 2").is_hidden()
    page.click("text=3 earlier")
    page.wait_for_selector("text=number 2")
    append(node, answer("anomalies", [windowed(9, sentence="number 9")], chart="anomalies", keys=["window_start"]))
    page.wait_for_selector("text=number 9")
    assert page.locator("text=number 2").is_visible()  # it stays open


def test_an_anomaly_leads_to_the_biography_of_a_message(open_site: OpenSite) -> None:
    uid = parse_uid(UIDS[0])
    assert uid is not None
    node = analysed()
    node.reader.biographies.append(story("order-17", uid))
    page = open_site(node, charts=False).open(PATH)
    page.wait_for_selector(".anomalies li")
    assert "queue orders: waiting time p95 rose from 5.3 ms to 1.51 s" in page.inner_text(".anomalies")
    page.click(f".anomalies a:text-is('{UIDS[0]}') >> nth=0")
    page.wait_for_selector("h1:has-text('Message order-17')")


@needs_plotly
def test_what_is_chosen_is_drawn_and_stays_chosen(open_site: OpenSite) -> None:
    node = analysed()
    page = open_site(node).open(PATH)
    latency = card(page, "latency")
    latency.locator("select[name=queue]").select_option("billing")
    latency.locator(".legendtext").nth(4).wait_for()
    assert latency.locator(".legendtext").all_text_contents() == ["p50", "p90", "p95", "p99", "max"]
    throughput = card(page, "throughput")
    throughput.locator("select[name=what]").select_option("key")
    throughput.locator(".legendtext >> text=shop \u00b7 order.created").wait_for()
    assert throughput.locator("select[name=measure]").input_value() == "published_per_second"
    append(node, *shop(91))
    with page.expect_response("**/api/analysis/throughput?*"):
        pass
    assert latency.locator("select[name=queue]").input_value() == "billing"


@needs_plotly
def test_the_waits_of_each_priority_of_a_queue_are_drawn(open_site: OpenSite) -> None:
    page = open_site(analysed()).open(PATH)
    priorities = card(page, "priorities")
    priorities.locator(".legendtext").nth(2).wait_for()
    assert priorities.locator(".legendtext").all_text_contents() == ["priority 9", "priority 5", "priority 0"]
    assert priorities.locator("select[name=queue]").input_value() == "mail"  # the busiest
    priorities.locator("select[name=measure]").select_option("delivered")
    priorities.locator(".yaxislayer-above text >> text=400").wait_for(state="attached")


def test_without_priorities_it_says_so(open_site: OpenSite) -> None:
    keys = ["window_start", "vhost", "queue", "priority"]
    node = analysed(answer("priorities", [], title="Priorities", chart="lines", keys=keys))
    page = open_site(node, charts=False).open(PATH)
    page.wait_for_selector("text=No message with a priority was delivered in the time shown.")


def test_times_may_be_written_shorter(open_site: OpenSite) -> None:
    def sold(second: int, count: int) -> dict[str, Any]:
        end = f"2026-11-16T10:00:{second + 10}+00:00"
        return {"window_start": f"2026-11-16T10:00:{second}Z", "window_end": end, "sold": count}

    def told(*rows: dict[str, Any]) -> dict[str, Any]:
        return answer("sales", rows, chart="table", keys=["window_start"], windows=None)

    node = analysed(told(sold(10, 1), sold(20, 2)))
    page = open_site(node, charts=False).open(PATH)
    page.wait_for_selector("#job-sales tbody tr >> nth=0")
    append(node, told(sold(20, 3)))
    page.wait_for_selector("#job-sales td:text-is('3')")
    assert [row.split("\t")[-1] for row in page.locator("#job-sales tbody tr").all_inner_texts()] == ["3", "1"]


@needs_plotly
def test_a_job_of_ones_own_is_shown_by_what_its_rows_say(open_site: OpenSite) -> None:
    rows = [windowed(n, shop=name, sold=n * 3, mean_us=n * 900.5, ok=True) for n in range(5) for name in ("a", "b")]
    mine = answer("sales", rows, title="Sales", keys=["window_start", "shop"])
    other = answer("colours", [{"colour": "red", "ok": False}], title="Colours", chart="pie", keys=["colour"])
    page = open_site(analysed(mine, other)).open(PATH)
    show_everything(page)
    page.wait_for_selector("#job-sales .scatterlayer .trace", state="attached")
    assert page.locator("#job-sales select[name=measure] option").all_inner_texts() == ["sold", "mean"]
    assert page.inner_text("#job-colours tbody tr") == "red\tno"


def test_a_table_says_the_same_to_who_does_not_see_the_chart(open_site: OpenSite) -> None:
    page = open_site(analysed()).open(PATH)
    show_everything(page)
    flow = card(page, "flow")
    flow.locator("svg[aria-label='Flow of messages: 11 ways between 12 places']").wait_for()
    flow.locator("summary").focus()
    page.keyboard.press("Enter")
    flow.locator("tbody tr").nth(99).wait_for()
    assert "890 more rows are not shown." in flow.inner_text()
    unnamed = page.locator("select:not([aria-label])").count()
    assert unnamed == 0


def test_without_plotly_there_are_tables_and_it_is_said_how_to_get_charts(open_site: OpenSite) -> None:
    site = open_site(analysed(), charts=False)
    page = site.open(PATH)
    show_everything(page)
    page.wait_for_selector("#job-unroutable tbody tr")
    assert "pip install 'warrenmq[ui]'" in page.inner_text("#job-throughput")
    assert page.locator("#job-latency tbody tr").count() == 100
    assert page.locator("#job-flow .band").count() == 11
    site.shoot("analysis-without-plotly")


@pytest.mark.parametrize("with_plotly", [pytest.param(True, marks=needs_plotly), False])
def test_names_that_carry_script_are_shown_and_do_nothing(open_site: OpenSite, with_plotly: bool) -> None:
    documents = json.loads(json.dumps(shop(70)).replace("order.poison", "?").replace("billing", "#"))
    for document in documents:
        document["title"] += EVIL
        for row in document["rows"]:
            row.update({name: EVIL for name, value in row.items() if value in ("?", "#", "news", UIDS[0], "packer-1")})
    mine = answer(f"own{EVIL}"[:60], [windowed(0, count=1, evil=EVIL)], title=EVIL)
    site = open_site(analysed(*documents, mine), charts=with_plotly)
    page = site.open(PATH)
    show_everything(page)
    page.wait_for_selector("#job-sessions tbody tr")
    page.locator("details:not([open])").evaluate_all("(found) => found.forEach((each) => { each.open = true; })")
    page.wait_for_selector("#job-flow details tbody tr")
    assert "<img src=x" in page.inner_text("#job-consumers")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main a[href^=javascript]").count() == 0
    site.shoot(f"analysis-evil-{'plotly' if with_plotly else 'alone'}")


def test_the_page_is_not_wider_than_the_window(open_site: OpenSite) -> None:
    documents = json.loads(json.dumps(shop(70)).replace("billing", "q" * 200))
    site = open_site(analysed(*documents))
    for width in (390, 800, 1280):
        site.page.set_viewport_size({"width": width, "height": 900})
        page = site.open(PATH)
        show_everything(page, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        site.shoot(f"analysis-{width}")


# -- live --------------------------------------------------------------------------------------------------------------


def publish(url: str, *documents: dict[str, Any]) -> None:
    """As `warren analyze` does it."""
    with client.ConnectionFactory(url).connect() as connection, connection.channel() as channel:
        channel.queue_declare("warren.analysis", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_select()
        for document in documents:
            channel.publish("", "warren.analysis", json.dumps(document).encode()).result(20)


@needs_plotly
def test_results_of_a_real_broker_appear_by_themselves(chromium: Browser, tmp_path: Any) -> None:
    with warrenmq.Broker(http=True, data_dir=tmp_path, trace="all") as broker:
        context = chromium.new_context(viewport={"width": 1280, "height": 2000}, timezone_id="UTC")
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.goto(broker.http_url + PATH)
        page.fill("input[name=username]", "guest")
        page.fill("input[name=password]", "guest")
        page.click("text=Sign in")
        page.wait_for_selector("text=No results yet")
        assert "warren analyze --follow" in page.inner_text(".state pre")
        assert "Tracing is on." in page.inner_text(".state")
        publish(broker.url, *shop(50), status(written=now_us()))
        page.wait_for_selector(".anomalies li")
        assert page.locator(".anomalies li").count() == 2
        publish(broker.url, *shop(70), status(written=now_us(), batches=901))
        page.wait_for_selector(".anomalies li >> nth=4")
        page.wait_for_selector("text=901 batches")
        context.close()


def polls(page: Page) -> list[str]:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/analysis" in request.url else None)
    return asked


def test_what_cannot_be_seen_is_not_asked_for(open_site: OpenSite) -> None:
    site = open_site(analysed(), charts=False)
    asked = polls(site.page)
    page = site.open(PATH)
    page.wait_for_selector("#job-throughput:not([aria-busy])")
    with page.expect_response("**/api/analysis"):
        pass
    assert page.locator("#job-sessions[aria-busy]").count() == 1
    assert not any("/sessions" in url for url in asked)


def test_only_what_changed_is_asked_for_again(open_site: OpenSite) -> None:
    node = analysed()
    page = open_site(node, charts=False).open(PATH)
    show_everything(page)
    asked = polls(page)
    for _ in range(2):
        with page.expect_response("**/api/analysis"):
            pass
    assert {url.rsplit("/", 1)[-1] for url in asked} == {"analysis"}  # nothing changed
    append(node, answer("anomalies", [], chart="anomalies", batch=1, window_seconds=10, windows=[60, 62, 63]))
    page.wait_for_selector(".anomalies:not(:has(li:nth-child(3)))")
    rows = [url for url in asked if "?" in url]
    assert len(rows) == 1
    assert "/api/analysis/anomalies?" in rows[0]
    assert "after=1" in rows[0]


def test_nothing_is_requested_while_the_page_is_hidden(open_site: OpenSite) -> None:
    page = open_site(analysed(), charts=False).open(PATH)
    page.wait_for_selector(".anomalies li")
    page.evaluate(
        """() => {
            Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    asked = polls(page)
    page.wait_for_timeout(4500)  # two polls would have been
    assert len(asked) <= 1  # one may have been under way
    with page.expect_response("**/api/analysis"):
        page.evaluate(
            "() => { delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange')); }"
        )


def test_a_time_can_be_chosen_and_stands_in_the_address(open_site: OpenSite) -> None:
    begin = now_us() // (10 * SECOND) * 10 * SECOND - 3_000 * SECOND
    page = open_site(analysed(*shop(begin=begin)), charts=False).open(PATH)
    page.wait_for_selector(".anomalies li >> nth=4")
    page.select_option("select[name=range]", "15m")
    page.wait_for_selector("text=No anomalies in the time shown.")
    assert page.url.endswith("?from=15m")
    page.reload()
    page.wait_for_selector("text=No anomalies in the time shown.")
    page.select_option("select[name=range]", "1h")
    page.wait_for_selector(".anomalies li >> nth=4")


# -- nothing, not yet, not any more ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_where_there_is_nothing_the_page_says_how_to_begin(open_site: OpenSite, scheme: str) -> None:
    site = open_site(FakeNode(), scheme)
    page = site.open(PATH)
    page.wait_for_selector("text=No results yet")
    assert page.locator(".state pre").all_inner_texts() == [
        "pip install 'warrenmq[spark]'\nwarren analyze --follow",
        "warren serve --trace all\nwarren serve --trace 0.01",
    ]
    site.shoot(f"analysis-nothing-{scheme}")
    page.click("text=Add rule")
    page.wait_for_selector("dialog")


def test_an_analysis_that_has_just_begun_is_waited_for(open_site: OpenSite) -> None:
    page = open_site(analysed(status(written=now_us(), events=0))).open(PATH)
    page.wait_for_selector("text=The analysis is running, no results yet (0 events so far).")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (lambda: [status(written=now_us() - 90 * SECOND)], "--follow has not reported for 1 min"),
        (lambda: [status("failed", written=now_us(), error="no space left")], "The analysis failed: no space left"),
        (lambda: [b"garbage"], "1 messages of the stream warren.analysis are not results and were skipped"),
        (list, "--follow has not reported for"),  # results of a follower that never said how it is
    ],
)
def test_what_is_wrong_is_said(open_site: OpenSite, told: Callable[[], list[Any]], expected: str) -> None:
    site = open_site(analysed(*shop(), *told()), charts=False)
    page = site.open(PATH)
    page.wait_for_selector(f"text={expected}")
    site.shoot("analysis-stale")


def test_results_of_an_analysis_that_has_ended_are_not_stale(open_site: OpenSite) -> None:
    page = open_site(analysed(*shop(), status("stopped", written=now_us() - 90 * SECOND))).open(PATH)
    page.wait_for_selector(".anomalies li")
    assert page.locator(".notice").count() == 0
    assert "stopped" in page.inner_text(".facts-line")


def test_where_tracing_is_off_old_results_are_shown_and_it_is_said(open_site: OpenSite) -> None:
    page = open_site(analysed(rules=()), charts=False).open(PATH)
    page.wait_for_selector("text=Tracing is off, so there are no new results.")
    page.wait_for_selector(".anomalies li")


def test_a_broker_that_does_not_answer_leaves_what_was_shown(open_site: OpenSite) -> None:
    page = open_site(analysed(), charts=False).open(PATH)
    page.wait_for_selector(".anomalies li")
    page.route("**/api/analysis*", lambda route: route.abort())
    page.wait_for_selector("text=Cannot reach the broker. Is it running? The results shown may be outdated")
    assert page.locator(".anomalies li").count() == 5
    page.unroute("**/api/analysis*")
    page.wait_for_selector("text=following")


def test_a_broker_that_does_not_answer_at_first_can_be_tried_again(open_site: OpenSite) -> None:
    site: Site = open_site(analysed(), charts=False)
    site.page.route("**/api/analysis", lambda route: route.abort())
    page = site.open(PATH)
    page.wait_for_selector("text=Cannot reach the broker")
    page.unroute("**/api/analysis")
    page.click("text=Try again")
    page.wait_for_selector(".anomalies li")
