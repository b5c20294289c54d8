"""`Stream.read`: pages of readable messages, in order, each message once."""

from __future__ import annotations

import pytest

from tests.support.client import Client, ClientChannel, make_broker
from tests.support.streams import ManualClock, SlowStreamStore, StreamStorage, declare_stream
from warrenmq.core.message import Message
from warrenmq.core.stream import Stream

Page = tuple[int, list[bytes]]


class Reader:
    """Collects the pages of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.pages: list[Page] = []

    def read(self, offset: int) -> None:
        self.stream.read(offset, self._receive)

    def read_all(self) -> Page:
        """Read page by page until there is no more, from a stream that answers at once."""
        self.read(0)
        begin = self.pages[-1][0]
        bodies: list[bytes] = []
        while self.pages[-1][1]:
            first, page = self.pages[-1]
            assert first == begin + len(bodies)
            bodies += page
            self.read(first + len(page))
        return begin, bodies

    def _receive(self, first: int, messages: list[Message]) -> None:
        self.pages.append((first, [message.body for message in messages]))


def declared(channel: ClientChannel, **arguments: object) -> Stream:
    stream = declare_stream(channel, **arguments)
    assert isinstance(stream, Stream)
    return stream


@pytest.fixture
def slow() -> StreamStorage:
    return StreamStorage(is_slow=True)


@pytest.fixture
def slow_channel(slow: StreamStorage) -> ClientChannel:
    return Client(make_broker(slow)).channel()


def committed(storage: StreamStorage, channel: ClientChannel, bodies: str) -> SlowStreamStore:
    """Publish these and let them be safe."""
    channel.publish_all(bodies, "s")
    store = storage.stores["s"]
    store.commit()
    return store


def test_a_stream_is_read_from_any_offset_to_its_end(channel: ClientChannel) -> None:
    reader = Reader(declared(channel))
    channel.publish_all("abcde", "s")
    reader.read(0)
    reader.read(3)
    reader.read(5)
    assert reader.pages == [(0, [b"a", b"b", b"c", b"d", b"e"]), (3, [b"d", b"e"]), (5, [])]


def test_pages_follow_each_other_without_gap_or_double() -> None:
    clock = ManualClock()
    channel = Client(make_broker(StreamStorage(clock))).channel()
    reader = Reader(declared(channel))
    for number in range(50):
        channel.publish(b"%d" % number, "s")
        clock.pass_seconds(0.4)
    assert reader.read_all() == (0, [b"%d" % number for number in range(50)])
    assert len(reader.pages) > 10


def test_what_is_not_readable_yet_is_left_out(slow: StreamStorage, slow_channel: ClientChannel) -> None:
    reader = Reader(declared(slow_channel))
    store = committed(slow, slow_channel, "ab")
    slow_channel.publish_all("cd", "s")
    reader.read(1)
    reader.read(2)
    assert reader.pages == [(2, [])], "nothing is there from offset 2 on; the other page has not come yet"
    store.answer()
    assert reader.pages[1:] == [(1, [b"b"])]
    store.commit()
    reader.read(2)
    store.answer()
    assert reader.pages[2:] == [(2, [b"c", b"d"])]


def test_a_reader_goes_on_behind_what_retention_removed() -> None:
    clock = ManualClock()
    channel = Client(make_broker(StreamStorage(clock))).channel()
    stream = declared(channel, max_age="10s", stream_max_segment_size_bytes=1)
    for number in range(30):
        channel.publish(b"%d" % number, "s")
        clock.pass_seconds(2)
    first = 30 - stream.message_count()
    assert first > 10
    assert stream.first_offset == first
    assert Reader(stream).read_all() == (first, [b"%d" % number for number in range(first, 30)])


def test_what_cannot_be_read_is_skipped(slow: StreamStorage, slow_channel: ClientChannel) -> None:
    reader = Reader(declared(slow_channel))
    store = committed(slow, slow_channel, "abc")
    store._stored.segments.clear()  # a damaged file: the store has nothing at these offsets
    reader.read(1)
    store.answer()
    assert reader.pages == [(3, [])]
    reader.read(1)
    (read,) = reader.stream.reads
    read.page_arrived(1, [])
    assert reader.pages == [(3, []), (2, [])], "the reader gets on, whatever the store answers"


def test_a_read_of_a_stream_that_is_deleted_meanwhile_ends(slow: StreamStorage, slow_channel: ClientChannel) -> None:
    stream = declared(slow_channel)
    reader = Reader(stream)
    store = committed(slow, slow_channel, "abc")
    reader.read(1)
    assert reader.pages == []
    slow_channel.delete(stream)
    assert reader.pages == [(1, [])]
    store.answer()
    reader.read(1)
    assert reader.pages == [(1, []), (1, [])], "once for each read, and at once when it is gone"


def test_reading_takes_nothing_from_consumers(channel: ClientChannel) -> None:
    stream = declared(channel)
    channel.publish_all("ab", "s")
    Reader(stream).read_all()
    stats = channel.client.broker.stats
    assert (stats.ready, stats.delivered, stats.unacked, stats.consumers) == (2, 0, 0, 0)
    assert stream.message_count() == 2
