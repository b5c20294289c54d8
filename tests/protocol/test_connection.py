"""The client's connection, against the real server in memory and against servers that misbehave."""

import pytest

from tests.support.socketless import Line, SocketlessServer
from tests.support.wire_format import BODY, HEADER, HEARTBEAT, METHOD, pack_frame, pack_header, pack_method
from warrenmq.protocol import methods, spec
from warrenmq.protocol.connection import ClientConnection, ContentHandler, Phase
from warrenmq.protocol.errors import LocalMisuse
from warrenmq.protocol.events import (
    Blocked,
    ClosedBy,
    ConnectionClosed,
    ContentReceived,
    Event,
    MethodReceived,
    Opened,
    Unblocked,
)
from warrenmq.protocol.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from warrenmq.protocol.handshake import ClientHandshake, Tuning
from warrenmq.protocol.properties import BasicProperties
from warrenmq.server.options import ServerOptions

LOGIN = b"\0guest\0guest"


class Pair:
    """A client wired to a real session of the server."""

    def __init__(
        self,
        options: ServerOptions | None = None,
        handshake: ClientHandshake | None = None,
        largest_body: int = 2**27,
        content_handler: ContentHandler | None = None,
    ) -> None:
        self.server = SocketlessServer(options)
        self.line: Line = self.server.connect()
        self.client = ClientConnection(
            handshake or ClientHandshake("PLAIN", LOGIN), 0.0, largest_body, content_handler=content_handler
        )

    def talk(self) -> list[Event]:
        """Carry bytes both ways until there are none; return the events of the client."""
        events: list[Event] = []
        while True:
            said = self.client.take_output(self.server.clock)
            for chunk in said:
                self.line.send(chunk)
            answer = self.line.receive()
            events += self.client.receive(answer, self.server.clock) if answer else []
            if not said and not answer:
                return events

    def opened(self) -> "Pair":
        """With channel 1 open."""
        self.talk()
        self.client.send_method(1, spec.ChannelOpen())
        assert self.talk() == [MethodReceived(1, spec.ChannelOpenOk())]
        return self

    def methods(self) -> list[spec.Method]:
        return [event.method for event in self.talk() if isinstance(event, MethodReceived)]


def closed(events: list[Event]) -> ConnectionClosed:
    assert isinstance(events[-1], ConnectionClosed), events
    assert sum(isinstance(event, ConnectionClosed) for event in events) == 1
    return events[-1]


# -- with the real server ------------------------------------------------------------------------------------------


def test_a_connection_opens() -> None:
    pair = Pair(ServerOptions(channel_max=12, heartbeat=7))
    (opened,) = pair.talk()
    assert isinstance(opened, Opened)
    assert opened.tuning == Tuning(channel_max=12, frame_max=131072, heartbeat=7)
    assert opened.server_properties["broker"].startswith("WarrenMQ")
    assert pair.client.phase is Phase.OPEN


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 20_000, 300_000])
@pytest.mark.parametrize("frame_max", [4096, 131072])
def test_a_message_goes_round(size: int, frame_max: int) -> None:
    pair = Pair(ServerOptions(frame_max=frame_max)).opened()
    properties = BasicProperties(content_type="text/plain", headers={"number": 7}, delivery_mode=2)
    body = bytes(number % 251 for number in range(size))
    pair.client.send_method(1, spec.ConfirmSelect())
    pair.client.send_method(1, spec.QueueDeclare("q"))
    pair.client.send_method(1, spec.BasicConsume("q", "tag"))
    pair.talk()
    pair.client.publish(1, "", "q", body, properties)
    events = pair.talk()
    (delivery,) = [event for event in events if isinstance(event, ContentReceived)]
    assert delivery.method == spec.BasicDeliver("tag", 1, False, "", "q")
    assert delivery.properties == properties
    assert delivery.body == body
    assert MethodReceived(1, spec.BasicAck(1)) in events
    pair.client.send_method(1, spec.BasicAck(1))
    pair.talk()
    assert pair.server.broker.stats.acked == 1


def test_get_and_return_carry_their_messages() -> None:
    pair = Pair().opened()
    pair.client.send_method(1, spec.QueueDeclare("q"))
    pair.client.publish(1, "", "q", b"kept")
    pair.client.publish(1, "", "nowhere", b"returned", mandatory=True)
    pair.client.send_method(1, spec.BasicGet("q"))
    contents = [event for event in pair.talk() if isinstance(event, ContentReceived)]
    assert [(event.method, event.body) for event in contents] == [
        (spec.BasicReturn(312, "NO_ROUTE", "", "nowhere"), b"returned"),
        (spec.BasicGetOk(1, False, "", "q", 0), b"kept"),
    ]


