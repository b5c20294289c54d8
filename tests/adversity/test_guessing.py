"""Guessing passwords against a running broker, over AMQP and HTTP."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from tests.support.wire import Address, ConnectionRefusal, EndOfStream, WireConnection
from warrenmq.core.login_limit import LoginLimit
from warrenmq.core.users import EVERYTHING
from warrenmq.node import Node, NodeOptions
from warrenmq.server.options import ServerOptions
from warrenmq.server.sasl import Authenticator

CLOSES = {"authentication_failure_close": True}
LOOPBACK = frozenset({"guest"})


class Target:
    """A broker under attack."""

    def __init__(self, node: Node, limit: LoginLimit) -> None:
        self.address = Address.of_url(node.url)
        self.http_url = f"http://127.0.0.1:{node.http_port}"
        self.limit = limit

    def guess(self, password: str, user: str = "guest") -> WireConnection:
        """Send a login and do not wait for the answer."""
        connection = WireConnection(replace(self.address, user=user, password=password))
        connection.start()
        connection.log_in(CLOSES)
        return connection

    def http_status(self, password: str, user: str = "guest") -> int:
        token = b64encode(f"{user}:{password}".encode()).decode()
        request = urllib.request.Request(self.http_url + "/api/session", headers={"Authorization": f"Basic {token}"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code


def attack(interval: float, fight: Callable[[Target], None]) -> None:
    """Run the attack in a thread, against a broker with this limit."""

    async def serve() -> None:
        # On a slow machine the logins that wait must not time out before the test has looked at them.
        node = Node(NodeOptions(port=0, http_port=0, server=ServerOptions(handshake_timeout=600.0)))
        await node.start()
        assert node._amqp is not None
        users = node.broker.users
        users.add("other", "secret")
        users.grant("other", None, EVERYTHING, EVERYTHING, EVERYTHING)
        limit = node.broker.login_limit = LoginLimit(interval=interval)
        node._amqp.authenticator = Authenticator(users, LOOPBACK, limit)
        try:
            await asyncio.to_thread(fight, Target(node, limit))
        finally:
            await node.stop(grace=0.1)

    asyncio.run(serve())


@contextmanager
def flood(target: Target, count: int) -> Iterator[list[WireConnection]]:
    """Guesses on many connections at once."""
    with ExitStack() as stack:
        yield [stack.enter_context(target.guess(f"guess {number}")) for number in range(count)]


def refusals(connections: list[WireConnection]) -> list[int]:
    codes = []
    for connection in connections:
        with pytest.raises(ConnectionRefusal) as refused:
            connection.expect("connection.tune")
        codes.append(refused.value.refusal.code)
    return codes


def _samples(metrics: str) -> str:
    return "".join(f"\n{line}" for line in metrics.splitlines() if not line.startswith("#")) + "\n"


def test_a_flood_of_guesses_over_amqp_has_few_passwords_checked() -> None:
    def fight(target: Target) -> None:
        with flood(target, 60) as connections:
            # The first ten are checked, the next two wait for a minute, all others are refused unchecked.
            assert refusals(connections[:10] + connections[12:]) == [403] * 58
            assert (target.limit.failed, target.limit.refused) == (10, 48)
            with urllib.request.urlopen(target.http_url + "/metrics", timeout=30) as answer:
                metrics = answer.read().decode()
            assert "\nwarren_logins_failed_total 10\nwarren_logins_refused_total 48\n" in _samples(metrics)
            # HTTP has the same limit, and other users their own.
            assert target.http_status("one more") == 429
            assert target.http_status("guest") == 429
            assert target.http_status("secret", "other") == 200
            with WireConnection(replace(target.address, user="other", password="secret")) as other:
                other.open()

    attack(60.0, fight)


def test_guesses_over_http_count_for_amqp() -> None:
    def fight(target: Target) -> None:
        assert [target.http_status(f"guess {number}") for number in range(10)] == [401] * 10
        with flood(target, 3) as connections:
            assert refusals(connections[2:]) == [403]

    attack(60.0, fight)


def test_the_right_password_gets_in_after_a_flood() -> None:
    def fight(target: Target) -> None:
        with flood(target, 40) as connections:
            assert set(refusals(connections)) == {403}
        with WireConnection(target.address) as connection:
            connection.open()
        assert target.http_status("guest") == 200

    attack(0.05, fight)


def test_a_client_that_knows_no_refusals_is_hung_up_on() -> None:
    def fight(target: Target) -> None:
        for number in range(13):
            with WireConnection(replace(target.address, password=str(number))) as connection:
                connection.start()
                connection.log_in()
                with pytest.raises(EndOfStream):
                    connection.read()

    attack(0.01, fight)
