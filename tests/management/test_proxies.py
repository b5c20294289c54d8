"""Where a request comes from: X-Forwarded-For counts from configured proxies alone."""

from __future__ import annotations

import logging
from ipaddress import ip_network

import pytest

from tests.management.asking import Browser
from tests.management.fakes import FakeNode
from warrenmq.management.options import HttpOptions
from warrenmq.management.ports import Origin

PROXIES = HttpOptions(trusted_proxies=(ip_network("10.0.0.0/8"), ip_network("127.0.0.1"), ip_network("2001:db8::/32")))


class Watched(FakeNode):
    def __init__(self) -> None:
        super().__init__()
        self.origins: list[Origin] = []

    async def login(self, name: str, password: str, origin: Origin) -> bool:
        self.origins.append(origin)
        return True


def origin_seen(peer: str, options: HttpOptions | None = None, *forwarded: str) -> Origin:
    node = Watched()
    headers = [("X-Forwarded-For", value) for value in forwarded]
    Browser(node, peer, options).get("/api/session", auth=("a", "b"), headers=headers)
    return node.origins[0]


@pytest.mark.parametrize("peer", ["127.0.0.1", "192.0.2.7"])
def test_without_configured_proxies_the_header_is_ignored(peer: str) -> None:
    assert origin_seen(peer, None, "203.0.113.9").address == peer


def test_a_local_proxy_that_is_not_configured_does_not_make_its_clients_local() -> None:
    assert origin_seen("127.0.0.1", None, "203.0.113.9") == Origin("127.0.0.1", is_direct=False)
    assert origin_seen("127.0.0.1") == Origin("127.0.0.1", is_direct=True)


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        (("203.0.113.9",), Origin("203.0.113.9")),
        (("127.0.0.1, 203.0.113.9",), Origin("203.0.113.9")),
        (("198.51.100.1, 203.0.113.9, 10.1.2.3",), Origin("203.0.113.9")),
        (("198.51.100.1", "203.0.113.9"), Origin("203.0.113.9")),
        (("10.1.2.3, 10.4.5.6",), Origin("10.1.2.3")),
        (("203.0.113.9:4711",), Origin("203.0.113.9")),
        (("[2001:db9::1]:4711",), Origin("2001:db9::1")),
        (("2001:db9::1",), Origin("2001:db9::1")),
        (("::ffff:203.0.113.9",), Origin("203.0.113.9")),
        (("203.0.113.9, unknown",), Origin("10.0.0.1", is_direct=False)),
        (("203.0.113.9, <script>, 10.4.5.6",), Origin("10.4.5.6", is_direct=False)),
        (("",), Origin("10.0.0.1", is_direct=False)),
        ((), Origin("10.0.0.1")),
    ],
)
def test_the_client_is_the_right_most_address_that_is_no_proxy(forwarded: tuple[str, ...], expected: Origin) -> None:
    assert origin_seen("10.0.0.1", PROXIES, *forwarded) == expected


def test_a_peer_that_is_no_proxy_cannot_choose_its_address() -> None:
    assert origin_seen("203.0.113.9", PROXIES, "198.51.100.1").address == "203.0.113.9"


def test_the_warning_about_an_unknown_proxy_comes_once(caplog: pytest.LogCaptureFixture) -> None:
    browser = Browser(Watched())
    with caplog.at_level(logging.WARNING, "warrenmq.http"):
        for _ in range(3):
            browser.get("/api/session", headers={"X-Forwarded-For": "203.0.113.9"})
    assert [record.getMessage() for record in caplog.records] == [
        "ignored X-Forwarded-For from 127.0.0.1: if it is a proxy of yours, add it to trusted_proxies"
    ]


@pytest.mark.parametrize(("options", "is_secure"), [(PROXIES, True), (None, False)])
def test_only_a_configured_proxy_can_vouch_for_https(options: HttpOptions | None, is_secure: bool) -> None:
    response = Browser(options=options).sign_in(headers={"X-Forwarded-Proto": "https"})
    assert ("Secure" in response.headers["Set-Cookie"].split("; ")) == is_secure
