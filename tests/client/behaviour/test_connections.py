"""A connection's life: heartbeats, blocking, listeners, and closing it from anywhere."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import warrenmq
from tests.client.conftest import Connect, Namer, own_broker_only
from tests.support.breaker import DOWN, UP, Breaker
from tests.support.loops import on_a_loop
from tests.support.waiting import let_time_pass, wait_until
from warrenmq import client
from warrenmq.client import aio
from warrenmq.server.options import ServerOptions

from .faces import PATIENCE, Inbox

# -- heartbeats

HEARTBEAT = 2  # seconds; a machine that stands still for twice as long costs the connection


def test_heartbeats_are_kept_while_callbacks_sleep_and_on_an_idle_connection(connect: Connect) -> None:
    connection, idle = connect(heartbeat=HEARTBEAT), connect(heartbeat=HEARTBEAT, recovery=False)
    lost = Inbox()
    connection.add_recovery_listener(lost)
    channel, other = connection.channel(), idle.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    inbox = Inbox()

    def slow(delivery: Any) -> None:
        let_time_pass(2.5 * HEARTBEAT)  # longer than the broker is patient with a silent client
        delivery.ack()
        inbox(delivery)

    channel.consume(queue, slow)
    channel.publish("", queue, b"x")
    assert inbox.next().body == b"x"
    assert lost.stays_empty(0)
    assert channel.queue_declare(queue, passive=True).message_count == 0
    assert idle.is_open
    assert other.queue_declare("", exclusive=True).queue


@on_a_loop
async def test_heartbeats_are_kept_by_a_loop_that_is_always_late(broker_url: str) -> None:
    """As the I/O thread is when many threads burn the processor; its word must go out all the same."""
    lost = Inbox()
    async with await aio.connect(broker_url, heartbeat=HEARTBEAT) as connection:
        connection.add_recovery_listener(lost)
        for _ in range(4):
            let_time_pass(0.7 * HEARTBEAT)
            await asyncio.sleep(0)
        assert connection.is_open
        assert (await (await connection.channel()).queue_declare("", exclusive=True)).queue
    assert lost.stays_empty(0)


def test_silent_server_is_given_up(connect: Connect, breaker: Breaker) -> None:
    connection = connect(breaker.url, heartbeat=1, recovery=False)
    closed = Inbox()
    connection.add_close_listener(closed)
    breaker.swallow(DOWN)
    reason = closed.next()
    assert (reason.by, reason.is_final) == ("network", True)
    assert "heartbeat" in reason.reply_text
    assert not connection.is_open


# -- blocked


@own_broker_only
def test_blocked_listeners_are_called(connect: Connect) -> None:
    with warrenmq.Broker(server=ServerOptions(memory_limit=200_000)) as broker:
        publisher, consumer = connect(broker.url), connect(broker.url)
        told = Inbox()
        publisher.add_blocked_listener(lambda reason: told("blocked", reason), lambda: told("unblocked"))
        channel = publisher.channel()
        channel.queue_declare("q")
        for _ in range(100):
            channel.publish("", "q", b"x" * 10_000)
        assert told.next() == ("blocked", "low on memory")
        assert publisher.is_blocked
        assert not consumer.is_blocked
        inbox = Inbox()
        consumer.channel().consume("q", inbox, auto_ack=True)
        inbox.take(100)
        assert told.next() == "unblocked"
        wait_until(lambda: not publisher.is_blocked)
        publisher.close()
        consumer.close()


@own_broker_only
def test_publish_to_a_blocked_server_raises_connection_blocked(connect: Connect) -> None:
    with warrenmq.Broker(server=ServerOptions(memory_limit=100_000)) as broker:
        connection = connect(broker.url, output_limit=100_000, close_timeout=0.5)
        told = Inbox()
        connection.add_blocked_listener(told, lambda: None)
        channel = connection.channel()
        channel.queue_declare("q")
        for _ in range(10):
            channel.publish("", "q", b"x" * 20_000)
        assert told.next() == "low on memory"
        with pytest.raises(client.ConnectionBlocked):
            for _ in range(2000):
                channel.publish("", "q", b"x" * 20_000, timeout=0.3)
        assert connection.is_open
        connection.close()


@own_broker_only
def test_call_to_a_blocked_server_raises_connection_blocked(connect: Connect) -> None:
    with warrenmq.Broker(server=ServerOptions(memory_limit=100_000)) as broker:
        connection = connect(broker.url, close_timeout=0.5)
        told = Inbox()
        connection.add_blocked_listener(told, lambda: None)
        channel = connection.channel()
        channel.queue_declare("q")
        for _ in range(20):
            channel.publish("", "q", b"x" * 20_000)
        told.next()
        with pytest.raises(client.CallTimedOut):
            channel.queue_declare("q", passive=True, timeout=0.3)
        connection.close()


# -- back-pressure


def test_publish_waits_for_room_and_times_out(connect: Connect, breaker: Breaker) -> None:
    connection = connect(breaker.url, output_limit=50_000, close_timeout=0.5)
    channel = connection.channel()
    breaker.hold(UP)
    with pytest.raises(client.CallTimedOut):
        for _ in range(3000):
            channel.publish("amq.fanout", "", b"x" * 20_000, timeout=0.3)
    breaker.calm()
    channel.publish("amq.fanout", "", b"x", timeout=10)
    assert channel.queue_declare("", exclusive=True).queue


# -- closing


def test_close_notifies_its_listeners_once(connect: Connect) -> None:
    connection = connect()
    told, channel_told = Inbox(), Inbox()
    connection.add_close_listener(told)
    channel = connection.channel()
    channel.add_close_listener(channel_told)
    connection.close(reply_text="enough")
    reason = told.next()
    assert (reason.by, reason.reply_code, reason.reply_text, reason.is_final) == ("client", 200, "enough", True)
    assert channel_told.next().by == "client"
    connection.close()
    assert told.stays_empty(0.1)
    assert channel_told.stays_empty(0.1)


def test_everything_after_close_is_refused(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    connection.close()
    with pytest.raises(client.ConnectionClosed) as closed:
        connection.channel()
    assert closed.value.reason.by == "client"
    for attempt in (
        lambda: channel.queue_declare("", exclusive=True),
        lambda: channel.publish("", "q", b"x"),
        lambda: channel.get("q"),
        lambda: channel.consume("q", lambda delivery: None),
        lambda: channel.ack(1),
    ):
        with pytest.raises((client.ConnectionClosed, client.ChannelClosed)):
            attempt()
    channel.close()  # closing what is closed is no error


def test_channel_close_leaves_the_others(connection: Any) -> None:
    first, second = connection.channel(), connection.channel()
    told = Inbox()
    first.add_close_listener(told)
    first.close()
    first.close()
    assert told.next().by == "client"
    with pytest.raises(client.ChannelClosed):
        first.queue_declare("", exclusive=True)
    with pytest.raises(client.ChannelClosed):
        first.publish("", "q", b"x")
    assert second.queue_declare("", exclusive=True).queue
    assert not first.is_open
    assert second.is_open


def test_channel_as_a_context(connection: Any) -> None:
    with connection.channel() as channel:
        assert channel.queue_declare("", exclusive=True).queue
        assert channel.connection == connection
    assert not channel.is_open
    assert connection.is_open


def test_close_from_a_callback(connect: Connect) -> None:
    # The close waits for callbacks that run; the aio face cannot know that it is asked by one in a thread.
    connection = connect(close_timeout=0.5)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    told, ended = Inbox(), Inbox()
    connection.add_close_listener(told)

    def callback(delivery: Any) -> None:
        delivery.channel.connection.close()
        ended(connection.is_open)

    channel.consume(queue, callback)
    channel.publish("", queue, b"x")
    assert told.next().by == "client"
    assert ended.next() is False


def test_channel_close_from_its_own_callback(connect: Connect) -> None:
    connection = connect(close_timeout=0.5)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    ended = Inbox()

    def callback(delivery: Any) -> None:
        delivery.ack()
        channel.close()
        ended(channel.is_open)

    channel.consume(queue, callback)
    channel.publish("", queue, b"x")
    assert ended.next() is False
    assert connection.is_open


def test_close_from_many_threads_at_once(connect: Connect) -> None:
    connection = connect()
    connection.channel()
    failures = Inbox()

    def close() -> None:
        try:
            connection.close()
        except Exception as failure:  # noqa: BLE001 - whatever it is, the test shows it
            failures(failure)

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert failures.stays_empty(0)
    assert not connection.is_open


def test_close_wakes_who_waits(connect: Connect, breaker: Breaker) -> None:
    connection = connect(breaker.url, close_timeout=0.5)
    channel = connection.channel()
    channel.confirm_select()
    breaker.hold(DOWN)
    ended = Inbox()
    confirmation = channel.publish("amq.fanout", "", b"x")

    def wait(attempt: Any) -> None:
        try:
            attempt()
        except Exception as failure:  # noqa: BLE001 - handed to the test
            ended(failure)

    attempts = [
        lambda: channel.queue_declare("", exclusive=True, timeout=60),
        lambda: confirmation.result(60),
        lambda: channel.wait_for_confirms(timeout=60),
        lambda: connection.channel(timeout=60),
    ]
    threads = [threading.Thread(target=wait, args=(attempt,)) for attempt in attempts]
    for thread in threads:
        thread.start()
    let_time_pass(0.2)
    connection.close()
    failures = ended.take(4)
    assert all(isinstance(failure, client.ClientError) for failure in failures), failures
    assert not any(isinstance(failure, client.CallTimedOut) for failure in failures), failures
    for thread in threads:
        thread.join(PATIENCE)


def test_close_of_a_dead_line_ends(connect: Connect, breaker: Breaker) -> None:
    connection = connect(breaker.url)
    breaker.swallow()
    connection.close(timeout=0.3)
    assert not connection.is_open


# -- refusals of the whole connection


def provoke(connection: Any, name: Namer) -> None:
    connection.channel().exchange_declare(name("exchange"), "no-such-type")


def test_connection_error_without_recovery_is_final(connect: Connect, name: Namer) -> None:
    connection = connect(recovery=False)
    told = Inbox()
    connection.add_close_listener(told)
    with pytest.raises((client.ConnectionClosed, client.ConnectionLost)) as failed:
        provoke(connection, name)
    assert failed.value.reason.reply_code == 503
    reason = told.next()
    assert (reason.by, reason.reply_code, reason.is_final) == ("server", 503, True)
    assert "unknown exchange type" in reason.reply_text
    assert (reason.class_id, reason.method_id) == (40, 10)
    with pytest.raises(client.ConnectionClosed):
        connection.channel()


def test_connection_error_is_recovered_from(connect: Connect, name: Namer) -> None:
    connection = connect(recovery=client.Recovery(initial=0.01))
    events = Inbox()
    connection.add_recovery_listener(events)
    other = connection.channel()
    with pytest.raises((client.ConnectionClosed, client.ConnectionLost)) as failed:
        provoke(connection, name)
    assert failed.value.reason.reply_code == 503
    events.until(lambda event: event.kind == "recovered")
    assert other.queue_declare("", exclusive=True).queue


def test_update_secret_is_answered(connection: Any) -> None:
    connection.update_secret("guest", "rotation")
    assert connection.is_open
