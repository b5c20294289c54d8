"""Producers on both faces: the broker's word, retries, the backlog."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import warrenmq
from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.client.conftest import Connect, Namer, own_broker_only
from tests.support.breaker import DOWN, Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .making import QUICK, InThread, count_of, make

# A word of the broker on a publish, as a frame: type, channel, size, class 60, method 80.
ACK, NACK = bytes([0, 60, 0, 80]), bytes([0, 60, 0, 120])


def bodies_in(channel: Any, queue: str) -> list[bytes]:
    """All that stands in the queue, taken out."""
    found = []
    while (delivery := channel.get(queue, auto_ack=True)) is not None:
        found.append(delivery.body)
    return found


# -- synchronous


def test_message_is_with_the_broker_when_send_returns(face: Any, connection: Any, channel: Any, queue: str) -> None:
    producer = make(face, "SyncProducer", connection, routing_key=queue)
    result = producer.send(b"one", client.Properties(message_id="m"))
    assert (result.outcome, result.ok, result.attempts, result.error) == ("confirmed", True, 1, None)
    assert result.elapsed > 0
    delivery = channel.get(queue, auto_ack=True)
    assert (delivery.body, delivery.properties.message_id) == (b"one", "m")
    producer.close()


def test_address_of_a_message_may_differ_from_the_producers(
    face: Any, connection: Any, channel: Any, queue: str
) -> None:
    with make(face, "SyncProducer", connection, "no such exchange", "nowhere") as producer:
        producer.send(b"1", exchange="", routing_key=queue)
        producer.send_many([client.OutgoingMessage(b"2", exchange="", routing_key=queue)])
    assert bodies_in(channel, queue) == [b"1", b"2"]


def test_many_are_sent_in_order_and_waited_for_once(face: Any, connection: Any, channel: Any, queue: str) -> None:
    bodies = [b"%d" % number for number in range(500)]
    with make(face, "SyncProducer", connection, routing_key=queue) as producer:
        results = producer.send_many(bodies)
        assert producer.send_many([]) == []
    assert [result.outcome for result in results] == ["confirmed"] * 500
    assert bodies_in(channel, queue) == bodies


def test_message_that_no_queue_takes_fails_at_once(face: Any, connection: Any) -> None:
    with (
        make(face, "SyncProducer", connection, routing_key="nowhere") as producer,
        pytest.raises(client.SendFailed, match="reached no queue") as caught,
    ):
        producer.send(b"lost")
    assert caught.value.result.attempts == 1
    assert isinstance(caught.value.__cause__, client.Unroutable)


def test_exchange_declared_later_is_waited_for(
    face: Any, connect: Connect, channel: Any, queue: str, name: Namer
) -> None:
    metrics = client.CountingMetrics()
    connection = connect(metrics=metrics)
    settings = QUICK | {"retry_missing": True, "retries": 1000}
    with make(face, "SyncProducer", connection, name("later"), queue, **settings) as producer:
        sending = InThread(producer.send, b"patient")
        wait_until(lambda: metrics.counts().channels_opened > 3, "it looks for the exchange again and again")
        with make(face, "SyncProducer", connection) as other:
            other.send(b"another", routing_key=queue)
        producer.send(b"not held up", exchange="", routing_key=queue)
        channel.exchange_declare(name("later"), "fanout")
        channel.queue_bind(queue, name("later"))
        assert sending.result().ok
    assert bodies_in(channel, queue) == [b"another", b"not held up", b"patient"]


def test_missing_exchange_fails_at_once_otherwise(face: Any, connection: Any) -> None:
    with (
        make(face, "SyncProducer", connection, "no such exchange") as producer,
        pytest.raises(client.SendFailed, match="404") as caught,
    ):
        producer.send(b"lost")
    assert caught.value.result.attempts == 1


def test_delay_and_report_are_headers_of_every_kind_of_publish(
    face: Any, connection: Any, channel: Any, queue: str
) -> None:
    at = datetime(2001, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)
    channel.publish("", queue, b"1", deliver_at=at, report_to=queue)
    with make(face, "SyncProducer", connection, routing_key=queue) as producer:
        producer.send(b"2", deliver_at=at)
        producer.send_many([client.OutgoingMessage(b"3", report_to=queue)])
    with make(face, "OneWayProducer", connection, routing_key=queue) as producer:
        producer.send(b"4", client.Properties(headers={"mine": 1}), delay=0)
    wait_until(lambda: count_of(channel, queue) == 4, "all have come")
    sent = [channel.get(queue, auto_ack=True).headers for _ in range(4)]
    assert sent == [
        {"x-deliver-at": 981173106789, "x-report-to": queue},
        {"x-deliver-at": 981173106789},
        {"x-report-to": queue},
        {"x-delay": 0, "mine": 1},
    ]
    with pytest.raises(client.Misuse, match="not both"):
        channel.publish("", queue, b"5", delay=1, deliver_at=at)


def test_unroutable_is_retried_if_configured(face: Any, connection: Any, channel: Any, name: Namer) -> None:
    settings = QUICK | {"retry_unroutable": True, "retries": 1000}
    with make(face, "SyncProducer", connection, routing_key=name("later"), **settings) as producer:
        sending = InThread(producer.send, b"patient")
        channel.queue_declare(name("later"))
        assert sending.result().ok


def test_failure_is_returned_without_raises(face: Any, connection: Any, queue: str) -> None:
    with make(face, "SyncProducer", connection, raises=False) as producer:
        good, bad = producer.send_many(
            [client.OutgoingMessage(b"1", routing_key=queue), client.OutgoingMessage(b"2", routing_key="no")]
        )
    assert (good.ok, bad.ok, bad.outcome) == (True, False, "failed")


def test_message_that_is_not_mandatory_may_be_dropped(face: Any, connection: Any) -> None:
    with make(face, "SyncProducer", connection, routing_key="nowhere", mandatory=False) as producer:
        assert producer.send(b"gone").ok


def test_refused_exchange_fails_and_the_producer_lives_on(face: Any, connection: Any, channel: Any, queue: str) -> None:
    with make(face, "SyncProducer", connection, routing_key=queue, **QUICK) as producer:
        for _ in range(3):
            with pytest.raises(client.SendFailed, match="NOT_FOUND") as caught:
                producer.send(b"lost", exchange="no such exchange")
            assert caught.value.result.attempts == 1
            assert isinstance(caught.value.__cause__, client.NotFound)
            assert producer.send(b"fine").ok
    assert bodies_in(channel, queue) == [b"fine"] * 3


def test_refused_message_does_not_take_others_with_it(face: Any, connection: Any, channel: Any, queue: str) -> None:
    batch = [client.OutgoingMessage(b"%d" % number) for number in range(20)]
    batch[7] = client.OutgoingMessage(b"bad", exchange="no such exchange")
    with make(face, "SyncProducer", connection, routing_key=queue, raises=False, **QUICK) as producer:
        results = producer.send_many(batch)
    # The bad one goes down with the channel a second time, and so may those that were sent after it; none is in doubt.
    assert not results[7].ok
    assert results[7].attempts == 2
    arrived = set(bodies_in(channel, queue))
    assert {b"%d" % number for number, result in enumerate(results) if result.ok} <= arrived


def test_nacked_message_is_sent_again(face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str) -> None:
    def refuse(frame: bytes) -> bytes:
        return frame.replace(ACK, NACK, 1) if frame[0] == 1 and frame[7:11] == ACK else frame

    with make(face, "SyncProducer", shaky, routing_key=kept, **QUICK, retries=2) as producer:
        producer.send(b"warm")
        breaker.rewrite(DOWN, refuse)
        with pytest.raises(client.SendFailed) as caught:
            producer.send(b"no")
        assert isinstance(caught.value.result.error, client.Nacked)
        assert caught.value.result.attempts == 3
        breaker.calm()
        assert producer.send(b"yes").attempts == 1


def test_message_outlives_the_loss_of_the_connection(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    with make(face, "SyncProducer", shaky, routing_key=kept, **QUICK, retries=1000) as producer:
        producer.send(b"before")
        breaker.hold(DOWN)
        sending = InThread(producer.send, b"in between")
        wait_until(lambda: count_of(channel, kept) == 2, "the message arrived")
        breaker.refuse()
        breaker.reset()
        breaker.calm()
        result = sending.result()
        assert result.ok
        assert result.attempts > 1
        assert producer.send(b"after").ok
    arrived = bodies_in(channel, kept)
    assert (arrived[0], arrived[-1], set(arrived[1:-1])) == (b"before", b"after", {b"in between"})


def test_late_confirm_is_waited_for_without_resending(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    with make(face, "SyncProducer", shaky, routing_key=kept, attempt_timeout=0.05, **QUICK, retries=1000) as producer:
        producer.send(b"first")
        breaker.hold(DOWN)
        sending = InThread(producer.send, b"second", timeout=60)
        wait_until(lambda: count_of(channel, kept) == 2, "the message arrived")
        threading.Event().wait(0.2)
        breaker.calm()
        assert sending.result().attempts > 1
    assert bodies_in(channel, kept) == [b"first", b"second"]


def test_time_for_the_whole_is_kept(face: Any, shaky: Any, breaker: Breaker, kept: str) -> None:
    with make(face, "SyncProducer", shaky, routing_key=kept, **QUICK, retries=1000) as producer:
        producer.send(b"first")
        breaker.hold(DOWN)
        with pytest.raises(client.SendFailed) as caught:
            producer.send(b"second", timeout=0.2)
        assert isinstance(caught.value.result.error, client.CallTimedOut)
        breaker.calm()


def test_time_for_many_is_that_for_one(face: Any, shaky: Any, breaker: Breaker, kept: str) -> None:
    settings = QUICK | {"retries": 1, "attempt_timeout": 0.2, "raises": False}
    with make(face, "SyncProducer", shaky, routing_key=kept, **settings) as producer:
        producer.send(b"first")
        breaker.hold(DOWN)
        results = InThread(producer.send_many, [b"x"] * 500).result()
        assert {(result.outcome, result.attempts) for result in results} == {("failed", 2)}
        breaker.calm()


def test_closed_connection_ends_the_sending(face: Any, connection: Any, queue: str) -> None:
    producer = make(face, "SyncProducer", connection, routing_key=queue, **QUICK)
    producer.send(b"first")
    connection.close()
    with pytest.raises(client.SendFailed) as caught:
        producer.send(b"second")
    assert caught.value.result.attempts == 1
    assert isinstance(caught.value.result.error, client.ConnectionClosed)
    producer.close()


def test_closing_the_producer_ends_its_retries(face: Any, shaky: Any, breaker: Breaker, kept: str) -> None:
    producer = make(face, "SyncProducer", shaky, routing_key=kept, interval=60, longest=60)
    producer.send(b"first")
    breaker.refuse()
    breaker.reset()
    wait_until(lambda: not shaky.is_open, "the connection is lost")
    sending = InThread(producer.send, b"second")
    threading.Event().wait(0.05)
    closing = InThread(producer.close)
    with pytest.raises(client.SendFailed):
        sending.result()
    breaker.calm()
    closing.result()


def test_threads_share_a_producer(face: Any, connection: Any, channel: Any, queue: str) -> None:
    with make(face, "SyncProducer", connection, routing_key=queue) as producer:

        def work(number: int) -> list[bool]:
            return [producer.send(b"%d %d" % (number, each)).ok for each in range(25)]

        calls = [InThread(work, number) for number in range(8)]
        assert [call.result() for call in calls] == [[True] * 25] * 8
    assert len(bodies_in(channel, queue)) == 200


# -- one-way


def test_one_way_message_goes_out(face: Any, connection: Any, channel: Any, queue: str) -> None:
    with make(face, "OneWayProducer", connection, routing_key=queue) as producer:
        assert producer.send(b"1").outcome == "sent"
        assert [result.outcome for result in producer.send_many([b"2", client.OutgoingMessage(b"3")])] == [
            "sent",
            "sent",
        ]
        assert (producer.sent, producer.queued, producer.dropped) == (3, 0, 0)
    wait_until(lambda: count_of(channel, queue) == 3, "all arrived")
    assert bodies_in(channel, queue) == [b"1", b"2", b"3"]


def test_one_way_messages_wait_for_the_recovery_in_order(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    with make(face, "OneWayProducer", shaky, routing_key=kept, **QUICK, retries=10_000, backlog=100_000) as producer:
        producer.send(b"0")
        wait_until(lambda: count_of(channel, kept) == 1, "the first arrived")
        breaker.refuse()
        breaker.reset()
        wait_until(lambda: not shaky.is_open, "the connection is lost")
        assert {producer.send(b"%d" % number).outcome for number in range(1, 1000)} == {"queued"}
        assert not producer.flush(0.01)
        breaker.calm()
        wait_until(lambda: shaky.is_open, "the connection is back")
        for number in range(1000, 1500):  # none overtakes those that are held back
            assert producer.send(b"%d" % number).ok
        assert producer.flush(PATIENCE)
        assert producer.send(b"1500").outcome == "sent"
        assert (producer.sent, producer.queued, producer.dropped) == (1501, 0, 0)
        wait_until(lambda: count_of(channel, kept) == 1501, "all arrived")
    assert bodies_in(channel, kept) == [b"%d" % number for number in range(1501)]


def test_quick_sender_does_not_keep_the_backlog_from_emptying(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    with make(face, "OneWayProducer", shaky, routing_key=kept, **QUICK, retries=10_000, backlog=10_000_000) as producer:
        breaker.refuse()
        breaker.reset()
        wait_until(lambda: not shaky.is_open, "the connection is lost")
        assert producer.send(b"0").outcome == "queued"
        breaker.calm()
        wait_until(lambda: shaky.is_open, "the connection is back")
        number, deadline = 1, time.monotonic() + PATIENCE
        while producer.send(b"").outcome == "queued":
            number += 1
            assert time.monotonic() < deadline, "the backlog is never empty"
        wait_until(lambda: count_of(channel, kept) == number + 1, "all arrived")


def test_full_backlog_drops_and_counts(face: Any, shaky: Any, breaker: Breaker, kept: str) -> None:
    producer = make(face, "OneWayProducer", shaky, routing_key=kept, backlog=2, **QUICK, retries=10_000)
    producer.send(b"0")
    breaker.refuse()
    breaker.reset()
    wait_until(lambda: not shaky.is_open, "the connection is lost")
    assert [producer.send(b"x").outcome for _ in range(4)] == ["queued", "queued", "dropped", "dropped"]
    assert (producer.queued, producer.dropped) == (2, 2)
    producer.close(timeout=0.01)
    assert (producer.queued, producer.dropped) == (0, 4)
    assert producer.send(b"y").outcome == "dropped"


def test_one_way_message_is_dropped_after_its_retries(face: Any, shaky: Any, breaker: Breaker, kept: str) -> None:
    with make(face, "OneWayProducer", shaky, routing_key=kept, **QUICK, retries=2) as producer:
        producer.send(b"0")
        breaker.refuse()
        breaker.reset()
        wait_until(lambda: not shaky.is_open, "the connection is lost")
        assert producer.send(b"1").outcome == "queued"
        wait_until(lambda: producer.dropped == 1, "it was dropped")
        assert producer.queued == 0
        breaker.calm()


def test_one_way_never_raises_for_the_network(face: Any, connection: Any, queue: str) -> None:
    producer = make(face, "OneWayProducer", connection, routing_key=queue)
    producer.send(b"0")
    connection.close()
    result = producer.send(b"1")
    assert (result.outcome, result.ok) == ("dropped", False)
    assert isinstance(result.error, client.ConnectionClosed) or result.error is None
    assert producer.dropped == 1
    producer.close()


def test_one_way_goes_on_after_a_refused_message(face: Any, connection: Any, channel: Any, queue: str) -> None:
    with make(face, "OneWayProducer", connection, routing_key=queue, **QUICK) as producer:
        closed = Inbox()
        numbers = set(connection.channels)
        producer.send(b"bad", exchange="no such exchange")
        wait_until(lambda: set(connection.channels) != numbers, "the broker closed the channel")
        assert producer.send(b"good").outcome == "queued"
        assert producer.flush(PATIENCE)
        wait_until(lambda: count_of(channel, queue) == 1, "it arrived")
        assert closed.count == 0


def test_wrong_argument_still_raises(face: Any, connection: Any) -> None:
    with make(face, "OneWayProducer", connection) as producer, pytest.raises((TypeError, client.Misuse)):
        producer.send(42)


# -- what is sent


@pytest.mark.parametrize("kind", ["SyncProducer", "OneWayProducer"])
def test_messages_are_persistent_with_an_id_and_the_time(
    face: Any, connection: Any, channel: Any, queue: str, kind: str
) -> None:
    earliest = int(time.time())
    with make(face, kind, connection, routing_key=queue) as producer:
        results = [
            producer.send(b"1"),
            *producer.send_many([b"2", client.OutgoingMessage(b"3", client.Properties(type="t"))]),
        ]
    arrived = [wait_until(lambda: channel.get(queue, auto_ack=True)).properties for _ in range(3)]
    assert [each.message_id for each in arrived] == [each.message_id for each in results]
    assert len({each.message_id for each in results}) == 3
    assert {each.delivery_mode for each in arrived} == {2}
    assert all(earliest <= each.timestamp.timestamp() <= time.time() for each in arrived)
    assert arrived[2].type == "t"


@pytest.mark.parametrize("kind", ["SyncProducer", "OneWayProducer"])
def test_properties_of_the_caller_win_and_stay_as_they_are(
    face: Any, connection: Any, channel: Any, queue: str, kind: str
) -> None:
    moment = datetime(2001, 2, 3, tzinfo=UTC)
    given = client.Properties(delivery_mode=1, message_id="mine", timestamp=moment, headers={"a": 1})
    partly = client.Properties(content_type="text/plain")
    with make(face, kind, connection, routing_key=queue) as producer:
        assert producer.send(b"x", given).message_id == "mine"
        producer.send(b"y", partly)
    arrived = [wait_until(lambda: channel.get(queue, auto_ack=True)).properties for _ in range(2)]
    assert arrived[0] == given
    assert (arrived[1].content_type, arrived[1].delivery_mode) == ("text/plain", 2)
    assert partly == client.Properties(content_type="text/plain")


def test_message_that_is_sent_again_keeps_its_id(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    with make(face, "SyncProducer", shaky, routing_key=kept, **QUICK, retries=1000) as producer:
        producer.send(b"warm")
        channel.get(kept, auto_ack=True)
        breaker.hold(DOWN)
        sending = InThread(producer.send, b"twice")
        wait_until(lambda: count_of(channel, kept) == 1, "the first copy arrived")
        breaker.refuse()
        breaker.reset()
        breaker.calm()
        message_id = sending.result().message_id
    wait_until(lambda: count_of(channel, kept) == 2, "the second copy arrived")
    assert {channel.get(kept, auto_ack=True).properties.message_id for _ in range(2)} == {message_id}


@own_broker_only
@pytest.mark.parametrize("kind", ["SyncProducer", "OneWayProducer"])
def test_sent_message_outlives_a_restart_of_the_broker(face: Any, connect: Connect, tmp_path: Path, kind: str) -> None:
    with warrenmq.Broker(data_dir=tmp_path) as broker:
        connection = connect(broker.url, recovery=False)
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        with make(face, kind, connection, routing_key="orders") as producer:
            producer.send(b"one")
        wait_until(lambda: count_of(channel, "orders") == 1, "it arrived")
        connection.close()
    with warrenmq.Broker(data_dir=tmp_path) as broker:
        connection = connect(broker.url, recovery=False)
        assert connection.channel().get("orders", auto_ack=True).body == b"one"
        connection.close()


# -- producers that connect by themselves


def test_producer_connects_by_itself_when_the_broker_is_up(
    face: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    breaker.refuse()
    with make(face, "SyncProducer", breaker.url, routing_key=kept, **QUICK, retries=10_000) as producer:
        sending = InThread(producer.send, b"early")
        wait_until(lambda: breaker.connections_refused >= 3, "it tries")
        assert sending.is_running
        breaker.calm()
        assert sending.result().ok
        assert producer.send(b"late").attempts == 1
    assert bodies_in(channel, kept) == [b"early", b"late"]


def test_producer_gives_up_a_broker_that_does_not_come(face: Any, breaker: Breaker) -> None:
    breaker.refuse()
    with make(face, "SyncProducer", breaker.url, **QUICK, retries=2) as producer:
        with pytest.raises(client.SendFailed) as caught:
            producer.send(b"x")
        assert caught.value.result.attempts == 3
        assert isinstance(caught.value.result.error, client.ConnectionFailed)


def test_producer_whose_login_is_refused_fails_at_once(face: Any, broker_url: str) -> None:
    factory = client.ConnectionFactory(broker_url, password="wrong")
    with make(face, "SyncProducer", factory, **QUICK) as producer:
        with pytest.raises(client.SendFailed) as caught:
            producer.send(b"x")
        assert caught.value.result.attempts == 1
        assert isinstance(caught.value.result.error, client.AuthenticationFailed)


def test_one_way_producer_holds_messages_back_until_the_broker_is_up(
    face: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    breaker.refuse()
    with make(face, "OneWayProducer", breaker.url, routing_key=kept, **QUICK, retries=10_000) as producer:
        assert [producer.send(b"%d" % number).outcome for number in range(3)] == ["queued"] * 3
        wait_until(lambda: breaker.connections_refused >= 2, "it tries")
        breaker.calm()
        assert producer.flush(PATIENCE)
        assert producer.send(b"3").outcome == "sent"
    wait_until(lambda: count_of(channel, kept) == 4, "all arrived")
    assert bodies_in(channel, kept) == [b"0", b"1", b"2", b"3"]


def test_one_way_producer_whose_login_is_refused_drops(face: Any, broker_url: str) -> None:
    factory = client.ConnectionFactory(broker_url, password="wrong")
    with make(face, "OneWayProducer", factory, **QUICK, retries=10_000) as producer:
        assert producer.send(b"x").outcome == "queued"
        wait_until(lambda: producer.dropped == 1, "it was dropped")
