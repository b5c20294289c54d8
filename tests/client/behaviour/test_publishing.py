"""Publishing: bodies, properties, confirms, returns, and what a Confirmation says."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.client.conftest import Connect, Namer
from tests.support.breaker import DOWN, Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .faces import Inbox

HEADERS = {
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -5,
    "32 bit": 2**31 - 1,
    "64 bit": -(2**40),
    "float": 1.5,
    "text": "grüße, 世界",
    "long text": "x" * 5000,
    "bytes": b"\x00\xff\xfe",
    "decimal": Decimal("3.14"),
    "time": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
    "nothing": None,
    "list": [1, "two", [3.5, {"four": 4}], None],
    "table": {"inner": {"deeper": [True, False]}, "number": 7},
    "empty list": [],
    "empty table": {},
}


@pytest.fixture
def confirming(connection: Any) -> Any:
    channel = connection.channel()
    channel.confirm_select()
    return channel


def fetch(channel: Any, queue: str) -> Any:
    """The next message of the queue, which must be there."""
    return wait_until(lambda: channel.get(queue, auto_ack=True), "a message")


def nack_instead(frame: bytes) -> bytes:
    """Turn basic.ack into basic.nack: both have a tag and a byte of bits."""
    is_ack = frame[0] == 1 and frame[7:11] == b"\x00\x3c\x00\x50"
    return frame[:10] + b"\x78" + frame[11:] if is_ack else frame


# -- what is sent


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b"bytes", b"bytes"),
        ("grüße", "grüße".encode()),
        (bytearray(b"array"), b"array"),
        (memoryview(b"a view of it")[2:6], b"view"),
        (b"", b""),
        ("", b""),
    ],
    ids=["bytes", "str", "bytearray", "memoryview", "empty", "empty str"],
)
def test_body_of_each_kind(channel: Any, queue: str, given: Any, sent: bytes) -> None:
    channel.publish("", queue, given)
    body = fetch(channel, queue).body
    assert type(body) is bytes
    assert body == sent


def test_bytearray_may_be_changed_once_publish_has_returned(channel: Any, queue: str) -> None:
    body = bytearray(b"x" * 100_000)
    channel.publish("", queue, body)
    body[:] = b"y" * len(body)
    assert fetch(channel, queue).body == b"x" * 100_000


@pytest.mark.parametrize("size", [4096 - 9, 4096 - 8, 4096 - 7, 131072, 1_000_000, 5_000_000])
def test_body_larger_than_a_frame(connect: Connect, size: int) -> None:
    channel = connect(frame_max=4096 if size < 10_000 else 131072).channel()
    channel.confirm_select()
    queue = channel.queue_declare("", exclusive=True).queue
    body = bytes(range(256)) * (size // 256 + 1)
    channel.publish("", queue, body[:size]).result(30)
    assert fetch(channel, queue).body == body[:size]


def test_all_properties_arrive(channel: Any, queue: str) -> None:
    properties = client.Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"a": 1},
        delivery_mode=2,
        priority=5,
        correlation_id="correlation",
        reply_to="answers",
        expiration="60000",
        message_id="message",
        timestamp=datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
        type="greeting",
        user_id="guest",
        app_id="suite",
        cluster_id="",
    )
    channel.publish("", queue, b"x", properties)
    delivery = fetch(channel, queue)
    for field in type(properties).__slots__ if hasattr(type(properties), "__slots__") else dir(properties):
        if not field.startswith("_"):
            assert getattr(delivery.properties, field) == getattr(properties, field), field
    assert delivery.headers == {"a": 1}


def test_message_without_properties_has_none(channel: Any, queue: str) -> None:
    channel.publish("", queue, b"x")
    delivery = fetch(channel, queue)
    assert (delivery.properties.content_type, delivery.properties.delivery_mode) == (None, None)
    assert not delivery.headers


def test_headers_of_all_types_arrive(channel: Any, queue: str) -> None:
    channel.publish("", queue, b"x", client.Properties(headers=HEADERS))
    found = fetch(channel, queue).headers
    assert found == HEADERS
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in HEADERS.items()}


def test_properties_may_be_changed_and_used_again(channel: Any, queue: str) -> None:
    properties = client.Properties(message_id="1", headers={"n": 1})
    channel.publish("", queue, b"x", properties)
    properties.message_id = "2"
    assert properties.headers is not None
    properties.headers["n"] = 2
    channel.publish("", queue, b"x", properties)
    found = [fetch(channel, queue) for _ in range(2)]
    assert [(each.properties.message_id, each.headers["n"]) for each in found] == [("1", 1), ("2", 2)]


@pytest.mark.parametrize(
    "attempt",
    [
        lambda channel: channel.publish("x" * 256, "", b""),
        lambda channel: channel.publish("", "x" * 256, b""),
        lambda channel: channel.publish("", "key", b"", client.Properties(headers={"x": object()})),
        lambda channel: channel.publish("", "key", b"", client.Properties(message_id="x" * 256)),
        lambda channel: channel.publish("", "key", b"", client.Properties(headers={"x": "y" * 200_000})),
        lambda channel: channel.publish("", "key", 7),
        lambda channel: channel.publish("", "key", None),
    ],
    ids=["exchange", "routing key", "header value", "message id", "header over frame", "number", "none"],
)
def test_what_cannot_be_said_is_misuse_and_sends_nothing(channel: Any, queue: str, attempt: Any) -> None:
    channel.confirm_select()
    with pytest.raises((client.Misuse, TypeError)):
        attempt(channel)
    assert channel.is_open
    confirmation = channel.publish("", queue, b"after")
    confirmation.result(30)
    assert confirmation.tag == 1, "what was not sent has no number"
    assert fetch(channel, queue).body == b"after"


def test_messages_of_a_channel_keep_their_order(channel: Any, queue: str) -> None:
    count = 2000
    for number in range(count):
        channel.publish("", queue, str(number))
    channel.qos(0)
    inbox = Inbox()
    channel.consume(queue, inbox, auto_ack=True)
    assert [int(each.body) for each in inbox.take(count)] == list(range(count))


# -- confirms


def test_without_confirm_mode_waiting_for_a_confirm_raises_at_once(connection: Any, channel: Any, queue: str) -> None:
    for exchange in ("", "no such exchange"):
        confirmation = connection.channel().publish(exchange, queue, b"x")
        assert "unconfirmed" in repr(confirmation)
        assert confirmation.done()
        for wait in (confirmation.result, confirmation.exception):
            with pytest.raises(client.Misuse, match="confirm_select"):
                wait()
        with pytest.raises(client.Misuse, match="confirm_select"):
            confirmation.add_done_callback(print)
    with pytest.raises(client.Misuse):
        channel.wait_for_confirms(timeout=5)


def test_publish_that_waited_for_a_recovery_without_confirm_mode_is_unconfirmed(
    connect: Connect, breaker: Breaker, channel: Any, queue: str
) -> None:
    recovery = client.Recovery(initial=0.01, longest=0.1)
    publisher = connect(breaker.url, unconfirmed="resend", recovery=recovery).channel()
    breaker.refuse()
    breaker.reset()
    wait_until(lambda: publisher.connection.is_recovering, "the connection is lost")
    confirmation = publisher.publish("amq.direct", "kept", b"x")
    with pytest.raises(client.Misuse, match="confirm_select"):
        confirmation.result()
    breaker.calm()


def test_confirmation_resolves_with_the_brokers_ack(confirming: Any, queue: str) -> None:
    assert confirming.next_publish_tag == 1
    confirmations = [confirming.publish("", queue, b"x") for _ in range(100)]
    assert [each.tag for each in confirmations] == list(range(1, 101))
    for each in confirmations:
        each.result(30)
    assert all(each.done() for each in confirmations)
    assert confirming.next_publish_tag == 101
    assert confirming.queue_declare(queue, passive=True).message_count == 100


def test_confirm_select_twice_is_once(confirming: Any, queue: str) -> None:
    confirming.publish("", queue, b"x").result(30)
    confirming.confirm_select()
    confirmation = confirming.publish("", queue, b"x")
    confirmation.result(30)
    assert confirmation.tag == 2


def test_done_callback_is_called_once_before_or_after_the_ack(confirming: Any, queue: str) -> None:
    early, late = Inbox(), Inbox()
    confirmation = confirming.publish("", queue, b"x")
    confirmation.add_done_callback(early)
    assert early.next().done()
    confirmation.add_done_callback(late)
    assert late.next().exception(30) is None
    assert early.stays_empty()


def test_done_callback_that_raises_is_reported(connect: Connect, queue: str) -> None:
    inbox = Inbox()
    channel = connect(exception_handler=lambda *args: inbox(*args)).channel()
    channel.confirm_select()

    def fail(confirmation: Any) -> None:
        raise RuntimeError("on purpose")

    queue = channel.queue_declare("", exclusive=True).queue
    for _ in range(3):
        confirmation = channel.publish("", queue, b"x")
        confirmation.add_done_callback(fail)
        confirmation.result(30)
    channel.wait_for_confirms(timeout=30)
    assert channel.queue_declare(queue, passive=True).message_count == 3


def test_wait_for_confirms_waits_for_all(confirming: Any, queue: str) -> None:
    confirmations = [confirming.publish("", queue, b"x") for _ in range(500)]
    confirming.wait_for_confirms(timeout=30)
    assert all(each.done() for each in confirmations)
    confirming.wait_for_confirms(timeout=30)  # nothing outstanding: at once


def test_confirm_listener_is_called_for_every_tag(confirming: Any, queue: str) -> None:
    inbox = Inbox()
    confirming.add_confirm_listener(inbox)
    for _ in range(50):
        confirming.publish("", queue, b"x")
    heard = 0
    while heard < 50:
        tag, multiple, is_ack = inbox.next()
        assert is_ack
        assert tag > heard
        assert multiple or tag == heard + 1
        heard = tag
    assert heard == 50


def test_nack_fails_the_confirmation(connect: Connect, breaker: Breaker) -> None:
    channel = connect(breaker.url).channel()
    channel.confirm_select()
    queue = channel.queue_declare("", exclusive=True).queue
    inbox = Inbox()
    channel.add_confirm_listener(inbox)
    channel.publish("", queue, b"good").result(30)
    assert inbox.next()[2] is True
    breaker.rewrite(DOWN, nack_instead)
    confirmation = channel.publish("", queue, b"bad")
    with pytest.raises(client.Nacked):
        confirmation.result(30)
    assert isinstance(confirmation.exception(30), client.Nacked)
    assert inbox.next()[2] is False
    with pytest.raises(client.Nacked):
        channel.wait_for_confirms(timeout=30)
    breaker.calm()
    channel.publish("", queue, b"good again")
    channel.wait_for_confirms(timeout=30)  # the bad one was told once
    assert channel.is_open


def test_full_queue_that_rejects_publishes_nacks(confirming: Any, name: Namer) -> None:
    queue = name("queue")
    confirming.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    outcomes = [confirming.publish("", queue, b"x").exception(30) for _ in range(3)]
    assert outcomes[0] is None
    assert [type(outcome) for outcome in outcomes[1:]] == [client.Nacked, client.Nacked]


def test_confirmation_that_does_not_come_times_out(connect: Connect, breaker: Breaker) -> None:
    channel = connect(breaker.url, close_timeout=0.3).channel()
    channel.confirm_select()
    queue = channel.queue_declare("", exclusive=True).queue
    breaker.hold(DOWN)
    confirmation = channel.publish("", queue, b"x")
    with pytest.raises(TimeoutError):
        confirmation.result(0.2)
    with pytest.raises(client.CallTimedOut):
        channel.wait_for_confirms(timeout=0.2)
    assert not confirmation.done()
    breaker.calm()
    confirmation.result(30)
    channel.wait_for_confirms(timeout=30)


# -- returns


def test_unroutable_mandatory_message_comes_back(channel: Any, name: Namer) -> None:
    inbox = Inbox()
    channel.add_return_listener(inbox)
    properties = client.Properties(message_id="7", headers={"a": [1, 2]})
    channel.publish("", name("nowhere"), b"lost" * 100_000, properties, mandatory=True)
    returned = inbox.next()
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("", name("nowhere"))
    assert returned.body == b"lost" * 100_000
    assert (returned.properties.message_id, returned.properties.headers) == ("7", {"a": [1, 2]})


def test_without_mandatory_an_unroutable_message_is_gone(confirming: Any, name: Namer) -> None:
    inbox = Inbox()
    confirming.add_return_listener(inbox)
    confirming.publish("", name("nowhere"), b"x").result(30)
    assert inbox.stays_empty()


def test_return_fails_the_confirmation_of_that_message_only(confirming: Any, queue: str, name: Namer) -> None:
    routes = [index % 3 != 1 for index in range(12)]
    confirmations = [
        confirming.publish("", queue if is_routed else name("nowhere"), b"%d" % index, mandatory=True)
        for index, is_routed in enumerate(routes)
    ]
    for index, (confirmation, is_routed) in enumerate(zip(confirmations, routes, strict=True)):
        failure = confirmation.exception(30)
        if is_routed:
            assert failure is None
        else:
            assert isinstance(failure, client.Unroutable)
            assert failure.returned.body == b"%d" % index
    with pytest.raises(client.Unroutable):
        confirming.wait_for_confirms(timeout=30)
    confirming.wait_for_confirms(timeout=30)


def test_equal_messages_that_return_fail_each_its_own(confirming: Any, name: Namer) -> None:
    confirmations = [confirming.publish("", name("nowhere"), b"same", mandatory=True) for _ in range(5)]
    for each in confirmations:
        with pytest.raises(client.Unroutable):
            each.result(30)


def test_mandatory_to_an_exchange_without_bindings(confirming: Any, name: Namer) -> None:
    confirming.exchange_declare(name("exchange"), "fanout")
    with pytest.raises(client.Unroutable) as failed:
        confirming.publish(name("exchange"), "key", "text", mandatory=True).result(30)
    assert failed.value.returned.exchange == name("exchange")
    assert "NO_ROUTE" in str(failed.value)


# -- refusals


def test_publish_to_a_missing_exchange_closes_the_channel(connection: Any, name: Namer) -> None:
    channel = connection.channel()
    channel.confirm_select()
    inbox = Inbox()
    channel.add_close_listener(inbox)
    confirmation = channel.publish(name("missing"), "key", b"x")
    failure = confirmation.exception(30)
    assert isinstance(failure, client.PublishLost)
    reason = inbox.next()
    assert (reason.by, reason.reply_code) == ("server", 404)
    assert not channel.is_open
    with pytest.raises(client.NotFound):
        channel.publish("", "key", b"x")
    with pytest.raises(client.PublishLost):
        channel.wait_for_confirms(timeout=30)  # the bad one since the last wait
    with pytest.raises(client.NotFound):
        channel.wait_for_confirms(timeout=30)
    assert connection.is_open
    assert connection.channel().queue_declare("", exclusive=True).queue


def test_publish_without_confirms_to_a_missing_exchange(connection: Any, name: Namer) -> None:
    channel = connection.channel()
    channel.publish(name("missing"), "key", b"x")
    wait_until(lambda: not channel.is_open)
    with pytest.raises(client.NotFound):
        channel.publish("", "key", b"x")
