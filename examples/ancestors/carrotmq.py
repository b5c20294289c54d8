"""CarrotMQ's walk-through: publish with retry, transactions, the trace of a message, topic keys, recovery, analysis.

    python examples/ancestors/carrotmq.py [--analyze]

The program runs a broker of its own. `--analyze` ends with the analysis on Spark (`pip install 'warrenmq[spark,jre]'`).
CarrotMQ's DemoProducer and DemoConsumer are those of the Java broker: see java_broker.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import warrenmq
from warrenmq import client

# Binding key, routing key, whether they match: the test cases in CarrotMQ's routeTopic.
TOPIC_CASES = (
    ("aaa", "aaa", True),
    ("aaa.bbb", "aaa.bbb", True),
    ("aaa.bbb", "aaa.bbb.ccc", False),
    ("aaa.bbb", "aaa.ccc", False),
    ("aaa.bbb.ccc", "aaa.bbb.ccc", True),
    ("aaa.*", "aaa.bbb", True),
    ("aaa.*.bbb", "aaa.bbb.ccc", False),
    ("*.aaa.bbb", "aaa.bbb", False),
    ("#", "aaa.bbb.ccc", True),
    ("aaa.#", "aaa.bbb", True),
    ("aaa.#", "aaa.bbb.ccc", True),
    ("aaa.#.ccc", "aaa.ccc", True),
    ("aaa.#.ccc", "aaa.bbb.ccc", True),
    ("aaa.#.ccc", "aaa.aaa.bbb.ccc", True),
    ("#.ccc", "ccc", True),
    ("#.ccc", "aaa.bbb.ccc", True),
)


def publish_with_retry(connection: client.Connection) -> None:
    """basicPublishWithRetry: a count and an interval; also while the exchange or the binding does not exist yet."""
    with make_producer(connection, retries=2) as producer:
        result = producer.send(b"hello")
        print(f"{result.outcome} after {result.attempts} attempts: {result.error}")
    with make_producer(connection, retries=200) as producer, ThreadPoolExecutor(1) as background:
        sending = background.submit(producer.send, b"hello")
        channel = connection.channel()
        channel.queue_declare("testQueue", durable=True)
        channel.exchange_declare("testExchange", "direct", durable=True)
        channel.queue_bind("testQueue", "testExchange", "testKey")
        print(f"{sending.result().outcome} when the exchange is declared and the queue is bound")


def make_producer(connection: client.Connection, retries: int) -> client.SyncProducer:
    """Config.MAX_RETRIES and Config.RETRY_INTERVAL_SECONDS."""
    return client.SyncProducer(
        connection,
        "testExchange",
        "testKey",
        retries=retries,
        interval=0.05,
        backoff=1.0,
        retry_missing=True,
        retry_unroutable=True,
        raises=False,
    )


def consume_in_transactions(connection: client.Connection) -> list[bool]:
    """consumeAndHandleWithTransaction: process, commit or roll back. Return the `redelivered` flags."""
    channel = connection.channel()
    flags = []
    for delivery in channel.consume("testQueue", timeout=10):
        flags.append(delivery.redelivered)
        try:
            with channel.transaction():
                delivery.ack()
                channel.publish("", "results", b"done")
                process(delivery)
        except ValueError as error:
            print(f"rolled back: {error}")
            continue
        print(f"committed: {delivery.body.decode()}, redelivered={delivery.redelivered}")
        break
    channel.close()
    return flags


def process(delivery: client.Delivery) -> None:
    """processMessage: fail at the first attempt."""
    if not delivery.redelivered:
        raise ValueError("the first attempt fails")


def trace(connection: client.Connection, http_url: str) -> list[str]:
    """MessageProcessor, and MessageTracker.getMessageTrace("123"). Return the kinds of the events."""
    channel = connection.channel()
    channel.publish("", "results", b"Hello, world", client.Properties(message_id="123"))
    for delivery in channel.consume("results", timeout=10):
        delivery.ack()
        if delivery.properties.message_id == "123":
            break
    channel.close()
    kinds = [str(event["kind"]) for event in client.trace("123", http_url).events]
    print("trace of message 123:", ", ".join(kinds))
    return kinds


def match_topics(connection: client.Connection) -> int:
    """routeTopic: bind a queue for each case, publish, and compare. Return the number of cases."""
    channel = connection.channel()
    channel.confirm_select()
    for binding_key, routing_key, expected in TOPIC_CASES:
        channel.exchange_declare("topics", "topic", auto_delete=True)
        queue = channel.queue_declare(exclusive=True).queue
        channel.queue_bind(queue, "topics", binding_key)
        try:
            channel.publish("topics", routing_key, b"", mandatory=True).result()
            matches = True
        except client.Unroutable:
            matches = False
        if matches != expected:
            raise AssertionError(f"{binding_key} and {routing_key}: {matches}, expected {expected}")
        channel.queue_delete(queue)
    channel.close()
    print(f"{len(TOPIC_CASES)} topic keys match as in routeTopic")
    return len(TOPIC_CASES)


def store_and_collect(connection: client.Connection) -> None:
    """More than 2,000 records, fewer than half of them valid: what CarrotMQ's checkGC looks for."""
    channel = connection.channel()
    channel.queue_declare("stored", durable=True)
    with client.SyncProducer(connection, routing_key="stored") as producer:
        producer.send_many(str(number) for number in range(2_500))
    with client.PullConsumer(connection, "stored") as consumer:
        acked = 0
        while acked < 2_000:
            batch = consumer.pull(2_000 - acked)
            batch.ack_all()
            acked += len(batch)
    channel.close()
    print("stored 2500 messages, acked 2000")


def recover(connection: client.Connection) -> list[int]:
    """loadAllMessageFromQueue: the broker has restarted. Return the messages that it has."""
    channel = connection.channel()
    found = []
    while (delivery := channel.get("stored", auto_ack=True)) is not None:
        found.append(int(delivery.body))
    channel.close()
    print(f"after the restart: {len(found)} messages, {found[0]} to {found[-1]}")
    return found


def analyze(url: str) -> None:
    """MessageStreamAnalyzer: collect, process, analyze, show."""
    command = ["analyze", "--url", url, "--jobs", "throughput,flow"]
    print("warren", " ".join(command))
    subprocess.run([sys.executable, "-m", "warrenmq", *command], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="CarrotMQ's walk-through")
    parser.add_argument("--analyze", action="store_true", help="end with the analysis, which needs Spark")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carrotmq-") as folder:
        with (
            warrenmq.Broker(data_dir=folder, http=True, trace="all") as broker,
            client.connect(broker.url) as connection,
        ):
            publish_with_retry(connection)
            connection.channel().queue_declare("results")
            consume_in_transactions(connection)
            trace(connection, broker.http_url)
            match_topics(connection)
            store_and_collect(connection)
            if arguments.analyze:
                analyze(broker.url)
        with warrenmq.Broker(data_dir=folder) as broker, client.connect(broker.url) as connection:
            recover(connection)


if __name__ == "__main__":
    main()
