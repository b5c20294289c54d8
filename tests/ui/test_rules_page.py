"""The page of rules in a browser."""

from __future__ import annotations

from tests.management.fakes import FakeNode
from tests.ui.conftest import OpenSite
from warrenmq.tracing.rules import TraceRule

EVIL = '<img src=x onerror="window.hacked=1">'


def test_a_rule_is_added_changed_switched_off_and_deleted(open_site: OpenSite) -> None:
    site = open_site(FakeNode())
    page = site.open("/ui/trace_rules.html")
    page.wait_for_selector("text=No rules")
    page.click("text=Add rule")
    page.fill("dialog label:has-text('Name') input", "big customers")
    page.fill("dialog label:has-text('Queue') input", "orders.*")
    page.fill("dialog label:has-text('Headers') input", "tenant=acme; region=eu")
    page.fill("dialog label:has-text('Share') input", "12.5")
    page.click("dialog >> text=Save")
    page.wait_for_selector("tbody tr:has-text('big customers')")
    made = site.node.rules.rules["big customers"]
    assert (made.queue, made.header, made.ratio) == ("orders.*", {"tenant": "acme", "region": "eu"}, 0.125)

    page.click("button:has-text('Edit')")
    assert page.input_value("dialog label:has-text('Headers') input") == "tenant=acme; region=eu"
    page.fill("dialog label:has-text('Queue') input", "")
    page.click("dialog >> text=Save")
    page.wait_for_selector("dialog", state="detached")
    assert site.node.rules.rules["big customers"].queue is None

    page.click("text=Switch off")
    page.wait_for_selector("text=Switch on")
    assert not site.node.rules.rules["big customers"].enabled

    page.click("text=Delete")
    page.click("dialog >> text=Cancel")
    page.click("text=Delete")
    page.click("dialog button:has-text('Delete')")
    page.wait_for_selector("text=No rules")
    assert site.node.rules.rules == {}


def test_what_is_no_rule_is_refused_in_the_dialog(open_site: OpenSite) -> None:
    page = open_site(FakeNode()).open("/ui/trace_rules.html?new")
    page.fill("dialog label:has-text('Name') input", "mine")
    page.fill("dialog label:has-text('Headers') input", "tenant")
    page.click("dialog >> text=Save")
    page.wait_for_selector("text=is not a header; write name=value")
    page.fill("dialog label:has-text('Headers') input", "")
    page.fill("dialog label:has-text('Queue') input", "[")
    page.click("dialog >> text=Save")
    page.wait_for_selector("text=queue is no regular expression")


def test_a_rule_of_the_settings_has_no_buttons(open_site: OpenSite) -> None:
    page = open_site(FakeNode(rules=[TraceRule("settings", is_fixed=True)])).open("/ui/trace_rules.html")
    page.wait_for_selector("text=set in the configuration")
    assert page.locator("tr:has-text('settings') button").count() == 0


def test_a_user_who_may_not_change_rules_sees_why(open_site: OpenSite) -> None:
    site = open_site(FakeNode(rules=[TraceRule("mine")]))
    site.page.goto(site.url + "/ui/trace_rules.html")
    site.sign_in("limited", "secret")
    site.page.click("text=Switch off")
    site.page.wait_for_selector("dialog:has-text('does not have access to all of them')")
    site.page.click("dialog >> text=Close")
    assert site.node.rules.rules["mine"].enabled


def test_names_that_carry_script_are_shown_and_do_nothing(open_site: OpenSite) -> None:
    rule = TraceRule(EVIL, queue=EVIL, header={EVIL: EVIL})
    page = open_site(FakeNode(rules=[rule])).open("/ui/trace_rules.html")
    page.wait_for_selector("tbody tr")
    assert page.inner_text("tbody b") == EVIL
    page.click("text=Delete")
    page.click("dialog button:has-text('Delete')")
    page.wait_for_selector("text=No rules")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0


def test_header_values_keep_their_types(open_site: OpenSite) -> None:
    rule = TraceRule("mine", header={"level": 3, "test": True, "tenant": "acme", "digits": "3"})
    site = open_site(FakeNode(rules=[rule]))
    page = site.open("/ui/trace_rules.html")
    page.click("button:has-text('Edit')")
    assert page.input_value("dialog label:has-text('Headers') input") == 'level=3; test=true; tenant=acme; digits="3"'
    page.click("dialog >> text=Save")
    page.wait_for_selector("dialog", state="detached")
    assert site.node.rules.rules["mine"].header == rule.header


def test_the_firehose_is_opened_and_shut(open_site: OpenSite) -> None:
    site = open_site(FakeNode())
    page = site.open("/ui/trace_rules.html")
    # Its state is written "open" or "shut", too: only the button says what can be done next.
    page.click("tr:has-text('other') button:text-is('Start')")
    page.wait_for_selector("tr:has-text('other') button:text-is('Stop')")
    assert site.node.firehose.open_vhosts() == ["other"]
    page.click("tr:has-text('other') button:text-is('Stop')")
    page.wait_for_selector("tr:has-text('other') button:text-is('Start')")
    assert site.node.firehose.open_vhosts() == []


def test_a_failed_event_log_is_reported(open_site: OpenSite) -> None:
    node = FakeNode(rules=[TraceRule("mine")])
    node.log_failure = "no space left"
    open_site(node).open("/ui/trace_rules.html").wait_for_selector("text=events are dropped: no space left")
