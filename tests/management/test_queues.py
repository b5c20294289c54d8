"""/api/queues: RabbitMQ's fields, and messages that are looked at without being consumed."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.management.asking import GUEST, LIMITED, PLAIN, Browser
from tests.support.client import Client, ClientChannel
from warrenmq.core.users import EVERYTHING

QUEUES = "/api/queues"
Q = f"{QUEUES}/%2F/q"


@pytest.fixture
def browser() -> Browser:
    return Browser()


@pytest.fixture
def channel(browser: Browser) -> ClientChannel:
    return Client(browser.node.broker).channel()


def messages(browser: Browser, path: str = Q, **parameters: Any) -> dict[str, Any]:
    answer = browser.get(
        f"{path}/messages", params={"from" if n == "start" else n: v for n, v in parameters.items()}, auth=GUEST
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_queue_has_the_fields_of_rabbitmq(browser: Browser, channel: ClientChannel) -> None:
    browser.ask("PUT", "/api/policies/%2F/limit", json={"pattern": "^q", "definition": {"expires": 60000}}, auth=GUEST)
    queue = channel.declare("q", durable=True, arguments={"x-max-length": 10, "x-owner": {"since": Decimal("1.5")}})
    channel.publish_all("abcd", "q")
    channel.get(queue, no_ack=False)
    channel.reject(1)
    channel.get(queue, no_ack=False)
    channel.get(queue, no_ack=False)
    channel.ack(2)
    assert browser.get(Q, auth=GUEST).json() == {
        "name": "q",
        "vhost": "/",
        "type": "classic",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "arguments": {"x-max-length": 10, "x-owner": {"since": "1.5"}},
        "state": "running",
        "messages": 3,
        "messages_ready": 2,
        "messages_unacknowledged": 1,
        "messages_retrying": 0,
        "messages_paged_out": 0,
        "consumers": 0,
        "policy": "limit",
        "operator_policy": None,
        "effective_policy_definition": {"expires": 60000},
        "message_stats": {"publish": 4, "deliver_get": 3, "redeliver": 1, "ack": 1},
        "consumer_details": [],
    }


def test_a_queue_shows_its_consumers(browser: Browser, channel: ClientChannel) -> None:
    channel.consume(channel.declare("q"), "worker", prefetch=7, arguments={"x-priority": 3})
    found = browser.get(Q, auth=GUEST).json()
    assert found["consumers"] == 1
    assert found["consumer_details"] == [
        {
            "consumer_tag": "worker",
            "queue": {"name": "q", "vhost": "/"},
            "channel_details": {"connection_name": channel.client.connection.name, "number": 1},
            "ack_required": True,
            "exclusive": False,
            "prefetch_count": 7,
            "active": True,
            "activity_status": "up",
            "arguments": {"x-priority": 3},
        }
    ]


def test_messages_that_wait_for_their_next_attempt_are_counted(browser: Browser, channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-retry-max": 3})
    channel.publish_all("ab", "q")
    channel.get(queue, no_ack=False)
    channel.reject(1)
    found = browser.get(Q, auth=GUEST).json()
    assert (found["messages"], found["messages_retrying"]) == (1, 1)


def test_a_peek_at_messages_that_wait_for_their_next_attempt(browser: Browser, channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-retry-max": 3, "x-retry-delay": 1000, "x-retry-backoff": "fixed"})
    channel.publish_all("abc", "q")
    for tag in (1, 2, 3):
        channel.get(queue, no_ack=False)
        channel.reject(tag)
    path = f"{Q}/retrying"
    answer = browser.get(f"{path}?count=2&truncate=0", auth=GUEST).json()
    first = answer["messages"][0]
    assert first == {
        "exchange": "",
        "routing_key": "q",
        "next_attempt": "1970-01-01T00:00:01.000000Z",
        "delivery_attempts": 1,
        "published": None,
        "properties": {"headers": {"x-retry-reason": "rejected"}},
        "payload_bytes": 1,
        "payload_encoding": "string",
        "payload": "",
    }
    rest = browser.get(path, params={"from": answer["next"]}, auth=GUEST).json()
    assert ([each["payload"] for each in rest["messages"]], rest["next"]) == (["c"], None)
    channel.declare("plain")
    assert browser.get(f"{QUEUES}/%2F/plain/retrying", auth=GUEST).json() == {"messages": [], "next": None}
    assert browser.get(path, auth=LIMITED).status_code == 404
    assert browser.get(f"{path}?from=3", auth=GUEST).status_code == 400


def test_a_response_with_large_retries_ends_early(browser: Browser, channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-retry-max": 3})
    for tag in range(1, 31):
        channel.publish(b"." * (1 << 20), "q")
        channel.get(queue, no_ack=False)
        channel.reject(tag)
    parameters = {"count": 100, "truncate": 1 << 20}
    page = browser.get(f"{Q}/retrying", params=parameters, auth=GUEST).json()
    assert 8 <= len(page["messages"]) <= 28
    rest = browser.get(f"{Q}/retrying", params=parameters | {"from": page["next"]}, auth=GUEST).json()
    assert (len(page["messages"]) + len(rest["messages"]), rest["next"]) == (30, None)


def test_queues_are_listed_by_virtual_host_and_name(browser: Browser, channel: ClientChannel) -> None:
    for name in ("b", "a", "warren.reader.x"):
        channel.declare(name)
    Client(browser.node.broker, "other").channel().declare("c")
    everything = browser.get(QUEUES, auth=GUEST).json()
    assert [(each["vhost"], each["name"]) for each in everything] == [
        ("/", "a"),
        ("/", "b"),
        ("/", "warren.reader.x"),
        ("other", "c"),
    ]
    assert browser.get(f"{QUEUES}/other", auth=GUEST).json() == everything[3:]
    assert browser.get(f"{QUEUES}/%2F", auth=GUEST).json() == browser.get(f"{QUEUES}/%2F/", auth=GUEST).json()
    assert browser.get(f"{QUEUES}/%2F/a", auth=GUEST).json() == everything[0] | {"consumer_details": []}


def test_ten_thousand_queues_are_listed(browser: Browser, channel: ClientChannel) -> None:
    for number in range(10_000):
        channel.declare(f"q{number:05}")
    assert [each["name"] for each in browser.get(QUEUES, auth=GUEST).json()] == [f"q{n:05}" for n in range(10_000)]


def test_names_may_hold_any_text(browser: Browser, channel: ClientChannel) -> None:
    for name, path in (("a/b", "a%2Fb"), ("é ?", "%C3%A9%20%3F"), ("caf\udce9", "caf%E9"), ("messages", "messages")):
        channel.declare(name)
        channel.publish(b"body", name)
        assert browser.get(f"{QUEUES}/%2F/{path}", auth=GUEST).json()["name"] == name
        assert len(messages(browser, f"{QUEUES}/%2F/{path}")["messages"]) == 1


def test_what_does_not_exist_is_not_found(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q")
    for path in ("nope", "nope/q", "%2F/nope", "%2F/nope/messages", "%2F/q/get", "%2F/q/messages/1", ""):
        answer = browser.get(f"{QUEUES}/{path}", auth=GUEST)
        assert (answer.status_code, answer.json()["error"]) == (404, "Object Not Found")


def test_access_needs_a_tag_and_the_virtual_host(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q")
    Client(browser.node.broker, "other").channel().declare("c")
    for path in (QUEUES, f"{QUEUES}/%2F", Q, f"{Q}/messages"):
        assert browser.get(path).status_code == 401
        assert browser.get(path, auth=PLAIN).status_code == 403
    assert [each["name"] for each in browser.get(QUEUES, auth=LIMITED).json()] == ["c"]
    for path in (f"{QUEUES}/%2F", Q, f"{Q}/messages"):
        assert browser.get(path, auth=LIMITED).status_code == 404


def test_a_peek_needs_the_permission_to_read_the_queue(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q")
    users = browser.node.broker.users
    users.add("writer", "secret", ["management"])
    users.grant("writer", "/", EVERYTHING, EVERYTHING, "^other")
    assert browser.get(Q, auth=("writer", "secret")).status_code == 200
    answer = browser.get(f"{Q}/messages", auth=("writer", "secret"))
    assert answer.status_code == 403
    assert answer.json()["reason"] == "read access to queue 'q' in vhost '/' refused for user 'writer'"


def test_system_streams_are_for_users_who_may_read_them(browser: Browser) -> None:
    broker = browser.node.broker
    Client(broker).channel().declare("warren.analysis", durable=True, arguments={"x-queue-type": "stream"})
    broker.users.add("clerk", "secret", ["management"])
    broker.users.grant("clerk", None, EVERYTHING, EVERYTHING, EVERYTHING)
    path = f"{QUEUES}/%2F/warren.analysis"
    assert [each["name"] for each in browser.get(QUEUES, auth=GUEST).json()] == ["warren.analysis"]
    assert browser.get(f"{path}/messages", auth=GUEST).status_code == 200
    assert browser.get(QUEUES, auth=("clerk", "secret")).json() == []
    assert browser.get(path, auth=("clerk", "secret")).status_code == 404


# -- peek ------------------------------------------------------------------------------------------------------------


def test_a_peek_shows_messages_and_leaves_them(browser: Browser, channel: ClientChannel) -> None:
    queue = channel.declare("q")
    headers = {
        "color": "red",
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "raw": b"\xff",
        "odd": float("nan"),
        "list": [None, True],
    }
    channel.publish(
        b"caf\xc3\xa9",
        "q",
        content_type="text/plain",
        priority=3,
        timestamp=datetime(2026, 1, 2, tzinfo=UTC),
        headers=headers,
    )
    channel.publish(b"\xff\x00", "q", expiration="5000")
    found = messages(browser)
    assert found == {
        "messages": [
            {
                "position": "0",
                "exchange": "",
                "routing_key": "q",
                "redelivered": False,
                "delivery_attempts": 0,
                "expires": None,
                "published": None,
                "properties": {
                    "content_type": "text/plain",
                    "headers": {
                        "color": "red",
                        "at": 1767312000,
                        "raw": "\udcff",
                        "odd": "nan",
                        "list": [None, True],
                    },
                    "priority": 3,
                    "timestamp": 1767312000,
                },
                "payload_bytes": 5,
                "payload_encoding": "string",
                "payload": "café",
            },
            {
                "position": "1",
                "exchange": "",
                "routing_key": "q",
                "redelivered": False,
                "delivery_attempts": 0,
                "expires": "1970-01-01T00:00:05.000000Z",
                "published": None,
                "properties": {"expiration": "5000"},
                "payload_bytes": 2,
                "payload_encoding": "base64",
                "payload": base64.b64encode(b"\xff\x00").decode(),
            },
        ],
        "next": None,
        "unreadable": 0,
    }
    assert messages(browser) == found
    got = channel.get(queue)
    assert got is not None
    assert (got.message.body, got.redelivered) == (b"caf\xc3\xa9", False)


def test_a_peek_continues_from_next(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q")
    channel.publish_all("abcdefghijklmnopqrstuvwxyz", "q")
    found, start = "", None
    for _ in range(9):
        page = messages(browser, count=3, **({} if start is None else {"start": start}))
        found += "".join(each["payload"] for each in page["messages"])
        start = page["next"]
    assert (found, start) == ("abcdefghijklmnopqrstuvwxyz", None)
    assert len(messages(browser)["messages"]) == 10
    assert messages(browser, count=26)["next"] is None
    assert messages(browser, start=1000) == {"messages": [], "next": None, "unreadable": 0}


def test_a_queue_with_priorities_is_shown_highest_first(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q", arguments={"x-max-priority": 9})
    for letter, priority in zip("abcd", (0, 5, 9, 5), strict=True):
        channel.publish(letter.encode(), "q", priority=priority)
    page = messages(browser, count=2)
    assert [(each["payload"], each["position"]) for each in page["messages"]] == [("c", "9:2"), ("b", "5:1")]
    assert page["next"] == "5:3"
    assert [each["payload"] for each in messages(browser, start="5:3")["messages"]] == ["d", "a"]


def test_payloads_are_truncated_at_a_character(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q")
    channel.publish("äöü".encode(), "q")
    (message,) = messages(browser, truncate=3)["messages"]
    assert (message["payload"], message["payload_encoding"], message["payload_bytes"]) == ("ä", "string", 6)
    (message,) = messages(browser, truncate=0)["messages"]
    assert (message["payload"], message["payload_bytes"]) == ("", 6)


def test_a_response_does_not_grow_without_limit(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q")
    for _ in range(60):
        channel.publish(bytes(1 << 20), "q")
    page = messages(browser, count=100, truncate=1 << 20)
    assert 8 <= len(page["messages"]) <= 16
    assert page["next"] == str(len(page["messages"]))
    page = messages(browser, count=100)
    assert (len(page["messages"]), page["next"]) == (60, None)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("count=0", "'count' must be a whole number from 1 to 1000"),
        ("count=1001", "'count' must be a whole number from 1 to 1000"),
        ("truncate=-1", "'truncate' must be a whole number from 0 to 4194304"),
        ("from=first", "'from' must be a position, such as 1042"),
        ("from=3:1", "'from' must be a position, such as 1042"),
        ("form=1", "unknown parameter 'form'; did you mean 'from'?"),
    ],
)
def test_invalid_parameters_are_refused(browser: Browser, channel: ClientChannel, query: str, reason: str) -> None:
    channel.declare("q")
    answer = browser.get(f"{Q}/messages?{query}", auth=GUEST)
    assert (answer.status_code, answer.json()["reason"]) == (400, reason)


def test_a_start_without_priority_is_refused_where_there_are_some(browser: Browser, channel: ClientChannel) -> None:
    channel.declare("q", arguments={"x-max-priority": 9})
    answer = browser.get(f"{Q}/messages?from=3", auth=GUEST)
    assert (answer.status_code, "PRIORITY:POSITION" in answer.json()["reason"]) == (400, True)


def test_an_unknown_parameter_of_a_list_is_refused(browser: Browser) -> None:
    assert browser.get(f"{QUEUES}?sort=name", auth=GUEST).status_code == 400
