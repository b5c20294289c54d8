"""Streams: cursors, offsets, credit, refusals, and memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, make_broker
from tests.support.streams import (
    STREAM,
    ManualClock,
    StreamStorage,
    declare_stream,
    offset_of,
    offsets,
    read_stream,
)
from warrenmq.core import stream as stream_module
from warrenmq.core.broker import Broker
from warrenmq.core.errors import BrokerError, NotImplementedHere, PreconditionFailed
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import EventSink
from warrenmq.core.queue import Queue
from warrenmq.core.stream import Stream
from warrenmq.events import schema
from warrenmq.protocol.values import Timestamp


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
    return declare_stream(channel)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_reader_gets_all_messages_in_order_with_their_offsets(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abc", "s")
    read_stream(channel, stream)
    delivered = channel.deliveries()
    assert [each.body for each in delivered] == [b"a", b"b", b"c"]
    assert [offset_of(each) for each in delivered] == [0, 1, 2]
    assert [each.tag for each in delivered] == [1, 2, 3]
    assert not any(each.redelivered for each in delivered)


def test_a_reader_goes_on_with_what_is_published_later(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("ab", "s")
    read_stream(channel, stream)
    assert offsets(channel) == [0, 1]
    channel.publish_all("cd", "s")
    assert offsets(channel) == [2, 3]
    channel.publish_all("e", "s")
    assert channel.bodies() == "e"


def test_acked_messages_stay_for_the_next_reader(channel: ClientChannel, other: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abc", "s")
    read_stream(channel, stream)
    assert channel.bodies() == "abc"
    channel.ack(0, multiple=True)
    read_stream(other, stream)
    assert other.bodies() == "abc"
    assert stream.message_count() == 3


def test_readers_keep_their_own_pace(channel: ClientChannel, other: ClientChannel, stream: Queue) -> None:
    read_stream(channel, stream, prefetch=100)
    read_stream(other, stream, prefetch=2)
    channel.publish_all("abcdef", "s")
    assert channel.bodies() == "abcdef"
    assert other.bodies() == "ab"
    other.ack(2, multiple=True)
    assert other.bodies() == "cd"
    other.ack(3)
    assert other.bodies() == "e"


def test_two_readers_on_one_channel_both_get_everything(channel: ClientChannel, stream: Queue) -> None:
    read_stream(channel, stream, tag="one")
    read_stream(channel, stream, 2, tag="two")
    channel.publish_all("abcd", "s")
    delivered = channel.deliveries()
    assert [offset_of(each) for each in delivered if each.consumer == "one"] == [0, 1, 2, 3]
    assert [offset_of(each) for each in delivered if each.consumer == "two"] == [2, 3]


def test_transient_messages_are_kept_too(storage: StreamStorage, channel: ClientChannel, stream: Queue) -> None:
    channel.publish(b"a", "s", delivery_mode=1)
    again = Client(make_broker(storage)).channel()
    read_stream(again, again.vhost.queues["s"])
    assert again.bodies() == "a"


def test_a_stream_is_bound_like_any_queue(channel: ClientChannel, stream: Queue) -> None:
    channel.bind("amq.fanout", stream)
    classic = channel.declare("q")
    channel.bind("amq.fanout", classic)
    channel.publish(b"a", "", "amq.fanout")
    read_stream(channel, stream)
    channel.consume(classic, "classic")
    (to_classic, to_reader) = sorted(channel.deliveries(), key=lambda each: each.consumer)
    assert to_reader.message.properties.headers == {"x-stream-offset": 0}
    assert to_classic.message.properties.headers is None, "the offset was written into a message that others share"


# -- where to begin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (None, []),
        ("next", []),
        ("first", [0, 1, 2, 3]),
        ("last", [3]),
        (b"first", [0, 1, 2, 3]),
        (0, [0, 1, 2, 3]),
        (2, [2, 3]),
        (3, [3]),
        (-7, [0, 1, 2, 3]),
    ],
)
def test_a_reader_begins_where_it_asks_to(
    offset: Any, expected: list[int], channel: ClientChannel, stream: Queue
) -> None:
    channel.publish_all("abcd", "s")
    read_stream(channel, stream, offset)
    assert offsets(channel) == expected
    channel.publish(b"e", "s")
    assert offsets(channel) == [4]


@pytest.mark.parametrize("offset", [None, "next", "first", "last", 0, "1h", Timestamp(10), Timestamp(10**15)])
def test_a_reader_of_an_empty_stream_gets_the_first_message(offset: Any, channel: ClientChannel, stream: Queue) -> None:
    read_stream(channel, stream, offset)
    assert offsets(channel) == []
    channel.publish(b"a", "s")
    assert offsets(channel) == [0]


def test_a_number_ahead_is_waited_for(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("ab", "s")
    read_stream(channel, stream, 4)
    channel.publish_all("cd", "s")
    assert offsets(channel) == []
    channel.publish_all("ef", "s")
    assert offsets(channel) == [4, 5]


def test_a_time_finds_what_came_then_or_later(channel: ClientChannel, stream: Queue, clock: ManualClock) -> None:
    begin = clock.now
    for letter in "abcd":
        channel.publish_all(letter, "s")
        clock.pass_seconds(60)
    for tag, (seconds, expected) in enumerate([(0, 0), (1, 1), (60, 1), (61, 2), (180, 3), (181, None)]):
        read_stream(channel, stream, datetime.fromtimestamp(begin // 1000 + seconds, UTC), tag=str(tag))
        assert offsets(channel) == ([] if expected is None else list(range(expected, 4))), seconds
    read_stream(channel, stream, Timestamp(2**60), tag="far")
    assert offsets(channel) == []


def test_an_interval_counts_back_from_now(channel: ClientChannel, stream: Queue, clock: ManualClock) -> None:
    for letter in "abcd":
        channel.publish_all(letter, "s")
        clock.pass_seconds(3600)
    for offset, expected in (("7D", [0, 1, 2, 3]), ("2h", [2, 3]), ("90m", [3]), ("59m", []), ("1Y", [0, 1, 2, 3])):
        read_stream(channel, stream, offset, tag=offset)
        assert offsets(channel) == expected, offset


# -- credit ----------------------------------------------------------------------------------------------------------


def test_a_reader_holds_no_more_than_its_prefetch(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abcdef", "s")
    read_stream(channel, stream, prefetch=2)
    assert offsets(channel) == [0, 1]
    channel.ack(1)
    assert offsets(channel) == [2]
    channel.ack(0, multiple=True)
    assert offsets(channel) == [3, 4]
    assert (stream.unacked_count, channel.client.broker.stats.unacked) == (2, 2)


def test_acks_in_a_transaction_give_credit_at_the_commit(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abc", "s")
    channel.core.select_transactions()
    read_stream(channel, stream, prefetch=1)
    assert offsets(channel) == [0]
    channel.ack(1)
    assert offsets(channel) == []
    channel.core.commit()
    assert offsets(channel) == [1]


def test_a_reader_behind_a_slow_socket_waits(channel: ClientChannel, stream: Queue) -> None:
    read_stream(channel, stream)
    channel.client.outbox.is_congested = True
    channel.publish_all("abc", "s")
    assert offsets(channel) == []
    channel.client.outbox.drain()
    assert offsets(channel) == [0, 1, 2]


def test_readers_behind_one_socket_take_turns(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abcdef", "s")
    outbox = channel.client.outbox

    def congest() -> None:
        outbox.is_congested = True

    outbox.on_deliver = congest  # a turn has room for one message
    for tag in ("one", "two", "three"):
        read_stream(channel, stream, tag=tag)
    served = []
    for _ in range(6):
        served += [each.consumer for each in channel.deliveries()]
        outbox.drain()
    assert sorted(served[:3]) == sorted(served[3:]) == ["one", "three", "two"]


def test_a_cancelled_reader_gets_nothing_more_and_may_still_ack(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("ab", "s")
    read_stream(channel, stream, prefetch=1)
    assert offsets(channel) == [0]
    channel.core.cancel("reader")
    channel.ack(1)
    channel.publish_all("c", "s")
    assert offsets(channel) == []
    assert (stream.unacked_count, len(stream.consumers)) == (0, 0)


def test_a_closed_channel_loses_nothing(channel: ClientChannel, other: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abc", "s")
    read_stream(channel, stream, prefetch=2)
    assert offsets(channel) == [0, 1]
    channel.close()
    stats = channel.client.broker.stats
    assert (stats.unacked, stats.consumers, stats.held_bytes) == (0, 0, 0)
    read_stream(other, stream)
    delivered = other.deliveries()
    assert [offset_of(each) for each in delivered] == [0, 1, 2]
    assert not any(each.redelivered for each in delivered)


# -- refusals --------------------------------------------------------------------------------------------------------


def refusal(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(BrokerError) as refused:
        call(*arguments, **named)
    return refused.value.reply_text


NAMED = "queue 's' in vhost '/'"


def test_what_streams_cannot_do_is_refused(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("ab", "s")
    assert refusal(channel.get, stream) == f"NOT_IMPLEMENTED - basic.get not supported by stream queues {NAMED}"
    assert refusal(stream.purge) == f"NOT_IMPLEMENTED - queue.purge not supported by stream queues {NAMED}"
    assert stream.message_count() == 2


def test_readers_that_cannot_be_served_are_refused(channel: ClientChannel, stream: Queue) -> None:
    def consume(prefetch: int, **arguments: Any) -> str:
        no_ack = bool(arguments.pop("no_ack", False))
        return refusal(channel.consume, stream, "r", no_ack=no_ack, prefetch=prefetch, arguments=arguments)

    assert consume(0) == f"PRECONDITION_FAILED - consumer prefetch count is not set for '{NAMED}'"
    assert consume(0, no_ack=True) == f"PRECONDITION_FAILED - consumer prefetch count is not set for '{NAMED}'"
    assert consume(1, no_ack=True) == (
        f"NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues {NAMED}"
    )
    assert consume(1, **{"x-priority": 3}) == (
        f"PRECONDITION_FAILED - invalid arg 'x-priority' for {NAMED} of queue type rabbit_stream_queue"
    )
    channel.core.limit_prefetch(5, True)
    assert consume(1) == f"NOT_IMPLEMENTED - {NAMED} does not support global qos"
    assert len(stream.consumers) == 0


@pytest.mark.parametrize("offset", ["7", "", "0s", "-1h", "FIRST", "1 h", "7d", 1.5, True, None, [1], {"a": 1}])
def test_what_is_no_offset_is_refused(offset: Any, channel: ClientChannel, stream: Queue) -> None:
    channel.core.limit_prefetch(1, False)
    with pytest.raises(
        PreconditionFailed, match=r"^invalid arg 'x-stream-offset' for queue 's' .*invalid_stream_offset"
    ):
        channel.consume(stream, arguments={"x-stream-offset": offset})


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_other_queues_have_no_offsets(queue_type: str, channel: ClientChannel) -> None:
    queue = channel.declare("q", durable=True, arguments={"x-queue-type": queue_type})
    with pytest.raises(PreconditionFailed, match=f"of queue type rabbit_{queue_type}_queue$"):
        channel.consume(queue, arguments={"x-stream-offset": "first"})


@pytest.mark.parametrize("requeue", [True, False])
def test_nothing_can_be_given_back_to_a_stream(requeue: bool, channel: ClientChannel, stream: Queue) -> None:
    """What another queue delivered, in the same nack, is not lost by the refusal."""
    classic = channel.declare("q")
    channel.publish_all("x", "q")
    channel.consume(classic, "classic")
    channel.publish_all("ab", "s")
    read_stream(channel, stream)
    assert len(channel.deliveries()) == 3
    with pytest.raises(
        NotImplementedHere, match=r"^basic.nack and basic.reject not supported by stream queues queue 's'"
    ):
        channel.reject(0, multiple=True, requeue=requeue)
    with pytest.raises(NotImplementedHere):
        channel.core.recover()
    channel.close()
    assert (len(classic.backlog), stream.message_count(), stream.unacked_count) == (1, 2, 0)


def test_a_transaction_that_requeues_to_a_stream_does_nothing(channel: ClientChannel, stream: Queue) -> None:
    classic = channel.declare("q")
    channel.publish_all("ab", "s")
    channel.core.select_transactions()
    read_stream(channel, stream)
    assert offsets(channel) == [0, 1]
    channel.publish_all("x", "q")
    channel.reject(1, requeue=False)
    with pytest.raises(NotImplementedHere):
        channel.core.commit()
    channel.close()
    assert (len(classic.backlog), stream.unacked_count) == (0, 0)


def test_an_exclusive_reader_is_one_of_many(channel: ClientChannel, other: ClientChannel, stream: Queue) -> None:
    channel.publish_all("a", "s")
    for each in (channel, other):
        each.consume(stream, exclusive=True, prefetch=5, arguments={"x-stream-offset": "first"})
        assert each.bodies() == "a"


@pytest.mark.parametrize(
    ("properties", "fault"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_a_stream_is_meant_to_last(properties: dict[str, bool], fault: str, channel: ClientChannel) -> None:
    with pytest.raises(PreconditionFailed, match=f"^invalid property '{fault}' for queue 's' in vhost '/'$"):
        channel.declare("s", arguments=STREAM, **properties)
    with pytest.raises(PreconditionFailed, match=r"^Cannot declare a server-named queue for type rabbit_stream_queue$"):
        channel.declare("", durable=True, arguments=STREAM)


# -- what is safe ----------------------------------------------------------------------------------------------------


def test_readers_wait_for_what_the_confirm_waits_for() -> None:
    storage = StreamStorage(is_slow=True)
    channel = Client(make_broker(storage)).channel()
    stream = declare_stream(channel)
    read_stream(channel, stream, "next")
    channel.publish_all("ab", "s")
    assert offsets(channel) == []
    storage.stores["s"].commit()
    assert offsets(channel) == [0, 1]
    channel.publish_all("c", "s")
    read_stream(channel, stream, "last", tag="other")
    assert offsets(channel) == []
    storage.stores["s"].commit()
    assert offsets(channel, "other") == [2]


def test_offsets_go_on_after_a_restart(storage: StreamStorage, channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abc", "s")
    broker = make_broker(storage)
    again = Client(broker).channel()
    stream = again.vhost.queues["s"]
    assert isinstance(stream, Stream)
    assert (stream.message_count(), broker.stats.ready) == (3, 3)
    read_stream(again, stream, "first", tag="first")
    read_stream(again, stream, "last", tag="last")
    read_stream(again, stream, "next", tag="next")
    again.publish_all("d", "s")
    delivered = again.deliveries()
    for tag, expected in (("first", b"abcd"), ("last", b"cd"), ("next", b"d")):
        assert b"".join(each.body for each in delivered if each.consumer == tag) == expected
    assert [offset_of(each) for each in delivered if each.consumer == "first"] == [0, 1, 2, 3]


# -- pages that come later -------------------------------------------------------------------------------------------


@pytest.fixture
def slow() -> StreamStorage:
    return StreamStorage(is_slow=True, durability_level=0)


@pytest.fixture
def slow_channel(slow: StreamStorage) -> ClientChannel:
    return Client(make_broker(slow)).channel()


def test_a_page_is_awaited_without_holding_up_others(slow: StreamStorage, slow_channel: ClientChannel) -> None:
    stream = declare_stream(slow_channel)
    slow_channel.publish_all("abc", "s")
    read_stream(slow_channel, stream, "first", tag="old")
    read_stream(slow_channel, stream, "next", tag="new")
    slow_channel.publish_all("d", "s")
    assert offsets(slow_channel) == [3]
    assert slow.stores["s"].answer() == 1
    assert offsets(slow_channel, "old") == [0, 1, 2, 3]


def test_acks_while_a_page_is_awaited_ask_for_nothing(slow: StreamStorage, slow_channel: ClientChannel) -> None:
    stream = declare_stream(slow_channel)
    slow_channel.publish_all("abc", "s")
    read_stream(slow_channel, stream, prefetch=2)
    assert offsets(slow_channel) == []
    slow.stores["s"].answer()
    assert offsets(slow_channel) == [0, 1]
    slow_channel.ack(1)
    slow_channel.ack(2)
    assert offsets(slow_channel) == [2]
    assert slow.stores["s"].asked == []


@pytest.mark.parametrize("offset", ["first", "1h"])
@pytest.mark.parametrize("end", ["cancel", "close", "delete"])
def test_a_page_that_comes_too_late_is_dropped(
    offset: str, end: str, slow: StreamStorage, slow_channel: ClientChannel
) -> None:
    stream = declare_stream(slow_channel)
    slow_channel.publish_all("abc", "s")
    read_stream(slow_channel, stream, offset)
    assert offsets(slow_channel) == []
    if end == "cancel":
        slow_channel.core.cancel("reader")
    elif end == "close":
        slow_channel.close()
    else:
        slow_channel.delete(stream)
    assert slow.stores["s"].answer() == 1
    assert slow.stores["s"].asked == []
    assert offsets(slow_channel) == []
    assert slow_channel.client.broker.stats.unacked == 0


def test_a_time_is_looked_for_while_messages_come(slow: StreamStorage, slow_channel: ClientChannel) -> None:
    stream = declare_stream(slow_channel)
    slow_channel.publish_all("ab", "s")
    read_stream(slow_channel, stream, "1h")
    slow_channel.publish_all("cd", "s")
    assert offsets(slow_channel) == []
    while slow.stores["s"].answer():
        pass
    assert offsets(slow_channel) == [0, 1, 2, 3]


def test_what_cannot_be_read_is_passed_over(slow: StreamStorage, slow_channel: ClientChannel) -> None:
    stream = declare_stream(slow_channel)
    slow_channel.publish_all("abc", "s")
    read_stream(slow_channel, stream)
    assert offsets(slow_channel) == []
    (cursor,) = slow.stores["s"].asked
    slow.stores["s"].asked = []
    slow.stores["s"].read = lambda position, receive: receive(position, [])  # type: ignore[method-assign]
    cursor()  # the page that was asked for comes whole
    assert offsets(slow_channel) == [0, 1, 2]
    read_stream(slow_channel, stream, tag="unlucky")
    slow_channel.publish_all("d", "s")
    assert offsets(slow_channel, "unlucky") == [3]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_readers_that_wait_do_not_hold_whole_pages(channel: ClientChannel, stream: Queue) -> None:
    for number in range(1000):
        channel.publish(bytes(200), "s", message_id=str(number))
    read_stream(channel, stream, prefetch=10)
    assert offsets(channel) == list(range(10))
    assert isinstance(stream, Stream)
    (cursor,) = stream.cursors.values()
    assert cursor.messages is not None
    assert 0 < sum(message.footprint() for message in cursor.messages) < 2 * stream_module.CURSOR_LIMIT
    received = []
    for _ in range(99):
        channel.ack(0, multiple=True)
        received += offsets(channel)
    assert received == list(range(10, 1000))


def test_without_readers_nothing_is_held(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abc", "s")
    assert channel.client.broker.stats.held_bytes == 0


def test_what_all_readers_have_had_is_let_go(channel: ClientChannel, other: ClientChannel, stream: Queue) -> None:
    stats = channel.client.broker.stats
    read_stream(channel, stream)
    read_stream(other, stream, prefetch=1)
    channel.publish_all("abc", "s")
    assert (channel.bodies(), other.bodies()) == ("abc", "a")
    assert stats.held_bytes > 0, "one reader has not had it all"
    other.ack(0, multiple=True)
    assert other.bodies() == "b"
    other.ack(0, multiple=True)
    assert other.bodies() == "c"
    assert stats.held_bytes == 0
    assert channel.client.broker.stats.unacked == 4, "unacked deliveries hold no message"


def test_a_reader_far_behind_does_not_fill_the_memory(channel: ClientChannel, stream: Queue) -> None:
    stats = channel.client.broker.stats
    read_stream(channel, stream, prefetch=1)
    most = 0
    for number in range(200):
        channel.publish(bytes(20_000), "s", message_id=str(number))
        most = max(most, stats.held_bytes)
    assert most <= stream_module.TAIL_LIMIT
    received = []
    while delivered := channel.deliveries():
        received += [each.message.properties.message_id for each in delivered]
        channel.ack(0, multiple=True)
    assert received == [str(number) for number in range(200)]
    assert stats.held_bytes == 0


def test_less_is_held_where_messages_take_a_lot_in_all(channel: ClientChannel, stream: Queue) -> None:
    stats = channel.client.broker.stats
    read_stream(channel, stream, prefetch=1)
    stats.held_bytes += stream_module.MEMORY_BUDGET
    for _ in range(50):
        channel.publish(bytes(5_000), "s")
    assert stats.held_bytes - stream_module.MEMORY_BUDGET <= stream_module.SMALL_TAIL_LIMIT


def test_the_last_reader_takes_the_memory_with_it(channel: ClientChannel, stream: Queue) -> None:
    read_stream(channel, stream, prefetch=1)
    channel.publish_all("abc", "s")
    channel.core.cancel("reader")
    assert channel.client.broker.stats.held_bytes == 0


# -- limits and the end ----------------------------------------------------------------------------------------------


def fill(channel: ClientChannel, count: int, size: int = 1000) -> None:
    for _ in range(count):
        channel.publish(bytes(size), "s")


def test_old_segments_go_when_a_stream_is_too_long(channel: ClientChannel, clock: ManualClock) -> None:
    stream = declare_stream(channel, max_length_bytes=10_000, stream_max_segment_size_bytes=2_000)
    for _ in range(50):
        fill(channel, 1)
        clock.pass_seconds(2)
    count = stream.message_count()
    assert 8 <= count <= 14
    assert channel.client.broker.stats.ready == count
    read_stream(channel, stream)
    assert offsets(channel) == list(range(50 - count, 50))


def test_old_segments_go_when_they_are_too_old(channel: ClientChannel, clock: ManualClock) -> None:
    stream = declare_stream(channel, max_age="1h", stream_max_segment_size_bytes=2_000)
    for _ in range(50):
        fill(channel, 1)
        clock.pass_seconds(600)
    assert 6 <= stream.message_count() <= 11


def test_a_reader_of_what_is_gone_goes_on_behind_it(channel: ClientChannel, clock: ManualClock) -> None:
    stream = declare_stream(channel, max_length_bytes=5_000, stream_max_segment_size_bytes=1_000)
    fill(channel, 3)
    read_stream(channel, stream, prefetch=1)
    assert offsets(channel) == [0]
    channel.core.cancel("reader")
    for _ in range(30):
        fill(channel, 1)
        clock.pass_seconds(2)
    read_stream(channel, stream, 1)
    assert offsets(channel) == list(range(33 - stream.message_count(), 33))


def test_the_newest_segment_stays_whatever_the_limits(channel: ClientChannel, clock: ManualClock) -> None:
    stream = declare_stream(channel, max_length_bytes=0, max_age="1h")
    fill(channel, 5)
    clock.pass_seconds(100)
    fill(channel, 1)
    assert stream.message_count() == 6
    clock.pass_seconds(100_000)
    fill(channel, 1)
    assert stream.message_count() == 1


def test_deleting_a_stream_notifies_its_consumers(channel: ClientChannel, stream: Queue) -> None:
    channel.publish_all("abc", "s")
    read_stream(channel, stream, prefetch=1)
    assert offsets(channel) == [0]
    assert channel.delete(stream) == 3
    assert channel.cancels() == ["reader"]
    channel.ack(1)
    stats = channel.client.broker.stats
    assert (stats.ready, stats.unacked, stats.held_bytes, stats.consumers) == (0, 0, 0, 0)
    again = declare_stream(channel)
    assert again.message_count() == 0
    channel.publish_all("x", "s")
    read_stream(channel, again)
    assert offsets(channel) == [0]


def test_a_stream_in_use_or_with_messages_is_not_deleted_if_that_was_asked(
    channel: ClientChannel, stream: Queue
) -> None:
    channel.publish_all("a", "s")
    with pytest.raises(PreconditionFailed, match="not empty"):
        channel.delete(stream, if_empty=True)
    read_stream(channel, stream)
    with pytest.raises(PreconditionFailed, match="in use"):
        channel.delete(stream, if_unused=True)


def test_reading_again_in_the_middle_of_a_delivery(channel: ClientChannel, stream: Queue) -> None:
    """Whatever the outbox brings about, every reader gets everything once."""
    outbox = channel.client.outbox
    left = list("xyz")

    def publish_more() -> None:
        if left:
            channel.publish_all(left.pop(), "s")

    channel.publish_all("ab", "s")
    outbox.on_deliver = publish_more
    read_stream(channel, stream)
    assert offsets(channel) + offsets(channel) == [0, 1, 2, 3, 4]


def test_the_newest_are_evicted_while_a_reader_uses_them(channel: ClientChannel, stream: Queue) -> None:
    """A delivery brings more messages than may be held, so that the older ones go in the middle of it."""
    read_stream(channel, stream)
    for number in range(40):
        channel.publish(bytes(20_000), "s", message_id=str(number))
    is_first = True

    def publish_more() -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            for number in range(40, 80):
                channel.publish(bytes(20_000), "s", message_id=str(number))

    channel.client.outbox.on_deliver = publish_more
    delivered = channel.deliveries() + channel.deliveries()
    assert [each.message.properties.message_id for each in delivered] == [str(number) for number in range(80)]
    assert [offset_of(each) for each in delivered] == list(range(80))


def test_any_number_of_pages_can_be_read_at_once(channel: ClientChannel, stream: Queue, clock: ManualClock) -> None:
    for _ in range(3000):
        channel.publish(b"", "s")
        clock.pass_seconds(2)  # so that each has a page of its own
    read_stream(channel, stream, prefetch=60_000)
    assert offsets(channel) == list(range(3000))


class Journal(EventSink):
    def __init__(self) -> None:
        super().__init__()
        self.is_watching = True
        self.heard: list[tuple[str, bytes]] = []

    def published(self, channel: object, route: object, message: Message, queues: list[Queue]) -> None:
        message.uid = message.publish_time = 1

    def enqueued(self, message: Message, queue: object, depth: int) -> None:
        self.heard.append(("enqueued", message.body))

    def queue_event(self, kind: int, entry: QueuedMessage, queue: object, who: object, reason: int) -> None:
        self.heard.append((schema.kind_name(kind), entry.message.body))


def test_every_delivery_and_ack_is_an_event(storage: StreamStorage) -> None:
    journal = Journal()
    broker = Broker(storage, journal)
    broker.users.add("guest", "guest")
    broker.users.grant("guest", None, ".*", ".*", ".*")
    channel = Client(broker).channel()
    stream = declare_stream(channel)
    channel.publish_all("a", "s")
    read_stream(channel, stream)
    channel.deliveries()
    channel.ack(1)
    assert journal.heard == [
        ("enqueued", b"a"),
        ("delivered", b"a"),
        ("acked", b"a"),
    ]
