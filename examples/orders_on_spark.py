"""Orders come as JSON by a stream, Spark adds them up by country, and the totals are published back.

    pip install 'warrenmq[spark]'
    warren serve
    python examples/orders_on_spark.py [--url URL] [--orders 1000] [--checkpoint DIR]

Run it again with the same checkpoint: only the new orders are read, and the totals go on from where they were. If it is
killed in the middle it goes on as well, and nothing is counted or published twice.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from typing import TYPE_CHECKING

from warrenmq import client
from warrenmq.pipeline import streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = "orders"
TOTALS = "orders.totals"
SCHEMA = "id bigint, country string, price decimal(10, 2)"
COUNTRIES = ("AT", "CH", "DE", "FR")


def place_orders(url: str, count: int, seed: int = 7) -> None:
    """What a shop does all day: publish orders to a stream."""
    draw = random.Random(seed)
    with client.connect(url) as connection:
        channel = connection.channel()
        channel.queue_declare(ORDERS, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_select()
        for number in range(count):
            order = {"id": number, "country": draw.choice(COUNTRIES), "price": draw.randrange(100, 10_000) / 100}
            channel.publish("", ORDERS, json.dumps(order), client.Properties(content_type="application/json"))
        channel.wait_for_confirms()


def totals_of(orders: DataFrame) -> DataFrame:
    """How many orders came from each country, and what they are worth."""
    from pyspark.sql import functions

    return orders.groupBy("value.country").agg(
        functions.count("*").alias("orders"), functions.sum("value.price").alias("worth")
    )


def publish_totals(spark: SparkSession, url: str, checkpoint: str) -> None:
    """Read what is new, and publish the totals after each batch; ends when all that is there has been read."""
    orders = streams(
        spark, url, ORDERS, streaming=True, payload="json", schema=SCHEMA, startingOffsets="earliest",
        columns=["value"], maxRecordsPerBatch=100_000,
    )  # fmt: skip
    query = (
        totals_of(orders)
        .writeStream.format("warrenmq")
        .outputMode("complete")
        .option("url", url)
        .option("routingKey", TOTALS)
        .option("declare", "stream")  # made with deduplication: a batch that is written again does not double
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def latest_totals(spark: SparkSession, url: str) -> dict[str, tuple[int, str]]:
    """The last word on each country."""
    from pyspark.sql import functions

    totals = streams(spark, url, TOTALS, payload="json", schema="country string, orders bigint, worth string")
    last = totals.groupBy("value.country").agg(functions.max_by("value", "offset").alias("last"))
    return {row.country: (row.last.orders, row.last.worth) for row in last.collect()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/")
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--checkpoint", help="where Spark keeps how far it is (a folder of its own if not given)")
    arguments = parser.parse_args()

    from warrenmq.pipeline.spark.session import make_session

    place_orders(arguments.url, arguments.orders)
    spark = make_session("local[*]", "orders")
    try:
        publish_totals(spark, arguments.url, arguments.checkpoint or tempfile.mkdtemp(prefix="orders-"))
        for country, (count, worth) in sorted(latest_totals(spark, arguments.url).items()):
            print(f"{country}: {count} orders, {worth} in all")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
