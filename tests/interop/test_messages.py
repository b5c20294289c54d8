"""Every client publishes: bodies of all sizes, every property, confirms, returns, copies and replies."""

from __future__ import annotations

import hashlib

import pytest

from .clients.contract import Channel, Client, Feature
from .conftest import Connect, Namer

# Around what fits one frame with frame-max 4096 and 131072 (8 bytes are the frame's own), and far beyond.
BODY_SIZES = [0, 1, 4087, 4088, 4089, 8176, 131063, 131064, 131065, 262128, 3 * 1024 * 1024 + 17]


def body_of(size: int) -> bytes:
    return (b"0123456789abcdef\x00\xce\xff" * (size // 19 + 1))[:size]


def digest(body: bytes) -> tuple[int, str]:
    return len(body), hashlib.sha256(body).hexdigest()


def test_bodies_of_every_size_arrive_whole(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.consume(queue, no_ack=True)
    for size in BODY_SIZES:
        channel.publish("", queue, body_of(size))
    assert [digest(delivery.body) for delivery in channel.take(len(BODY_SIZES))] == [
        digest(body_of(size)) for size in BODY_SIZES
    ]


def test_bodies_of_every_size_can_be_got(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.select_confirms()
    for size in BODY_SIZES:
        assert channel.confirm("", queue, body_of(size)).confirmed
        delivery = channel.get(queue, no_ack=True)
        assert delivery is not None
        assert digest(delivery.body) == digest(body_of(size))


@pytest.mark.needs(Feature.FRAME_MAX)
@pytest.mark.parametrize("size", [4087, 4088, 4089, 8176, 8177, 100_000])
def test_small_frames_carry_bodies_whole(connect: Connect, name: Namer, size: int) -> None:
    channel = connect(frame_max=4096).channel()
    queue = name("queue")
    channel.declare_queue(queue)
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, body_of(size))
    assert digest(channel.take(1)[0].body) == digest(body_of(size))


def test_every_property_arrives_as_sent(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    properties = {
        "content_type": "application/json",
        "content_encoding": "gzip",
        "headers": {"key": "value"},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "correlation",
        "reply_to": "reply",
        "expiration": "3600000",
        "message_id": "message",
        "timestamp": 1_709_209_815,
        "type": "type",
        "user_id": "guest",
        "app_id": "application",
        # cluster-id is reserved, and most libraries do not let it be set.
    }
    channel.publish("", queue, b"body", properties)
    channel.consume(queue, no_ack=True)
    assert dict(channel.take(1)[0].properties) == properties


@pytest.mark.needs(Feature.PUBLISH_EMPTY_PROPERTIES)
def test_no_property_is_invented(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.publish("", queue, b"bare")
    channel.consume(queue, no_ack=True)
    assert dict(channel.take(1)[0].properties) == {}


def test_every_header_type_arrives_as_sent(client_class: type[Client], channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.publish("", queue, b"", {"headers": client_class.header_samples})
    channel.consume(queue, no_ack=True)
    headers = channel.take(1)[0].headers
    assert dict(headers) == dict(client_class.header_samples)
    for key, sample in client_class.header_samples.items():
        assert isinstance(headers[key], type(sample)), f"{key} came as {headers[key]!r}"


def test_confirm_comes_for_each_message(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue, durable=True)
    channel.select_confirms()
    for delivery_mode in (1, 2):
        outcome = channel.confirm("", queue, b"body", {"delivery_mode": delivery_mode})
        assert outcome.confirmed
        assert outcome.returned is None
    assert channel.purge_queue(queue) == 2


def test_many_messages_in_flight_are_all_confirmed(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.select_confirms()
    bodies = [b"%d" % number for number in range(500)]
    assert channel.confirm_many("", queue, bodies) == 500
    channel.consume(queue, no_ack=True)
    assert [delivery.body for delivery in channel.take(500)] == bodies


def test_message_that_no_queue_takes_is_confirmed(channel: Channel, name: Namer) -> None:
    exchange = name("exchange")
    channel.declare_exchange(exchange, "direct")
    channel.select_confirms()
    assert channel.confirm(exchange, "nowhere", b"dropped").confirmed


def test_mandatory_message_without_a_queue_is_returned_then_confirmed(channel: Channel, name: Namer) -> None:
    exchange = name("exchange")
    channel.declare_exchange(exchange, "direct")
    channel.select_confirms()
    outcome = channel.confirm(exchange, "nowhere", b"back to me", mandatory=True)
    assert outcome.confirmed
    returned = outcome.returned
    assert returned is not None
    assert (returned.code, returned.text, returned.exchange, returned.routing_key) == (
        312,
        "NO_ROUTE",
        exchange,
        "nowhere",
    )
    assert returned.body in (b"back to me", None)


@pytest.mark.needs(Feature.RETURN_WITHOUT_CONFIRM)
def test_mandatory_message_is_returned_without_confirms(channel: Channel, name: Namer) -> None:
    missing = name("missing queue")
    channel.publish("", missing, b"back to me", mandatory=True)
    returned = channel.next_return()
    assert returned is not None
    assert (returned.code, returned.text, returned.exchange, returned.routing_key) == (312, "NO_ROUTE", "", missing)


@pytest.mark.needs(Feature.RETURN_CONTENT, Feature.RETURN_WITHOUT_CONFIRM)
@pytest.mark.parametrize("size", [0, 1, 200_000])
def test_returned_message_comes_whole(channel: Channel, name: Namer, size: int) -> None:
    channel.publish("", name("missing queue"), body_of(size), mandatory=True)
    returned = channel.next_return()
    assert returned is not None
    assert returned.body is not None
    assert digest(returned.body) == digest(body_of(size))


def test_copies_go_to_the_keys_of_cc_and_bcc(channel: Channel, name: Namer) -> None:
    to, copied, blind = name("to"), name("copied"), name("blind")
    for queue in (to, copied, blind):
        channel.declare_queue(queue)
    channel.publish("", to, b"letter", {"headers": {"CC": [copied], "BCC": [blind], "kept": "yes"}})
    for queue in (to, copied, blind):
        channel.consume(queue, no_ack=True)
    deliveries = channel.take(3)
    for delivery in deliveries:
        # Everyone sees CC, nobody sees BCC.
        assert delivery.routing_key == to
        assert dict(delivery.headers) == {"CC": [copied], "kept": "yes"}
    assert len({delivery.consumer for delivery in deliveries}) == 3


def test_all_keys_count_at_every_exchange_on_the_way(channel: Channel, name: Namer) -> None:
    first, second, queue = name("first"), name("second"), name("queue")
    channel.declare_exchange(first, "direct")
    channel.declare_exchange(second, "topic")
    channel.declare_queue(queue)
    channel.bind_exchange(second, first, "copied")
    channel.bind_queue(queue, second, "blind")
    channel.publish(first, "unknown", b"letter", {"headers": {"CC": ["copied"], "BCC": ["blind"]}})
    channel.consume(queue, no_ack=True)
    assert channel.take(1)[0].routing_key == "unknown"


def test_request_is_answered_over_direct_reply_to(connect: Connect, name: Namer) -> None:
    requests = name("requests")
    server = connect().channel()
    server.declare_queue(requests)
    server.consume(requests, no_ack=True)
    asker = connect().channel()
    asker.consume("amq.rabbitmq.reply-to", no_ack=True)
    for number in range(3):
        asker.publish(
            "", requests, b"ping", {"reply_to": "amq.rabbitmq.reply-to", "correlation_id": f"request {number}"}
        )
        request = server.take(1)[0]
        assert str(request.properties["reply_to"]).startswith("amq.rabbitmq.reply-to.")
        server.publish(
            "", request.properties["reply_to"], b"pong", {"correlation_id": request.properties["correlation_id"]}
        )
        reply = asker.take(1)[0]
        assert (reply.body, reply.properties["correlation_id"]) == (b"pong", f"request {number}")


def test_messages_of_one_publisher_keep_their_order(connect: Connect, name: Namer) -> None:
    queue = name("queue")
    receiver, sender = connect().channel(), connect().channel()
    receiver.declare_queue(queue)
    receiver.consume(queue, no_ack=True)
    bodies = [b"%d" % number for number in range(300)]
    for body in bodies:
        sender.publish("", queue, body)
    assert [delivery.body for delivery in receiver.take(300)] == bodies


@pytest.mark.needs(Feature.ANY_NAME)
def test_text_of_any_script_survives_in_names_and_keys(channel: Channel, name: Namer) -> None:
    exchange, queue, key = name("börse 交换"), name("очередь"), "clé.ключ.鍵"
    channel.declare_exchange(exchange, "direct")
    channel.declare_queue(queue)
    channel.bind_queue(queue, exchange, key)
    channel.publish(exchange, key, b"body")
    channel.consume(queue, no_ack=True)
    delivery = channel.take(1)[0]
    assert (delivery.exchange, delivery.routing_key) == (exchange, key)
