"""basic.publish: what is refused, what is returned, and what the message carries on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.cases import RefusedCase, label_of, publish
from tests.conformance.conftest import Namer
from tests.support.wire import Address, Refusal, WireChannel, WireConnection
from tests.support.wire_format import BODY, HEADER, pack_frame, pack_header


def invalid_expiration(given: str, detail: str) -> RefusedCase:
    return RefusedCase(
        f"expiration {given!r}",
        publish(properties={"expiration": given}),
        406,
        f"PRECONDITION_FAILED - invalid expiration '{given}': {detail}",
    )


def invalid_message(label: str, properties: dict[str, Any], detail: str) -> RefusedCase:
    return RefusedCase(label, publish(properties=properties), 406, f"PRECONDITION_FAILED - invalid message: {detail}")


REFUSED = [
    RefusedCase("immediate", publish(immediate=True), 540, "NOT_IMPLEMENTED - immediate=true", scope="connection"),
    RefusedCase(
        "user-id of somebody else",
        publish(properties={"user_id": "somebody"}),
        406,
        "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'",
    ),
    RefusedCase(
        "user-id of nobody",
        publish(properties={"user_id": ""}),
        406,
        "PRECONDITION_FAILED - user_id property set to '' but authenticated user was 'guest'",
    ),
    invalid_expiration("soon", "no_integer"),
    invalid_expiration("", "no_integer"),
    invalid_expiration(" 5", "no_integer"),
    invalid_expiration("-1", "{value_negative,-1}"),
    invalid_expiration("1.5", '{leftover_string,".5"}'),
    invalid_expiration("5 ", '{leftover_string," "}'),
    invalid_expiration("1_000", '{leftover_string,"_000"}'),
    invalid_expiration("315360000001", "{value_too_large,315360000001}"),
    invalid_message("delivery mode 0", {"delivery_mode": 0}, "{delivery_mode_unknown,0}"),
    invalid_message("delivery mode 3", {"delivery_mode": 3}, "{delivery_mode_unknown,3}"),
    invalid_message("CC that is a text", {"headers": {"CC": "here"}}, '{unacceptable_type_in_header,"CC",longstr}'),
    invalid_message("BCC that is a text", {"headers": {"BCC": "here"}}, '{unacceptable_type_in_header,"BCC",longstr}'),
]


@pytest.mark.parametrize("case", REFUSED, ids=label_of)
def test_refused(case: RefusedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize(
    "properties",
    [
        {"expiration": "0"},
        {"expiration": "+5"},
        {"expiration": "315360000000"},
        {"priority": 255},
        {"user_id": "guest"},
        {"headers": {"CC": [1, None]}},
        {"delivery_mode": 1},
    ],
    ids=str,
)
def test_accepted(channel: WireChannel, properties: dict[str, Any]) -> None:
    channel.publish(b"message", properties, routing_key="nowhere")
    channel.barrier()


def test_an_unroutable_message_is_dropped_in_silence(channel: WireChannel, name: Namer) -> None:
    channel.publish(b"lost", routing_key=name("nowhere"))
    channel.barrier()


@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers"])
def test_an_unroutable_mandatory_message_comes_back_whole(channel: WireChannel, name: Namer, exchange: str) -> None:
    properties = {"message_id": "m1", "headers": {"kept": [1, {"deep": True}]}}
    channel.publish(b"nobody's", properties, exchange=exchange, routing_key=name("nowhere"), mandatory=True)
    returned = channel.content("basic.return")
    assert returned.method.arguments == {
        "reply_code": 312,
        "reply_text": "NO_ROUTE",
        "exchange": exchange,
        "routing_key": name("nowhere"),
    }
    assert (returned.properties, returned.body) == (properties, b"nobody's")


def test_an_empty_mandatory_message_comes_back_too(channel: WireChannel, name: Namer) -> None:
    channel.publish(b"", routing_key=name("nowhere"), mandatory=True)
    assert channel.content("basic.return").body == b""


def test_a_routable_mandatory_message_does_not_come_back(channel: WireChannel, queue: str) -> None:
    channel.publish(b"kept", routing_key=queue, mandatory=True)
    channel.barrier(queue)
    message = channel.get(queue)
    assert message is not None


def test_cc_and_bcc_route_and_only_bcc_is_taken_out(channel: WireChannel, name: Namer) -> None:
    copy, blind = name("copy"), name("blind")
    for queue in (copy, blind):
        channel.call("queue.declare", queue=queue)
    headers = {"CC": [copy, copy], "BCC": [blind, copy], "kept": 1}
    channel.publish(b"to many", {"headers": headers}, routing_key=name("nowhere"), mandatory=True)
    for queue in (copy, blind):
        message = channel.get(queue)
        assert message is not None
        assert message["routing_key"] == name("nowhere")
        assert message.properties["headers"] == {"CC": [copy, copy], "kept": 1}
        assert channel.get(queue) is None


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 1_000_000])
def test_bodies_of_any_size_arrive_whole(channel: WireChannel, queue: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    channel.publish(body[:size], routing_key=queue)
    message = channel.get(queue)
    assert message is not None
    assert message.body == body[:size]


@pytest.fixture
def bounded() -> Iterator[tuple[Address, int]]:
    """A broker, and the size of its largest message: a small one where the test may choose."""
    given = os.environ.get("WARREN_TEST_URL")
    if given:
        yield Address.of_url(given), 134_217_728
        return
    import warrenmq
    from warrenmq.server.options import ServerOptions

    with warrenmq.Broker(server=ServerOptions(max_message_size=300_000)) as broker:
        yield Address.of_url(broker.url), 300_000


def send_large(channel: WireChannel, size: int) -> None:
    """Publish N bytes without holding them all."""
    channel.send("basic.publish", routing_key="nowhere")
    channel.connection.send_frame(HEADER, channel.number, pack_header(size))
    part = 100_000
    frame = pack_frame(BODY, channel.number, bytes(part))
    for _ in range(size // part):
        channel.connection.send_bytes(frame)
    if size % part:
        channel.connection.send_frame(BODY, channel.number, bytes(size % part))


def test_a_body_at_the_limit_is_taken_and_one_byte_more_refused(bounded: tuple[Address, int]) -> None:
    address, limit = bounded
    with WireConnection(address).open() as connection:
        channel = connection.channel()
        send_large(channel, limit)
        channel.barrier()
        send_large(channel, limit + 1)
        text = f"PRECONDITION_FAILED - message size {limit + 1} is larger than configured max size {limit}"
        assert channel.expect_refusal() == Refusal("channel", 406, text, "basic.publish")
        connection.channel().barrier()
