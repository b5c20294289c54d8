"""Filters of stream readers: what they get, what it costs them, and how long a turn looks at what they leave out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, make_broker
from tests.support.streams import StreamStorage, declare_stream, offset_of, offsets
from warrenmq.core.broker import Broker
from warrenmq.core.consumer import Consumer
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.queue import Queue
from warrenmq.core.stream import SCAN_LIMIT, Stream
from warrenmq.core.stream_filter import MAX_NEEDLES, make_filter
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.protocol.values import LongString

VALUE = "x-stream-filter-value"


@pytest.fixture
def broker() -> Broker:
    return make_broker(StreamStorage())


@pytest.fixture
def stream(channel: ClientChannel) -> Queue:
    return declare_stream(channel)


def publish(channel: ClientChannel, *values: Any) -> None:
    """One message for each value, which is its body, too; None: a message without one."""
    for value in values:
        headers = None if value is None else {"before": [1, {"x": 2}], VALUE: value, "behind": "it"}
        channel.publish(str(value).encode(), "s", headers=headers, message_id="id")


def read(
    channel: ClientChannel, stream: Queue, filter: Any, unfiltered: Any = None, prefetch: int = 100, **more: Any
) -> Consumer:
    arguments = {"x-stream-offset": "first", "x-stream-filter": filter, **more}
    if unfiltered is not None:
        arguments["x-stream-match-unfiltered"] = unfiltered
    return channel.consume(stream, more.pop("tag", "reader"), prefetch=prefetch, arguments=arguments)


@pytest.mark.parametrize(
    ("filter", "unfiltered", "expected"),
    [
        ("a", None, [0, 4]),
        ("a", False, [0, 4]),
        ("a", True, [0, 2, 4]),
        (["a", "b"], None, [0, 1, 4]),
        (["a", "b"], True, [0, 1, 2, 4]),
        (["", "nothing"], None, [3]),
        ("", None, [3]),
        ([], None, []),
        ([], True, [2]),
        ("A", None, []),
    ],
)
def test_a_reader_gets_messages_with_its_values(
    channel: ClientChannel, stream: Queue, filter: Any, unfiltered: bool | None, expected: list[int]
) -> None:
    publish(channel, "a", "b", None, "", "a", "ab")
    read(channel, stream, filter, unfiltered)
    assert offsets(channel) == expected


def test_messages_that_are_published_later_are_filtered_too(channel: ClientChannel, stream: Queue) -> None:
    read(channel, stream, "a")
    publish(channel, "b", "a", None, "b")
    assert offsets(channel) == [1]
    publish(channel, "b", "a")
    assert offsets(channel) == [5]


def test_the_header_counts_not_the_bytes(channel: ClientChannel, stream: Queue) -> None:
    hidden = "\x15x-stream-filter-valueS\0\0\0\1a"
    channel.publish(b"", "s", headers={"other": hidden})
    channel.publish(b"", "s", headers={"other": hidden, VALUE: "b"})
    channel.publish(b"", "s", headers={"table": {VALUE: "a"}})
    channel.publish(hidden.encode(), "s", message_id=hidden)
    channel.publish(b"", "s", headers={VALUE: "a"})
    read(channel, stream, "a")
    assert offsets(channel) == [4]


@pytest.mark.parametrize("value", [7, True, 1.5, ["a"], {"a": "a"}, b"a"])
def test_a_value_that_is_no_string_is_none(channel: ClientChannel, stream: Queue, value: Any) -> None:
    publish(channel, value, "a")
    read(channel, stream, "a")
    assert offsets(channel) == [1]
    channel.core.cancel("reader")
    read(channel, stream, [], unfiltered=True)
    assert offsets(channel) == [0]


def test_values_need_not_be_text(channel: ClientChannel, stream: Queue) -> None:
    publish(channel, LongString(b"\xff"), "\xff")
    read(channel, stream, LongString(b"\xff"))
    assert offsets(channel) == [0]


def test_what_is_left_out_takes_no_credit(channel: ClientChannel, stream: Queue) -> None:
    publish(channel, *["b"] * 50, "a", *["b"] * 50, "a", "b", "a")
    read(channel, stream, "a", prefetch=1)
    assert offsets(channel) == [50]
    channel.ack(1)
    assert offsets(channel) == [101]
    assert stream.unacked_count == 1
    channel.ack(2)
    assert offsets(channel) == [103]


def test_readers_with_and_without_filters_share_a_stream(channel: ClientChannel, stream: Queue) -> None:
    publish(channel, "a", "b", None)
    channel.consume(stream, "all", prefetch=10, arguments={"x-stream-offset": "first"})
    channel.consume(stream, "b", arguments={"x-stream-offset": "first", "x-stream-filter": "b"})
    publish(channel, "b", "a")
    delivered = channel.deliveries()
    assert [offset_of(each) for each in delivered if each.consumer == "all"] == [0, 1, 2, 3, 4]
    assert [offset_of(each) for each in delivered if each.consumer == "b"] == [1, 3]


def test_memory_goes_though_a_filter_leaves_everything_out(
    broker: Broker, channel: ClientChannel, stream: Queue
) -> None:
    read(channel, stream, "a")
    publish(channel, *["b"] * 100)
    assert offsets(channel) == []
    assert broker.stats.held_bytes == 0


def test_a_turn_looks_at_a_limited_number_of_messages(broker: Broker, channel: ClientChannel, stream: Queue) -> None:
    assert isinstance(stream, Stream)
    header = content_header(1, BasicProperties(headers={VALUE: "b"}))
    route = channel.vhost.make_route(channel.vhost.exchange(""), "s", b"\0\1s", False)
    count = 3 * SCAN_LIMIT
    for _ in range(count):
        channel.core.publish(route, header, b"b")
    publish(channel, "a")
    cursors = [stream.cursors[read(Client(broker).channel(), stream, "a")] for _ in range(2)]
    reached = [0]
    while reached[-1] < 2 * (count + 1):
        broker.end_turn()
        reached.append(sum(cursor.position for cursor in cursors))
        assert 0 < reached[-1] - reached[-2] <= SCAN_LIMIT + 2, reached
    assert len(reached) > 6
    assert [cursor.consumer.unacked for cursor in cursors] == [1, 1]
    assert broker.turn.due == []


def test_readers_take_turns_while_they_look(broker: Broker, channel: ClientChannel, stream: Queue) -> None:
    assert isinstance(stream, Stream)
    header = content_header(1, BasicProperties(headers={VALUE: "b"}))
    route = channel.vhost.make_route(channel.vhost.exchange(""), "s", b"\0\1s", False)
    for _ in range(4 * SCAN_LIMIT):
        channel.core.publish(route, header, b"b")
    cursors = [stream.cursors[read(Client(broker).channel(), stream, "a")] for _ in range(3)]
    for _ in range(3):
        broker.end_turn()
    assert all(cursor.position > 0 for cursor in cursors)


def test_a_reader_that_is_cancelled_while_it_looks_is_forgotten(
    broker: Broker, channel: ClientChannel, stream: Queue
) -> None:
    publish(channel, *["b"] * (SCAN_LIMIT + 1))
    read(channel, stream, "a")
    broker.end_turn()
    channel.core.cancel("reader")
    broker.end_turn()
    assert (broker.turn.due, broker.turn.deferred, broker.stats.consumers) == ([], {}, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-stream-filter": 7}, "'x-stream-filter' for {named}: {{unacceptable_type,signedint}}"),
        ({"x-stream-filter": None}, "'x-stream-filter' for {named}: {{unacceptable_type,void}}"),
        ({"x-stream-filter": {"a": "b"}}, "'x-stream-filter' for {named}: {{unacceptable_type,table}}"),
        ({"x-stream-filter": b"a"}, "'x-stream-filter' for {named}: {{unacceptable_type,binary}}"),
        ({"x-stream-filter": ["a", True]}, "'x-stream-filter' for {named}: {{unacceptable_type,bool}}"),
        (
            {"x-stream-filter": "a", "x-stream-match-unfiltered": "true"},
            "'x-stream-match-unfiltered' for {named}: {{unacceptable_type,longstr}}",
        ),
        ({"x-stream-match-unfiltered": 1}, "'x-stream-match-unfiltered' for {named}: {{unacceptable_type,signedint}}"),
    ],
)
def test_a_filter_of_another_type_is_refused(
    channel: ClientChannel, stream: Queue, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        channel.consume(stream, prefetch=1, arguments=arguments)
    assert refusal.value.text == "invalid arg " + text.format(named="queue 's' in vhost '/'")
    assert not stream.consumers


def test_every_accepted_message_holds_a_needle() -> None:
    header = content_header(0, BasicProperties(headers={"a": 1, VALUE: "v3", "z": 2}))
    few, many = (make_filter({"x-stream-filter": [f"v{at}" for at in range(count)]}) for count in (4, MAX_NEEDLES + 1))
    for filter, count in ((few, 4), (many, 1)):
        assert filter is not None
        assert filter.accepts(header)
        assert filter.needles is not None
        assert len(filter.needles) == count
        assert any(needle in header for needle in filter.needles)
    unfiltered = make_filter({"x-stream-filter": "a", "x-stream-match-unfiltered": True})
    assert unfiltered is not None
    assert unfiltered.needles is None


@pytest.mark.parametrize(("size", "is_taken"), [(15, False), (16, True), (255, True), (256, False)])
def test_the_size_of_rabbitmqs_filters_is_taken_and_has_its_bounds(
    channel: ClientChannel, size: int, is_taken: bool
) -> None:
    if is_taken:
        declare_stream(channel, stream_filter_size_bytes=size)
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-stream-filter-size-bytes'"):
            declare_stream(channel, stream_filter_size_bytes=100)
    else:
        with pytest.raises(PreconditionFailed, match=r"^Invalid value for  x-stream-filter-size-bytes$"):
            declare_stream(channel, stream_filter_size_bytes=size)
    with pytest.raises(PreconditionFailed, match="of queue type rabbit_classic_queue"):
        channel.declare("q", arguments={"x-stream-filter-size-bytes": size})
