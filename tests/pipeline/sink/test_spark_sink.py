"""`df.write` and `df.writeStream` to a real broker: confirmed, and each row once, also if a batch is written again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.source.brokers import channel_to, declare_stream, publish
from tests.pipeline.source.queries import finish
from warrenmq import Broker
from warrenmq.pipeline import streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def bodies(spark: SparkSession, broker: Broker, name: str) -> list[str]:
    return sorted(bytes(row.value).decode() for row in streams(spark, broker.url, name, columns=["value"]).collect())


def test_rows_are_published_and_confirmed(spark: SparkSession, broker: Broker) -> None:
    with channel_to(broker.url) as channel:
        channel.exchange_declare("shop", "topic")
        channel.queue_declare("eu", durable=True)
        channel.queue_bind("eu", "shop", "order.eu.*")
    frame = spark.sql(
        "select cast(id as string) as value, concat('order.eu.', id % 2) as routing_key, "
        "map('tenant', 'acme') as headers, concat('m', id) as message_id from range(30)"
    )
    frame.write.format("warrenmq").mode("append").options(url=broker.url, exchange="shop").save()
    with channel_to(broker.url) as channel:
        found = [channel.get("eu", auto_ack=True) for _ in range(30)]
        assert channel.get("eu") is None
    assert sorted(int(delivery.body) for delivery in found if delivery) == list(range(30))
    one = next(delivery for delivery in found if delivery and delivery.body == b"7")
    assert (one.exchange, one.routing_key, one.headers["tenant"]) == ("shop", "order.eu.1", "acme")
    assert (one.properties.message_id, one.properties.delivery_mode) == ("m7", 2)


def test_rows_that_no_queue_takes_fail_the_write(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(3)
    with pytest.raises(Exception, match="the message reached no queue"):
        frame.write.format("warrenmq").mode("append").options(url=broker.url, routingKey="nowhere").save()
    options = {"url": broker.url, "routingKey": "nowhere", "mandatory": "false"}
    frame.write.format("warrenmq").mode("append").options(**options).save()


def test_a_batch_that_is_named_is_written_once(spark: SparkSession, broker: Broker) -> None:
    """As in foreachBatch, after a restart; the rows come in another order, from the same partitions."""
    options = {"url": broker.url, "routingKey": "named", "declare": "stream", "writerName": "w", "batchId": "4"}
    frame = spark.range(20, numPartitions=2)
    frame.write.format("warrenmq").mode("append").options(**options).save()
    again = frame.sortWithinPartitions("id", ascending=False)
    again.write.format("warrenmq").mode("append").options(**options).save()
    assert bodies(spark, broker, "named") == sorted(
        json.dumps({"id": number}, separators=(",", ":")) for number in range(20)
    )
    frame.write.format("warrenmq").mode("append").options(**options | {"batchId": "5"}).save()
    assert len(bodies(spark, broker, "named")) == 40


def test_a_micro_batch_that_is_retried_does_not_double(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """A batch was written but not committed, as when the driver dies at that moment: its commit is taken away."""
    publish(broker.url, "orders", [json.dumps({"id": number, "price": number % 7}) for number in range(60)])
    declare_stream(broker.url, "totals", **{"x-message-deduplication": True})

    def totals(source: DataFrame) -> DataFrame:
        return source.selectExpr("value.id % 5 as customer", "value.price as price").groupBy("customer").sum("price")

    def run() -> None:
        source = streams(
            spark,
            broker.url,
            "orders",
            streaming=True,
            payload="json",
            schema="id bigint, price bigint",
            startingOffsets="earliest",
            maxRecordsPerBatch=30,
        )
        writer = totals(source).writeStream.format("warrenmq").outputMode("complete")
        writer = writer.options(url=broker.url, routingKey="totals", checkpointLocation=str(tmp_path))
        finish(writer.trigger(availableNow=True).start)

    run()
    once = bodies(spark, broker, "totals")
    assert len(once) == 10  # two batches of five customers
    last = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    run()
    assert bodies(spark, broker, "totals") == once
