"""`spark.read.format("warrenmq")` on a real broker: what a user of the source sees."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.events.samples import FIRST_VERSION
from tests.pipeline.source.brokers import channel_to, publish
from warrenmq import Broker, client
from warrenmq.events import schema as event_schema
from warrenmq.events.codec import encode
from warrenmq.events.rows import Rows
from warrenmq.pipeline import drain, events, streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        headers = {"tenant": "acme", "n": 3, "deep": {"a": [1]}, "raw": b"\xff"}
        publish(
            running.url,
            "orders.de",
            [json.dumps({"id": number, "price": number / 2, "country": "DE"}) for number in range(100)],
            headers=headers,
            content_type="application/json",
            message_id="m",
            priority=4,
        )
        publish(running.url, "orders.at", [json.dumps({"id": number, "country": "AT"}) for number in range(50)])
        publish(running.url, "orders.at", ["no json"])
        publish(running.url, "invoices", ["x"])
        yield running


def test_the_columns_of_a_record(spark: SparkSession, broker: Broker) -> None:
    """Found by Spark without register(): nothing here has told it of the format."""
    read = spark.read.format("warrenmq").option("url", broker.url).option("stream", "orders.de").load()
    assert read.columns[:7] == ["key", "value", "stream", "partition", "offset", "timestamp", "headers"]
    rows = read.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(100))
    first = rows[0]
    assert bytes(first.key) == b"orders.de"
    assert json.loads(bytes(first.value)) == {"id": 0, "price": 0.0, "country": "DE"}
    assert (first.stream, first.partition, first.timestamp, first.exchange) == ("orders.de", 0, None, "")
    assert (first.routing_key, first.content_type, first.priority) == ("orders.de", "application/json", 4)
    assert (first.message_id, first.correlation_id) == ("m", None)
    assert {header.key: bytes(header.value) for header in first.headers} == {
        "tenant": b"acme",
        "n": b"3",
        "deep": b'{"a": [1]}',
        "raw": b"\xff",
    }


def ids(read: DataFrame) -> list[tuple[str, int]]:
    return sorted((row.stream, row.offset) for row in read.select("stream", "offset").collect())


def test_ranges_by_offsets_and_several_streams(spark: SparkSession, broker: Broker) -> None:
    read = streams(
        spark,
        broker.url,
        ["orders.de", "orders.at"],
        startingOffsets='{"orders.de": 90, "orders.at": 10}',
        endingOffsets='{"orders.de": "latest", "orders.at": 13}',
        partitions=5,
    )
    assert read.rdd.getNumPartitions() == 5
    assert ids(read) == [("orders.at", at) for at in range(10, 13)] + [("orders.de", at) for at in range(90, 100)]
    assert streams(spark, broker.url, "orders.at", startingOffsets="latest").count() == 0


def test_a_pattern_finds_streams(spark: SparkSession, broker: Broker) -> None:
    read = (
        spark.read.format("warrenmq")
        .options(url=broker.url, streamPattern=r"orders\..*", httpUrl=broker.http_url, columns="stream,offset")
        .load()
    )
    assert dict(read.groupBy("stream").count().collect()) == {"orders.de": 100, "orders.at": 51}


def test_json_is_typed_and_filtered_at_the_source(spark: SparkSession, broker: Broker) -> None:
    read = streams(
        spark,
        broker.url,
        ["orders.de", "orders.at"],
        payload="json",
        schema="id bigint, price double, country string",
        filter="value.country = 'DE' and header.tenant = 'acme' and value.id >= 98",
        columns=["offset", "value"],
    )
    assert [tuple(row) for row in read.select("offset", "value.*").orderBy("offset").collect()] == [
        (98, 98, 49.0, "DE"),
        (99, 99, 49.5, "DE"),
    ]
    broken = streams(
        spark, broker.url, "orders.at", payload="json", schema="id bigint", startingOffsets='{"orders.at": 49}'
    )
    assert [row.value and row.value.id for row in broken.orderBy("offset").collect()] == [49, None]


def test_errors_reach_the_user_in_words(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(Exception, match="no option `startingofsets`: there are url, urlEnv"):
        streams(spark, broker.url, "orders.de", startingOfsets="earliest")
    with pytest.raises(Exception, match="there is no stream 'nothing'"):
        streams(spark, broker.url, "nothing").count()


def test_the_event_log_in_two_lines(spark: SparkSession, tmp_path) -> None:
    with Broker(trace="all", data_dir=tmp_path) as broker:
        with channel_to(broker.url) as channel:
            channel.queue_declare("jobs")
            channel.publish("", "jobs", "one", client.Properties(message_id="m1")).result()
        happened = _events_of(spark, broker.url)
        assert {"published", "enqueued"} <= {row.kind_name for row in happened}
        enqueued = next(row for row in happened if row.kind_name == "enqueued")
        assert (enqueued.queue, enqueued.kind, enqueued.message_id) == ("jobs", event_schema.ENQUEUED, "m1")


def _events_of(spark: SparkSession, url: str) -> list:
    """The event log is written some moments after what happened."""
    for _ in range(100):
        with channel_to(url) as channel:
            try:
                count = channel.queue_declare(event_schema.STREAM_NAME, passive=True).message_count
            except client.NotFound:
                count = 0
        if count:
            rows = events(spark, url, filter="message_id = 'm1'").collect()
            if rows:
                return rows
        threading.Event().wait(0.1)
    pytest.fail("no event came within 10 s")


def test_columns_are_left_out_at_the_source(spark: SparkSession, broker: Broker) -> None:
    rows = Rows()
    for number in range(1000):
        rows.add_row(event_schema.Event(time=number, kind=event_schema.ACKED, uid=number, queue=f"q{number % 2}"))
    publish(broker.url, "warren.events", [encode(rows)] * 3)
    read = events(spark, broker.url, columns=["queue", "kind"])
    assert read.columns == ["queue", "kind"]
    assert dict(read.groupBy("queue").count().collect()) == {"q0": 1500, "q1": 1500}
    assert read.select("kind").distinct().collect() == [(event_schema.ACKED,)]


def test_priorities_of_events_of_both_versions(spark: SparkSession) -> None:
    rows = Rows()
    for number in range(1, 7):
        priority = number if number > 2 else None
        rows.add_row(event_schema.Event(time=number, kind=event_schema.ACKED, uid=number, priority=priority))
    first_version = (FIRST_VERSION / "batch.arrow").read_bytes()
    with Broker() as running:
        publish(running.url, "warren.events", [first_version, encode(rows), first_version])
        read = events(spark, running.url)
        assert dict(read.dtypes)["priority"] == "int"
        counted = {row.priority: row["count"] for row in read.groupBy("priority").count().collect()}
        assert counted == {None: 2 * 6 + 2, 3: 1, 4: 1, 5: 1, 6: 1}
        urgent = events(spark, running.url, filter="priority >= 5", columns=["uid", "priority"])
        assert sorted(urgent.collect()) == [(5, 5), (6, 6)]


def test_a_classic_queue_is_drained_and_acked_after_the_work(spark: SparkSession, broker: Broker) -> None:
    with channel_to(broker.url) as channel:
        channel.queue_declare("jobs", durable=True)
        for number in range(25):
            channel.publish("", "jobs", str(number), client.Properties(headers={"n": number}))
        channel.wait_for_confirms()
    taken: list[int] = []

    def fail(frame: DataFrame, number: int) -> None:
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        drain(spark, broker.url, "jobs", fail, max_records=10, wait=0.3)

    def work(frame: DataFrame, number: int) -> None:
        taken.extend(int(bytes(row.value)) for row in frame.collect())

    assert drain(spark, broker.url, "jobs", work, max_records=10, max_batches=2, wait=0.3) == 20
    assert drain(spark, broker.url, "jobs", work, max_records=10, wait=0.3, columns=["value", "redelivered"]) == 5
    assert sorted(taken) == list(range(25))
    assert drain(spark, broker.url, "jobs", work, wait=0.1) == 0
