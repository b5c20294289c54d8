"""Small services on both faces: handlers are run, messages settled, answers sent, ends are graceful."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

from tests.client.behaviour.faces import PATIENCE, Inbox, eventually
from tests.client.conftest import Namer
from tests.support.breaker import Breaker
from warrenmq import client

from .making import InThread, count_of, handler_of, make, setup_of

PATIENT = client.Retry(retries=1000, interval=0.01, longest=0.05)


def test_handled_message_is_acked(face: Any, connection: Any, channel: Any, kept: str) -> None:
    inbox = Inbox()
    with make(face, "Service", connection, client.consumer(kept)(inbox)):
        channel.publish("", kept, b"work")
        assert inbox.next().body == b"work"
    assert connection.is_open
    assert count_of(channel, kept) == 0


def test_service_of_a_url_connects_and_disconnects(face: Any, broker_url: str, channel: Any, kept: str) -> None:
    inbox = Inbox()
    with make(face, "Service", broker_url, client.consumer(kept)(inbox)):
        channel.publish("", kept, b"work")
        inbox.next()
    eventually(lambda: channel.queue_declare(kept, passive=True).consumer_count == 0, "the service is gone")


def test_several_handlers_are_served(face: Any, connection: Any, channel: Any, name: Namer) -> None:
    inboxes = {label: Inbox() for label in ("a", "b")}
    handlers = [
        client.consumer(name(label), setup=setup_of(face, name(label)))(inbox) for label, inbox in inboxes.items()
    ]
    with make(face, "Service", connection, *handlers):
        for label, inbox in inboxes.items():
            channel.publish("", name(label), label)
            assert inbox.next().body == label.encode()


def test_failed_message_comes_back_once(face: Any, connection: Any, channel: Any, kept: str) -> None:
    seen = Inbox()

    def fail(delivery: Any) -> None:
        seen(delivery.redelivered)
        raise ValueError("bad")

    errors = Inbox()
    with make(face, "Service", connection, client.consumer(kept, on_error=errors)(fail)):
        channel.publish("", kept, b"bad")
        assert seen.take(2) == [False, True]
        assert isinstance(errors.next()[1], ValueError)
        assert seen.stays_empty()
    assert count_of(channel, kept) == 0


@pytest.mark.parametrize(("error", "left"), [(client.Reject, 0), (client.Requeue, 1)])
def test_handler_decides_by_exception(
    face: Any, connection: Any, channel: Any, kept: str, error: type[Exception], left: int
) -> None:
    seen = Inbox()

    def decide(delivery: Any) -> None:
        seen(delivery.redelivered)
        if not delivery.redelivered:
            raise error
        service.stop()
        raise error

    service = make(face, "Service", connection, client.consumer(kept, prefetch=1)(handler_of(face, decide)))
    with service:
        channel.publish("", kept, b"message")
        assert seen.next() is False
        if left:
            assert seen.next() is True
    assert count_of(channel, kept) == left


def test_handler_may_settle_by_itself(face: Any, connection: Any, channel: Any, kept: str) -> None:
    seen = Inbox()

    def settle(delivery: Any) -> None:
        delivery.reject(requeue=False)
        seen(delivery)

    with make(face, "Service", connection, client.consumer(kept)(settle)):
        channel.publish("", kept, b"1")
        channel.publish("", kept, b"2")
        seen.take(2)
    assert count_of(channel, kept) == 0


def test_answer_is_published_to_who_asked(face: Any, connection: Any, channel: Any, queue: str, kept: str) -> None:
    with make(face, "Service", connection, client.consumer(kept)(lambda delivery: delivery.body.upper())):
        channel.publish("", kept, b"hello", client.Properties(reply_to=queue, correlation_id="7"))
        answer = eventually(lambda: channel.get(queue, auto_ack=True), "the answer")
    assert (answer.body, answer.properties.correlation_id) == (b"HELLO", "7")


def test_handlers_run_side_by_side_up_to_the_concurrency(face: Any, connection: Any, channel: Any, kept: str) -> None:
    together, met = threading.Barrier(3, timeout=PATIENCE), Inbox()

    def meet(delivery: Any) -> None:
        together.wait()
        met(delivery)

    handler = client.consumer(kept, concurrency=3, prefetch=3)(handler_of(face, meet))
    with make(face, "Service", connection, handler):
        assert channel.queue_declare(kept, passive=True).consumer_count == 3
        for _ in range(6):
            channel.publish("", kept, b"meet")
        met.take(6)
    assert count_of(channel, kept) == 0


def test_stop_lets_the_handler_end_and_gives_the_rest_back(face: Any, connection: Any, channel: Any, kept: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(delivery: Any) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    service = make(face, "Service", connection, client.consumer(kept, prefetch=10)(handler_of(face, work)))
    with service:
        for number in range(5):
            channel.publish("", kept, b"%d" % number)
        assert begun.wait(PATIENCE)
        closing = InThread(service.close)
        eventually(lambda: channel.queue_declare(kept, passive=True).consumer_count == 0, "consuming ended")
        threading.Event().wait(0.1)
        assert closing.is_running
        go_on.set()
        closing.result()
        assert count_of(channel, kept) == 4
        assert channel.get(kept, auto_ack=True).body == b"1"


def test_handler_that_does_not_end_is_left_after_the_drain(face: Any, connection: Any, channel: Any, kept: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(delivery: Any) -> None:
        begun.set()
        go_on.wait(PATIENCE)

    handler = client.consumer(kept)(handler_of(face, work))
    with make(face, "Service", connection, handler, drain=0.05) as service:
        channel.publish("", kept, b"endless")
        assert begun.wait(PATIENCE)
        closing = InThread(service.close)
        threading.Timer(0.3, go_on.set).start()
        closing.result()
    go_on.set()


def test_handler_can_stop_its_service(face: Any, connection: Any, channel: Any, kept: str) -> None:
    service = make(face, "Service", connection, client.consumer(kept)(handler_of(face, lambda _: service.stop())))
    with service:
        channel.publish("", kept, b"stop")
        service.wait()
    assert count_of(channel, kept) == 0


def test_service_goes_on_after_a_loss(face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str) -> None:
    inbox = Inbox()
    with make(face, "Service", shaky, client.consumer(kept)(inbox)):
        channel.publish("", kept, b"before")
        inbox.next()
        breaker.reset()
        breaker.wait_for_connections(2)
        channel.publish("", kept, b"after")
        inbox.until(lambda delivery: delivery.body == b"after")


def test_cancelled_consumer_is_started_again(face: Any, connection: Any, channel: Any, name: Namer) -> None:
    inbox, queue = Inbox(), name("queue")
    handler = client.consumer(queue, setup=setup_of(face, queue))(inbox)
    with make(face, "Service", connection, handler, retry=PATIENT):
        channel.queue_delete(queue)
        eventually(lambda: is_consumed(connection, queue), "it consumes again")
        channel.publish("", queue, b"again")
        assert inbox.next().body == b"again"


def is_consumed(connection: Any, queue: str) -> bool:
    channel = connection.channel()
    try:
        return bool(channel.queue_declare(queue, passive=True).consumer_count == 1)
    except client.NotFound:
        return False
    finally:
        channel.close()


def test_closed_channel_is_opened_again(face: Any, connection: Any, channel: Any, kept: str) -> None:
    inbox = Inbox()

    def spoil(delivery: Any) -> None:
        inbox(delivery.body)
        if delivery.body == b"bad":
            delivery.ack()
            delivery.ack()  # the broker closes the channel for it

    with make(face, "Service", connection, client.consumer(kept)(spoil), retry=PATIENT):
        channel.publish("", kept, b"bad")
        assert inbox.next() == b"bad"
        channel.publish("", kept, b"good")
        inbox.until(lambda body: body == b"good")


def test_service_fails_when_its_queue_stays_away(face: Any, connection: Any, channel: Any, name: Namer) -> None:
    channel.queue_declare(name("queue"))
    handler = client.consumer(name("queue"))(lambda _: None)
    service = make(face, "Service", connection, handler, retry=client.Retry(retries=2, interval=0.01))
    service.start()
    channel.queue_delete(name("queue"))
    with pytest.raises(client.NotFound):
        service.wait()


def test_setup_that_fails_when_it_starts_again_fails_the_service(
    face: Any, connection: Any, channel: Any, name: Namer
) -> None:
    calls = Inbox()

    def setup(channel: Any) -> Any:
        calls(channel)
        if calls.count > 1:
            raise RuntimeError("not again")
        return channel.queue_declare(name("queue"))

    service = make(face, "Service", connection, client.consumer(name("queue"), setup=setup)(lambda _: None))
    service.start()
    channel.queue_delete(name("queue"))
    with pytest.raises(RuntimeError, match="not again"):
        service.wait()


def test_stop_does_not_wait_for_a_connection_that_is_away(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    handlers = [client.consumer(kept)(lambda _: None) for _ in range(3)]
    service = make(face, "Service", shaky, *handlers)
    service.start()
    breaker.refuse()
    breaker.reset()
    eventually(lambda: not shaky.is_open, "the connection is lost")
    InThread(service.close).result()
    breaker.calm()


def test_queue_that_is_not_there_fails_the_start(face: Any, connection: Any) -> None:
    service = make(face, "Service", connection, client.consumer("no such queue")(lambda _: None))
    with pytest.raises(client.NotFound):
        service.start()


def test_closed_connection_ends_the_service(face: Any, connection: Any, kept: str) -> None:
    service = make(face, "Service", connection, client.consumer(kept)(lambda _: None))
    service.start()
    connection.close()
    service.wait()


def test_service_without_handlers_or_started_twice_is_misuse(face: Any, connection: Any, kept: str) -> None:
    with pytest.raises(client.Misuse):
        make(face, "Service", connection)
    with make(face, "Service", connection, client.consumer(kept)(print)) as service, pytest.raises(client.Misuse):
        service.start()


def test_async_handler_of_a_blocking_service_is_misuse(broker_url: str) -> None:
    async def handle(delivery: Any) -> None: ...

    with pytest.raises(client.Misuse, match="aio"):
        client.Service(broker_url, client.consumer("q")(handle))


BLOCKING_PROGRAM = """
import sys
from warrenmq import client

@client.consumer(sys.argv[2])
def handle(delivery):
    print("handled", delivery.body.decode(), flush=True)

client.run(sys.argv[1], handle)
print("ended", flush=True)
"""

AIO_PROGRAM = """
import asyncio, sys
from warrenmq.client import aio

@aio.consumer(sys.argv[2])
async def handle(delivery):
    print("handled", delivery.body.decode(), flush=True)

asyncio.run(aio.run(sys.argv[1], handle))
print("ended", flush=True)
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_program_ends_gracefully_by_a_signal(face: Any, broker_url: str, channel: Any, kept: str, stop: int) -> None:
    text = BLOCKING_PROGRAM if face.name == "blocking" else AIO_PROGRAM
    command = [sys.executable, "-c", textwrap.dedent(text), broker_url, kept]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            channel.publish("", kept, b"1")
            assert program.stdout is not None
            assert program.stdout.readline() == "handled 1\n"
            program.send_signal(stop)
            rest, complaints = program.communicate(timeout=60)
        finally:
            program.kill()
    assert (rest, complaints, program.returncode) == ("ended\n", "", 0)
