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
from warrenmq.pipeline.source.access import BrokerAccess
from warrenmq.pipeline.source.broker import SavedStart, StreamOffsets
from warrenmq.pipeline.source.offsets import EARLIEST, LATEST, OffsetRange, Timestamp
from warrenmq.pipeline.source.range_reader import read_range


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        publish(running.url, "numbers", [str(number) for number in range(5000)])
        yield running


@pytest.fixture
def offsets(broker: Broker) -> Iterator[StreamOffsets]:
    offsets = StreamOffsets(BrokerAccess(url=broker.url))
    yield offsets
    offsets.close()


def read(
    url: str, stream: str, start: int, end: int, prefetch: int = 100, fails: bool = True
) -> list[tuple[int, bytes]]:
    records = read_range(OffsetRange(stream, start, end), BrokerAccess(url=url, retry_timeout=10), prefetch, fails)
    return [(offset, delivery.body) for offset, delivery in records]


@pytest.mark.parametrize("prefetch", [1, 2, 7, 1000, 5000])
@pytest.mark.parametrize(("start", "end"), [(0, 1), (10, 11), (10, 17), (0, 1000), (4321, 5000)])
def test_a_range_is_read_whole(broker: Broker, prefetch: int, start: int, end: int) -> None:
    found = read(broker.url, "numbers", start, end, prefetch)
    assert found == [(number, b"%d" % number) for number in range(start, end)]


def test_the_broker_sends_nothing_from_behind_the_end(broker: Broker) -> None:
    metrics = client.CountingMetrics()

    class CountSpec(BrokerAccess):
        def factory(self, name: str) -> client.ConnectionFactory:
            return super().factory(name).with_(metrics=metrics)

    records = read_range(OffsetRange("numbers", 100, 300), CountSpec(url=broker.url), 64, True)
    assert sum(1 for _ in records) == 200
    assert metrics.counts().delivered == 200


def test_where_streams_begin_and_end(broker: Broker, offsets: StreamOffsets) -> None:
    declare_stream(broker.url, "empty")
    assert (offsets.first("empty"), offsets.end("empty")) == (0, 0)
    assert offsets.resolve("empty", Timestamp(0)) == 0
    assert (
        offsets.resolve("numbers", EARLIEST),
        offsets.resolve("numbers", LATEST),
        offsets.resolve("numbers", 17),
    ) == (0, 5000, 17)
    publish(broker.url, "growing", ["a", "b"])
    assert offsets.end("growing") == 2
    publish(broker.url, "growing", ["c"])
    assert offsets.end("growing") == 3
    assert offsets.end("growing") == 3


@pytest.mark.timeout(60)
def test_reading_an_offset_leaves_no_consumer_that_delays_the_close(broker: Broker) -> None:
    class Unhurried(BrokerAccess):
        def factory(self, name: str) -> client.ConnectionFactory:
            return super().factory(name).with_(close_timeout=300)

    offsets = StreamOffsets(Unhurried(url=broker.url))
    assert (offsets.end("numbers"), offsets.first("numbers")) == (5000, 0)
    offsets.close()


def test_a_timestamp_resolves_to_an_offset(
    broker: Broker, offsets: StreamOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offsets.resolve("numbers", Timestamp(0)) == 0
    monkeypatch.setattr("warrenmq.pipeline.source.broker.TIMESTAMP_TIMEOUT", 0.3)
    tomorrow = Timestamp(int((time.time() + 86_400) * 1000))
    assert offsets.resolve("numbers", tomorrow) == 5000


def test_a_queue_that_is_not_a_stream_is_refused(broker: Broker, offsets: StreamOffsets) -> None:
    with pytest.raises(NotAStream, match="no stream 'nothing'"):
        offsets.end("nothing")
    with pytest.raises(NotAStream, match="no stream 'nothing'"):
        read(broker.url, "nothing", 0, 1)
    with channel_to(broker.url) as channel:
        channel.queue_declare("jobs")
        channel.publish("", "jobs", "one").result()
    with pytest.raises(NotAStream, match="drain"):
        offsets.end("jobs")
    with channel_to(broker.url) as channel:
        assert channel.queue_declare("jobs", passive=True).message_count == 1


def test_missing_records_raise_or_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_pages(tmp_path) as broker:
        total = fill_and_trim(broker.url, "trimmed")
        offsets = StreamOffsets(BrokerAccess(url=broker.url))
        first = offsets.first("trimmed")
        assert 0 < first < offsets.end("trimmed") == total
        offsets.close()
        with pytest.raises(DataLost, match=rf"{first - 2} records of the stream 'trimmed' are gone, from offset 2"):
            read(broker.url, "trimmed", 2, total)
        with caplog.at_level(logging.WARNING, "warrenmq.pipeline"):
            found = read(broker.url, "trimmed", 2, total, fails=False)
            assert [offset for offset, _ in found] == list(range(first, total))
            assert read(broker.url, "trimmed", 0, first, fails=False) == []
        assert "skipped" in caplog.text


def test_reading_resumes_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    port = free_port()
    with Broker(port=port, data_dir=tmp_path) as broker:
        publish(broker.url, "s", [str(number) for number in range(3000)])
        url = broker.url
        records = read_range(OffsetRange("s", 0, 3000), BrokerAccess(url=url, retry_timeout=30), 10, True)
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


def test_an_unreachable_broker_raises_after_the_retry_timeout() -> None:
    access = BrokerAccess(url=f"amqp://127.0.0.1:{free_port()}", retry_timeout=0.3)
    with pytest.raises(BrokerUnreachable, match="retryTimeout"):
        list(read_range(OffsetRange("s", 0, 1), access, 1, True))
    with pytest.raises(BrokerUnreachable, match="retryTimeout"):
        StreamOffsets(access).end("s")


def test_a_wrong_password_is_not_retried(broker: Broker) -> None:
    access = BrokerAccess(url=f"amqp://guest:wrong@127.0.0.1:{broker.port}/", retry_timeout=60)
    with pytest.raises(client.AuthenticationFailed):
        StreamOffsets(access).end("numbers")


def test_a_range_beyond_the_end_times_out(broker: Broker) -> None:
    access = BrokerAccess(url=broker.url, retry_timeout=0.3)
    with pytest.raises(BrokerUnreachable, match="no message of the stream 'numbers' came from offset 5000"):
        list(read_range(OffsetRange("numbers", 4990, 5010), access, 100, True))


def test_a_stream_that_is_deleted_while_it_is_read(broker: Broker) -> None:
    publish(broker.url, "doomed", [str(number) for number in range(100)])
    records = read_range(OffsetRange("doomed", 0, 1000), BrokerAccess(url=broker.url, retry_timeout=10), 10, True)
    next(records)
    with channel_to(broker.url) as channel:
        channel.queue_delete("doomed")
    with pytest.raises(DataLost, match="was deleted"):
        list(records)


def test_a_saved_start_is_kept_until_it_is_deleted(broker: Broker, offsets: StreamOffsets) -> None:
    saved = SavedStart(offsets.client, "billing")
    assert saved.load() is None
    saved.save({"orders": 7})
    saved.save({"orders": 8})
    assert saved.load() == saved.load() == {"orders": 7}
    saved.delete()
    assert saved.load() is None
