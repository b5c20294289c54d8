"""The blocking connection: its threads, its end from anywhere, forks, and programs that forget it."""

from __future__ import annotations

import gc
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.waiting import let_time_pass, wait_until
from warrenmq import Broker, client

LIMIT = 30.0


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not client_threads(), "no thread of the client is left")


def client_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("warren-client")]


# -- channels ----------------------------------------------------------------------------------------------------------


def test_channel_closes_although_its_consumer_was_just_forgotten(broker_url: str) -> None:
    """The usual way to take one message: the consumer is garbage, and being cancelled, when the block ends."""
    with client.connect(broker_url, close_timeout=60) as connection:
        with connection.channel() as channel:
            queue = channel.queue_declare(exclusive=True).queue
            channel.publish("", queue, b"one")
            for delivery in channel.consume(queue):
                delivery.ack()
                break
        assert connection.channel().number == channel.number  # so the broker's close-ok was heard


# -- threads -----------------------------------------------------------------------------------------------------------


def test_threads_bear_the_connections_name(broker_url: str) -> None:
    with client.connect(broker_url, name="billing") as connection:
        assert client_threads() == ["warren-client-billing"]
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        assert client_threads() == ["warren-client-billing"]  # no worker before there is work
        channel.consume(queue, lambda delivery: None)
        channel.publish("", queue, b"")
        wait_until(lambda: len(client_threads()) == 2)
        assert all(name.startswith("warren-client-billing") for name in client_threads())


def test_fifty_connections_leave_no_thread(broker_url: str) -> None:
    before = set(threading.enumerate())
    for _ in range(50):
        with client.connect(broker_url) as connection:
            channel = connection.channel()
            queue = channel.queue_declare(exclusive=True).queue
            heard = threading.Event()
            channel.consume(queue, lambda delivery, heard=heard: heard.set(), auto_ack=True)  # type: ignore[misc]
            channel.publish("", queue, b"")
            assert heard.wait(LIMIT)
        assert client_threads() == []
    assert set(threading.enumerate()) <= before


def test_a_refused_connection_leaves_no_thread() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(client.ConnectionFailed):
            client.connect(host="127.0.0.1", port=bound.getsockname()[1])
    assert client_threads() == []


def test_a_silent_server_is_given_up(broker_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(client.ConnectionFailed):
            client.connect(host="127.0.0.1", port=port, connect_timeout=0.2)
    assert client_threads() == []


def test_closing_a_channel_ends_its_worker(broker_url: str) -> None:
    with client.connect(broker_url) as connection:
        with connection.channel() as channel:
            channel.consume(channel.queue_declare(exclusive=True).queue, lambda delivery: None)
            channel.publish("", "", b"")
        assert len(client_threads()) == 1


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_callback_may_close_its_channel(broker_url: str) -> None:
    with client.connect(broker_url) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        closed = threading.Event()

        def callback(delivery: client.Delivery) -> None:
            delivery.ack()
            channel.close()
            closed.set()

        channel.consume(queue, callback)
        channel.publish("", queue, b"")
        assert closed.wait(LIMIT)
        assert not channel.is_open
        assert connection.channel().queue_purge(queue) == 0


def test_a_callback_may_close_the_connection(broker_url: str) -> None:
    connection = client.connect(broker_url)
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).queue
    closed = threading.Event()

    def callback(delivery: client.Delivery) -> None:
        connection.close()
        closed.set()

    channel.consume(queue, callback)
    channel.publish("", queue, b"")
    assert closed.wait(LIMIT)
    assert connection.is_closed


def test_a_listener_may_close_the_connection(broker_url: str) -> None:
    connection = client.connect(broker_url)
    channel = connection.channel()
    closed = threading.Event()

    def listener(returned: client.Returned) -> None:
        connection.close()
        closed.set()

    channel.add_return_listener(listener)
    channel.publish("", "no such queue", b"", mandatory=True)
    assert closed.wait(LIMIT)


