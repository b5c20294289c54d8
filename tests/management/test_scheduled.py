"""/api/scheduled: the messages that wait for their time, listed, looked at and cancelled one by one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.management.asking import GUEST, LIMITED, PLAIN, Browser
from tests.support.client import Client, ClientChannel, advance, waiting

SCHEDULED = "/api/scheduled"


@pytest.fixture
def browser() -> Browser:
    return Browser()


@pytest.fixture
def channel(browser: Browser) -> ClientChannel:
    return Client(browser.node.broker).channel()


def ids(answer: Any) -> list[int]:
    return [each["id"] for each in answer["messages"]]


def test_scheduled_messages_are_listed_by_time(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q")
    channel.publish(b"late", "q", message_id="m1", headers={"x-delay": 5000})
    channel.publish(b"early", "q", headers={"x-delay": 1000})
    late = {
        "id": 0,
        "vhost": "/",
        "deliver_at": "1970-01-01T00:00:05.000000Z",
        "exchange": "",
        "routing_key": "q",
        "properties": {"headers": {"x-delay": 5000}, "message_id": "m1"},
        "payload_bytes": 4,
    }
    answer = browser.get(f"{SCHEDULED}/%2F", auth=GUEST).json()
    assert (ids(answer), answer["messages"][1], answer["next"], answer["total"]) == ([1, 0], late, None, 2)
    one = browser.get(f"{SCHEDULED}/%2F/0", auth=GUEST).json()
    assert one == late | {"payload_encoding": "string", "payload": "late"}
    assert browser.get(f"{SCHEDULED}/%2F/0?truncate=2", auth=GUEST).json()["payload"] == "la"


def test_a_list_continues_from_next(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q")
    for number in range(130):
        channel.publish(b"%d" % number, "q", headers={"x-delay": 1000 + number // 3})
    found: list[int] = []
    start: str | None = ""
    while start is not None:
        answer = browser.get(f"{SCHEDULED}/%2F", params={"count": 65, "from": start}, auth=GUEST).json()
        found += ids(answer)
        start = answer["next"]
    assert found == list(range(130))
    assert answer["total"] == 130
    assert browser.get(f"{SCHEDULED}/%2F?count=130", auth=GUEST).json()["next"] is None


def test_the_next_messages_of_all_virtual_hosts_are_merged(browser: Browser, channel: ClientChannel) -> None:
    other = Client(browser.node.broker, "other").channel()
    for each, delays in ((channel, (100, 400)), (other, (200, 300))):
        each.declare("q")
        for delay in delays:
            each.publish(b"", "q", headers={"x-delay": delay})
    answer = browser.get(f"{SCHEDULED}?count=3", auth=GUEST).json()
    assert ([each["vhost"] for each in answer["messages"]], answer["total"]) == (["/", "other", "other"], 4)
    assert [each["vhost"] for each in browser.get(SCHEDULED, auth=LIMITED).json()["messages"]] == ["other", "other"]


def test_a_cancelled_message_is_never_delivered(browser: Browser, channel: ClientChannel) -> None:
    queue = channel.declare("q")
    for letter in b"abc":
        channel.publish(bytes([letter]), "q", headers={"x-delay": 1000})
    assert browser.ask("DELETE", f"{SCHEDULED}/%2F/1", auth=GUEST).status_code == 204
    for method in ("GET", "DELETE"):
        assert browser.ask(method, f"{SCHEDULED}/%2F/1", auth=GUEST).status_code == 404
    advance(browser.node.broker, 1016)
    assert waiting(queue) == "ac"


def test_what_does_not_exist_is_not_found(browser: Browser, channel: ClientChannel) -> None:
    assert browser.get(SCHEDULED, auth=GUEST).json() == {"messages": [], "total": 0}
    assert browser.get(f"{SCHEDULED}/%2F", auth=GUEST).json() == {"messages": [], "next": None, "total": 0}
    for path in ("nope", "nope/1", "%2F/1", "%2F/1/2", "%2F/999999999999999999"):
        assert browser.get(f"{SCHEDULED}/{path}", auth=GUEST).status_code == 404
    assert browser.ask("DELETE", f"{SCHEDULED}/%2F", auth=GUEST).status_code == 404


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("%2F/first", "'first' is not the id of a scheduled message, which is a number"),
        ("%2F/9999999999999999999", "'9999999999999999999' is not the id of a scheduled message, which is a number"),
        ("%2F?from=7", "'from' must be the 'next' of an earlier response"),
        ("%2F?count=1001", "'count' must be a whole number from 1 to 1000"),
        ("%2F?before=now", "unknown parameter 'before'; known: count, from"),
    ],
)
def test_invalid_requests_are_refused(browser: Browser, path: str, reason: str) -> None:
    answer = browser.get(f"{SCHEDULED}/{path}", auth=GUEST)
    assert (answer.status_code, answer.json()["reason"]) == (400, reason)


def test_monitoring_may_read_and_only_administrators_cancel(browser: Browser, channel: ClientChannel) -> None:
    other = Client(browser.node.broker, "other").channel()
    other.declare("q")
    other.publish(b"", "q", headers={"x-delay": 1000})
    one = f"{SCHEDULED}/other/0"
    for path in (SCHEDULED, f"{SCHEDULED}/other", one):
        assert browser.get(path).status_code == 401
        assert browser.get(path, auth=PLAIN).status_code == 403
        assert browser.get(path, auth=LIMITED).status_code == 200
    assert browser.get(f"{SCHEDULED}/%2F", auth=LIMITED).status_code == 404
    assert browser.ask("DELETE", one, auth=LIMITED).status_code == 403
    assert browser.ask("DELETE", one, auth=GUEST).status_code == 204
