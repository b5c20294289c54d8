"""Queues that expire and channels that time out, through real sessions and a clock that tests move."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.server.test_held_answers import Held, declare
from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer
from tests.support.wire_format import pack_publish

TIMEOUT_MS = 10_000


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer()


@pytest.fixture
def client(server: SocketlessServer) -> Dialogue:
    return Dialogue(server).open()


def let_pass(server: SocketlessServer, seconds: float) -> None:
    """So much time, and the timers that are due then."""
    server.clock += seconds
    server.ticker.schedule()
    server.broker.timers.advance(server.broker.turn.now_ms)
    server.loop.run()


def open_channel(client: Dialogue, number: int) -> None:
    client.say("channel.open", number)
    assert client.hear() == ["channel.open-ok"]


def hold_one(client: Dialogue, channel: int = 1, **arguments: Any) -> None:
    """A delivery that is not acked."""
    arguments = {"x-consumer-timeout": TIMEOUT_MS, **arguments}
    client.say("queue.declare", channel, queue="timing", arguments=arguments)
    client.publish(b"a", "timing", channel)
    client.say("basic.consume", channel, queue="timing", consumer_tag="slow")
    assert client.hear() == ["queue.declare-ok", "basic.consume-ok", "basic.deliver"]


def test_channel_is_closed_with_rabbitmqs_text_and_a_warning(
    server: SocketlessServer, client: Dialogue, caplog: pytest.LogCaptureFixture
) -> None:
    hold_one(client)
    let_pass(server, 9)
    assert client.hear() == []
    with caplog.at_level(logging.WARNING, "warrenmq.session"):
        let_pass(server, 2)
    (close,) = client.methods()
    text = (
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 10000 ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    assert close.name == "channel.close"
    assert close.arguments == {"reply_code": 406, "reply_text": text, "class_id": 0, "method_id": 0}
    (record,) = caplog.records
    assert text in record.getMessage()
    assert "delivery 1 of queue 'timing' in vhost '/' to consumer 'slow'" in record.getMessage()
    assert server.broker.vhosts["/"].queues["timing"].message_count() == 1


def test_the_channel_can_be_opened_again_and_others_go_on(server: SocketlessServer, client: Dialogue) -> None:
    open_channel(client, 2)
    hold_one(client)
    let_pass(server, 11)
    assert client.hear() == ["channel.close"]
    client.say("basic.ack", 1, delivery_tag=1)  # was under way: ignored
    client.say("basic.get", 2, queue="timing")
    assert client.hear() == ["basic.get-ok"]
    client.say("channel.close-ok", 1)
    client.say("channel.open", 1)
    assert client.hear() == ["channel.open-ok"]


@pytest.mark.parametrize(("value", "fault"), [(-1, "{value_negative,-1}"), ("soon", '"expected integer, got longstr"')])
@pytest.mark.parametrize("method", ["queue.declare", "basic.consume"])
def test_a_timeout_that_is_no_number_of_milliseconds_is_refused(
    client: Dialogue, method: str, value: Any, fault: str
) -> None:
    if method == "basic.consume":
        client.say("queue.declare", 1, queue="q")
        assert client.hear() == ["queue.declare-ok"]
    client.say(method, 1, queue="q", arguments={"x-consumer-timeout": value})
    (close,) = client.methods()
    text = f"PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/': {fault}"
    assert (close.arguments["reply_code"], close.arguments["reply_text"]) == (406, text)


def test_a_message_that_was_only_half_published_is_dropped_with_the_channel(
    server: SocketlessServer, client: Dialogue
) -> None:
    hold_one(client)
    frames = pack_publish(1, b"b" * 1000, None, routing_key="timing")
    client.line.send(frames[:-500])
    let_pass(server, 11)
    client.line.send(frames[-500:])
    assert client.hear() == ["channel.close"]
    client.say("channel.close-ok", 1)
    open_channel(client, 1)
    assert server.broker.vhosts["/"].queues["timing"].message_count() == 1
    assert server.broker.stats.transit_bytes == 0


def test_an_answer_that_is_held_is_not_given_on_a_channel_that_timed_out() -> None:
    server = Held()
    client = Dialogue(server).open()
    open_channel(client, 2)
    hold_one(client)
    client.line.send(declare("durable"))  # held until the epoch is durable
    let_pass(server, 11)
    client.say("channel.close-ok", 1)
    client.say("queue.declare", 2, queue="beside")
    server.commit()
    assert client.hear() == ["channel.close", "queue.declare-ok"]
    assert set(server.broker.vhosts["/"].queues) == {"timing", "durable", "beside"}


def test_a_connection_that_is_lost_leaves_no_timer(server: SocketlessServer, client: Dialogue) -> None:
    hold_one(client)
    client.line.hang_up()
    assert len(server.broker.timers) == 0
    let_pass(server, 11)


@pytest.mark.parametrize("use", ["declare", "passive", "get"])
def test_a_queue_that_is_asked_for_does_not_expire(server: SocketlessServer, client: Dialogue, use: str) -> None:
    arguments = {"x-expires": 1000}
    client.say("queue.declare", 1, queue="q", arguments=arguments)
    for _ in range(5):
        let_pass(server, 0.9)
        if use == "declare":
            client.say("queue.declare", 1, queue="q", arguments=arguments)
        elif use == "passive":
            client.say("queue.declare", 1, queue="q", passive=True)
        else:
            client.say("basic.get", 1, queue="q")
    assert "q" in server.broker.vhosts["/"].queues
    let_pass(server, 1.1)
    assert server.broker.vhosts["/"].queues == {}


def test_a_queue_that_expires_for_a_consumer_that_was_cancelled_says_nothing(
    server: SocketlessServer, client: Dialogue
) -> None:
    client.say("queue.declare", 1, queue="q", arguments={"x-expires": 1000})
    client.say("basic.consume", 1, queue="q", consumer_tag="one")
    let_pass(server, 5)
    client.say("basic.cancel", 1, consumer_tag="one")
    let_pass(server, 1.1)
    assert client.hear() == ["queue.declare-ok", "basic.consume-ok", "basic.cancel-ok"]
    assert server.broker.vhosts["/"].queues == {}