def test_many_threads_close_at_once(broker_url: str) -> None:
    for _ in range(10):
        connection = client.connect(broker_url)
        errors: list[BaseException] = []

        def close(connection: client.Connection = connection, errors: list[BaseException] = errors) -> None:
            try:
                connection.close()
            except client.ClientError as error:
                errors.append(error)

        closers = [threading.Thread(target=close) for _ in range(8)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(LIMIT)
        assert errors == []
        assert connection.is_closed
        connection.close()


def test_calls_on_a_closed_connection_say_so(broker_url: str) -> None:
    connection = client.connect(broker_url)
    channel = connection.channel()
    connection.close()
    assert not channel.is_open
    for call in (
        connection.channel,
        channel.queue_declare,
        lambda: channel.publish("", "q", b""),
        lambda: channel.ack(1),
        lambda: channel.consume("q"),
        channel.confirm_select,
    ):
        with pytest.raises((client.ConnectionClosed, client.ChannelClosed)):
            call()
    channel.close()


def test_waiting_callers_raise_when_another_thread_closes(broker_url: str) -> None:
    """Ten threads call without pause while one closes: each ends with a ClientError, none hangs."""
    connection = client.connect(broker_url)
    ended: list[BaseException] = []
    begun = threading.Barrier(11)

    def call() -> None:
        channel = connection.channel()
        begun.wait(LIMIT)
        try:
            while True:
                channel.queue_declare(exclusive=True)
        except client.ClientError as error:
            ended.append(error)

    callers = [threading.Thread(target=call, daemon=True) for _ in range(10)]
    for caller in callers:
        caller.start()
    begun.wait(LIMIT)
    let_time_pass(0.05)
    connection.close()
    for caller in callers:
        caller.join(LIMIT)
    assert len(ended) == 10


def test_close_waits_for_the_callback_that_runs(broker_url: str) -> None:
    connection = client.connect(broker_url)
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).queue
    begun, ended = threading.Event(), threading.Event()

    def callback(delivery: client.Delivery) -> None:
        begun.set()
        let_time_pass(0.2)
        ended.set()

    channel.consume(queue, callback, auto_ack=True)
    channel.publish("", queue, b"")
    assert begun.wait(LIMIT)
    connection.close()
    assert ended.is_set()


def test_an_iteration_in_another_thread_ends_when_the_connection_is_closed(broker_url: str) -> None:
    connection = client.connect(broker_url)
    channel = connection.channel()
    consumer = channel.consume(channel.queue_declare(exclusive=True).queue)
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.extend(consumer), daemon=True)
    reader.start()
    connection.close()
    reader.join(LIMIT)
    assert not reader.is_alive()
    assert seen == []


def test_calls_after_the_servers_goodbye_say_who_began_it() -> None:
    broker = Broker().start()
    connection = client.connect(broker.url, recovery=False)
    channel = connection.channel()
    broker.stop()
    wait_until(lambda: connection.is_closed)
    for call in (connection.channel, channel.queue_declare, lambda: channel.publish("", "q", b"")):
        with pytest.raises(client.ConnectionClosed) as closed:
            call()
        assert (closed.value.reason.by, closed.value.reason.reply_code) == ("server", 320)
    wait_until(lambda: client_threads() == [])
    connection.close()


def test_a_callback_that_hangs_holds_up_close_no_longer_than_its_time_out(broker_url: str) -> None:
    connection = client.connect(broker_url)
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).queue
    begun, release = threading.Event(), threading.Event()

    def callback(delivery: client.Delivery) -> None:
        begun.set()
        release.wait(LIMIT)

    channel.consume(queue, callback)
    channel.publish("", queue, b"")
    assert begun.wait(LIMIT)
    connection.close(timeout=0.05)
    assert connection.is_closed
    assert not release.is_set()
    release.set()


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_coroutine_functions_are_refused(broker_url: str) -> None:
    async def callback(*_: Any) -> None:
        raise AssertionError

    with client.connect(broker_url) as connection:
        channel = connection.channel()
        for add in (channel.add_return_listener, channel.add_close_listener, connection.add_close_listener):
            with pytest.raises(client.Misuse, match="aio"):
                add(callback)  # type: ignore[operator]
        with pytest.raises(client.Misuse, match="aio"):
            channel.consume("q", callback)


def test_a_consumer_with_a_callback_is_not_iterated(broker_url: str) -> None:
    with client.connect(broker_url) as connection:
        channel = connection.channel()
        consumer = channel.consume(channel.queue_declare(exclusive=True).queue, lambda delivery: None)
        with pytest.raises(client.Misuse, match="callback"):
            iter(consumer)


# -- consumers that are iterated ---------------------------------------------------------------------------------------


def test_forgotten_iteration_requeues_everything(broker_url: str) -> None:
    with client.connect(broker_url) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        for number in range(10):
            channel.publish("", queue, str(number))
        for delivery in channel.consume(queue):
            delivery.ack()
            break
        del delivery
        gc.collect()

        def is_back() -> bool:
            state = connection_state(connection, queue)
            return state.message_count == 9 and state.consumer_count == 0

        wait_until(is_back)


def connection_state(connection: client.Connection, queue: str) -> client.QueueState:
    with connection.channel() as channel:
        return channel.queue_declare(queue, passive=True)


