"""`x-rate` of basic.consume through real sessions: refusals, and the timer that wakes the consumer."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.server.test_queue_lifecycle import let_pass
from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer()


@pytest.fixture
def client(server: SocketlessServer) -> Dialogue:
    return Dialogue(server).open()


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (0, '"expected number above 0, got 0"'),
        (-0.5, '"expected number above 0, got -0.5"'),
        (float("nan"), '"expected number above 0, got nan"'),
        (float("inf"), '"expected number above 0, got inf"'),
        ("10", '"expected number, got longstr"'),
        (True, '"expected number, got bool"'),
        (None, '"expected number, got void"'),
    ],
)
@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_what_is_no_rate_is_refused(client: Dialogue, value: Any, fault: str, kind: str) -> None:
    client.say("queue.declare", 1, queue="q", durable=True, arguments={"x-queue-type": kind})
    assert client.hear() == ["queue.declare-ok"]
    client.say("basic.consume", 1, queue="q", arguments={"x-rate": value})
    (close,) = client.methods()
    text = f"PRECONDITION_FAILED - invalid arg 'x-rate' for queue 'q' in vhost '/': {fault}"
    assert (close.arguments["reply_code"], close.arguments["reply_text"]) == (406, text)


def test_replies_have_no_pace(client: Dialogue) -> None:
    client.say("basic.consume", 1, queue="amq.rabbitmq.reply-to", no_ack=True, arguments={"x-rate": 5})
    (close,) = client.methods()
    text = "PRECONDITION_FAILED - reply consumer cannot have x-rate"
    assert (close.arguments["reply_code"], close.arguments["reply_text"]) == (406, text)


@pytest.mark.parametrize("rate", [2, 2.0, Decimal("2.0")])
def test_messages_come_in_their_time(server: SocketlessServer, client: Dialogue, rate: Any) -> None:
    client.say("queue.declare", 1, queue="q")
    for _ in range(3):
        client.publish(b"m", "q")
    client.say("basic.consume", 1, queue="q", no_ack=True, arguments={"x-rate": rate})
    assert client.hear() == ["queue.declare-ok", "basic.consume-ok", "basic.deliver"]
    let_pass(server, 0.45)
    assert client.hear() == []
    let_pass(server, 0.07)
    assert client.hear() == ["basic.deliver"]
    let_pass(server, 0.5)
    assert client.hear() == ["basic.deliver"]


@pytest.mark.parametrize("rate", [1e-300, 1e300])
def test_the_slowest_and_the_fastest_are_possible(server: SocketlessServer, client: Dialogue, rate: float) -> None:
    client.say("queue.declare", 1, queue="q")
    for _ in range(100):
        client.publish(b"m", "q")
    client.say("basic.consume", 1, queue="q", arguments={"x-rate": rate})
    count = 1 if rate < 1 else 100
    let_pass(server, 1)
    assert client.hear() == ["queue.declare-ok", "basic.consume-ok", *["basic.deliver"] * count]