def test_how_the_answers_are_cut_makes_no_difference() -> None:
    whole, cut = Pair(), Pair()
    for pair in (whole, cut):
        pair.opened()
        pair.client.send_method(1, spec.QueueDeclare("q"))
        pair.client.send_method(1, spec.BasicConsume("q", "tag", no_ack=True))
        for size in (0, 3, 5000):
            pair.client.publish(1, "", "q", b"x" * size)
        for chunk in pair.client.take_output(0.0):
            pair.line.send(chunk)
    answer = whole.line.receive()
    assert cut.line.receive() == answer
    at_once = whole.client.receive(answer, 0.0)
    one_by_one = [event for byte in answer for event in cut.client.receive(bytes((byte,)), 0.0)]
    assert at_once == one_by_one
    assert len(at_once) == 5


def test_channel_error_is_acknowledged_and_reported() -> None:
    pair = Pair().opened()
    pair.client.send_method(1, spec.QueueDeclare("absent", passive=True))
    (close,) = pair.methods()
    assert isinstance(close, spec.ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (404, 50, 10)
    with pytest.raises(LocalMisuse, match="channel 1 is not open"):
        pair.client.publish(1, "", "q", b"")
    pair.client.send_method(1, spec.ChannelOpen())  # the server has heard our close-ok: the number is free
    assert pair.methods() == [spec.ChannelOpenOk()]


def test_a_channel_that_we_close_is_free_when_the_server_has_answered() -> None:
    pair = Pair().opened()
    pair.client.send_method(1, spec.ChannelClose(200, "done"))
    with pytest.raises(LocalMisuse, match="in use"):
        pair.client.send_method(1, spec.ChannelOpen())
    assert pair.methods() == [spec.ChannelCloseOk()]
    pair.client.send_method(1, spec.ChannelOpen())
    assert pair.methods() == [spec.ChannelOpenOk()]


def test_closes_of_both_sides_may_cross_on_a_channel() -> None:
    pair = Pair().opened()
    pair.client.send_method(1, spec.QueueDeclare("absent", passive=True))
    pair.client.send_method(1, spec.ChannelClose(200, "done"))
    assert [method.name for method in pair.methods()] == ["channel.close", "channel.close-ok"]
    pair.client.send_method(1, spec.ChannelOpen())
    assert pair.methods() == [spec.ChannelOpenOk()]


def test_a_connection_closes_when_asked() -> None:
    pair = Pair().opened()
    assert pair.client.close(320, "enough") == []
    assert pair.client.phase is Phase.CLOSING
    assert pair.talk() == [ConnectionClosed(ClosedBy.CLIENT, 320, "enough")]
    assert pair.client.phase is Phase.CLOSED
    assert pair.client.close() == []


def test_refused_login_is_reported_with_its_reason() -> None:
    pair = Pair(handshake=ClientHandshake("PLAIN", b"\0guest\0wrong"))
    end = closed(pair.talk())
    assert (end.by, end.reply_code) == (ClosedBy.SERVER, 403)
    assert "PLAIN" in end.reply_text


def test_unknown_virtual_host_is_reported_with_its_reason() -> None:
    end = closed(Pair(handshake=ClientHandshake("PLAIN", LOGIN, "absent")).talk())
    assert (end.by, end.reply_code) == (ClosedBy.SERVER, 530)
    assert "absent" in end.reply_text


def test_memory_alarm_is_an_event() -> None:
    pair = Pair(ServerOptions(memory_limit=50_000)).opened()
    pair.client.send_method(1, spec.QueueDeclare("q"))
    pair.client.publish(1, "", "q", b"x" * 50_000)
    pair.talk()
    pair.client.publish(1, "", "q", b"more")
    assert [event for event in pair.talk() if isinstance(event, Blocked)] == [Blocked("low on memory")]
    other = pair.server.connect()
    assert other.is_reading
    pair.server.broker.vhosts["/"].queues["q"].purge()
    pair.server.loop.call_soon(pair.server.ticker.end_turn)
    assert [event for event in pair.talk() if isinstance(event, Unblocked)] == [Unblocked()]


# -- heartbeats ----------------------------------------------------------------------------------------------------


def test_heartbeats_are_sent_in_time_and_keep_the_connection_open() -> None:
    pair = Pair(ServerOptions(heartbeat=10))
    pair.talk()
    for _ in range(20):
        deadline = pair.client.next_deadline()
        assert deadline is not None
        pair.line.pass_time(deadline - pair.server.clock)
        assert pair.client.check_time(deadline) == []
        assert pair.client.next_deadline() != deadline
        assert pair.talk() == []
    assert pair.server.clock == 100.0
    assert not pair.line.is_closed


def test_heartbeat_is_sent_only_if_nothing_else_was() -> None:
    client = tuned(heartbeat=10)
    client.take_output(0.0)
    assert client.check_time(4.9) == []
    assert client.take_output(4.9) == []
    client.check_time(5.0)
    assert b"".join(client.take_output(5.0)) == HEARTBEAT_FRAME
    client.send_method(2, spec.ChannelOpen())
    client.take_output(9.0)
    client.check_time(10.0)
    assert client.take_output(10.0) == []
    assert client.next_deadline() == 14.0


def test_a_server_that_is_silent_for_two_intervals_is_given_up() -> None:
    client = tuned(heartbeat=10)
    client.receive(HEARTBEAT_FRAME, 3.0)
    assert client.check_time(22.9) == []
    end = closed(client.check_time(23.0))
    assert (end.by, end.reply_code) == (ClosedBy.NETWORK, 0)
    assert "20 seconds" in end.reply_text
    assert client.next_deadline() is None
    assert client.check_time(100.0) == []


def test_without_heartbeats_there_is_no_deadline() -> None:
    client = tuned(heartbeat=0)
    assert client.next_deadline() is None
    assert client.check_time(1e9) == []


# -- servers that misbehave ----------------------------------------------------------------------------------------


def from_server(channel: int, name: str, **arguments: object) -> bytes:
    return pack_frame(METHOD, channel, pack_method(name, **arguments))


def begun() -> ClientConnection:
    client = ClientConnection(ClientHandshake("PLAIN", LOGIN), 0.0)
    assert b"".join(client.take_output(0.0)) == PROTOCOL_HEADER
    return client


def tuned(
    heartbeat: int = 0, largest_body: int = 1000, frame_max: int = 4096, content_handler: ContentHandler | None = None
) -> ClientConnection:
    """Open, with channel 1."""
    handshake = ClientHandshake("PLAIN", LOGIN, wanted=Tuning(5, frame_max, heartbeat))
    client = ClientConnection(handshake, 0.0, largest_body, content_handler=content_handler)
    client.receive(from_server(0, "connection.start", version_minor=9, mechanisms="PLAIN"), 0.0)
    client.receive(from_server(0, "connection.tune", heartbeat=heartbeat), 0.0)
    client.receive(from_server(0, "connection.open-ok"), 0.0)
    assert client.phase is Phase.OPEN
    client.send_method(1, spec.ChannelOpen())
    assert client.receive(from_server(1, "channel.open-ok"), 0.0) == [MethodReceived(1, spec.ChannelOpenOk())]
    client.take_output(0.0)
    return client


def test_server_of_another_protocol_version_is_reported() -> None:
    for cut in range(9):
        client = begun()
        header = b"AMQP\x03\x01\x00\x00"
        events = client.receive(header[:cut], 0.0) + client.receive(header[cut:], 0.0)
        end = closed(events)
        assert (end.by, end.reply_code) == (ClosedBy.SERVER, 0)
        assert end.reply_text == "the server does not speak AMQP 0-9-1 (0-0-9-1 on the wire): it asks for 3-1-0-0"
        assert client.take_output(0.0) == []


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n", b"\x15\x03\x01\x00\x02\x02\x16", b"220 mail\r\n"]
)
def test_another_protocol_altogether_is_a_frame_error(greeting: bytes) -> None:
    end = closed(begun().receive(greeting, 0.0))
    assert (end.by, end.reply_code) == (ClosedBy.CLIENT, 501)


