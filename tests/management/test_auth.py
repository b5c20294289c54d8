"""Who is let in: basic auth, sessions, and what a page of another site may not do."""

from __future__ import annotations

import asyncio

import pytest

from tests.management.asking import GUEST, Browser
from tests.management.fakes import FakeNode
from warrenmq.core.login_limit import LoginLimit
from warrenmq.core.users import EVERYTHING
from warrenmq.management import sessions
from warrenmq.management.ports import Origin
from warrenmq.management.view import NodeView
from warrenmq.server.sasl import Authenticator, Peer
from warrenmq.tracing.rules import TraceRule

RULE = "/api/trace-rules/mine"


@pytest.fixture
def browser() -> Browser:
    return Browser(FakeNode(rules=[TraceRule("mine")]))


def error_of(response: object) -> tuple[int, str]:
    return response.status_code, response.json()["error"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["session", "traces", "traces/x", "trace-rules", "trace-rules/x", "nothing", ""])
def test_everything_under_api_wants_a_user(browser: Browser, path: str) -> None:
    response = browser.get(f"/api/{path}")
    assert error_of(response) == (401, "not_authorized")
    assert response.headers["WWW-Authenticate"] == 'Basic realm="WarrenMQ"'


def test_a_page_is_not_asked_for_basic_auth_lest_the_browser_opens_its_own_window(browser: Browser) -> None:
    response = browser.get("/api/session", headers={"X-Warren-CSRF": "-"})
    assert (response.status_code, "WWW-Authenticate" in response.headers) == (401, False)


def test_health_and_metrics_stay_open(browser: Browser) -> None:
    assert [browser.get(path).status_code for path in ("/healthz", "/metrics")] == [200, 200]


def test_a_user_of_the_broker_comes_in_by_basic_auth(browser: Browser) -> None:
    response = browser.get("/api/session", auth=GUEST)
    assert (response.status_code, response.json()) == (200, {"user": "guest"})
    assert browser.get("/api/session", auth=("guest", "wrong")).status_code == 401
    assert browser.get("/api/session", auth=("nobody", "guest")).status_code == 401


@pytest.mark.parametrize("header", ["Basic", "Basic !!!", "Basic Z3Vlc3Q", "Bearer abc"])
def test_malformed_authorization_is_refused(browser: Browser, header: str) -> None:
    assert browser.get("/api/session", headers={"Authorization": header}).status_code == 401


def test_login_receives_the_origin() -> None:
    asked: list[tuple[str, str, str]] = []

    class Watched(FakeNode):
        async def login(self, name: str, password: str, origin: Origin) -> bool:
            asked.append((name, password, origin.address))
            return False

    assert Browser(Watched(), address="192.0.2.7").get("/api/session", auth=("é", "pä:ss")).status_code == 401
    assert asked == [("é", "pä:ss", "192.0.2.7")]


def test_node_without_login_refuses_every_user() -> None:
    node = FakeNode()
    view = NodeView(node.broker, lambda: (True, ""), lambda: 0.0, "1")
    assert not asyncio.run(view.login("guest", "guest", Origin("127.0.0.1")))


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_session_cookie_is_httponly_and_same_site(browser: Browser) -> None:
    response = browser.sign_in()
    assert response.status_code == 200
    assert response.json()["user"] == "guest"
    cookie = response.headers["Set-Cookie"]
    assert cookie.startswith("warren_session=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert browser.get("/api/session").json() == {"user": "guest", "csrf": browser.csrf, "idle_seconds": 3600}


def test_over_https_the_cookie_is_secure() -> None:
    response = Browser().ask("POST", "https://broker/api/login", json={"username": "guest", "password": "guest"})
    assert "Secure" in response.headers["Set-Cookie"].split("; ")


def test_wrong_password_creates_no_session(browser: Browser) -> None:
    response = browser.sign_in(password="wrong")
    assert error_of(response) == (401, "not_authorized")
    assert "Set-Cookie" not in response.headers


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"username": 1, "password": "x"}', b'{"username": "guest"}'])
def test_a_login_that_is_none_is_a_bad_request(browser: Browser, body: bytes) -> None:
    response = browser.ask("POST", "/api/login", content=body, headers={"Content-Type": "application/json"})
    assert error_of(response) == (400, "bad_request")


def test_a_form_cannot_sign_in(browser: Browser) -> None:
    response = browser.ask("POST", "/api/login", data={"username": "guest", "password": "guest"})
    assert error_of(response) == (400, "bad_request")


def test_a_session_ends_when_it_is_not_used(browser: Browser) -> None:
    browser.sign_in()
    browser.now += sessions.IDLE_SECONDS - 1
    assert browser.get("/api/session").status_code == 200
    browser.now += sessions.IDLE_SECONDS - 1  # it was used in between
    assert browser.get("/api/session").status_code == 200
    browser.now += sessions.IDLE_SECONDS
    assert browser.get("/api/session").status_code == 401


