"""Small services on both faces: handlers are run, messages settled, answers sent, ends are graceful."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import warrenmq
from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.client.conftest import Connect, Namer, own_broker_only
from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq import client
from warrenmq.client.handling import CONSUMER_RETRY

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
    wait_until(lambda: channel.queue_declare(kept, passive=True).consumer_count == 0, "the service is gone")


def test_several_handlers_are_served(face: Any, connection: Any, channel: Any, name: Namer) -> None:
    inboxes = {label: Inbox() for label in ("a", "b")}
    handlers = [
        client.consumer(name(label), setup=setup_of(face, name(label)))(inbox) for label, inbox in inboxes.items()
    ]
    with make(face, "Service", connection, *handlers):
        for label, inbox in inboxes.items():
            channel.publish("", name(label), label)
            assert inbox.next().body == label.encode()


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

    service = make(
        face, "Service", connection, client.consumer(kept, prefetch=1, interval=0.01)(handler_of(face, decide))
    )
    with service:
        channel.publish("", kept, b"message")
        assert seen.next() is False
        if left:
            assert seen.next() is True
    wait_until(lambda: count_of(channel, kept) == left, "it is in its queue, or not")


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
        answer = wait_until(lambda: channel.get(queue, auto_ack=True), "the answer")
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


def test_stop_waits_for_the_handler_and_requeues_the_rest(face: Any, connection: Any, channel: Any, kept: str) -> None:
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
        wait_until(lambda: channel.queue_declare(kept, passive=True).consumer_count == 0, "consuming ended")
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
        wait_until(lambda: is_consumed(connection, queue), "it consumes again")
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
    wait_until(lambda: not shaky.is_open, "the connection is lost")
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


# -- messages that fail


def fail(delivery: Any) -> None:
    raise ValueError(f"cannot read {delivery.body.decode()}")


@pytest.fixture(params=["client", "broker"])
def retried_by(request: pytest.FixtureRequest, connection: Any) -> str:
    """Who makes the retries of this connection's handlers."""
    capabilities = connection.server_properties["capabilities"]
    if request.param == "client":
        capabilities.pop(CONSUMER_RETRY, None)
    elif not capabilities.get(CONSUMER_RETRY):
        pytest.skip("this broker makes no retries for a consumer")
    return str(request.param)


def test_message_is_retried_until_its_handler_succeeds(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str, retried_by: str
) -> None:
    seen = Inbox()

    def fail_twice(delivery: Any) -> None:
        seen(delivery.body)
        if seen.count < 3:
            raise ValueError("not yet")

    with make(face, "Service", connection, client.consumer(kept, interval=0.01)(fail_twice)):
        channel.publish("", kept, b"x")
        wait_until(lambda: seen.count == 3, "it succeeds")
    assert seen.take(3) == [b"x"] * 3
    assert count_of(channel, kept) == 0
    assert not is_there(connection, f"{kept}.dead")


def test_message_that_waits_for_its_retry_holds_up_no_other(
    face: Any, connection: Any, channel: Any, kept: str, retried_by: str
) -> None:
    seen = Inbox()

    def handle(delivery: Any) -> None:
        seen(delivery.body)
        if delivery.body == b"bad":
            raise ValueError

    with make(face, "Service", connection, client.consumer(kept, interval=60)(handle)):
        channel.publish("", kept, b"bad")
        channel.publish("", kept, b"good")
        assert seen.take(2) == [b"bad", b"good"]


def test_messages_that_wait_for_a_retry_return_to_their_queue_at_the_end(
    face: Any, connection: Any, channel: Any, kept: str
) -> None:
    connection.server_properties["capabilities"].pop(CONSUMER_RETRY, None)
    seen = Inbox()

    def handle(delivery: Any) -> None:
        seen(delivery)
        raise ValueError

    with make(face, "Service", connection, client.consumer(kept, interval=60)(handle)):
        channel.publish("", kept, b"x")
        seen.next()
    wait_until(lambda: count_of(channel, kept) == 1, "it is in its queue")


