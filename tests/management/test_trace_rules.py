"""/api/trace-rules: what is kept, and how that is changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.management.asking import GUEST, LIMITED, Browser
from tests.management.fakes import FakeNode
from warrenmq.tracing.rules import TraceRule

WHOLE = {"vhost": "/", "exchange": "e.*", "queue": "q", "header": {"tenant": "acme"}, "ratio": 0.25, "enabled": False}


@pytest.fixture
def browser() -> Browser:
    return Browser(FakeNode(rules=[TraceRule("settings", ratio=0.01, is_fixed=True), TraceRule("mine", queue="q")]))


def put(browser: Browser, name: str, body: Any) -> Any:
    return browser.ask("PUT", f"/api/trace-rules/{name}", json=body, auth=GUEST)


def test_rules_are_listed_with_the_state_of_tracing(browser: Browser) -> None:
    answer = browser.get("/api/trace-rules", auth=GUEST).json()
    assert [(rule["name"], rule["fixed"]) for rule in answer["rules"]] == [("settings", True), ("mine", False)]
    assert answer["tracing"] == {"enabled": True, "kept": 12345, "dropped": 0, "failure": None}


def test_rule_is_created_changed_and_read_back(browser: Browser) -> None:
    assert put(browser, "new", {}).status_code == 201
    anything = {"vhost": None, "exchange": None, "queue": None, "header": {}, "ratio": 1.0, "enabled": True}
    assert browser.get("/api/trace-rules/new", auth=GUEST).json() == {"name": "new", "fixed": False} | anything
    assert put(browser, "new", WHOLE).status_code == 204
    assert browser.get("/api/trace-rules/new", auth=GUEST).json() == {"name": "new", "fixed": False} | WHOLE


def test_a_rule_is_deleted(browser: Browser) -> None:
    assert browser.ask("DELETE", "/api/trace-rules/mine", auth=GUEST).status_code == 204
    assert browser.get("/api/trace-rules/mine", auth=GUEST).status_code == 404
    assert browser.ask("DELETE", "/api/trace-rules/mine", auth=GUEST).status_code == 404


def test_a_name_may_hold_any_text(browser: Browser) -> None:
    assert put(browser, "a%2Fb%20%3Cc%3E", {}).status_code == 201
    assert "a/b <c>" in browser.node.rules.rules


def test_a_rule_of_the_settings_stays_as_it_is(browser: Browser) -> None:
    for answer in (put(browser, "settings", {}), browser.ask("DELETE", "/api/trace-rules/settings", auth=GUEST)):
        assert answer.status_code == 400
        assert "comes from the settings" in answer.json()["reason"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"que": "x"}, "a rule has no 'que'; it has vhost"),
        ({"queue": 1}, "queue is a name or a pattern"),
        ({"queue": "["}, "queue is no regular expression"),
        ({"header": ["x"]}, "header is an object of names and values"),
        ({"header": {"x": []}}, "the header 'x' is compared with"),
        ({"ratio": 1.5}, "ratio is a number from 0 to 1"),
        ({"ratio": "1"}, "ratio is a number from 0 to 1"),
        ({"enabled": 1}, "enabled is true or false"),
        ([], "the body must be a JSON object"),
    ],
)
def test_invalid_rules_are_refused_with_the_expected_form(browser: Browser, body: Any, reason: str) -> None:
    answer = put(browser, "new", body)
    assert answer.status_code == 400
    assert answer.json()["reason"].startswith(reason)
    assert "new" not in browser.node.rules.rules


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"ratio": NaN}', b"[" * 100_000, b'{"queue": "' + b"x" * (1 << 20) + b'"}']
)
def test_a_body_that_is_no_json_or_too_large_is_refused(browser: Browser, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = browser.ask("PUT", "/api/trace-rules/new", content=content, headers=headers, auth=GUEST)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


def test_a_name_that_is_empty_or_too_long_is_refused(browser: Browser) -> None:
    assert put(browser, "", {}).status_code == 400
    assert put(browser, "x" * 256, {}).status_code == 400


def test_who_may_not_enter_every_virtual_host_sees_the_rules_and_does_not_change_them(browser: Browser) -> None:
    assert browser.get("/api/trace-rules", auth=LIMITED).status_code == 200
    for answer in (
        browser.ask("PUT", "/api/trace-rules/new", json={}, auth=LIMITED),
        browser.ask("DELETE", "/api/trace-rules/mine", auth=LIMITED),
    ):
        assert answer.status_code == 403
    assert browser.node.rules.rules.keys() == {"settings", "mine"}