def test_a_session_ends_when_it_is_old_although_it_is_used(browser: Browser) -> None:
    browser.sign_in()
    for _ in range(sessions.MAX_AGE_SECONDS // 3000):
        browser.now += 3000
        last = browser.get("/api/session").status_code
    browser.now += 3000
    assert (last, browser.get("/api/session").status_code) == (200, 401)


def test_signing_out_ends_the_session_even_if_the_cookie_is_kept(browser: Browser) -> None:
    browser.sign_in()
    kept = dict(browser.cookies)
    assert browser.change("DELETE", "/api/session").status_code == 204
    assert not browser.cookies
    browser.cookies.update(kept)
    assert browser.get("/api/session").status_code == 401


def test_session_of_a_removed_user_is_invalid(browser: Browser) -> None:
    browser.node.broker.users.add("temp", "x")
    browser.node.broker.users.grant("temp", None, EVERYTHING, EVERYTHING, EVERYTHING)
    browser.sign_in("temp", "x")
    assert browser.get("/api/session").status_code == 200
    browser.node.broker.users.remove("temp")
    assert browser.get("/api/session").status_code == 401


def test_sessions_are_bounded_and_the_one_unused_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    kept = sessions.Sessions()
    first, second = kept.begin("a", 0.0)[0], kept.begin("b", 1.0)[0]
    assert kept.find(first, 2.0) is not None
    third = kept.begin("c", 3.0)[0]
    assert [kept.find(token, 4.0) is not None for token in (first, second, third)] == [True, False, True]


# -- requests that change something ------------------------------------------------------------------------------------


def test_change_by_cookie_needs_the_csrf_token(browser: Browser) -> None:
    browser.sign_in()
    for headers in ({}, {"X-Warren-CSRF": ""}, {"X-Warren-CSRF": "guessed"}, {"X-Warren-CSRF": "gu\u00e9ss".encode()}):
        assert error_of(browser.ask("DELETE", RULE, headers=headers)) == (403, "not_authorized")
    assert "mine" in browser.node.rules.rules
    assert browser.change("DELETE", RULE).status_code == 204
    assert "mine" not in browser.node.rules.rules


def test_the_token_of_another_session_is_not_enough(browser: Browser) -> None:
    browser.sign_in()
    others = browser.csrf
    browser.cookies.clear()
    browser.sign_in()
    assert browser.ask("DELETE", RULE, headers={"X-Warren-CSRF": others}).status_code == 403


def test_change_by_basic_auth_needs_no_csrf_token(browser: Browser) -> None:
    assert browser.ask("DELETE", RULE, auth=GUEST).status_code == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://behind-a-proxy"}, 204),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://broker"}, 204),
    ],
)
def test_requests_of_other_sites_are_refused(browser: Browser, headers: dict[str, str], status: int) -> None:
    assert browser.ask("DELETE", RULE, auth=GUEST, headers=headers).status_code == status


def test_another_site_cannot_sign_a_user_in(browser: Browser) -> None:
    assert browser.sign_in(headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


# -- guessing (the limits themselves: tests/core/test_login_limit.py) --------------------------------------------------


class LimitedNode(FakeNode):
    """Checks passwords as a real node does."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = LoginLimit(interval=0.01)
        self.now = 0.0
        self.authenticator = Authenticator(self.broker.users, frozenset({"guest"}), self.limit, lambda: self.now)

    async def login(self, name: str, password: str, origin: Origin) -> bool:
        return await self.authenticator.check(name, password, Peer(origin.address, is_direct=origin.is_direct))


def test_wrong_passwords_are_limited_and_the_right_one_is_accepted() -> None:
    node = LimitedNode()
    browser = Browser(node)
    assert [browser.sign_in(password=str(n)).status_code for n in range(13)] == [401] * 12 + [429]
    refused = browser.sign_in(password="another")
    assert error_of(refused) == (429, "too_many_requests")
    assert refused.headers["Retry-After"] == "1"
    assert browser.get("/api/session", auth=("guest", "another")).status_code == 429
    node.now += 0.02  # one of those that waited was decided meanwhile
    assert browser.sign_in().status_code == 200


def test_other_users_and_sessions_are_not_locked_out() -> None:
    browser = Browser(LimitedNode())
    browser.sign_in()
    for n in range(14):
        browser.get("/api/session", auth=("guest", str(n)))
    assert browser.get("/api/session").status_code == 200
    assert browser.get("/api/session", auth=("limited", "secret")).status_code == 200


def test_password_that_is_not_text_is_wrong(browser: Browser) -> None:
    body = b'{"username": "guest", "password": "\\ud800"}'
    response = browser.ask("POST", "/api/login", content=body, headers={"Content-Type": "application/json"})
    assert error_of(response) == (400, "bad_request")
    surrogate = Browser(LimitedNode())
    assert surrogate.get("/api/session", headers={"Authorization": "Basic Z3Vlc3Q67aCA"}).status_code == 401
