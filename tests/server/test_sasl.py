"""Who may log in, by which mechanism, from where."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.support.wire_format import pack_table
from warrenmq.core.login_limit import LoginLimit
from warrenmq.core.users import Users
from warrenmq.protocol.errors import SyntaxRefused
from warrenmq.server.sasl import Authenticator, LoginRefused, Peer

HERE = Peer("127.0.0.1")
ELSEWHERE = Peer("192.0.2.7")


@pytest.fixture
def users() -> Users:
    users = Users()
    users.add("guest", "guest")
    users.add("alice", "wonder\u2603land")
    return users


@pytest.fixture
def authenticator(users: Users) -> Authenticator:
    return Authenticator(users, frozenset({"guest"}))


def plain(name: bytes, password: bytes) -> bytes:
    return b"\0" + name + b"\0" + password


def amqplain(**fields: object) -> bytes:
    return pack_table(fields)[4:]


def test_only_passwords_are_asked_for_where_there_is_no_certificate(authenticator: Authenticator) -> None:
    assert authenticator.mechanisms_for(HERE) == ("PLAIN", "AMQPLAIN")
    assert authenticator.mechanisms_for(Peer("127.0.0.1", "alice")) == ("PLAIN", "AMQPLAIN", "EXTERNAL")


def test_right_password_is_accepted(authenticator: Authenticator) -> None:
    assert authenticator.login("PLAIN", plain(b"guest", b"guest"), HERE) == "guest"
    assert authenticator.login("PLAIN", plain(b"alice", "wonder\u2603land".encode()), HERE) == "alice"
    assert authenticator.login("AMQPLAIN", amqplain(LOGIN="guest", PASSWORD="guest"), HERE) == "guest"


@pytest.mark.parametrize(
    ("name", "password"),
    [(b"guest", b"wrong"), (b"nobody", b"guest"), (b"", b""), (b"guest", b"\xff"), (b"\xff", b"x")],
)
def test_wrong_credentials_are_refused(authenticator: Authenticator, name: bytes, password: bytes) -> None:
    with pytest.raises(LoginRefused, match="unknown, or wrong password") as refusal:
        authenticator.login("PLAIN", plain(name, password), HERE)
    assert refusal.value.mechanism == "PLAIN"


def test_wrong_credentials_are_refused_by_amqplain_too(authenticator: Authenticator) -> None:
    with pytest.raises(LoginRefused) as refusal:
        authenticator.login("AMQPLAIN", amqplain(LOGIN="guest", PASSWORD="wrong"), HERE)
    assert refusal.value.mechanism == "AMQPLAIN"


@pytest.mark.parametrize("response", [b"", b"guest", b"\0guest", b"guest\0guest", b"\0a\0b\0c", b"authz\0guest\0guest"])
def test_malformed_plain_response_is_a_protocol_error(authenticator: Authenticator, response: bytes) -> None:
    with pytest.raises(SyntaxRefused):
        authenticator.login("PLAIN", response, HERE)


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"\0guest\0guest",
        amqplain(LOGIN="guest"),
        amqplain(PASSWORD="guest"),
        amqplain(LOGIN="guest", PASSWORD=7),
        amqplain(LOGIN="guest", PASSWORD="guest")[:-1],
        struct.pack(">I", 2**32 - 1),
    ],
)
def test_what_is_no_amqplain_response_is_a_protocol_fault(authenticator: Authenticator, response: bytes) -> None:
    with pytest.raises(SyntaxRefused):
        authenticator.login("AMQPLAIN", response, HERE)


def test_an_unknown_mechanism_is_a_protocol_fault(authenticator: Authenticator) -> None:
    with pytest.raises(SyntaxRefused, match="unknown authentication mechanism 'GUESS'"):
        authenticator.login("GUESS", b"", HERE)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "::1%lo", ""])
def test_a_loopback_user_may_come_from_this_machine(authenticator: Authenticator, host: str) -> None:
    assert authenticator.login("PLAIN", plain(b"guest", b"guest"), Peer(host)) == "guest"


@pytest.mark.parametrize("host", ["192.0.2.7", "10.0.0.1", "2001:db8::1", "fe80::1%eth0", "::ffff:10.0.0.1"])
def test_a_loopback_user_may_not_come_from_elsewhere(authenticator: Authenticator, host: str) -> None:
    with pytest.raises(LoginRefused, match="user 'guest' can only connect via localhost"):
        authenticator.login("PLAIN", plain(b"guest", b"guest"), Peer(host))


def test_other_users_may_come_from_anywhere(authenticator: Authenticator) -> None:
    assert authenticator.login("PLAIN", plain(b"alice", "wonder\u2603land".encode()), ELSEWHERE) == "alice"


def test_a_wrong_password_from_elsewhere_does_not_tell_that_the_user_exists(authenticator: Authenticator) -> None:
    with pytest.raises(LoginRefused, match="unknown, or wrong password"):
        authenticator.login("PLAIN", plain(b"guest", b"wrong"), ELSEWHERE)


def test_a_certificate_names_the_user(authenticator: Authenticator) -> None:
    assert authenticator.login("EXTERNAL", b"", Peer("192.0.2.7", "alice")) == "alice"


def test_a_certificate_of_an_unknown_user_is_refused(authenticator: Authenticator) -> None:
    with pytest.raises(LoginRefused) as refusal:
        authenticator.login("EXTERNAL", b"", Peer("192.0.2.7", "mallory"))
    assert refusal.value.mechanism == "EXTERNAL"


def test_external_without_a_certificate_is_a_protocol_fault(authenticator: Authenticator) -> None:
    with pytest.raises(SyntaxRefused):
        authenticator.login("EXTERNAL", b"guest", HERE)


# -- too many failed logins (the limits themselves: tests/core/test_login_limit.py) ------------------------------------


def guess_often(authenticator: Authenticator, count: int = 10) -> None:
    for number in range(count):
        with pytest.raises(LoginRefused):
            authenticator.login("PLAIN", plain(b"alice", str(number).encode()), ELSEWHERE)


def test_after_many_wrong_passwords_a_login_is_decided_later(users: Users) -> None:
    async def log_in() -> None:
        authenticator = Authenticator(users, frozenset(), LoginLimit(interval=0.01), lambda: 0.0)
        guess_often(authenticator)
        wrong = authenticator.login("PLAIN", plain(b"alice", b"wrong"), ELSEWHERE)
        assert not isinstance(wrong, str)
        with pytest.raises(LoginRefused):
            await wrong
        right = authenticator.login("PLAIN", plain(b"alice", "wonder\u2603land".encode()), ELSEWHERE)
        assert (right if isinstance(right, str) else await right) == "alice"

    asyncio.run(log_in())


def test_a_client_that_disconnects_while_its_login_waits_releases_its_place(users: Users) -> None:
    async def log_in() -> None:
        limit = LoginLimit(interval=60.0)
        authenticator = Authenticator(users, frozenset(), limit, lambda: 0.0)
        guess_often(authenticator)
        for number in range(10):  # only two could wait at a time
            login = authenticator.login("PLAIN", plain(b"alice", f"gone {number}".encode()), ELSEWHERE)
            assert not isinstance(login, str)
            waiting = asyncio.ensure_future(login)
            if number % 2:
                await asyncio.sleep(0)  # half of them leave before the login has begun to wait
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert (limit.failed, limit.refused) == (10, 0)

    asyncio.run(log_in())


def test_a_right_password_from_a_place_that_is_not_allowed_counts_as_failed(users: Users) -> None:
    limit = LoginLimit()
    authenticator = Authenticator(users, frozenset({"guest"}), limit)
    with pytest.raises(LoginRefused):
        authenticator.login("PLAIN", plain(b"guest", b"guest"), ELSEWHERE)
    with pytest.raises(LoginRefused):
        authenticator.login("PLAIN", plain(b"guest", b"guest"), Peer("127.0.0.1", is_direct=False))
    assert limit.failed == 2
