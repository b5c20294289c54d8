"""Which Host headers are served: a page that was rebound to the broker's address is not."""

from __future__ import annotations

import socket

import pytest

from tests.management.asking import GUEST, Browser
from warrenmq.management.hosts import OwnHosts
from warrenmq.management.options import HttpOptions


@pytest.mark.parametrize("path", ["/", "/ui/login.html", "/api/session", "/api/login", "/nothing"])
def test_a_page_whose_name_was_rebound_to_the_broker_is_refused(path: str) -> None:
    headers = {"Host": "evil.example:15672", "Origin": "http://evil.example:15672"}
    method = "POST" if path == "/api/login" else "GET"
    response = Browser().ask(method, path, headers=headers, auth=GUEST)
    assert (response.status_code, response.json()["error"]) == (421, "misdirected_request")
    assert "allowed_hosts" in response.json()["reason"]
    assert "Content-Security-Policy" in response.headers


@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_probes_may_use_any_name(path: str) -> None:
    assert Browser().get(path, headers={"Host": "probe.example"}).status_code == 200


def test_further_hosts_can_be_allowed() -> None:
    browser = Browser(options=HttpOptions(allowed_hosts=frozenset({"mq.example.com"})))
    assert browser.get("/api/session", auth=GUEST, headers={"Host": "mq.example.com"}).status_code == 200
    assert browser.get("/api/session", auth=GUEST, headers={"Host": "example.com"}).status_code == 421


@pytest.mark.parametrize(
    ("listening", "host", "is_served"),
    [
        (("127.0.0.1",), "127.0.0.1:15672", True),
        (("127.0.0.1",), "127.0.0.1", True),
        (("127.0.0.1",), "localhost:15672", True),
        (("127.0.0.1",), "LOCALHOST.:8080", True),
        (("127.0.0.1",), "[::1]:15672", True),
        (("127.0.0.1",), "127.0.0.2", True),
        (("127.0.0.1",), "10.0.0.5", False),
        (("127.0.0.1",), "localhost.evil.example", False),
        (("127.0.0.1",), "127.0.0.1.evil.example", False),
        (("127.0.0.1",), "evil@127.0.0.1", False),
        (("127.0.0.1",), "", False),
        (("127.0.0.1",), "[::1", False),
        (("127.0.0.1",), "a b", False),
        (("::1",), "[0:0:0:0:0:0:0:1]:15672", True),
        (("0.0.0.0",), "10.0.0.5:15672", True),
        (("::",), "[2001:db8::7]", True),
        (("0.0.0.0",), "localhost", True),
        (("0.0.0.0",), "evil.example", False),
        (("10.0.0.5",), "10.0.0.5", True),
        (("10.0.0.5",), "10.0.0.6", False),
        (("10.0.0.5",), "localhost", False),
        (("mq.internal", "10.0.0.5"), "MQ.internal:15672", True),
        (("mq.internal", "10.0.0.5"), "10.0.0.5", True),
    ],
)
def test_the_addresses_that_the_broker_listens_on_are_its_hosts(
    listening: tuple[str, ...], host: str, is_served: bool
) -> None:
    assert OwnHosts(listening).include(host) == is_served


def test_the_machines_own_name_is_served() -> None:
    assert OwnHosts(("0.0.0.0",)).include(f"{socket.gethostname()}:15672")


@pytest.mark.parametrize(
    ("allowed", "host", "is_served"),
    [
        ("*", "anything.example", True),
        ("mq.example.com", "MQ.example.com:443", True),
        ("mq.example.com:8443", "mq.example.com:8443", True),
        ("mq.example.com:8443", "mq.example.com", False),
        ("2001:db8::7", "[2001:db8:0::7]:15672", True),
    ],
)
def test_allowed_hosts(allowed: str, host: str, is_served: bool) -> None:
    assert OwnHosts(("127.0.0.1",), (allowed,)).include(host) == is_served