def test_message_that_waits_for_a_retry_is_redelivered_over_a_new_connection(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    shaky.server_properties["capabilities"].pop(CONSUMER_RETRY, None)
    seen = Inbox()

    def handle(delivery: Any) -> None:
        seen(delivery.redelivered)
        if not delivery.redelivered:
            raise ValueError

    with make(face, "Service", shaky, client.consumer(kept, interval=0.2, jitter=0)(handle)):
        channel.publish("", kept, b"x")
        assert seen.next() is False
        breaker.reset()
        assert seen.next() is True
        wait_until(lambda: channel.get(kept) is None and shaky.is_open, "it is acked")
        assert seen.stays_empty(0.5)  # the retry of the lost delivery was due


@own_broker_only
def test_attempts_that_a_quorum_queue_counts_use_up_the_retries(
    face: Any, connection: Any, channel: Any, name: Namer
) -> None:
    queue, dead = name("quorum"), name("quorum.dead")
    connection.server_properties["capabilities"][CONSUMER_RETRY] = True  # this queue counts without it, too
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    with make(face, "Service", connection, client.consumer(queue, retries=3, interval=0.01)(fail)):
        channel.publish("", queue, b"x")
        wait_until(lambda: is_there(connection, dead), "it is parked")
        wait_until(lambda: count_of(channel, dead) == 1, "it is parked")
    assert channel.get(dead, auto_ack=True).headers["x-attempts"] == 4
    assert count_of(channel, queue) == 0


def test_message_whose_retries_are_used_up_is_parked_with_the_error(
    face: Any,
    connection: Any,
    channel: Any,
    name: Namer,
    kept: str,
    retried_by: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = name("kept.dead")
    with make(face, "Service", connection, client.consumer(kept, retries=2, interval=0.01)(fail)):
        for number in range(2):
            properties = client.Properties(message_id=f"m-{number}", type="order", expiration="60000")
            channel.publish("amq.direct" if number else "", kept, b"%d" % number, properties)
            if not number:
                channel.queue_bind(kept, "amq.direct", kept)
        for number in range(2):
            text = f"'m-{number}' of queue {kept!r} was parked in {dead!r}"
            wait_until(lambda text=text: text in caplog.text, "both are parked")
    assert count_of(channel, kept) == 0
    found = [channel.get(dead, auto_ack=True) for _ in range(2)]
    for number, parked in enumerate(sorted(found, key=lambda parked: parked.body)):
        assert parked.body == b"%d" % number
        assert (parked.properties.message_id, parked.properties.type) == (f"m-{number}", "order")
        assert (parked.properties.delivery_mode, parked.properties.expiration) == (2, None)
        fields = {key: parked.headers[key] for key in parked.headers if key != "x-failed-at"}
        assert 'raise ValueError(f"cannot read' in fields.pop("x-exception-traceback")
        if retried_by == "broker":
            assert fields.pop("x-delivery-count") == 2
            assert fields.pop("x-retry-reason") == "rejected"
        assert fields == {
            "x-exception-type": "ValueError",
            "x-exception-message": f"cannot read {number}",
            "x-attempts": 3,
            "x-original-queue": kept,
            "x-original-exchange": "amq.direct" if number else "",
            "x-original-routing-key": kept,
            "x-original-expiration": "60000",
        }


def test_producer_of_a_parked_message_receives_a_report(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str
) -> None:
    reports = name("reports")
    channel.queue_declare(reports)
    with make(face, "Service", connection, client.consumer(kept, retries=1, interval=0.01)(fail)):
        properties = client.Properties(message_id="m-1", correlation_id="c-1", headers={"x-report-to": reports})
        channel.publish("", kept, b"1", properties)
        wait_until(lambda: count_of(channel, reports) == 1, "it is reported")
    report = channel.get(reports, auto_ack=True)
    fields = json.loads(report.body)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "message_id": "m-1",
        "correlation_id": "c-1",
        "outcome": "dead_lettered",
        "reason": "error",
        "queue": kept,
        "exchange": "",
        "routing_key": kept,
        "attempts": 2,
    }
    assert (report.properties.type, report.properties.correlation_id) == ("warren.report", "c-1")
    assert "x-report-to" not in channel.get(f"{kept}.dead", auto_ack=True).headers


def test_report_that_no_queue_takes_is_logged(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    with make(face, "Service", connection, client.consumer(kept, retries=0)(fail)):
        channel.publish("", kept, b"1", client.Properties(headers={"x-report-to": name("nowhere")}))
        wait_until(lambda: count_of(channel, kept) == 0 and "was not published to queue" in caplog.text, "it is logged")


@own_broker_only
def test_parked_message_outlives_a_restart_of_the_broker(face: Any, connect: Connect, tmp_path: Path) -> None:
    with warrenmq.Broker(data_dir=tmp_path) as broker:
        connection = connect(broker.url, recovery=False)
        channel = connection.channel()
        channel.queue_declare("jobs")
        with make(face, "Service", connection, client.consumer("jobs", retries=0)(fail)):
            channel.publish("", "jobs", b"x")
            wait_until(lambda: is_there(connection, "jobs.dead"), "it is parked")
            wait_until(lambda: count_of(channel, "jobs.dead") == 1, "it is parked")
        connection.close()
    with warrenmq.Broker(data_dir=tmp_path) as broker:
        connection = connect(broker.url, recovery=False)
        assert connection.channel().get("jobs.dead", auto_ack=True).body == b"x"
        connection.close()


def is_there(connection: Any, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except client.NotFound:
        return False
    channel.close()
    return True


def test_dead_queue_that_is_there_is_used_as_it_is(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str
) -> None:
    channel.queue_declare(name("trouble"), arguments={"x-max-length": 10})
    handler = client.consumer(kept, retries=0, dead_queue=name("trouble"))(fail)
    with make(face, "Service", connection, handler):
        channel.publish("", kept, b"x")
        wait_until(lambda: count_of(channel, name("trouble")) == 1, "it is parked")


def test_message_that_cannot_be_parked_stays_in_its_queue(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Inbox()

    def note(delivery: Any) -> None:
        seen(delivery.redelivered)
        raise ValueError("bad")

    handler = client.consumer(kept, retries=0, dead_queue="amq.not-allowed")(note)
    with make(face, "Service", connection, handler, retry=PATIENT):
        channel.publish("", kept, b"x", client.Properties(message_id="m-1"))
        assert seen.take(4) == [False, True, True, True]
    assert f"message 'm-1' of queue {kept!r} could not be parked in 'amq.not-allowed'" in caplog.text
    assert count_of(channel, kept) == 1


def test_message_whose_connection_is_lost_while_it_is_parked_is_not_lost(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, name: Namer, kept: str
) -> None:
    dead, seen = name("kept.dead"), Inbox()
    channel.queue_declare(dead, durable=True)

    def cut(delivery: Any) -> None:
        seen(delivery)
        if seen.count == 1:
            breaker.reset()
        raise ValueError("bad")

    with make(face, "Service", shaky, client.consumer(kept, retries=0)(handler_of(face, cut)), retry=PATIENT):
        channel.publish("", kept, b"x")
        wait_until(lambda: count_of(channel, dead) >= 1, "it is parked")
        wait_until(lambda: count_of(channel, kept) == 0, "the original is acked")
    assert count_of(channel, kept) == 0
    assert channel.get(dead, auto_ack=True).body == b"x"


def test_on_error_may_have_a_message_parked(face: Any, connection: Any, channel: Any, name: Namer, kept: str) -> None:
    dead = name("kept.dead")
    channel.queue_declare(dead, durable=True)
    with make(face, "Service", connection, client.consumer(kept, on_error=lambda *_: "park")(fail)):
        channel.publish("", kept, b"x")
        wait_until(lambda: count_of(channel, dead) == 1, "it is parked at the first failure")


def test_message_that_the_handler_rejects_is_parked(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str
) -> None:
    dead = name("kept.dead")
    channel.queue_declare(dead, durable=True)

    def refuse(delivery: Any) -> None:
        raise client.Reject("no such customer")

    with make(face, "Service", connection, client.consumer(kept)(refuse)):
        channel.publish("", kept, b"x")
        wait_until(lambda: count_of(channel, dead) == 1, "it is parked")
    parked = channel.get(dead, auto_ack=True)
    assert (parked.headers["x-exception-message"], parked.headers["x-attempts"]) == ("no such customer", 1)


def test_message_that_fails_with_auto_ack_is_parked(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str
) -> None:
    dead = name("kept.dead")
    channel.queue_declare(dead, durable=True)
    with make(face, "Service", connection, client.consumer(kept, auto_ack=True)(fail)):
        channel.publish("", kept, b"x")
        wait_until(lambda: count_of(channel, dead) == 1, "it is parked")


def test_message_is_parked_without_its_traceback_if_that_does_not_fit_into_a_frame(
    face: Any, connect: Connect, channel: Any, name: Namer, kept: str
) -> None:
    def fall(depth: int) -> None:
        if depth:
            go_on(depth - 1)
        raise ValueError("the ground")

    def go_on(depth: int) -> None:
        fall(depth)

    dead = name("kept.dead")
    small = connect(frame_max=8192)
    with make(face, "Service", small, client.consumer(kept, retries=0)(lambda _: fall(200))):
        channel.publish("", kept, b"x")
        wait_until(lambda: is_there(small, dead) and count_of(channel, dead) == 1, "it is parked")
    parked = channel.get(dead, auto_ack=True)
    assert parked.headers["x-exception-message"] == "the ground"
    assert "x-exception-traceback" not in parked.headers


def test_message_is_dropped_if_that_is_asked_for(
    face: Any, connection: Any, channel: Any, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    with make(face, "Service", connection, client.consumer(kept, retries=1, interval=0.01, dead_queue=None)(fail)):
        channel.publish("", kept, b"x", client.Properties(message_id="m-1"))
        wait_until(lambda: f"message 'm-1' of queue {kept!r} was dropped" in caplog.text, "it is dropped")
    assert count_of(channel, kept) == 0
    assert not is_there(connection, f"{kept}.dead")


@own_broker_only
def test_message_of_a_stream_is_retried_and_parked_and_the_service_goes_on(
    face: Any, connection: Any, channel: Any, name: Namer
) -> None:
    stream, dead, seen = name("stream"), name("stream.dead"), Inbox()
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare(dead, durable=True)

    def handle(delivery: Any) -> None:
        seen(delivery.body)
        if delivery.body == b"bad":
            raise ValueError

    arguments = {"x-stream-offset": "first"}
    handler = client.consumer(stream, prefetch=1, retries=1, interval=0.01, arguments=arguments)(handle)
    with make(face, "Service", connection, handler):
        for body in (b"bad", b"good"):
            channel.publish("", stream, body)
        assert seen.take(3) == [b"bad", b"bad", b"good"]
    assert channel.get(dead, auto_ack=True).body == b"bad"


# -- handlers that use transactions


def test_handler_may_publish_and_ack_in_a_transaction(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str
) -> None:
    target = name("target")
    channel.queue_declare(target)

    def moving(acks: bool) -> Any:
        def blocking(delivery: Any) -> None:
            with delivery.channel.transaction():
                delivery.channel.publish("", target, delivery.body)
                if acks:
                    delivery.ack()

        async def asynchronous(delivery: Any) -> None:
            async with delivery.channel.transaction():
                await delivery.channel.publish("", target, delivery.body)
                if acks:
                    delivery.ack()

        return blocking if face.name == "blocking" else asynchronous

    for acks in (True, False):  # the service acks, where the handler did not
        with make(face, "Service", connection, client.consumer(kept)(moving(acks))):
            for _ in range(2):
                channel.publish("", kept, b"x")
            wait_until(lambda: count_of(channel, target) == 2, "both are moved")
        assert count_of(channel, kept) == 0
        channel.queue_purge(target)


def test_handler_that_fails_in_its_transaction_has_its_message_parked(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str
) -> None:
    target, dead = name("target"), name("kept.dead")
    channel.queue_declare(target)
    channel.queue_declare(dead, durable=True)

    def blocking(delivery: Any) -> None:
        with delivery.channel.transaction():
            delivery.channel.publish("", target, delivery.body)
            delivery.ack()
            raise ValueError

    async def asynchronous(delivery: Any) -> None:
        async with delivery.channel.transaction():
            await delivery.channel.publish("", target, delivery.body)
            delivery.ack()
            raise ValueError

    handler = client.consumer(kept, retries=1, interval=0.01)(blocking if face.name == "blocking" else asynchronous)
    with make(face, "Service", connection, handler):
        channel.publish("", kept, b"x")
        wait_until(lambda: count_of(channel, dead) == 1, "it is parked")
    assert (count_of(channel, kept), count_of(channel, target)) == (0, 0)


# -- a broker that is not up yet


def test_run_waits_for_a_broker_that_is_not_up_yet(
    face: Any, breaker: Breaker, channel: Any, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    breaker.refuse()
    service = make(face, "Service", breaker.url, client.consumer(kept)(inbox))
    running = InThread(service.run, wait=0.01)
    wait_until(lambda: breaker.connections_refused >= 3, "it tries")
    breaker.calm()
    channel.publish("", kept, b"work")
    assert inbox.next().body == b"work"
    service.stop()
    running.result()
    assert "not reachable, retrying in 0.0 s" in caplog.text


def test_run_that_waits_for_a_broker_can_be_stopped(face: Any, breaker: Breaker) -> None:
    breaker.refuse()
    service = make(face, "Service", breaker.url, client.consumer("q")(print))
    running = InThread(service.run, wait=60)
    wait_until(lambda: breaker.connections_refused >= 1, "it tries")
    service.stop()
    running.result()


def test_run_with_attempts_and_start_give_up(face: Any, breaker: Breaker) -> None:
    breaker.refuse()
    for number, arguments in ((3, {"attempts": 3, "wait": 0}), (4, None)):
        service = make(face, "Service", breaker.url, client.consumer("q")(print))
        with pytest.raises(client.ConnectionFailed):
            service.start() if arguments is None else service.run(**arguments)
        assert breaker.connections_refused == number


def test_run_does_not_wait_for_a_login_that_is_refused(face: Any, broker_url: str) -> None:
    factory = client.ConnectionFactory(broker_url, password="wrong")
    with pytest.raises(client.AuthenticationFailed):
        make(face, "Service", factory, client.consumer("q")(print)).run()


def test_ended_service_leaves_no_listener_on_the_connection(face: Any, connection: Any, kept: str) -> None:
    engine = getattr(connection, "_real", connection)._engine
    with make(face, "Service", connection, client.consumer(kept)(print)):
        assert engine.close_listeners
    assert not engine.close_listeners


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