def test_a_server_that_hangs_up_during_the_handshake_hints_at_the_login() -> None:
    client = begun()
    assert "login" in closed(client.receive_eof()).reply_text
    assert client.receive_eof() == []


def test_server_that_hangs_up_is_reported() -> None:
    end = closed(tuned().receive_eof())
    assert end == ConnectionClosed(ClosedBy.NETWORK, 0, "the server hung up")


def test_giving_up_during_the_handshake_waits_for_nothing() -> None:
    client = begun()
    assert client.close() == [ConnectionClosed(ClosedBy.CLIENT, 200, "Goodbye")]
    assert client.receive(from_server(0, "connection.start", mechanisms="PLAIN"), 0.0) == []
    assert client.take_output(0.0) == []


DELIVER = from_server(1, "basic.deliver", consumer_tag="c", delivery_tag=1)
VIOLATIONS = {
    "malformed frame": (b"\x01\0\x01\0\0\0\x04\0\x3c\0\x50\0", 501),
    "frame too large": (b"\x03\0\x01\xff\xff\xff\xff", 501),
    "a client's method": (from_server(1, "queue.declare", queue="q"), 503),
    "a client's content": (from_server(1, "basic.publish") + pack_frame(HEADER, 1, pack_header(0)), 503),
    "a connection method on a channel": (from_server(1, "connection.blocked"), 504),
    "a channel method on channel 0": (from_server(0, "queue.declare-ok"), 504),
    "a method on a channel that is not open": (from_server(2, "queue.declare-ok", queue="q"), 504),
    "a confirm on a channel that is not open": (from_server(2, "basic.ack", delivery_tag=1), 504),
    "a message on a channel that is not open": (
        from_server(2, "basic.deliver") + pack_frame(HEADER, 2, pack_header(0)),
        504,
    ),
    "the handshake again": (from_server(0, "connection.start", mechanisms="PLAIN"), 504),
    "close-ok without a close": (from_server(0, "connection.close-ok"), 504),
    "cut arguments": (pack_frame(METHOD, 1, b"\0\x32\0\x0b\x05q"), 501),
    "cut arguments of a delivery": (
        pack_frame(METHOD, 1, b"\0\x3c\0\x3c\x01c") + pack_frame(HEADER, 1, pack_header(0)),
        501,
    ),
    "long arguments of a delivery": (
        pack_frame(METHOD, 1, DELIVER[7:-1] + b"x") + pack_frame(HEADER, 1, pack_header(0)),
        501,
    ),
    "unknown method": (pack_frame(METHOD, 1, b"\0\x3c\0\xff"), 540),
    "a body without its header": (DELIVER + pack_frame(BODY, 1, b"x"), 505),
    "a body beyond the limit": (DELIVER + pack_frame(HEADER, 1, pack_header(1001)), 506),
    "a body of 2^64-1": (DELIVER + pack_frame(HEADER, 1, pack_header(2**64 - 1)), 506),
    "a whole body beyond the limit": (
        DELIVER + pack_frame(HEADER, 1, pack_header(1001)) + pack_frame(BODY, 1, b"x" * 1001),
        506,
    ),
    "a heartbeat on a channel": (pack_frame(HEARTBEAT, 1, b""), 505),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_server_that_breaks_the_protocol_is_sent_a_close(name: str) -> None:
    data, code = VIOLATIONS[name]
    client = tuned()
    end = closed(client.receive(data + from_server(1, "basic.cancel-ok", consumer_tag="c"), 0.0))
    assert (end.by, end.reply_code) == (ClosedBy.CLIENT, code)
    said = b"".join(client.take_output(0.0))
    close = methods.decode(said[7:-1])
    assert isinstance(close, spec.ConnectionClose)
    assert (close.reply_code, close.reply_text) == (end.reply_code, end.reply_text)
    assert client.receive(data, 0.0) == []
    assert client.take_output(0.0) == []


@pytest.mark.parametrize("name", ["connection.tune", "connection.open-ok", "connection.secure", "connection.blocked"])
def test_a_server_that_begins_in_the_middle_is_refused(name: str) -> None:
    end = closed(begun().receive(from_server(0, name), 0.0))
    assert (end.by, end.reply_code) == (ClosedBy.CLIENT, 504)


def test_input_after_a_close_is_ignored() -> None:
    client = tuned()
    close = from_server(0, "connection.close", reply_code=320, reply_text="bye", class_id=60, method_id=40)
    events = client.receive(close + from_server(1, "basic.cancel-ok") + b"\xff" * 100, 0.0)
    assert events == [ConnectionClosed(ClosedBy.SERVER, 320, "bye", 60, 40)]
    assert b"".join(client.take_output(0.0)) == from_server(0, "connection.close-ok")


def test_closes_of_both_sides_may_cross() -> None:
    client = tuned()
    client.close()
    client.take_output(0.0)
    data = DELIVER + from_server(0, "connection.close", reply_code=320, reply_text="first")
    assert client.receive(data, 0.0) == [ConnectionClosed(ClosedBy.SERVER, 320, "first")]
    assert b"".join(client.take_output(0.0)) == from_server(0, "connection.close-ok")


def test_names_that_are_not_utf8_do_not_cost_the_connection() -> None:
    client = tuned()
    deliver = b"\0\x3c\0\x3c\x01c" + bytes(7) + b"\x01\x01" + b"\x01e" + b"\x02k\xff"
    data = pack_frame(METHOD, 1, deliver) + pack_frame(HEADER, 1, pack_header(0))
    (event,) = client.receive(data, 0.0)
    assert isinstance(event, ContentReceived)
    assert event.method == spec.BasicDeliver("c", 1, True, "e", "k\\xff")


def test_what_is_held_of_an_endless_frame_is_bounded() -> None:
    client = tuned(largest_body=10_000)
    client.receive(DELIVER + pack_frame(HEADER, 1, pack_header(10_000)), 0.0)
    events: list[Event] = []
    for _ in range(100):
        events += client.receive(pack_frame(BODY, 1, b"x" * 1000), 0.0)
        if client.phase is Phase.CLOSED:
            break
    assert isinstance(events[0], ContentReceived)
    assert closed(events).reply_code == 505  # the first body frame too many


# -- callers that misbehave ----------------------------------------------------------------------------------------

LONG = {"h": "x" * 4096}
LONG_HEADERS = BasicProperties(headers=LONG)
MISUSES = {
    "a server's method": lambda client: client.send_method(1, spec.QueueDeclareOk("q")),
    "a method with content": lambda client: client.send_method(1, spec.BasicPublish("", "q")),
    "the handshake": lambda client: client.send_method(0, spec.ConnectionOpen("/")),
    "connection.close": lambda client: client.send_method(0, spec.ConnectionClose(200, "")),
    "a channel's method on channel 0": lambda client: client.send_method(0, spec.QueueDeclare("q")),
    "channel 0 opened": lambda client: client.send_method(0, spec.ChannelOpen()),
    "a secret on a channel": lambda client: client.send_method(1, spec.ConnectionUpdateSecret(b"", "")),
    "a channel beyond the limit": lambda client: client.send_method(6, spec.ChannelOpen()),
    "a channel below zero": lambda client: client.send_method(-1, spec.ChannelOpen()),
    "a channel opened twice": lambda client: client.send_method(1, spec.ChannelOpen()),
    "a closed channel": lambda client: client.send_method(2, spec.QueueDeclare("q")),
    "a publish on a closed channel": lambda client: client.publish(2, "", "q", b""),
    "a publish on channel 0": lambda client: client.publish(0, "", "q", b""),
    "a name too long": lambda client: client.publish(1, "", "q" * 256, b""),
    "headers beyond a frame": lambda client: client.publish(1, "", "q", b"", LONG_HEADERS),
    "arguments beyond a frame": lambda client: client.send_method(1, spec.QueueDeclare("q", arguments=LONG)),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_raises_and_sends_nothing(name: str) -> None:
    client = tuned()
    with pytest.raises(LocalMisuse):
        MISUSES[name](client)
    assert client.take_output(0.0) == []
    assert client.phase is Phase.OPEN


@pytest.mark.parametrize("phase", [Phase.HANDSHAKE, Phase.CLOSING, Phase.CLOSED])
def test_nothing_is_sent_on_a_connection_that_is_not_open(phase: Phase) -> None:
    client = begun() if phase is Phase.HANDSHAKE else tuned()
    if phase is not Phase.HANDSHAKE:
        client.close()
    if phase is Phase.CLOSED:
        client.receive(from_server(0, "connection.close-ok"), 0.0)
    client.take_output(0.0)
    assert client.phase is phase
    with pytest.raises(LocalMisuse, match=phase.value):
        client.send_method(1, spec.ChannelOpen())
    with pytest.raises(LocalMisuse, match=phase.value):
        client.publish(1, "", "q", b"")
    assert client.take_output(0.0) == []


def test_a_secret_can_be_renewed() -> None:
    client = tuned()
    client.send_method(0, spec.ConnectionUpdateSecret(b"new", "expired"))
    assert client.receive(from_server(0, "connection.update-secret-ok"), 0.0) == [
        MethodReceived(0, spec.ConnectionUpdateSecretOk())
    ]