def test_leaving_the_block_of_a_consumer_requeues_the_rest(broker_url: str) -> None:
    with client.connect(broker_url) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        for number in range(10):
            channel.publish("", queue, str(number))
        with channel.consume(queue) as consumer:
            next(consumer).ack()
        assert connection_state(connection, queue).consumer_count == 0
        wait_until(lambda: connection_state(connection, queue).message_count == 9)


def test_several_threads_may_iterate_one_consumer(broker_url: str) -> None:
    with client.connect(broker_url) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        channel.qos(50)
        for number in range(1000):
            channel.publish("", queue, str(number))
        consumer = channel.consume(queue, timeout=LIMIT)
        seen: list[int] = []

        def read() -> None:
            for delivery in consumer:
                seen.append(int(delivery.body))
                delivery.ack()
                if len(seen) == 1000:
                    consumer.cancel()

        readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(LIMIT)
        assert sorted(seen) == list(range(1000))


# -- other processes ---------------------------------------------------------------------------------------------------


def test_forked_child_is_refused(broker_url: str) -> None:
    with client.connect(broker_url) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        channel.publish("", queue, b"1")
        delivery = next(iter(channel.consume(queue)))
        refused = _in_child(
            lambda: connection.channel(),
            lambda: channel.queue_declare(),
            lambda: channel.publish("", queue, b"2"),
            lambda: delivery.ack(),
            lambda: connection.close(),
        )
        assert refused == "Misuse" * 5
        assert delivery.ack()  # and the parent goes on as before
        assert connection.is_open
        channel.confirm_select()
        channel.publish("", queue, b"3").result(LIMIT)


def test_forking_while_other_threads_publish_leaves_the_child_free(broker_url: str) -> None:
    """The thread that holds the connection's lock does not exist in the child: nothing there may wait for it."""
    with client.connect(broker_url) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True, arguments={"x-max-length": 10}).queue
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.is_set():
                channel.publish("", queue, b"x")

        publishers = [threading.Thread(target=publish) for _ in range(3)]
        for publisher in publishers:
            publisher.start()
        refused = [_in_child(lambda: channel.publish("", queue, b"x"), connection.channel) for _ in range(20)]
        is_over.set()
        for publisher in publishers:
            publisher.join(LIMIT)
        assert refused == ["MisuseMisuse"] * 20


def test_a_child_process_may_connect_anew_and_ends_in_order(broker_url: str) -> None:
    ended = run_program(
        """
        import os, sys
        from warrenmq import client
        connection = client.connect(sys.argv[1])
        connection.channel()
        child = os.fork()
        if child == 0:
            with client.connect(sys.argv[1]) as own:
                own.channel().queue_declare(exclusive=True)
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        connection.channel()
        connection.close()
        print(os.waitstatus_to_exitcode(status))
        """,
        broker_url,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "7\n", "")


def _in_child(*calls: Callable[[], object]) -> str:
    """Fork, make the calls there, and give the names of what they raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for call in calls:
                try:
                    call()
                    os.write(writing, b"nothing ")
                except Exception as error:  # noqa: BLE001 - its name goes to the parent
                    os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    return text


def run_program(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of its own; it is killed, and the test fails, if it does not end by itself.

    In development mode, for its warnings of what was not closed. asyncio then also tells of callbacks that took long:
    that is about the machine, and is left out.
    """
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ended.stderr = re.sub(r"^Executing <.*> took [0-9.]+ seconds\n", "", ended.stderr, flags=re.MULTILINE)
    return ended


@pytest.mark.parametrize(
    "then",
    [
        "",
        "channel.consume(queue, print)",
        "channel.consume(queue, lambda delivery: time.sleep(60)); channel.publish('', queue, b''); time.sleep(0.2)",
        "consumer = channel.consume(queue)",
        "threading.Thread(target=lambda: list(channel.consume(queue)), daemon=True).start(); time.sleep(0.1)",
        "connection.close(); connection.close()",
        "del connection, channel",
        "channel.add_close_listener(lambda reason: None)",
    ],
)
def test_a_program_that_forgets_its_connection_ends(broker_url: str, then: str) -> None:
    ended = run_program(
        f"""
        import sys, threading, time
        from warrenmq import client
        connection = client.connect(sys.argv[1])
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        {then}
        """,
        broker_url,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_program_whose_server_is_gone_ends(broker_url: str) -> None:
    ended = run_program(
        """
        from warrenmq import Broker, client
        broker = Broker().start()
        connection = client.connect(broker.url)
        connection.channel()
        broker.stop()
        """
    )
    assert (ended.returncode, ended.stderr) == (0, "")
