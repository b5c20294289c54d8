"""From the protocol header to connection.open-ok, what is refused on the way, and how a connection ends.

Before connection.tune-ok a broker hangs up without a word where the client went wrong (a client that says it can take
it hears of refused credentials); afterwards it says why. Some brokers wait some seconds before they hang up, against
guessing: the silent refusals are all begun at once so that this is waited for once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.conftest import Connect
from tests.support.wire import Address, Refusal, WireConnection
from tests.support.wire_format import (
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    pack_frame,
    pack_header,
    pack_method,
    pack_table,
)

Dial = Callable[[], WireConnection]
HEARS_REFUSAL = {"authentication_failure_close": True}


def amqplain(user: str, password: str) -> bytes:
    """A login table without its length, as AMQPLAIN wants it."""
    return pack_table({"LOGIN": user, "PASSWORD": password})[4:]


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x01\x01\x00\x0a",
        b"AMQP\x00\x00\x09\x00",
        b"amqp\x00\x00\x09\x01",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
    ],
    ids=["http", "amqp-1.0", "amqp-1.0-sasl", "amqp-0-10", "amqp-0-9-0", "lower-case", "tls-hello"],
)
def test_another_protocol_is_answered_with_the_supported_header(dial: Dial, header: bytes) -> None:
    connection = dial()
    connection.send_bytes(header)
    assert connection.read_to_end() == PROTOCOL_HEADER


def test_the_header_may_come_in_pieces(dial: Dial) -> None:
    connection = dial()
    for byte in PROTOCOL_HEADER:
        connection.send_bytes(bytes([byte]))
    connection.expect("connection.start")


def test_start_contains_the_server_properties_and_capabilities(dial: Dial) -> None:
    start = dial().start()
    assert (start["version_major"], start["version_minor"]) == (0, 9)
    assert {b"PLAIN", b"AMQPLAIN"} <= set(start["mechanisms"].split())
    assert start["locales"] == b"en_US"
    properties = start["server_properties"]
    assert properties.keys() >= {"product", "version", "platform", "copyright", "information", "cluster_name"}
    own = {"warrenmq.consumer_retry", "warrenmq.notes"}  # which RabbitMQ does not have
    assert {name: value for name, value in properties["capabilities"].items() if name not in own} == {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }


def test_tune_offers_2047_channels_frames_of_128_kib_and_a_minute(dial: Dial) -> None:
    connection = dial()
    connection.start()
    connection.log_in()
    assert connection.expect("connection.tune").arguments == {
        "channel_max": 2047,
        "frame_max": 131072,
        "heartbeat": 60,
    }


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", amqplain("guest", "guest"))],
    ids=["plain", "amqplain"],
)
def test_both_password_mechanisms_log_in(dial: Dial, mechanism: str, response: bytes) -> None:
    connection = dial()
    connection.start()
    connection.log_in(mechanism=mechanism, response=response)
    connection.expect("connection.tune")


def test_a_heartbeat_may_come_before_start_ok(dial: Dial) -> None:
    connection = dial()
    connection.start()
    connection.send_frame(HEARTBEAT, 0, b"")
    connection.log_in()
    connection.expect("connection.tune")


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0wrong"),
        ("PLAIN", b"\0nobody\0guest"),
        ("PLAIN", b"\0\0"),
        ("AMQPLAIN", amqplain("guest", "wrong")),
    ],
    ids=["wrong-password", "unknown-user", "empty", "amqplain-wrong-password"],
)
def test_refused_credentials_are_reported_to_clients_with_the_capability(
    dial: Dial, mechanism: str, response: bytes
) -> None:
    connection = dial()
    connection.start()
    connection.log_in(HEARS_REFUSAL, mechanism=mechanism, response=response)
    assert connection.expect_refusal() == Refusal(
        "connection",
        403,
        f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile.",
    )


def log_in_then(*steps: Callable[[WireConnection], object]) -> Callable[[WireConnection], None]:
    """Log in well, then go wrong."""

    def go(connection: WireConnection) -> None:
        connection.log_in(HEARS_REFUSAL)
        for step in steps:
            step(connection)

    return go


SILENT_REFUSALS: dict[str, Callable[[WireConnection], object]] = {
    "wrong password and the client cannot hear it": lambda peer: peer.log_in(response="\0guest\0wrong"),
    "PLAIN without separators": lambda peer: peer.log_in(HEARS_REFUSAL, response="guest"),
    "PLAIN with nothing": lambda peer: peer.log_in(HEARS_REFUSAL, response=""),
    "AMQPLAIN without LOGIN": lambda peer: peer.log_in(
        HEARS_REFUSAL, mechanism="AMQPLAIN", response=pack_table({"USER": "guest"})[4:]
    ),
    "AMQPLAIN that is no table": lambda peer: peer.log_in(HEARS_REFUSAL, mechanism="AMQPLAIN", response=b"\xff\xff"),
    "unknown mechanism": lambda peer: peer.log_in(HEARS_REFUSAL, mechanism="PAIN"),
    "mechanism in lower case": lambda peer: peer.log_in(HEARS_REFUSAL, mechanism="plain"),
    "tune-ok for start-ok": lambda peer: peer.send("connection.tune-ok"),
    "open for start-ok": lambda peer: peer.send("connection.open", virtual_host="/"),
    "close for start-ok": lambda peer: peer.send("connection.close"),
    "channel.open for start-ok": lambda peer: peer.send("channel.open", 1),
    "start-ok cut short": lambda peer: peer.send_frame(METHOD, 0, pack_method("connection.start-ok")[:6]),
    "start-ok with a bad table": lambda peer: peer.send("connection.start-ok", client_properties=b"\0\0\0\x05abcde"),
    "start-ok with a wrong end": lambda peer: peer.send_bytes(
        pack_frame(METHOD, 0, pack_method("connection.start-ok", mechanism="PLAIN"), end=b"\0")
    ),
    "start-ok of more than 4096 bytes": lambda peer: peer.send(
        "connection.start-ok",
        client_properties={"note": "x" * 5000},
        mechanism="PLAIN",
        response="\0guest\0guest",
        locale="en_US",
    ),
    "unknown frame type": lambda peer: peer.send_frame(9, 0, b"abc"),
    "frame_max too small": log_in_then(lambda peer: peer.tune(frame_max=4095)),
    "frame_max larger than offered": log_in_then(lambda peer: peer.tune(frame_max=131073)),
    "frame_max without a limit": log_in_then(lambda peer: peer.tune(frame_max=0)),
    "channel_max larger than offered": log_in_then(lambda peer: peer.tune(channel_max=2048)),
    "channel_max without a limit": log_in_then(lambda peer: peer.tune(channel_max=0)),
    "close for tune-ok": log_in_then(
        lambda peer: peer.expect("connection.tune"), lambda peer: peer.send("connection.close")
    ),
    "open for tune-ok": log_in_then(
        lambda peer: peer.expect("connection.tune"), lambda peer: peer.send("connection.open", virtual_host="/")
    ),
}


@pytest.fixture(scope="module")
def silently_refused(address: Address) -> Iterator[dict[str, WireConnection]]:
    """Every handshake that must end without a word, begun."""
    begun: dict[str, WireConnection] = {}
    for label, misstep in SILENT_REFUSALS.items():
        begun[label] = WireConnection(address)
        begun[label].start()
        misstep(begun[label])
    yield begun
    for connection in begun.values():
        connection.socket.close()


@pytest.mark.parametrize("label", SILENT_REFUSALS)
def test_hangs_up_without_a_word(silently_refused: dict[str, WireConnection], label: str) -> None:
    silently_refused[label].expect_end()


@pytest.mark.parametrize(
    ("channel_max", "frame_max", "heartbeat"),
    [(1, 131072, 0), (2047, 4096, 0), (2047, 131072, 600), (2047, 131072, 65535)],
)
def test_tuning_within_the_offer_is_taken(connect: Connect, channel_max: int, frame_max: int, heartbeat: int) -> None:
    connection = connect(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
    connection.channel().barrier()


def unexpected(state: str, method: str) -> Refusal:
    return Refusal("connection", 504, f"CHANNEL_ERROR - unexpected method in connection state {state}", method)


def no_vhost(virtual_host: str) -> Refusal:
    return Refusal("connection", 530, f"NOT_ALLOWED - vhost {virtual_host} not found", "connection.open")


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("connection.open", {"virtual_host": "no such host"}, no_vhost("no such host")),
        ("connection.open", {"virtual_host": ""}, no_vhost("")),
        ("connection.close", {}, unexpected("opening", "connection.close")),
        ("connection.start-ok", {}, unexpected("opening", "connection.start-ok")),
    ],
    ids=["missing-virtual-host", "empty-virtual-host", "close-for-open", "start-ok-for-open"],
)
def test_after_tuning_a_refusal_says_why(dial: Dial, method: str, arguments: dict[str, str], expected: Refusal) -> None:
    connection = dial()
    connection.start()
    connection.log_in()
    connection.tune()
    connection.send(method, 0, **arguments)
    assert connection.expect_refusal() == expected


@pytest.mark.parametrize(
    ("payload", "printed"),
    [
        (pack_method("channel.open"), "<<0,20,0,10,0>>"),
        (pack_method("connection.open", virtual_host="/"), "<<0,10,0,40,1,47,0,0>>"),
    ],
    ids=["channel.open", "connection.open"],
)
def test_no_channel_may_be_used_before_the_connection_is_open(dial: Dial, payload: bytes, printed: str) -> None:
    connection = dial()
    connection.start()
    connection.log_in()
    connection.tune()
    connection.send_frame(METHOD, 1, payload)
    text = f"UNEXPECTED_FRAME - type 1, all octets = {printed}"
    assert connection.expect_refusal() == Refusal("connection", 505, text)


@pytest.mark.parametrize(
    "method",
    [
        "connection.start-ok",
        "connection.tune-ok",
        "connection.open",
        "connection.open-ok",
        "connection.close-ok",
        "connection.blocked",
        "channel.open",
        "queue.declare",
    ],
)
def test_an_open_connection_takes_no_such_method_on_channel_zero(connection: WireConnection, method: str) -> None:
    connection.send(method)
    assert connection.expect_refusal() == unexpected("running", method)


def test_content_on_channel_zero_is_refused(connect: Connect) -> None:
    connection = connect()
    connection.send_frame(HEADER, 0, pack_header(0))
    printed = "<<0,60,0,0,0,0,0,0,0,0,0,0,0,0>>"
    text = f"UNEXPECTED_FRAME - type 2, all octets = {printed}"
    assert connection.expect_refusal() == Refusal("connection", 505, text)


def test_update_secret_is_answered(connection: WireConnection) -> None:
    connection.send("connection.update-secret", new_secret="fresh", reason="the old one expires")
    connection.expect("connection.update-secret-ok")


def test_close_is_answered_after_what_was_sent_before_it(connection: WireConnection) -> None:
    connection.send_bytes(
        pack_frame(METHOD, 1, pack_method("channel.open"))
        + pack_frame(METHOD, 1, pack_method("queue.declare", exclusive=True))
        + pack_frame(METHOD, 0, pack_method("connection.close", reply_code=200, reply_text="goodbye"))
        + pack_frame(METHOD, 2, pack_method("channel.open"))
    )
    connection.expect("channel.open-ok", 1)
    connection.expect("queue.declare-ok", 1)
    connection.expect("connection.close-ok")


def test_a_silent_client_gets_heartbeats_and_then_is_left(connect: Connect) -> None:
    connection = connect(heartbeat=1)
    received = connection.read_to_end()
    beat = pack_frame(HEARTBEAT, 0, b"")
    assert received
    assert received == beat * (len(received) // len(beat))


def test_a_client_that_answers_heartbeats_stays(connect: Connect) -> None:
    connection = connect(heartbeat=1)
    for _ in range(8):
        frame = connection.read_any_frame()
        assert frame.kind == HEARTBEAT
        connection.send_frame(HEARTBEAT, 0, b"")
    connection.channel().barrier()


@pytest.fixture
def impatient(address: Address) -> Iterator[Address]:
    """A broker that does not wait long for a handshake, where the test may choose."""
    if "WARREN_TEST_URL" in os.environ:
        yield address
        return
    import warrenmq
    from warrenmq.server.options import ServerOptions

    with warrenmq.Broker(server=ServerOptions(handshake_timeout=3.0)) as broker:
        yield Address.of_url(broker.url)


def test_an_unfinished_handshake_is_cut_off(impatient: Address) -> None:
    """Before the header, after connection.start and after connection.tune: all begun at once, and waited for once."""
    with WireConnection(impatient) as silent, WireConnection(impatient) as greeted, WireConnection(impatient) as tuned:
        greeted.start()
        tuned.start()
        tuned.log_in()
        tuned.tune()
        for connection in (silent, greeted, tuned):
            connection.expect_end()
