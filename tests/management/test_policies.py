"""/api/policies and /api/operator-policies: RabbitMQ's paths, answers and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.management.asking import GUEST, LIMITED, PLAIN, Browser
from warrenmq.core.users import EVERYTHING

POLICIES, OPERATOR = "/api/policies", "/api/operator-policies"
MAKER = ("maker", "secret")
BODY = {"pattern": "^q", "definition": {"max-length": 5}}


@pytest.fixture
def browser() -> Browser:
    browser = Browser()
    users = browser.node.broker.users
    users.add("maker", "secret", ["policymaker"])
    users.grant("maker", "other", EVERYTHING, EVERYTHING, EVERYTHING)
    return browser


def put(browser: Browser, path: str, body: Any, auth: tuple[str, str] = GUEST) -> Any:
    return browser.ask("PUT", path, json=body, auth=auth)


@pytest.mark.parametrize("base", [POLICIES, OPERATOR])
def test_policy_is_created_read_changed_and_deleted(browser: Browser, base: str) -> None:
    one = f"{base}/%2F/limit"
    assert put(browser, one, BODY).status_code == 201
    values = {"vhost": "/", "name": "limit", **BODY, "apply-to": "all", "priority": 0}
    assert browser.get(one, auth=GUEST).json() == values
    changed = {"pattern": "", "definition": {"expires": 7}, "priority": 1.5, "apply-to": "queues"}
    assert put(browser, one, changed).status_code == 204
    values = {"vhost": "/", "name": "limit", **changed}
    for path in (base, f"{base}/%2F"):
        assert browser.get(path, auth=GUEST).json() == [values]
    assert browser.get(f"{base}/other", auth=GUEST).json() == []
    assert browser.ask("DELETE", one, auth=GUEST).status_code == 204
    for method in ("GET", "DELETE"):
        answer = browser.ask(method, one, auth=GUEST)
        assert (answer.status_code, answer.json()) == (404, {"error": "Object Not Found", "reason": "Not Found"})


def test_a_policy_applies_when_it_is_answered(browser: Browser) -> None:
    queue = browser.node.broker.vhosts["/"].declare_queue("q", False, False, False, {}, None)
    put(browser, f"{POLICIES}/%2F/limit", BODY)
    assert queue.options.max_length == 5
    put(browser, f"{OPERATOR}/%2F/limit", {"pattern": "^q", "definition": {"max-length": 4}})
    assert queue.options.max_length == 4
    browser.ask("DELETE", f"{OPERATOR}/%2F/limit", auth=GUEST)
    browser.ask("DELETE", f"{POLICIES}/%2F/limit", auth=GUEST)
    assert queue.options.max_length is None


def test_names_may_hold_any_text(browser: Browser) -> None:
    browser.node.broker.add_vhost("a/b")
    assert put(browser, f"{POLICIES}/a%2Fb/c%2Fd%20%C3%A9%3F", BODY).status_code == 201
    found = browser.get(f"{POLICIES}/a%2Fb/c%2Fd%20%C3%A9%3F", auth=GUEST).json()
    assert (found["vhost"], found["name"]) == ("a/b", "c/d é?")
    assert put(browser, f"{POLICIES}/%2F/caf%E9", BODY).status_code == 201
    assert browser.get(f"{POLICIES}/%2F/caf%E9", auth=GUEST).json()["name"] == "caf\udce9"


def test_other_keys_of_the_body_are_ignored_as_by_rabbitmq(browser: Browser) -> None:
    assert put(browser, f"{POLICIES}/%2F/p", {**BODY, "name": "other", "vhost": "x", "foo": 7}).status_code == 201


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "[{key_missing,pattern},{key_missing,definition}]"),
        ({"pattern": "a"}, "[{key_missing,definition}]"),
        ({"pattern": "a", "definition": {}}, "Validation failed\n\nno policy provided\n"),
        ({"pattern": "a", "definition": []}, "Validation failed\n\ndefinition must be a dictionary: []\n"),
        (
            {"pattern": "a", "definition": {"foo": "bar"}},
            'Validation failed\n\n[{<<"foo">>,<<"bar">>}] are not recognised policy settings\n',
        ),
        ({**BODY, "priority": None}, "Validation failed\n\npriority should be a number, actually was null\n"),
        ({**BODY, "pattern": 1}, "Validation failed\n\npattern should be a binary but was 1\n"),
        ([], "the body must be a JSON object"),
    ],
)
def test_invalid_policies_are_refused(browser: Browser, body: Any, reason: str) -> None:
    answer = put(browser, f"{POLICIES}/%2F/p", body)
    assert (answer.status_code, answer.json()) == (400, {"error": "bad_request", "reason": reason})
    assert browser.get(POLICIES, auth=GUEST).json() == []


def test_an_operator_policy_may_only_bound(browser: Browser) -> None:
    answer = put(browser, f"{OPERATOR}/%2F/o", {"pattern": "", "definition": {"dead-letter-exchange": "x"}})
    assert answer.status_code == 400
    assert "are not recognised policy settings" in answer.json()["reason"]


def test_a_virtual_host_that_does_not_exist_is_not_found(browser: Browser) -> None:
    answer = put(browser, f"{POLICIES}/nope/p", BODY)
    assert (answer.status_code, answer.json()["reason"]) == (404, "vhost_not_found")
    for method, path in (("GET", "nope"), ("GET", "nope/p"), ("DELETE", "nope/p"), ("DELETE", "%2F"), ("GET", "a/b/c")):
        assert browser.ask(method, f"{POLICIES}/{path}", auth=GUEST).status_code == 404


def test_only_policymakers_and_administrators_change_policies(browser: Browser) -> None:
    assert put(browser, f"{POLICIES}/other/p", BODY, MAKER).status_code == 201
    assert put(browser, f"{POLICIES}/%2F/p", BODY, MAKER).status_code == 404  # may not enter it
    assert put(browser, f"{OPERATOR}/other/p", BODY, MAKER).status_code == 403
    assert put(browser, f"{POLICIES}/other/p", BODY, LIMITED).status_code == 403
    assert browser.ask("DELETE", f"{POLICIES}/other/p", auth=LIMITED).status_code == 403
    assert browser.get(f"{POLICIES}/other/p", auth=LIMITED).status_code == 200
    for path in (POLICIES, f"{POLICIES}/other", f"{POLICIES}/other/p", OPERATOR):
        assert browser.get(path, auth=PLAIN).status_code == 403
        assert browser.get(path).status_code == 401


def test_a_list_leaves_out_virtual_hosts_that_the_user_may_not_enter(browser: Browser) -> None:
    put(browser, f"{POLICIES}/%2F/p", BODY)
    put(browser, f"{POLICIES}/other/p", BODY)
    assert [each["vhost"] for each in browser.get(POLICIES, auth=LIMITED).json()] == ["other"]
    assert [each["vhost"] for each in browser.get(POLICIES, auth=GUEST).json()] == ["/", "other"]


def test_a_page_needs_the_token_of_its_session(browser: Browser) -> None:
    browser.sign_in()
    assert browser.ask("PUT", f"{POLICIES}/%2F/p", json=BODY).status_code == 403
    assert browser.change("PUT", f"{POLICIES}/%2F/p", json=BODY).status_code == 201
    assert browser.ask("DELETE", f"{POLICIES}/%2F/p").status_code == 403
