"""Ranges read from a real broker, without Spark: each record once, nothing from behind the end, losses told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.source.brokers import channel_to, declare_stream, fill_and_trim, free_port, publish, small_pages
from warrenmq import Broker, client
from warrenmq.pipeline.errors import BrokerUnreachable, DataLost, NotAStream
from warrenmq.pipeline.source.access import Access
from warrenmq.pipeline.source.broker import StreamAsker
from warrenmq.pipeline.source.places import EARLIEST, LATEST, Moment
from warrenmq.pipeline.source.range_reader import read_range
from warrenmq.pipeline.source.ranges import Range
from warrenmq.pipeline.source.reader_note import ReaderNote


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        publish(running.url, "numbers", [str(number) for number in range(5000)])
        yield running


@pytest.fixture
def asker(broker: Broker) -> Iterator[StreamAsker]:
    asker = StreamAsker(Access(url=broker.url))
    yield asker
    asker.close()


def read(
    url: str, stream: str, start: int, end: int, prefetch: int = 100, fails: bool = True
) -> list[tuple[int, bytes]]:
    records = read_range(Range(stream, start, end), Access(url=url, retry_timeout=10), prefetch, fails)
    return [(offset, delivery.body) for offset, delivery in records]


@pytest.mark.parametrize("prefetch", [1, 2, 7, 1000, 5000])
@pytest.mark.parametrize(("start", "end"), [(0, 1), (10, 11), (10, 17), (0, 1000), (4321, 5000)])
def test_a_range_is_read_whole(broker: Broker, prefetch: int, start: int, end: int) -> None:
    found = read(broker.url, "numbers", start, end, prefetch)
    assert found == [(number, b"%d" % number) for number in range(start, end)]


def test_the_broker_sends_nothing_from_behind_the_end(broker: Broker) -> None:
    metrics = client.CountingMetrics()

    class Counting(Access):
        def factory(self, name: str) -> client.ConnectionFactory:
            return super().factory(name).with_(metrics=metrics)

    records = read_range(Range("numbers", 100, 300), Counting(url=broker.url), 64, True)
    assert sum(1 for _ in records) == 200
    assert metrics.counts().delivered == 200


def test_where_streams_begin_and_end(broker: Broker, asker: StreamAsker) -> None:
    declare_stream(broker.url, "empty")
    assert (asker.first("empty"), asker.end("empty")) == (0, 0)
    assert asker.at("empty", Moment(0)) == 0
    assert (asker.at("numbers", EARLIEST), asker.at("numbers", LATEST), asker.at("numbers", 17)) == (0, 5000, 17)
    publish(broker.url, "growing", ["a", "b"])
    assert asker.end("growing") == 2
    publish(broker.url, "growing", ["c"])
    assert asker.end("growing") == 3
    assert asker.end("growing") == 3


@pytest.mark.timeout(60)
def test_a_question_leaves_no_consumer_that_holds_up_its_channel(broker: Broker) -> None:
    class Unhurried(Access):
        def factory(self, name: str) -> client.ConnectionFactory:
            return super().factory(name).with_(close_timeout=300)

    asker = StreamAsker(Unhurried(url=broker.url))
    assert (asker.end("numbers"), asker.first("numbers")) == (5000, 0)
    asker.close()


def test_a_time_is_a_place(broker: Broker, asker: StreamAsker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asker.at("numbers", Moment(0)) == 0
    monkeypatch.setattr("warrenmq.pipeline.source.broker.LOOK_TIMEOUT", 0.3)
    tomorrow = Moment(int((time.time() + 86_400) * 1000))
    assert asker.at("numbers", tomorrow) == 5000


def test_what_is_no_stream_is_told(broker: Broker, asker: StreamAsker) -> None:
    with pytest.raises(NotAStream, match="no stream 'nothing'"):
        asker.end("nothing")
    with pytest.raises(NotAStream, match="no stream 'nothing'"):
        read(broker.url, "nothing", 0, 1)
    with channel_to(broker.url) as channel:
        channel.queue_declare("jobs")
        channel.publish("", "jobs", "one").result()
    with pytest.raises(NotAStream, match="drain"):
        asker.end("jobs")
    with channel_to(broker.url) as channel:
        assert channel.queue_declare("jobs", passive=True).message_count == 1


def test_records_that_are_gone_are_told_or_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_pages(tmp_path) as broker:
        total = fill_and_trim(broker.url, "trimmed")
        asker = StreamAsker(Access(url=broker.url))
        first = asker.first("trimmed")
        assert 0 < first < asker.end("trimmed") == total
        asker.close()
        with pytest.raises(DataLost, match=rf"{first - 2} records of the stream 'trimmed' are gone, from offset 2"):
            read(broker.url, "trimmed", 2, total)
        with caplog.at_level(logging.WARNING, "warrenmq.pipeline"):
            found = read(broker.url, "trimmed", 2, total, fails=False)
            assert [offset for offset, _ in found] == list(range(first, total))
            assert read(broker.url, "trimmed", 0, first, fails=False) == []
        assert "passed over" in caplog.text


def test_a_broker_that_restarts_is_waited_for_and_read_on(tmp_path: Path) -> None:
    port = free_port()
    with Broker(port=port, data_dir=tmp_path) as broker:
        publish(broker.url, "s", [str(number) for number in range(3000)])
        url = broker.url
        records = read_range(Range("s", 0, 3000), Access(url=url, retry_timeout=30), 10, True)
        found = [next(records)[0] for _ in range(50)]
    again = Broker(port=port, data_dir=tmp_path)
    late = threading.Timer(0.5, again.start)
    late.start()
    try:
        found += [offset for offset, _ in records]
    finally:
        late.join()
        again.stop()
    assert found == list(range(3000))


def test_a_broker_that_stays_away_is_given_up() -> None:
    access = Access(url=f"amqp://127.0.0.1:{free_port()}", retry_timeout=0.3)
    with pytest.raises(BrokerUnreachable, match="retryTimeout"):
        list(read_range(Range("s", 0, 1), access, 1, True))
    with pytest.raises(BrokerUnreachable, match="retryTimeout"):
        StreamAsker(access).end("s")


def test_a_wrong_password_is_not_tried_again(broker: Broker) -> None:
    access = Access(url=f"amqp://guest:wrong@127.0.0.1:{broker.port}/", retry_timeout=60)
    with pytest.raises(client.AuthenticationFailed):
        StreamAsker(access).end("numbers")


def test_a_range_that_never_comes_ends_in_words(broker: Broker) -> None:
    access = Access(url=broker.url, retry_timeout=0.3)
    with pytest.raises(BrokerUnreachable, match="nothing came of the stream 'numbers' from offset 5000"):
        list(read_range(Range("numbers", 4990, 5010), access, 100, True))


def test_a_stream_that_is_deleted_while_it_is_read(broker: Broker) -> None:
    publish(broker.url, "doomed", [str(number) for number in range(100)])
    records = read_range(Range("doomed", 0, 1000), Access(url=broker.url, retry_timeout=10), 10, True)
    next(records)
    with channel_to(broker.url) as channel:
        channel.queue_delete("doomed")
    with pytest.raises(DataLost, match="was deleted"):
        list(records)


def test_a_note_is_kept_until_it_is_forgotten(broker: Broker, asker: StreamAsker) -> None:
    note = ReaderNote(asker.link, "billing")
    assert note.read() is None
    note.keep({"orders": 7})
    note.keep({"orders": 8})
    assert note.read() == note.read() == {"orders": 7}
    note.forget()
    assert note.read() is None
