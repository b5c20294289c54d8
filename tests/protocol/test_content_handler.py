"""The fast path of the client's connection: a content handler receives what the events would report."""

from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.properties.test_chunking import cut_up, cuts, damages
from tests.protocol.test_connection import DELIVER, VIOLATIONS, Pair, closed, from_server, tuned
from tests.support.conversations import Edit, apply_edits
from tests.support.wire_format import BODY, HEADER, METHOD, Frame, pack_frame, pack_header, pack_method, pack_shortstr
from warrenmq.protocol import methods, spec
from warrenmq.protocol.connection import ClientConnection, ContentHandler, Phase
from warrenmq.protocol.errors import LocalMisuse
from warrenmq.protocol.events import ClosedBy, ConnectionClosed, ContentReceived, Event, MethodReceived
from warrenmq.protocol.frames import HEARTBEAT_FRAME
from warrenmq.protocol.handshake import ClientHandshake
from warrenmq.protocol.properties import BasicProperties, content_header


class Notes(ContentHandler):
    """Records its input as the events that it replaces."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.deliveries = 0

    def on_deliver(
        self,
        channel: int,
        consumer_tag: str,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
    ) -> None:
        method = spec.BasicDeliver(consumer_tag, delivery_tag, redelivered, exchange, routing_key)
        self.events.append(ContentReceived(channel, method, header, body))
        self.deliveries += 1

    def on_confirm(self, channel: int, delivery_tag: int, multiple: bool, is_ack: bool) -> None:
        method = spec.BasicAck(delivery_tag, multiple) if is_ack else spec.BasicNack(delivery_tag, multiple, False)
        self.events.append(MethodReceived(channel, method))

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def hearing(notes: Notes) -> ClientConnection:
    """Open, with channel 1, as `tuned` returns it."""
    client = tuned(content_handler=notes)
    notes.events.clear()
    return client


# -- callbacks -----------------------------------------------------------------------------------------------------


def test_deliveries_and_confirms_keep_their_order_among_the_events() -> None:
    notes = Notes()
    client = hearing(notes)
    returned = from_server(1, "basic.return", reply_code=312, reply_text="NO_ROUTE", routing_key="k")
    data = [
        from_server(1, "basic.consume-ok", consumer_tag="c"),
        DELIVER + pack_frame(HEADER, 1, pack_header(2)) + pack_frame(BODY, 1, b"ab"),
        returned + pack_frame(HEADER, 1, pack_header(0)),
        from_server(1, "basic.ack", delivery_tag=7, multiple=True),
        from_server(1, "basic.nack", delivery_tag=8),
        from_server(1, "basic.cancel", consumer_tag="c"),
    ]
    events = client.receive(b"".join(data), 0.0)
    assert notes.events == [
        MethodReceived(1, spec.BasicConsumeOk("c")),
        ContentReceived(1, spec.BasicDeliver("c", 1, False, "", ""), pack_header(2), b"ab"),
        ContentReceived(1, spec.BasicReturn(312, "NO_ROUTE", "", "k"), pack_header(0), b""),
        MethodReceived(1, spec.BasicAck(7, True)),
        MethodReceived(1, spec.BasicNack(8, False, False)),
        MethodReceived(1, spec.BasicCancel("c")),
    ]
    assert [notes.events[place] for place in (0, 2, 5)] == events


def test_end_is_reported_whichever_side_ends_it() -> None:
    for ending in (ClientConnection.receive_eof, lambda client: client.receive(b"\xff" * 20, 0.0)):
        notes = Notes()
        events = ending(hearing(notes))
        assert notes.events == events
        assert isinstance(events[-1], ConnectionClosed)


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 20_000, 300_000])
def test_a_message_goes_round(size: int) -> None:
    notes = Notes()
    pair = Pair(content_handler=notes).opened()
    body = bytes(number % 251 for number in range(size))
    properties = BasicProperties(message_id="m", headers={"number": 7})
    for method in (spec.ConfirmSelect(), spec.QueueDeclare("q"), spec.BasicConsume("q", "tag")):
        pair.client.send_method(1, method)
    pair.client.publish(1, "", "q", body, properties)
    pair.talk()
    (delivery,) = [event for event in notes.events if isinstance(event, ContentReceived)]
    assert delivery.method == spec.BasicDeliver("tag", 1, False, "", "q")
    assert (delivery.properties, delivery.body) == (properties, body)
    assert MethodReceived(1, spec.BasicAck(1)) in notes.events
    pair.client.ack(1, 1)
    pair.talk()
    assert pair.server.broker.stats.acked == 1


names = st.binary(max_size=255).map(pack_shortstr) | st.sampled_from([b"\0", b"\x01q", b"\x02\xc3\xa4", b"\x01\xff"])
delivered = st.builds(
    lambda tag, number, bits, exchange, key: b"".join(
        (b"\0\x3c\0\x3c", tag, number.to_bytes(8, "big"), bytes((bits,)), exchange, key)
    ),
    names,
    st.integers(0, 2**64 - 1),
    st.integers(0, 1),
    names,
    names,
)
other_contents = st.sampled_from([pack_method("basic.return", reply_text="r"), pack_method("basic.get-ok")])
settled = st.builds(
    lambda name, tag, multiple: pack_method(name, delivery_tag=tag, multiple=multiple),
    st.sampled_from(["basic.ack", "basic.nack"]),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
plain = st.sampled_from(["basic.consume-ok", "queue.declare-ok", "tx.commit-ok", "channel.close"]).map(pack_method)


@st.composite
def said(draw: st.DrawFn) -> list[Frame]:
    """What a server may say on a channel."""
    if draw(st.booleans()):
        return [Frame(METHOD, 1, draw(settled | plain))]
    body = draw(st.binary(max_size=20))
    frames = [Frame(METHOD, 1, draw(delivered | other_contents)), Frame(HEADER, 1, pack_header(len(body)))]
    return [*frames, Frame(BODY, 1, body)] if body else frames


def heard(chunks: Iterable[bytes], notes: Notes | None) -> list[Event]:
    client = tuned(content_handler=notes)
    if notes is not None:
        notes.events.clear()
    events = [event for chunk in chunks for event in client.receive(chunk, 0.0)]
    return [as_told(event) for event in events] if notes is None else notes.events


def as_told(event: Event) -> Event:
    """A content_handler is not told of `requeue`, by which a server says nothing."""
    if isinstance(event, MethodReceived) and isinstance(event.method, spec.BasicNack):
        return MethodReceived(event.channel, spec.BasicNack(event.method.delivery_tag, event.method.multiple, False))
    return event


@settings(deadline=None)  # two handshakes each: on a busy machine that may take any time
@given(st.lists(said(), max_size=8), st.lists(damages, max_size=2), cuts)
@example([[Frame(METHOD, 1, pack_method("basic.nack", delivery_tag=1, requeue=True))]], [], [])
def test_handler_receives_what_the_events_say(items: list[list[Frame]], edits: list[Edit], places: list[int]) -> None:
    frames = [frame for item in items for frame in item]
    data = b"".join(apply_edits(frames, edits)[1:])  # without the protocol header
    expected = heard([data], None)
    assert heard([data], Notes()) == expected
    assert heard(cut_up(data, places), Notes()) == expected


@settings(deadline=None)
@given(delivered, st.integers(0, 800), st.binary(max_size=2))
def test_a_delivery_cut_anywhere_is_refused_alike(deliver: bytes, cut: int, more: bytes) -> None:
    method = deliver[: max(4, cut)] + more
    data = pack_frame(METHOD, 1, method) + pack_frame(HEADER, 1, pack_header(0))
    assert heard([data], Notes()) == heard([data], None)


@pytest.mark.parametrize("name", VIOLATIONS)
def test_server_that_breaks_the_protocol_is_sent_a_close(name: str) -> None:
    data, code = VIOLATIONS[name]
    notes = Notes()
    client = hearing(notes)
    end = closed(client.receive(data, 0.0))
    assert (end.by, end.reply_code) == (ClosedBy.CLIENT, code)
    assert notes.events == [end]


def test_more_names_than_the_cache_holds_are_decoded_correctly() -> None:
    notes = Notes()
    client = hearing(notes)
    expected = []
    for number in [*range(3000), *range(2990, 3000), 0]:
        tag, key = f"c{number % 1500}", f"k{number}"
        method = pack_method("basic.deliver", consumer_tag=tag, delivery_tag=number, exchange="e", routing_key=key)
        client.receive(pack_frame(METHOD, 1, method) + pack_frame(HEADER, 1, pack_header(0)), 0.0)
        expected.append(ContentReceived(1, spec.BasicDeliver(tag, number, False, "e", key), pack_header(0), b""))
    assert notes.events == expected


def test_names_that_come_again_are_the_same_objects() -> None:
    class Names(Notes):
        def on_deliver(self, channel: int, consumer_tag: str, *others: object) -> None:
            kept.append((consumer_tag, others[2], others[3]))

    kept: list[tuple[object, ...]] = []
    client = hearing(Names())
    method = pack_method("basic.deliver", consumer_tag="consumer", exchange="exchange", routing_key="key")
    for _ in range(2):
        client.receive(pack_frame(METHOD, 1, method) + pack_frame(HEADER, 1, pack_header(0)), 0.0)
    assert kept == [("consumer", "exchange", "key")] * 2
    assert all(first is second for first, second in zip(*kept, strict=True))


# -- what is said --------------------------------------------------------------------------------------------------


def output_of(client: ClientConnection) -> bytes:
    size = client.output_size
    data = b"".join(client.take_output(0.0))
    assert len(data) == size
    assert client.output_size == 0
    return data


SETTLINGS: dict[str, tuple[Callable[[ClientConnection], None], spec.Method]] = {
    "ack": (lambda client: client.ack(1, 5), spec.BasicAck(5, False)),
    "ack multiple": (lambda client: client.ack(1, 2**64 - 1, multiple=True), spec.BasicAck(2**64 - 1, True)),
    "nack": (lambda client: client.nack(1, 5), spec.BasicNack(5, False, True)),
    "nack multiple": (lambda client: client.nack(1, 5, True), spec.BasicNack(5, True, True)),
    "nack for good": (lambda client: client.nack(1, 0, True, requeue=False), spec.BasicNack(0, True, False)),
    "reject": (lambda client: client.reject(1, 5), spec.BasicReject(5, True)),
    "reject for good": (lambda client: client.reject(1, 5, requeue=False), spec.BasicReject(5, False)),
}


@pytest.mark.parametrize("name", SETTLINGS)
def test_fast_settlement_equals_the_encoded_method(name: str) -> None:
    settle, method = SETTLINGS[name]
    client = tuned()
    settle(client)
    assert output_of(client) == pack_frame(METHOD, 1, methods.encode(method))


def published(exchange: str, key: str, mandatory: bool, header: bytes, body: bytes) -> bytes:
    method = methods.encode(spec.BasicPublish(exchange, key, mandatory))
    frames = pack_frame(METHOD, 1, method) + pack_frame(HEADER, 1, header)
    return frames + pack_frame(BODY, 1, body) if body else frames


def test_repeated_publishes_are_encoded_alike() -> None:
    client = tuned()
    for number in [*range(2000), 0, 1, 0]:
        for mandatory in (False, True):
            key = f"k{number % 1300}"
            client.publish(1, "e", key, b"body", mandatory=mandatory)
            assert output_of(client) == published("e", key, mandatory, pack_header(4), b"body")


def test_a_header_stands_for_the_properties() -> None:
    client = tuned()
    header = content_header(3, BasicProperties(message_id="m", priority=4))
    client.publish(1, "", "q", b"abc", BasicProperties(message_id="not looked at"), header=header)
    assert output_of(client) == published("", "q", False, header, b"abc")


@pytest.mark.parametrize("header", [b"", b"\0\x3c", content_header(2, BasicProperties()), b"\0\x32" + bytes(12)])
def test_a_header_that_does_not_fit_the_body_is_refused(header: bytes) -> None:
    client = tuned()
    with pytest.raises(LocalMisuse, match="content header"):
        client.publish(1, "", "q", b"abc", header=header)
    assert output_of(client) == b""


def test_properties_that_change_later_are_published_as_they_were() -> None:
    client = tuned()
    properties = BasicProperties(headers={"number": 1})
    for number in range(1, 4):
        assert properties.headers is not None
        properties.headers["number"] = number
        properties.priority = number
        client.publish(1, "", "q", b"x", properties)
        expected = content_header(1, BasicProperties(headers={"number": number}, priority=number))
        assert output_of(client) == published("", "q", False, expected, b"x")


MISUSES: dict[str, Callable[[ClientConnection], None]] = {
    "an ack on a closed channel": lambda client: client.ack(2, 1),
    "a nack on channel 0": lambda client: client.nack(0, 1),
    "a reject on a closed channel": lambda client: client.reject(2, 1),
    "a tag below zero": lambda client: client.ack(1, -1),
    "a tag beyond 64 bits": lambda client: client.ack(1, 2**64),
    "a nack of a tag beyond 64 bits": lambda client: client.nack(1, 2**64),
    "a reject of a tag below zero": lambda client: client.reject(1, -1),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_raises_and_sends_nothing(name: str) -> None:
    client = tuned()
    with pytest.raises(LocalMisuse):
        MISUSES[name](client)
    assert output_of(client) == b""
    assert client.phase is Phase.OPEN


def test_nothing_is_settled_on_a_connection_that_closes() -> None:
    client = tuned()
    client.close()
    client.take_output(0.0)
    with pytest.raises(LocalMisuse, match="closing"):
        client.ack(1, 1)
    assert output_of(client) == b""


def test_silence_that_was_our_own_is_excused() -> None:
    client = tuned(heartbeat=10)
    client.receive(HEARTBEAT_FRAME, 3.0)
    client.restart_heartbeat_timeout(22.0)
    assert client.check_time(41.9) == []
    assert closed(client.check_time(42.0)).by is ClosedBy.NETWORK


def test_what_waits_is_counted() -> None:
    client = ClientConnection(ClientHandshake("PLAIN", b""), 0.0)
    assert client.output_size == 8  # the protocol header
