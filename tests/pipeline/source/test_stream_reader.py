"""The streaming reader as Spark calls it, without Spark: planning, limits, streams that come and go."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pipeline.source.brokers import channel_to, publish
from warrenmq import Broker, client
from warrenmq.pipeline.errors import DataLost
from warrenmq.pipeline.source.options import parse_read_options

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'warrenmq[spark]'")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StructField, StructType

from warrenmq.pipeline.source.readers import BatchReader, RangePartition, StreamReader

SCHEMA = StructType([StructField("offset", LongType())])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        yield running


@pytest.fixture
def readers(broker: Broker) -> Iterator[Any]:
    """Makes readers of options, and ends them."""
    made: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        given = {name.lower(): value for name, value in ({"url": broker.url} | options).items()}
        made.append(StreamReader(parse_read_options(given, is_streaming=True), SCHEMA))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def read(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[tuple[str, int]]:
    """As executors do: with a pickled reader, partition by partition."""
    found: list[tuple[str, int]] = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, RangePartition)
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
            found += [(partition.span.stream, offset) for offset in batch.column("offset").to_pylist()]
    return found


def test_a_query_from_begin_to_end(broker: Broker, readers: Any) -> None:
    publish(broker.url, "a", map(str, range(10)))
    reader = readers(stream="a", startingOffsets="earliest", maxRecordsPerBatch="4", partitions="2")
    start = reader.initialOffset()
    assert start == {"a": 0}
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    end = reader.latestOffset(start, limit)
    assert end == {"a": 4}
    assert reader.reportLatestOffset() == {"a": 10}
    assert read(reader, start, end) == [("a", offset) for offset in range(4)]
    assert reader.latestOffset({"a": 8}, ReadAllAvailable()) == {"a": 10}
    assert reader.latestOffset({"a": 10}, limit) == {"a": 10}
    assert reader.latestOffset({"a": 8}, ReadMinRows(3)) == {"a": 8}
    assert reader.latestOffset({"a": 7}, ReadMinRows(3)) == {"a": 10}
    assert list(reader.partitions({"a": 4}, {"a": 4})) == []


def test_latest_is_what_comes_from_now_on(broker: Broker, readers: Any) -> None:
    publish(broker.url, "b", ["1", "2"])
    assert readers(stream="b").initialOffset() == {"b": 2}


def test_a_named_reader_begins_where_it_began(broker: Broker, readers: Any) -> None:
    """Spark asks again if the first batch did not end; "latest" still means what it meant."""
    publish(broker.url, "c", ["1", "2"])
    assert readers(stream="c", readerName="reporter").initialOffset() == {"c": 2}
    publish(broker.url, "c", ["3"])
    again = readers(stream="c", readerName="reporter")
    assert again.initialOffset() == {"c": 2}
    again.commit({"c": 3})
    with channel_to(broker.url) as channel, pytest.raises(client.NotFound):
        channel.queue_declare("warren.reader.reporter", passive=True)


def test_available_now_goes_no_further_than_the_end_it_saw(broker: Broker, readers: Any) -> None:
    publish(broker.url, "d", map(str, range(3)))
    reader = readers(stream="d", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    publish(broker.url, "d", ["more"])
    assert reader.latestOffset({"d": 0}, ReadAllAvailable()) == {"d": 3}
    assert reader.latestOffset({"d": 3}, ReadAllAvailable()) == {"d": 3}


def test_a_recreated_stream_raises_or_is_read_from_its_beginning(broker: Broker, readers: Any) -> None:
    publish(broker.url, "e", map(str, range(3)))
    with pytest.raises(DataLost, match="deleted and created again"):
        readers(stream="e").latestOffset({"e": 10}, ReadAllAvailable())
    tolerant = readers(stream="e", failOnDataLoss="false")
    back = tolerant.latestOffset({"e": 10}, ReadMaxRows(2))
    assert back == {"e": 0}
    assert read(tolerant, {"e": 10}, back) == []
    assert read(tolerant, back, tolerant.latestOffset(back, ReadMaxRows(2))) == [("e", 0), ("e", 1)]


def test_streams_of_a_pattern_join_with_all_they_have(
    broker: Broker, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warrenmq.pipeline.source.readers.LIST_INTERVAL", 0.0)
    publish(broker.url, "log.a", map(str, range(3)))
    reader = readers(streamPattern=r"log\..", httpUrl=broker.http_url, startingOffsets="latest")
    start = reader.initialOffset()
    assert start == {"log.a": 3}
    publish(broker.url, "log.b", map(str, range(2)))
    joined = reader.latestOffset(start, ReadAllAvailable())
    assert joined == {"log.a": 3, "log.b": 0}
    assert read(reader, start, joined) == []
    end = reader.latestOffset(joined, ReadAllAvailable())
    assert read(reader, joined, end) == [("log.b", 0), ("log.b", 1)]
    with channel_to(broker.url) as channel:
        channel.queue_delete("log.a")
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_batch_with_nothing_to_read(broker: Broker) -> None:
    """Spark makes a task of it, with a partition that says nothing."""
    publish(broker.url, "f", [])
    reader = BatchReader(parse_read_options({"url": broker.url, "stream": "f"}, is_streaming=False), SCHEMA)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_an_end_that_is_not_there_yet(broker: Broker) -> None:
    publish(broker.url, "g", ["1"])
    options = {"url": broker.url, "stream": "g", "endingoffsets": '{"g": 5}'}
    with pytest.raises(DataLost, match="which ends at 1"):
        BatchReader(parse_read_options(options, is_streaming=False), SCHEMA).partitions()
    options["failondataloss"] = "false"
    (partition,) = BatchReader(parse_read_options(options, is_streaming=False), SCHEMA).partitions()
    assert isinstance(partition, RangePartition)
    assert (partition.span.start, partition.span.end) == (0, 1)
