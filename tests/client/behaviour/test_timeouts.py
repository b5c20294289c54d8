"""No call hangs: with a broker that has fallen silent every call ends with CallTimedOut, when it said it would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.support.breaker import DOWN, Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .faces import PATIENCE, Inbox

SOON = 0.15

CALLS: dict[str, Callable[[Any], Any]] = {
    "exchange_declare": lambda channel: channel.exchange_declare("e", timeout=SOON),
    "exchange_delete": lambda channel: channel.exchange_delete("e", timeout=SOON),
    "exchange_bind": lambda channel: channel.exchange_bind("amq.topic", "amq.fanout", timeout=SOON),
    "exchange_unbind": lambda channel: channel.exchange_unbind("amq.topic", "amq.fanout", timeout=SOON),
    "queue_declare": lambda channel: channel.queue_declare("", exclusive=True, timeout=SOON),
    "queue_bind": lambda channel: channel.queue_bind("q", "amq.topic", "k", timeout=SOON),
    "queue_unbind": lambda channel: channel.queue_unbind("q", "amq.topic", "k", timeout=SOON),
    "queue_purge": lambda channel: channel.queue_purge("q", timeout=SOON),
    "queue_delete": lambda channel: channel.queue_delete("q", timeout=SOON),
    "qos": lambda channel: channel.qos(1, timeout=SOON),
    "get": lambda channel: channel.get("q", timeout=SOON),
    "recover": lambda channel: channel.recover(timeout=SOON),
    "confirm_select": lambda channel: channel.confirm_select(timeout=SOON),
    "tx_select": lambda channel: channel.tx_select(timeout=SOON),
}


@pytest.mark.parametrize("call", CALLS)
def test_call_times_out(connect: Connect, breaker: Breaker, call: str) -> None:
    connection = connect(breaker.url, close_timeout=SOON)
    channel = connection.channel()
    breaker.swallow()
    with pytest.raises(client.CallTimedOut) as timed_out:
        CALLS[call](channel)
    assert isinstance(timed_out.value, TimeoutError)
    assert connection.is_open


def test_call_timeout_of_the_factory_holds_for_all(connect: Connect, breaker: Breaker) -> None:
    connection = connect(breaker.url, call_timeout=SOON, close_timeout=SOON)
    channel, transacted, confirming = (connection.channel(timeout=PATIENCE) for _ in range(3))
    transacted.tx_select(timeout=PATIENCE)
    confirming.confirm_select(timeout=PATIENCE)
    queue = channel.queue_declare("", exclusive=True, timeout=PATIENCE).queue
    consumer = wait_until(lambda: consumed(channel, queue), "a consumer")
    breaker.swallow()
    confirmation = confirming.publish("amq.fanout", "", b"x")
    for attempt in (
        lambda: connection.channel(),
        lambda: channel.queue_declare(queue, passive=True),
        lambda: channel.consume(queue, Inbox()),
        lambda: consumer.cancel(),
        lambda: transacted.tx_commit(),
        lambda: transacted.tx_rollback(),
        lambda: confirming.wait_for_confirms(),
        lambda: connection.update_secret("guest", "rotation"),
    ):
        with pytest.raises(client.CallTimedOut):
            attempt()
    with pytest.raises(TimeoutError):
        confirmation.result(SOON)


def consumed(channel: Any, queue: str) -> Any:
    """A consumer, if the machine is quick enough for the time that there is."""
    try:
        return channel.consume(queue, Inbox())
    except client.CallTimedOut:
        return None


def test_close_ends_without_a_reply(connect: Connect, breaker: Breaker) -> None:
    connection = connect(breaker.url, close_timeout=SOON)
    channel = connection.channel()
    breaker.swallow()
    channel.close(timeout=SOON)
    assert not channel.is_open
    connection.close()
    assert not connection.is_open


def test_late_answer_is_not_taken_for_that_of_the_next_call(connect: Connect, breaker: Breaker) -> None:
    channel = connect(breaker.url).channel()
    names = [channel.queue_declare("", exclusive=True).queue for _ in range(3)]
    breaker.hold(DOWN)
    with pytest.raises(client.CallTimedOut):
        channel.queue_declare(names[0], passive=True, timeout=SOON)
    with pytest.raises(client.CallTimedOut):
        channel.queue_purge(names[0], timeout=SOON)
    with pytest.raises(client.CallTimedOut):
        channel.get(names[0], timeout=SOON)
    with pytest.raises(client.CallTimedOut):
        channel.queue_declare(names[0], passive=True, timeout=SOON)
    # The next ones wait already when the late answers come.
    answers = Inbox()
    threads = [
        threading.Thread(target=lambda name=name: answers((name, channel.queue_declare(name, passive=True).queue)))
        for name in names[1:]
    ]
    for thread in threads:
        thread.start()
    assert answers.stays_empty()
    breaker.calm()
    for asked, answered in answers.take(2):
        assert answered == asked
    for thread in threads:
        thread.join()


def test_message_of_a_get_that_timed_out_is_not_lost(connect: Connect, breaker: Breaker) -> None:
    """Its answer comes when nobody waits any more: it must go back, not stay unacked for ever."""
    channel = connect(breaker.url).channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.publish("", queue, b"precious")
    channel.queue_declare(queue, passive=True)
    breaker.hold(DOWN)
    with pytest.raises(client.CallTimedOut):
        channel.get(queue, timeout=SOON)
    breaker.calm()
    assert wait_until(lambda: channel.get(queue), "the message").body == b"precious"


def test_consumer_whose_consume_timed_out_does_not_deliver(connect: Connect, breaker: Breaker) -> None:
    channel = connect(breaker.url, call_timeout=2.0).channel()  # `timeout` of consume is that of its iteration
    queue = channel.queue_declare("", exclusive=True).queue
    unwanted, wanted = Inbox(), Inbox()
    breaker.hold(DOWN)
    with pytest.raises(client.CallTimedOut):
        channel.consume(queue, unwanted)
    breaker.calm()
    channel.consume(queue, wanted, auto_ack=True)
    for number in range(10):
        channel.publish("", queue, b"%d" % number)
    assert sorted(int(each.body) for each in wanted.take(10)) == list(range(10))
    assert unwanted.stays_empty(0)
    wait_until(lambda: channel.queue_declare(queue, passive=True).consumer_count == 1, "the end of the unwanted one")


def test_channel_whose_open_timed_out_does_not_take_its_number_for_ever(connect: Connect, breaker: Breaker) -> None:
    connection = connect(breaker.url, channel_max=2)
    connection.channel()
    breaker.hold(DOWN)
    with pytest.raises(client.CallTimedOut):
        connection.channel(timeout=SOON)
    breaker.calm()

    def opened() -> Any:
        try:
            return connection.channel()
        except client.ClientError:
            return None

    assert wait_until(opened, "a channel").queue_declare("", exclusive=True).queue
