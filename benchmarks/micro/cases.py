"""The hot functions, one case each. Run as a program it measures them in this process and prints JSON.

A case prepares its data once and returns a call that does a number of operations; the result is the least of several
repetitions, in nanoseconds per operation. Ports and handlers are silent ones written here, in plain Python: a case that
goes through one pays that call too, compiled or not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from timeit import Timer
from typing import Any

import warrenmq
from warrenmq.core.broker import DEFAULT_VHOST, Broker
from warrenmq.core.channel import Channel
from warrenmq.core.connection import Connection
from warrenmq.core.exchange import Route
from warrenmq.core.message import Message, address_of
from warrenmq.core.ports import Outbox
from warrenmq.core.routing import DirectMatcher, TopicMatcher
from warrenmq.events.batch import RowFilter
from warrenmq.events.codec import decode, encode
from warrenmq.events.message_ids import pack_message_ids
from warrenmq.events.rows import Rows
from warrenmq.events.schema import ACKED, DELIVERED, ENQUEUED, PUBLISHED
from warrenmq.protocol import methods, spec
from warrenmq.protocol.connection import ClientConnection, ContentHandler
from warrenmq.protocol.frames import FrameHandler, FrameReader
from warrenmq.protocol.frames import frame as make_frame
from warrenmq.protocol.handshake import ClientHandshake
from warrenmq.protocol.output import BufferPool, OutputBuffer
from warrenmq.protocol.properties import BasicProperties
from warrenmq.protocol.values import decode_table, encode_table
from warrenmq.storage.memory_store import MemoryStorage

COUNT = 500
BATCH = 8192
REPETITIONS = 5
FRAME_MAX = 131_072
PUBLISH = b"\x00\x3c\x00\x28\x00\x00"
ACK = b"\x00\x3c\x00\x50"
TRANSIENT_HEADER = b"\x00\x3c\x00\x00" + (16).to_bytes(8, "big") + b"\x10\x00\x01"
BODY = b"x" * 16
HEADERS = {"trace-id": "4bf92f3577b34da6a3ce929d0e0e4736", "attempt": 1, "is-test": True, "tags": ["a", "b"]}


@dataclass(frozen=True, slots=True)
class Case:
    """A call that does `operations` of what the name says."""

    name: str
    operations: int
    call: Callable[[], Any]

    def nanoseconds(self) -> float:
        """The least time of one operation over some repetitions: the one that was disturbed least."""
        timer = Timer(self.call)
        loops, _ = timer.autorange()
        return min(timer.repeat(REPETITIONS, loops)) / loops / self.operations * 1e9


class SilentHandler(FrameHandler):
    """Hears all, does nothing."""

    def on_method(self, channel: int, payload: bytes) -> None:
        return None

    def on_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        return None

    def on_content_header(self, channel: int, body_size: int) -> bool:
        return True

    def on_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        return None

    def on_heartbeat(self) -> None:
        return None


class SilentOutbox(Outbox):
    """Remembers the last delivery tag, says nothing to anybody."""

    __slots__ = ("last_tag",)

    def deliver(
        self, channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, message: Message
    ) -> None:
        self.last_tag = delivery_tag

    def get_ok(self, channel: int, delivery_tag: int, redelivered: bool, message: Message, remaining: int) -> None:
        self.last_tag = delivery_tag

    def confirm(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.last_tag = delivery_tag


class IgnoringHandler(ContentHandler):
    """Hears all, does nothing."""

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
        return None

    def on_confirm(self, channel: int, delivery_tag: int, multiple: bool, is_ack: bool) -> None:
        return None


def all_cases() -> list[Case]:
    return [
        parse_publishes(),
        parse_acks(),
        decode_headers(),
        encode_headers(),
        match_direct(),
        match_topic(1000),
        match_topic(100_000),
        publish_to_waiting_consumer(),
        publish_deliver_and_ack(),
        publish_and_get(),
        publish_with_confirm(),
        encode_deliveries(),
        client_hears_deliveries(),
        client_publishes(),
        gather_events(),
        log_events(),
        encode_events(),
        find_events(),
    ]


def parse_publishes() -> Case:
    method = make_frame(1, 1, PUBLISH + address_of("", "orders") + b"\x00")
    buffer = (method + make_frame(2, 1, TRANSIENT_HEADER) + make_frame(3, 1, BODY)) * COUNT
    reader = FrameReader(SilentHandler(), FRAME_MAX)
    return Case("parse a publish, 16 B", COUNT, lambda: reader.receive(buffer, len(buffer)))


def parse_acks() -> Case:
    buffer = b"".join(make_frame(1, 1, ACK + tag.to_bytes(8, "big") + b"\x00") for tag in range(1, COUNT + 1))
    reader = FrameReader(SilentHandler(), FRAME_MAX)
    return Case("parse an ack", COUNT, lambda: reader.receive(buffer, len(buffer)))


def decode_headers() -> Case:
    encoded = encode_table(HEADERS)
    return Case("decode a table of 4 headers", 1, lambda: decode_table(encoded, 0, len(encoded)))


def encode_headers() -> Case:
    return Case("encode a table of 4 headers", 1, lambda: encode_table(HEADERS))


def match_direct() -> Case:
    matcher = DirectMatcher()
    for number in range(1000):
        matcher.bind(f"k{number:05}", {}, number)
    return Case("match a key, direct, 1,000 bindings", 1, lambda: matcher.match("k00500", None, {}))


def match_topic(bindings: int) -> Case:
    matcher = TopicMatcher()
    for number in range(bindings):
        matcher.bind(f"k{number:05}.*.log", {}, number)
    return Case(f"match a key, topic, {bindings:,} bindings", 1, lambda: matcher.match("k00500.a.log", None, {}))


def publish_to_waiting_consumer() -> Case:
    channel, route = open_channel(no_ack=True)

    def publish() -> None:
        for _ in range(COUNT):
            channel.publish(route, TRANSIENT_HEADER, BODY)

    return Case("publish to a waiting auto-ack consumer", COUNT, publish)


def publish_deliver_and_ack() -> Case:
    channel, route = open_channel(no_ack=False)
    outbox = channel.outbox
    assert isinstance(outbox, SilentOutbox)

    def publish_and_ack() -> None:
        for _ in range(COUNT):
            channel.publish(route, TRANSIENT_HEADER, BODY)
            channel.ack(outbox.last_tag, False)

    return Case("publish, deliver, ack", COUNT, publish_and_ack)


def publish_and_get() -> Case:
    channel, route = open_channel()
    queue = channel.vhost.queues["orders"]

    def publish_and_get_all() -> None:
        for _ in range(COUNT):
            channel.publish(route, TRANSIENT_HEADER, BODY)
        while channel.get(queue, True):
            pass

    return Case("publish to an idle queue, get it", COUNT, publish_and_get_all)


def publish_with_confirm() -> Case:
    channel, route = open_channel(no_ack=True)
    channel.select_confirms()

    def publish_a_turn() -> None:
        for _ in range(COUNT):
            channel.publish(route, TRANSIENT_HEADER, BODY)
        channel.broker.end_turn()

    return Case("publish with confirm, a turn of 500", COUNT, publish_a_turn)


def encode_deliveries() -> Case:
    output = OutputBuffer(FRAME_MAX, BufferPool())
    tag, address = b"\x05ctag1", address_of("", "orders")

    def encode_and_take() -> None:
        for number in range(COUNT):
            output.put_delivery(1, tag, number, False, address, TRANSIENT_HEADER, BODY)
        output.take()

    return Case("encode a delivery, 16 B", COUNT, encode_and_take)


def gather_events() -> Case:
    return Case("gather an event (through a Python call)", COUNT, lambda: some_events(COUNT))


def log_events() -> Case:
    rows = some_events(BATCH)
    return Case("encode an event as a row", BATCH, rows.to_bytes)


def encode_events() -> Case:
    rows = some_events(BATCH)
    return Case("encode an event in a batch of 8,192", BATCH, lambda: encode(rows))


def find_events() -> Case:
    batch = encode(some_events(BATCH))
    wanted = RowFilter(time_from=1, time_to=2, queue="orders")
    return Case("search by time and queue, per event", BATCH, lambda: decode(batch).select(wanted))


def some_events(count: int) -> Rows:
    """What happens to messages with an id: each is published, enqueued, delivered and acked."""
    rows = Rows()
    now, address, connection = 1_700_000_000_000_000, address_of("", "orders"), "127.0.0.1:50001 -> 127.0.0.1:5672"
    published = rows.context_of(address, "/", None, None, connection, 1)
    enqueued = rows.context_of(address, "/", "orders", None, None, 0)
    delivered = rows.context_of(address, "/", "orders", "ctag", connection, 1)
    ids = pack_message_ids(0, b"6f1c0a3e-2a57-4a8f-9d3a-0123456789ab", None, None, None)
    for uid in range(1, count // 4 + 1):
        rows.put(PUBLISHED, 0, False, published, now, uid, now, ids, 0, 16, -1, 0, 0)
        rows.put(ENQUEUED, 0, False, enqueued, now, uid, now, ids, now, 16, 1, 0, 0)
        rows.put(DELIVERED, 0, False, delivered, now, uid, now, ids, now, 16, 0, 1, 0)
        rows.put(ACKED, 0, False, delivered, now, uid, now, ids, now, 16, -1, 1, 0)
    return rows


def client_hears_deliveries() -> Case:
    output = OutputBuffer(FRAME_MAX, BufferPool())
    for number in range(COUNT):
        output.put_delivery(1, b"\x05ctag1", number, False, address_of("", "orders"), TRANSIENT_HEADER, BODY)
    buffer = b"".join(output.take())
    client = open_client()
    return Case("client: hear a delivery, 16 B", COUNT, lambda: client.receive(buffer, 0.0))


def client_publishes() -> Case:
    client = open_client()
    properties = BasicProperties(delivery_mode=1)

    def publish() -> None:
        for _ in range(COUNT):
            client.publish(1, "", "orders", BODY, properties)
        client.take_output(0.0)

    return Case("client: encode a publish, 16 B", COUNT, publish)


def open_client() -> ClientConnection:
    """A client's connection with channel 1 open; the server's half is said here."""
    client = ClientConnection(ClientHandshake("PLAIN", b""), 0.0, content_handler=IgnoringHandler())
    start = spec.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US")
    for method in (start, spec.ConnectionTune(0, FRAME_MAX, 0), spec.ConnectionOpenOk()):
        client.receive(make_frame(0x01, 0, methods.encode(method)), 0.0)
    client.send_method(1, spec.ChannelOpen())
    client.receive(make_frame(0x01, 1, methods.encode(spec.ChannelOpenOk())), 0.0)
    client.take_output(0.0)
    return client


def open_channel(no_ack: bool | None = None) -> tuple[Channel, Route]:
    """A channel and the route to its queue, with a consumer unless `no_ack` is None."""
    broker = Broker(MemoryStorage())
    vhost = broker.vhosts[DEFAULT_VHOST]
    channel = Connection(vhost, "guest", SilentOutbox()).open_channel(1)
    queue = vhost.declare_queue("orders", False, False, False, {}, channel.connection)
    if no_ack is not None:
        channel.start(channel.consume(queue, "ctag", no_ack, False, 0, {}))
    return channel, vhost.make_route(vhost.exchange(""), "orders", address_of("", "orders"), False)


def main() -> None:
    figures = {case.name: case.nanoseconds() for case in all_cases()}
    json.dump({"compiled": warrenmq.COMPILED, "nanoseconds": figures}, sys.stdout)


if __name__ == "__main__":
    main()
