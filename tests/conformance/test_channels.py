"""Channels: opened, refused, closed from either side, used again; each on its own."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect, Namer
from tests.support.wire import Refusal, WireChannel, WireConnection
from tests.support.wire_format import BODY, HEADER, METHOD, pack_frame, pack_header, pack_method, pack_publish

EXPECTED_OPEN = "CHANNEL_ERROR - expected 'channel.open'"


def test_opening_twice_is_a_connection_error(channel: WireChannel) -> None:
    text = "CHANNEL_ERROR - second 'channel.open' seen"
    assert channel.refused("channel.open") == Refusal("connection", 504, text, "channel.open")


@pytest.mark.parametrize(
    "method", ["queue.declare", "basic.qos", "channel.close", "channel.close-ok", "channel.open-ok", "connection.close"]
)
def test_a_method_on_a_channel_that_is_not_open_is_a_connection_error(connection: WireConnection, method: str) -> None:
    connection.channel(1)
    connection.send(method, 2)
    assert connection.expect_refusal() == Refusal("connection", 504, EXPECTED_OPEN, method)


def test_a_publish_on_a_channel_that_is_not_open_is_a_connection_error(connection: WireConnection) -> None:
    connection.send_bytes(pack_publish(2, b"body"))
    assert connection.expect_refusal() == Refusal("connection", 504, EXPECTED_OPEN, "basic.publish")


def test_more_channels_than_negotiated_are_a_connection_error(connect: Connect) -> None:
    connection = connect(channel_max=2)
    connection.channel(1)
    connection.channel(2)
    connection.send("channel.open", 3)
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert connection.expect_refusal() == Refusal("connection", 530, text)


def test_a_closed_channel_makes_room_for_another(connect: Connect) -> None:
    connection = connect(channel_max=2)
    first = connection.channel(1)
    connection.channel(2)
    first.close()
    connection.channel(1).barrier()


def test_the_highest_channel_number_works(connection: WireConnection) -> None:
    connection.channel(2047).barrier()


def test_channels_fail_alone(connection: WireConnection, name: Namer) -> None:
    first, second = connection.channel(1), connection.channel(2)
    assert first.refused("queue.declare", queue=name("missing"), passive=True).scope == "channel"
    second.barrier()


def test_a_number_is_free_again_after_an_error(connection: WireConnection, name: Namer) -> None:
    for _ in range(3):
        channel = connection.channel(5)
        assert channel.refused("queue.declare", queue=name("missing"), passive=True).code == 404
    connection.channel(5).barrier()


def test_a_number_is_free_again_after_close_ok(connection: WireConnection) -> None:
    for _ in range(3):
        channel = connection.channel(5)
        channel.barrier()
        channel.close()


def test_requests_after_an_error_are_ignored_until_close_ok(connection: WireConnection, name: Namer) -> None:
    channel = connection.channel(1)
    connection.send_bytes(
        pack_frame(METHOD, 1, pack_method("queue.declare", queue=name("missing"), passive=True))
        + pack_frame(METHOD, 1, pack_method("queue.declare", queue=name("ignored")))
        + pack_publish(1, b"ignored", routing_key=name("ignored"), mandatory=True)
        + pack_frame(METHOD, 1, pack_method("basic.qos"))
    )
    assert channel.expect_refusal().code == 404
    again = connection.channel(1)
    assert again.refused("queue.declare", queue=name("ignored"), passive=True).code == 404


def test_content_that_is_under_way_at_an_error_is_ignored(connection: WireConnection, name: Namer) -> None:
    channel = connection.channel(1)
    connection.send_bytes(
        pack_publish(1, b"lost", exchange=name("missing"))
        + pack_frame(METHOD, 1, pack_method("basic.publish", exchange=name("missing")))
    )
    close = connection.read_frame(1)
    assert close.payload[:4] == b"\x00\x14\x00\x28"
    connection.send_frame(HEADER, 1, pack_header(6))
    connection.send_frame(BODY, 1, b"ig")
    connection.send_frame(BODY, 1, b"nore")
    channel.send("channel.close-ok")
    connection.channel(1).barrier()


def test_a_close_that_crosses_the_brokers_close_is_answered(connection: WireConnection, name: Namer) -> None:
    channel = connection.channel(1)
    channel.send("queue.declare", queue=name("missing"), passive=True)
    channel.send("channel.close")
    assert connection.read_frame(1).payload[:4] == b"\x00\x14\x00\x28"
    channel.expect("channel.close-ok")
    channel.send("channel.close-ok")
    connection.channel(1).barrier()


def test_a_second_close_ok_is_a_connection_error(channel: WireChannel, name: Namer) -> None:
    assert channel.refused("queue.declare", queue=name("missing"), passive=True).code == 404
    channel.send("channel.close-ok")
    assert channel.expect_refusal() == Refusal("connection", 504, EXPECTED_OPEN, "channel.close-ok")


def test_flow_can_be_asked_for_but_not_stopped(channel: WireChannel) -> None:
    assert channel.call("channel.flow", active=True)["active"] is True
    refusal = channel.refused("channel.flow", active=False)
    assert refusal == Refusal("connection", 540, "NOT_IMPLEMENTED - active=false", "channel.flow")


def test_old_clients_receive_access_tickets(channel: WireChannel) -> None:
    assert channel.call("access.request", realm="/data", read=True)["ticket"] == 1


@pytest.mark.parametrize(
    "method",
    [
        "queue.declare-ok",
        "basic.get-empty",
        "basic.qos-ok",
        "basic.cancel-ok",
        "channel.open-ok",
        "channel.close-ok",
        "channel.flow-ok",
        "connection.start-ok",
        "connection.close",
    ],
)
def test_methods_that_are_not_a_clients_are_refused(channel: WireChannel, method: str) -> None:
    refusal = channel.refused(method)
    assert refusal == Refusal("connection", 503, "COMMAND_INVALID - unimplemented method", method)


def test_a_delivery_from_a_client_is_refused(channel: WireChannel) -> None:
    channel.send("basic.deliver")
    channel.connection.send_frame(HEADER, 1, pack_header(0))
    refusal = channel.expect_refusal()
    assert refusal == Refusal("connection", 503, "COMMAND_INVALID - unimplemented method", "basic.deliver")
