"""Offsets that the broker remembers for consumers of streams: what counts, where they go on, and what is forgotten."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, make_broker
from tests.support.streams import ManualClock, StreamStorage, declare_stream, offsets
from warrenmq.core.broker import Broker
from warrenmq.core.consumer import Consumer
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.queue import Queue
from warrenmq.core.stream import Stream
from warrenmq.core.stream_offsets import MAX_TAGS

TRACKED = {"x-stream-automatic-offset-tracking": True}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> StreamStorage:
    return StreamStorage(clock)


@pytest.fixture
def broker(storage: StreamStorage) -> Broker:
    return make_broker(storage)


@pytest.fixture
def stream(channel: ClientChannel) -> Queue:
    declare_stream(channel)
    channel.publish_all("0123456789", "s")
    return channel.vhost.queues["s"]


def track(channel: ClientChannel, stream: Queue, tag: str = "t", prefetch: int = 100, **more: Any) -> Consumer:
    return channel.consume(stream, tag, prefetch=prefetch, arguments={**TRACKED, **more})


def come_back(channel: ClientChannel, stream: Queue, tag: str = "t", **more: Any) -> list[int]:
    """What a consumer gets that begins on a channel of its own, and acks nothing."""
    channel = channel.client.channel()
    track(channel, stream, tag, **more)
    found = offsets(channel)
    channel.close()
    return found


def stored(stream: Queue) -> dict[str, int]:
    assert isinstance(stream, Stream)
    return {} if stream.offsets is None else stream.offsets.stored


def test_a_consumer_goes_on_behind_what_it_acked(channel: ClientChannel, stream: Queue) -> None:
    track(channel, stream)
    assert offsets(channel) == list(range(10))
    channel.ack(4, multiple=True)
    channel.close()
    assert come_back(channel, stream) == [4, 5, 6, 7, 8, 9]
    assert come_back(channel, stream, "other tag") == list(range(10))


def test_a_consumer_without_tracking_is_not_remembered(channel: ClientChannel, stream: Queue) -> None:
    arguments = {"x-stream-offset": "first"}
    channel.consume(stream, "t", prefetch=100, arguments=arguments)
    assert offsets(channel) == list(range(10))
    channel.ack(0, multiple=True)
    channel.close()
    assert stored(stream) == {}
    assert come_back(channel, stream) == list(range(10))


@pytest.mark.parametrize(("offset", "expected"), [("first", 0), ("next", 10), ("last", 9), (7, 7)])
def test_x_stream_offset_says_where_it_begins_the_first_time(
    channel: ClientChannel, stream: Queue, offset: Any, expected: int
) -> None:
    where = {"x-stream-offset": offset}
    track(channel, stream, **where)
    channel.publish_all("a", "s")
    assert offsets(channel) == list(range(expected, 11))
    assert come_back(channel, stream, **where) == list(
        range(11 if offset == "next" else expected + (offset == "last"), 11)
    )
    channel.ack(1)
    assert come_back(channel, stream, **where) == list(range(expected + 1, 11))


def test_x_stream_offset_without_tracking_goes_there(channel: ClientChannel, stream: Queue) -> None:
    track(channel, stream)
    offsets(channel)
    channel.ack(0, multiple=True)
    channel.close()
    other = channel.client.channel()
    other.consume(stream, "t", prefetch=100, arguments={"x-stream-offset": 3})
    assert offsets(other) == list(range(3, 10))
    other.ack(0, multiple=True)
    assert stored(stream) == {"t": 10}


def test_acks_in_any_order_count_as_far_as_none_is_missing(channel: ClientChannel, stream: Queue) -> None:
    track(channel, stream)
    offsets(channel)
    acked: set[int] = set()
    for tag in random.Random(7).sample(range(1, 11), 10):
        channel.ack(tag)
        acked.add(tag - 1)
        first_missing = next(offset for offset in range(11) if offset not in acked)
        assert stored(stream).get("t", 0) == first_missing


def test_acks_after_a_cancel_count(channel: ClientChannel, stream: Queue) -> None:
    track(channel, stream, prefetch=5)
    assert offsets(channel) == [0, 1, 2, 3, 4]
    channel.core.cancel("t")
    channel.ack(2)
    assert stored(stream) == {}
    channel.ack(1)
    assert stored(stream) == {"t": 2}
    channel.ack(0, multiple=True)
    assert stored(stream) == {"t": 5}
    assert come_back(channel, stream) == [5, 6, 7, 8, 9]


def test_what_a_closed_channel_held_comes_again(channel: ClientChannel, stream: Queue) -> None:
    track(channel, stream, prefetch=5)
    offsets(channel)
    channel.ack(1)
    channel.ack(3)
    channel.close()
    assert come_back(channel, stream) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_an_offset_only_grows_with_two_consumers_of_one_tag(
    channel: ClientChannel, other: ClientChannel, stream: Queue
) -> None:
    track(channel, stream)
    track(other, stream)
    offsets(channel)
    channel.ack(8, multiple=True)
    other.ack(2, multiple=True)
    assert stored(stream) == {"t": 8}
    other.ack(9, multiple=True)
    assert stored(stream) == {"t": 9}


def test_messages_that_a_filter_left_out_are_dealt_with(channel: ClientChannel, stream: Queue) -> None:
    channel.publish(b"a", "s", headers={"x-stream-filter-value": "a"})
    channel.publish_all("bbb", "s")
    track(channel, stream, **{"x-stream-filter": "a"})
    assert offsets(channel) == [10]
    channel.ack(1)
    assert stored(stream) == {"t": 14}


def test_a_rolled_back_ack_does_not_count(channel: ClientChannel, stream: Queue) -> None:
    channel.core.select_transactions()
    track(channel, stream)
    offsets(channel)
    channel.ack(3, multiple=True)
    assert stored(stream) == {}
    channel.core.rollback()
    assert stored(stream) == {}
    channel.ack(2, multiple=True)
    channel.core.commit()
    assert stored(stream) == {"t": 2}


def test_a_broker_that_is_built_again_remembers(storage: StreamStorage, channel: ClientChannel, stream: Queue) -> None:
    track(channel, stream)
    offsets(channel)
    channel.ack(6, multiple=True)
    again = Client(make_broker(storage)).channel()
    assert come_back(again, again.vhost.queues["s"]) == [6, 7, 8, 9]


def test_offsets_go_with_the_stream(broker: Broker, channel: ClientChannel, stream: Queue) -> None:
    before = broker.stats.definition_bytes
    reader = channel.client.channel()
    track(reader, stream)
    offsets(reader)
    reader.ack(6, multiple=True)
    reader.close()
    assert broker.stats.definition_bytes > before
    channel.delete(stream)
    declare_stream(channel)
    assert broker.stats.definition_bytes == before
    channel.publish_all("ab", "s")
    assert come_back(channel, channel.vhost.queues["s"]) == [0, 1]


def test_an_ack_after_the_stream_is_deleted_does_nothing(channel: ClientChannel, stream: Queue) -> None:
    track(channel, stream)
    offsets(channel)
    channel.delete(stream)
    channel.ack(3, multiple=True)
    channel.ack(0, multiple=True)


def test_retention_takes_offsets_with_their_messages(channel: ClientChannel, clock: ManualClock) -> None:
    stream = declare_stream(channel, max_length_bytes=500, stream_max_segment_size_bytes=100)
    for tag, count in (("early", 1), ("late", 4)):
        while stream.next_position < 20:
            channel.publish(b"x" * 100, "s")
            clock.pass_seconds(2)
        reader = channel.client.channel()
        track(reader, stream, tag, **{"x-stream-offset": 0})
        offsets(reader)
        reader.ack(count, multiple=True)
        reader.close()
    assert stream.store.first_position > 1
    first = stream.store.first_position
    assert stored(stream) == {"early": first + 1, "late": first + 4}
    while stream.store.first_position <= first + 1:
        channel.publish(b"x" * 100, "s")
        clock.pass_seconds(2)
    assert list(stored(stream)) == ["late"]
    assert come_back(channel, stream, "early")[0] == stream.store.first_position


def test_the_tag_that_was_idle_longest_makes_room(broker: Broker, channel: ClientChannel, stream: Queue) -> None:
    def read_one(tag: str) -> None:
        reader = channel.client.channel()
        track(reader, stream, tag, prefetch=1)
        broker.end_turn()
        reader.ack(1)
        reader.close()

    for at in range(MAX_TAGS):
        read_one(f"tag {at}")
    assert len(stored(stream)) == MAX_TAGS
    read_one("tag 0")
    before = broker.stats.definition_bytes
    read_one("new 00")
    assert len(stored(stream)) == MAX_TAGS
    assert "tag 0" in stored(stream)
    assert "tag 1" not in stored(stream)
    assert broker.stats.definition_bytes == before + 1
    track(channel, stream, "tag 2")
    read_one("new 01")
    assert "tag 2" in stored(stream), "one that is in use was forgotten"
    assert "tag 3" not in stored(stream)


def test_more_consumers_at_once_than_can_be_remembered_are_refused(channel: ClientChannel, stream: Queue) -> None:
    for at in range(MAX_TAGS):
        track(channel, stream, f"tag {at}")
    with pytest.raises(PreconditionFailed) as refusal:
        track(channel, stream, "one more")
    assert refusal.value.text == "queue 's' in vhost '/' tracks the offsets of 256 consumers at most"
    channel.consume(stream, "not tracked")
    channel.core.cancel("tag 7")
    track(channel, stream, "one more")


@pytest.mark.parametrize(("value", "is_on"), [(True, True), ("true", True), (False, False), ("false", False)])
def test_tracking_is_a_boolean_or_its_text(channel: ClientChannel, stream: Queue, value: Any, is_on: bool) -> None:
    arguments = {"x-stream-automatic-offset-tracking": value, "x-stream-offset": "first"}
    channel.consume(stream, "t", prefetch=10, arguments=arguments)
    offsets(channel)
    channel.ack(3, multiple=True)
    assert stored(stream) == ({"t": 3} if is_on else {})


@pytest.mark.parametrize(("value", "type"), [(1, "signedint"), ("yes", "longstr"), (None, "void")])
def test_tracking_of_another_type_is_refused(channel: ClientChannel, stream: Queue, value: Any, type: str) -> None:
    name = "x-stream-automatic-offset-tracking"
    with pytest.raises(PreconditionFailed) as refusal:
        channel.consume(stream, "t", prefetch=10, arguments={name: value})
    assert refusal.value.text == f"invalid arg '{name}' for queue 's' in vhost '/': {{unacceptable_type,{type}}}"
