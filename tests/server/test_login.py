"""Logins that an authenticator decides later: the client is held meanwhile, and nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import InternalErrors, SocketlessServer
from tests.support.wire import Address, EndOfStream, WireConnection
from tests.support.wire_format import METHOD, PROTOCOL_HEADER, pack_frame, pack_method
from warrenmq.core.users import Users
from warrenmq.embedded import event_loop_factory
from warrenmq.node import Node, NodeOptions
from warrenmq.protocol.errors import SyntaxRefused
from warrenmq.server.sasl import Authenticator, LoginRefused, Peer

CLOSES = {"authentication_failure_close": True}


class LateAuthenticator(Authenticator):
    """Decides when the test does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(Users(), frozenset())
        self._loop = loop
        self.asked: list[asyncio.Future[str]] = []

    def login(self, mechanism: str, response: bytes, peer: Peer) -> Awaitable[str]:
        self.asked.append(self._loop.create_future())
        return self.asked[-1]

    def run(self) -> None:
        """Let the loop call what waits."""
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()


@pytest.fixture
def late() -> Iterator[LateAuthenticator]:
    loop = asyncio.new_event_loop()
    yield LateAuthenticator(loop)
    loop.close()


@pytest.fixture
def server(late: LateAuthenticator) -> SocketlessServer:
    server = SocketlessServer()
    server.authenticator = late
    return server


def frame(name: str, channel: int = 0, **arguments: Any) -> bytes:
    return pack_frame(METHOD, channel, pack_method(name, **arguments))


def test_a_client_is_let_in_later(server: SocketlessServer, late: LateAuthenticator) -> None:
    client = Dialogue(server)
    client.start()
    assert client.hear() == ["connection.start"]
    late.asked[0].set_result("guest")
    late.run()
    assert client.hear() == ["connection.tune"]
    client.say("connection.tune-ok", channel_max=2047, frame_max=131072, heartbeat=0)
    client.say("connection.open", virtual_host="/")
    assert client.hear() == ["connection.open-ok"]
    assert client.line.connection.session.user == "guest"


def test_what_it_sends_meanwhile_is_read_afterwards(server: SocketlessServer, late: LateAuthenticator) -> None:
    client = Dialogue(server)
    client.start()
    client.line.send(
        frame("connection.tune-ok", channel_max=2047, frame_max=131072, heartbeat=0)
        + frame("connection.open", virtual_host="/")
        + frame("channel.open", 1)
    )
    assert client.hear() == ["connection.start"]
    late.asked[0].set_result("guest")
    late.run()
    assert client.hear() == ["connection.tune", "connection.open-ok", "channel.open-ok"]


def test_what_came_in_the_same_piece_is_read_afterwards(server: SocketlessServer, late: LateAuthenticator) -> None:
    client = Dialogue(server)
    start_ok = frame(
        "connection.start-ok", client_properties={}, mechanism="PLAIN", response="\0guest\0guest", locale="en_US"
    )
    tune_ok = frame("connection.tune-ok", channel_max=2047, frame_max=131072, heartbeat=0)
    client.line.send(PROTOCOL_HEADER + start_ok + tune_ok + frame("connection.open", virtual_host="/"))
    assert client.hear() == ["connection.start"]
    late.asked[0].set_result("guest")
    late.run()
    assert client.hear() == ["connection.tune", "connection.open-ok"]


def test_others_are_served_meanwhile(server: SocketlessServer, late: LateAuthenticator) -> None:
    first, second = Dialogue(server), Dialogue(server)
    first.start()
    second.start()
    late.asked[1].set_result("guest")
    late.run()
    assert first.hear() == ["connection.start"]
    assert second.hear() == ["connection.start", "connection.tune"]


def test_later_refusal_is_sent(server: SocketlessServer, late: LateAuthenticator) -> None:
    client = Dialogue(server)
    client.start(CLOSES)
    late.asked[0].set_exception(LoginRefused("PLAIN", "the directory says no"))
    late.run()
    *_, close = client.methods()
    assert (close.name, close["reply_code"]) == ("connection.close", 403)
    assert close["reply_text"].startswith("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.")
    client.say("connection.close-ok")
    assert client.line.is_closed


def test_a_client_that_knows_no_refusals_is_hung_up_on_later(server: SocketlessServer, late: LateAuthenticator) -> None:
    client = Dialogue(server)
    client.start()
    late.asked[0].set_exception(LoginRefused("PLAIN", "the directory says no"))
    late.run()
    assert client.hear() == ["connection.start"]
    assert client.line.is_closed


def test_a_response_that_is_none_is_a_protocol_fault_later_too(
    server: SocketlessServer, late: LateAuthenticator
) -> None:
    client = Dialogue(server)
    client.start(CLOSES)
    late.asked[0].set_exception(SyntaxRefused("response to PLAIN is malformed"))
    late.run()
    assert client.line.is_closed


def test_a_bug_of_the_authenticator_costs_the_connection_alone(
    server: SocketlessServer, late: LateAuthenticator
) -> None:
    client = Dialogue(server)
    client.start()
    late.asked[0].set_exception(RuntimeError("the directory is gone"))
    with InternalErrors() as errors:
        late.run()
    assert "the directory is gone" in errors.found[0]
    *_, close = client.methods()
    assert (close.name, close["reply_code"]) == ("connection.close", 541)


@pytest.mark.parametrize(
    "decide",
    [
        lambda login: login.set_result("guest"),
        lambda login: login.set_exception(LoginRefused("PLAIN", "no")),
    ],
    ids=["let in", "refused"],
)
def test_a_client_that_is_gone_needs_no_decision(
    server: SocketlessServer, late: LateAuthenticator, decide: Callable[[asyncio.Future[str]], None]
) -> None:
    before, after = Dialogue(server), Dialogue(server)
    before.start()
    after.start()
    before.line.hang_up()
    assert late.asked[0].cancelled()
    decide(late.asked[1])
    after.line.hang_up()  # between the decision and its callback
    with InternalErrors() as errors:
        late.run()
    assert errors.found == []
    assert server.broker.connection_count == 0


def test_handshake_timeout_keeps_running(server: SocketlessServer, late: LateAuthenticator) -> None:
    client = Dialogue(server)
    client.start()
    client.line.pass_time(server.options.handshake_timeout + 1)
    assert client.line.is_closed
    assert late.asked[0].cancelled()


class Directory(Authenticator):
    """Asks elsewhere, as a coroutine."""

    def login(self, mechanism: str, response: bytes, peer: Peer) -> Awaitable[str]:
        return self._ask(mechanism, response, peer)

    async def _ask(self, mechanism: str, response: bytes, peer: Peer) -> str:
        await asyncio.to_thread(int)
        name = super().login(mechanism, response, peer)
        assert isinstance(name, str)
        return name


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, event_loop_factory()])
def test_logins_are_decided_later_on_real_sockets(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    def talk(address: Address) -> None:
        with WireConnection(address) as connection:
            connection.open()
        with WireConnection(replace(address, password="wrong")) as connection, pytest.raises(EndOfStream):
            connection.open()

    async def serve() -> None:
        node = Node(NodeOptions(port=0, http_port=None))
        await node.start()
        server = node._amqp
        assert server is not None
        server.authenticator = Directory(server.broker.users, frozenset())
        await asyncio.to_thread(talk, Address.of_url(node.url))
        await node.stop()

    with InternalErrors() as errors, asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(serve())
    assert errors.found == []
