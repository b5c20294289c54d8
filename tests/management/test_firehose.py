"""/api/firehose: where copies of all messages are made."""

from __future__ import annotations

from tests.management.asking import GUEST, LIMITED, Browser


def is_open(browser: Browser) -> dict[str, bool]:
    return {each["name"]: each["open"] for each in browser.get("/api/firehose", auth=GUEST).json()["vhosts"]}


def test_the_firehose_of_a_virtual_host_is_opened_and_shut() -> None:
    browser = Browser()
    assert is_open(browser) == {"/": False, "other": False}
    assert browser.ask("PUT", "/api/firehose/%2F", auth=GUEST).status_code == 204
    assert is_open(browser) == {"/": True, "other": False}
    assert browser.ask("DELETE", "/api/firehose/%2F", auth=GUEST).status_code == 204
    assert is_open(browser) == {"/": False, "other": False}


def test_a_virtual_host_that_is_none_is_not_found() -> None:
    assert Browser().ask("PUT", "/api/firehose/nowhere", auth=GUEST).status_code == 404


def test_who_may_not_enter_every_virtual_host_does_not_open_it() -> None:
    browser = Browser()
    assert browser.ask("PUT", "/api/firehose/other", auth=LIMITED).status_code == 403
    assert browser.get("/api/firehose", auth=LIMITED).json() == {"vhosts": [{"name": "other", "open": False}]}
