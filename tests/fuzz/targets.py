"""What is fuzzed, apart from the fuzzer: each target takes any bytes and raises only where the package is wrong."""

from collections.abc import Callable

from tests.support.bystander import attack
from tests.support.conversations import CONVERSATIONS, apply_edits, edits_of
from warrenmq.protocol import methods, properties
from warrenmq.protocol.connection import ClientConnection
from warrenmq.protocol.errors import ProtocolError
from warrenmq.protocol.events import ConnectionClosed, ContentReceived
from warrenmq.protocol.frames import FrameHandler, FrameReader
from warrenmq.protocol.handshake import ClientHandshake
from warrenmq.protocol.values import decode_table, decode_value

FRAME_MAX = 4096

_QUESTIONS: tuple[Callable[[bytes], object], ...] = (
    properties.validate,
    lambda header: properties.decode(header, 12),
    properties.property_flags,
    properties.delivery_mode,
    properties.priority,
    properties.correlation_id,
    properties.reply_to,
    properties.expiration,
    properties.message_id,
    properties.user_id,
    properties.headers,
    properties.headers_span,
    properties.without_expiration,
    lambda header: properties.with_reply_to(header, "queue"),
    lambda header: properties.with_header(header, "key", 1),
    lambda header: properties.without_header(header, "key"),
)


class DeepReader(FrameHandler):
    """Decodes all that it hears, as far down as there is anything to decode."""

    def on_method(self, channel: int, payload: bytes) -> None:
        decoded = methods.decode(payload)
        assert methods.decode(methods.encode(decoded)) == decoded or _has_nan(decoded)

    def on_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        assert 0 <= delivery_tag < 2**64

    def on_content_header(self, channel: int, body_size: int) -> bool:
        return body_size < 2**20

    def on_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        assert int.from_bytes(header[4:12], "big") == len(body)
        ask_header(header)
        methods.decode(method)

    def on_heartbeat(self) -> None:
        pass


def ask_header(header: bytes) -> None:
    """Every question that can be asked of a content header."""
    for question in _QUESTIONS:
        try:
            question(header)
        except ProtocolError:
            continue


def read_frames(data: bytes) -> None:
    """Bytes as a peer's frames."""
    reader = FrameReader(DeepReader(), FRAME_MAX)
    try:
        assert 0 <= reader.receive(data, len(data)) <= len(data)
    except ProtocolError:
        return
    assert len(reader.pending) <= len(data) // 12


def read_values(data: bytes) -> None:
    """Bytes as a method, a header, a table and a value."""
    ask_header(data)
    for read in (methods.decode, lambda raw: decode_table(raw, 0, len(raw))):
        try:
            read(data)
        except ProtocolError:
            continue
    try:
        decode_value(data, 0, len(data))
    except ProtocolError:
        return


def answer_client(data: bytes) -> None:
    """Bytes as a server's side of a conversation: the client may only give events."""
    client = ClientConnection(ClientHandshake("PLAIN", b""), 0.0, max_body_size=2**20)
    events = client.receive(data, 0.0)
    for event in events:
        if isinstance(event, ContentReceived):
            ask_header(event.header)
    assert sum(isinstance(event, ConnectionClosed) for event in events) <= 1
    client.take_output(0.0)


def converse(data: bytes) -> None:
    """Bytes as damage to a conversation with the whole server."""
    if data:
        attack(apply_edits(CONVERSATIONS[data[0] % len(CONVERSATIONS)], edits_of(data[1:64])))


def talk_nonsense(data: bytes) -> None:
    """Bytes as they are, behind a good beginning of a conversation with the whole server."""
    if data:
        conversation = CONVERSATIONS[data[0] % len(CONVERSATIONS)]
        keep = data[0] // len(CONVERSATIONS) % len(conversation)
        attack([*apply_edits(conversation[:keep], []), data[1:]])


TARGETS = (read_frames, read_values, answer_client, converse, talk_nonsense)


def run(data: bytes) -> None:
    """The first byte chooses the target."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def _has_nan(method: methods.Method) -> bool:
    """A table with NaN in it is not equal to itself."""
    return "nan" in repr(method)
