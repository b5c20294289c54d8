"""Remote calls on both faces."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .making import InThread, handler_of, make


@pytest.fixture
def echo(face: Any, connection: Any, kept: str) -> Iterator[str]:
    """A queue that is served by a function that answers in capitals."""
    with make(face, "Service", connection, client.consumer(kept)(lambda delivery: delivery.body.upper())):
        yield kept


def test_call_returns_the_reply(face: Any, connection: Any, echo: str) -> None:
    with make(face, "RpcClient", connection) as rpc:
        given = client.Properties(content_type="text/plain")
        assert rpc.call("", echo, "hello", given).body == b"HELLO"
        assert rpc.call("", echo, b"again").body == b"AGAIN"
        assert given == client.Properties(content_type="text/plain")


def test_answers_find_their_calls(face: Any, connection: Any, channel: Any, kept: str) -> None:
    requests = Inbox()
    channel.consume(kept, requests, auto_ack=True)
    with make(face, "RpcClient", connection) as rpc:
        calls = {number: InThread(rpc.call, "", kept, b"%d" % number, timeout=PATIENCE) for number in range(20)}
        for request in reversed(requests.take(20)):
            asked = request.properties
            reply = client.Properties(correlation_id=asked.correlation_id)
            channel.publish("", asked.reply_to, b"answer to " + request.body, reply)
        for number, call in calls.items():
            assert call.result().body == b"answer to %d" % number


def test_call_without_an_answer_times_out_and_the_late_one_is_counted(
    face: Any, connection: Any, channel: Any, kept: str
) -> None:
    with make(face, "RpcClient", connection) as rpc:
        asked = wait_until(lambda: unanswered(rpc, channel, kept), "a request").properties
        channel.publish("", asked.reply_to, b"late", client.Properties(correlation_id=asked.correlation_id))
        wait_until(lambda: rpc.late_replies == 1, "the late answer was counted")
        channel.publish("", asked.reply_to, b"whose?")
        wait_until(lambda: rpc.late_replies == 2, "the answer without a name was counted")


def unanswered(rpc: Any, channel: Any, queue: str) -> Any:
    """The request of a call that timed out; none if its time was up before it was sent."""
    with pytest.raises(client.CallTimedOut) as timed_out:
        rpc.call("", queue, b"anybody?", timeout=0.2)
    request = channel.get(queue, auto_ack=True)
    assert request is None or isinstance(timed_out.value, client.RpcTimeout)
    return request


def test_unroutable_request_fails_at_once(face: Any, connection: Any) -> None:
    with make(face, "RpcClient", connection) as rpc, pytest.raises(client.Unroutable):
        rpc.call("", "nowhere", b"hello", timeout=PATIENCE)


def test_refused_exchange_fails_and_the_next_call_works(face: Any, connection: Any, echo: str) -> None:
    with make(face, "RpcClient", connection) as rpc:
        for _ in range(2):
            with pytest.raises(client.NotFound):
                rpc.call("no such exchange", echo, b"hello", timeout=PATIENCE)
            assert rpc.call("", echo, b"hello").body == b"HELLO"


def test_loss_fails_the_calls_under_way_and_new_ones_work(
    face: Any, shaky: Any, breaker: Breaker, connection: Any, kept: str
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(delivery: Any) -> bytes:
        asked.set()
        assert answer.wait(PATIENCE)
        return bytes(delivery.body)

    with (
        make(face, "Service", connection, client.consumer(kept)(handler_of(face, slow))),
        make(face, "RpcClient", shaky) as rpc,
    ):
        call = InThread(rpc.call, "", kept, b"1", timeout=60)
        assert asked.wait(PATIENCE)
        breaker.reset()
        with pytest.raises(client.ConnectionLost):
            call.result()
        answer.set()
        assert rpc.call("", kept, b"2", timeout=PATIENCE).body == b"2"


def test_call_while_the_connection_is_away_waits_for_it(face: Any, shaky: Any, breaker: Breaker, echo: str) -> None:
    with make(face, "RpcClient", shaky) as rpc:
        rpc.call("", echo, b"first")
        breaker.refuse()
        breaker.reset()
        wait_until(lambda: not shaky.is_open, "the connection is lost")
        with pytest.raises((client.ConnectionLost, client.CallTimedOut)):
            rpc.call("", echo, b"impatient", timeout=0.05)
        call = InThread(rpc.call, "", echo, b"patient", timeout=PATIENCE)
        breaker.calm()
        assert call.result().body == b"PATIENT"


def test_close_fails_the_calls_under_way(face: Any, connection: Any, channel: Any, kept: str) -> None:
    rpc = make(face, "RpcClient", connection)
    call = InThread(rpc.call, "", kept, b"1", timeout=60)
    wait_until(lambda: channel.get(kept, auto_ack=True), "the request arrived")
    rpc.close()
    with pytest.raises(client.ClientError):
        call.result()


def test_end_of_the_connection_fails_the_calls_under_way(face: Any, shaky: Any, channel: Any, kept: str) -> None:
    rpc = make(face, "RpcClient", shaky)
    call = InThread(rpc.call, "", kept, b"1", timeout=60)
    wait_until(lambda: channel.get(kept, auto_ack=True), "the request arrived")
    shaky.close()
    with pytest.raises(client.ConnectionClosed):
        call.result()
    with pytest.raises(client.ConnectionClosed):
        rpc.call("", kept, b"2")
