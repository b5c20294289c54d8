"""Signing in and out in a browser, and what another site cannot do with somebody's session."""

from __future__ import annotations

from tests.management.fakes import FakeNode, story
from tests.ui.conftest import OpenSite
from warrenmq.core.login_limit import TooManyFailures
from warrenmq.management import sessions
from warrenmq.management.ports import Origin
from warrenmq.tracing.rules import TraceRule


def test_signing_in_leads_to_the_page_that_was_asked_for(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), rules=[TraceRule("all")]))
    site.page.goto(site.url + "/ui/traces.html?id=order-17")
    site.sign_in(password="wrong")
    site.page.wait_for_selector("text=Unknown user or wrong password.")
    site.sign_in()
    site.page.wait_for_selector("h1:has-text('order-17')")
    assert site.page.url == site.url + "/ui/traces.html?id=order-17"
    assert site.page.text_content(".who .name") == "guest"


def test_the_way_in_does_not_lead_to_another_site(open_site: OpenSite) -> None:
    site = open_site(FakeNode())
    for elsewhere in ("https://evil.example/", "//evil.example/", "javascript:alert(1)", "http://[", "/\\evil.example"):
        site.context.clear_cookies()
        site.page.goto(f"{site.url}/ui/login.html?next={elsewhere}")
        site.sign_in()
        site.page.wait_for_url(site.url + "/ui/traces.html")


def test_after_too_many_wrong_passwords_the_page_says_how_long_to_wait(open_site: OpenSite) -> None:
    class Beleaguered(FakeNode):
        async def login(self, name: str, password: str, origin: Origin) -> bool:
            raise TooManyFailures(2.0)

    site = open_site(Beleaguered())
    site.page.goto(site.url + "/")
    site.sign_in()
    site.page.wait_for_selector("text=too many failed logins; try again in 2 s")


def test_signing_out_ends_it(open_site: OpenSite) -> None:
    site = open_site(FakeNode())
    site.open("/ui/trace_rules.html")
    site.page.click("text=Sign out")
    site.page.wait_for_selector("text=Sign in")
    site.page.goto(site.url + "/ui/trace_rules.html")
    assert "/ui/login.html" in site.page.url


def test_who_was_away_too_long_signs_in_again_and_goes_on(open_site: OpenSite) -> None:
    site = open_site(FakeNode(story(), rules=[TraceRule("all")]))
    page = site.open("/ui/traces.html")
    page.wait_for_selector("tbody tr")
    site.now += sessions.IDLE_SECONDS
    page.fill("input[name=queue]", "shipping")
    page.click("text=Search")
    page.wait_for_selector("input[name=password]")
    site.sign_in()
    page.wait_for_selector("text=Messages found")
    assert page.url == site.url + "/ui/traces.html?queue=shipping"


def test_the_session_is_out_of_reach_of_scripts(open_site: OpenSite) -> None:
    site = open_site(FakeNode())
    page = site.open("/ui/traces.html")
    assert page.evaluate("document.cookie") == ""
    (cookie,) = site.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_a_page_of_another_site_changes_nothing_with_the_session_of_a_user(open_site: OpenSite) -> None:
    site = open_site(FakeNode(rules=[TraceRule("mine")]))
    site.open("/ui/trace_rules.html")
    evil = site.context.new_page()
    evil.route("http://evil.example/", lambda route: route.fulfill(body="<h1>kittens</h1>", content_type="text/html"))
    evil.goto("http://evil.example/")
    evil.evaluate(
        """async (broker) => {
            const target = broker + "/api/trace-rules/mine";
            for (const options of [{method: "DELETE"}, {method: "PUT", body: "{}"}, {method: "POST", mode: "no-cors"}])
                await fetch(target, {credentials: "include", ...options}).catch(() => null);
        }""",
        site.url,
    )
    with evil.expect_response("**/api/login"):
        evil.evaluate(
            """(broker) => { const form = document.createElement("form"); form.method = "post";
                form.action = broker + "/api/login"; document.body.append(form); form.submit(); }""",
            site.url,
        )
    assert list(site.node.rules.rules) == ["mine"]


def test_no_other_site_can_frame_the_pages(open_site: OpenSite) -> None:
    site = open_site(FakeNode())
    evil = site.context.new_page()
    body = f"<iframe src='{site.url}/ui/login.html'></iframe>"
    evil.route("http://evil.example/", lambda route: route.fulfill(body=body, content_type="text/html"))
    evil.goto("http://evil.example/")
    assert evil.frames[1].query_selector("input") is None
