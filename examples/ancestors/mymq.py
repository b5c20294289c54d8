"""MyMQ's walk-through: topics over several queues, three producers, push and pull, filters, retries, a crash.

    python examples/ancestors/mymq.py

The program runs brokers of its own. A slave (setSync_Time, Synchronizer) is not available yet.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import warrenmq
from warrenmq import client

TOPIC = "topic"
QUEUES = 4


def request_queue(connection: client.Connection) -> list[str]:
    """SyscProducerFactory.RequestQueue: queues for a topic; LoadBalancer.balance is the type of the exchange."""
    channel = connection.channel()
    channel.exchange_declare(TOPIC, "x-least-loaded", durable=True)
    queues = [f"{TOPIC}.{number}" for number in range(QUEUES)]
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, TOPIC)
    channel.close()
    print("queues of the topic:", ", ".join(queues))
    return queues


def produce(connection: client.Connection, queues: list[str]) -> dict[str, int]:
    """Five messages already wait in the first queue. Return the messages in each after 15 more."""
    channel = connection.channel()
    with client.SyncProducer(connection, TOPIC, retries=16) as producer:  # setReTry_Time(16)
        producer.send_many(client.OutgoingMessage(f"first {number}", None, queues[0], "") for number in range(5))
        for number in range(15):
            producer.send(f"message {number}")
    counts = {queue: channel.message_count(queue) for queue in queues}
    channel.close()
    print("sent to the least loaded:", counts)
    return counts


def produce_delayed(connection: client.Connection) -> str:
    """DelaySyscProducerFactory: the broker waits, not the producer."""
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).queue
    with client.SyncProducer(connection, routing_key=queue) as producer:
        producer.send(b"delayed", delay=0.3)  # setDelay_Time(300)
        producer.send(b"at once")
    bodies: list[str] = []
    for delivery in channel.consume(queue, auto_ack=True, timeout=10):
        bodies.append(delivery.body.decode())
        if len(bodies) == 2:
            break
    channel.close()
    print("consumed:", ", then ".join(bodies))
    return bodies[1]


def produce_one_way(connection: client.Connection) -> str:
    """UnidirectionalProducerFactory: send without waiting for an answer."""
    with client.OneWayProducer(connection, TOPIC) as producer:
        outcome = producer.send(b"one way").outcome
    print("one way:", outcome)
    return outcome


def push(connection: client.Connection, queue: str, rate: float = 50.0) -> list[str]:
    """Broker.push with setPush_Time: the broker sends at most `rate` messages per second."""
    channel = connection.channel()
    count = channel.message_count(queue)
    bodies: list[str] = []
    for delivery in channel.consume(queue, arguments={"x-rate": rate}, timeout=10):
        bodies.append(delivery.body.decode())
        delivery.ack()
        if len(bodies) == count:
            break
    channel.close()
    print(f"pushed, at most {rate:g} per second:", ", ".join(bodies))
    return bodies


def pull(connection: client.Connection, queue: str) -> list[str]:
    """ConsumerFactory.Pull: a batch on request."""
    with client.PullConsumer(connection, queue) as consumer:
        batch = consumer.pull(100)
        batch.ack_all()
    bodies = [delivery.body.decode() for delivery in batch]
    print("pulled:", ", ".join(bodies))
    return bodies


def filter_by_consumer(connection: client.Connection) -> dict[str, int]:
    """Topic.addConsumer and Filter: a message names its consumers. Return the messages for each."""
    channel = connection.channel()
    channel.confirm_select()
    channel.exchange_declare("consumers", "direct")
    consumers = ["127.0.0.1:8888", "127.0.0.1:8889", "127.0.0.1:8890"]
    for consumer in consumers:
        channel.queue_declare(consumer)
        channel.queue_bind(consumer, "consumers", consumer)
    two = client.Properties(headers={"CC": consumers[1:2]})
    channel.publish("consumers", consumers[0], b"for two", two, mandatory=True).result()
    channel.publish("consumers", consumers[0], b"for one", mandatory=True).result()
    counts = {consumer: channel.message_count(consumer) for consumer in consumers}
    channel.close()
    print("filtered:", counts)
    return counts


def retry(connection: client.Connection) -> int:
    """Three attempts, then the dead-letter queue, where MyMQ has a "todo". Return the number of attempts."""
    channel = connection.channel()
    arguments = {"x-retry-max": 2, "x-retry-delay": 20, "x-retry-backoff": "fixed"}
    channel.queue_declare("orders", durable=True, arguments=arguments)
    channel.queue_declare("orders.dead", durable=True)
    attempts: list[int] = []

    def fail(delivery: client.Delivery) -> None:
        attempts.append(delivery.delivery_tag)
        delivery.nack()

    channel.consume("orders", fail)
    with client.SyncProducer(connection, routing_key="orders") as producer:
        producer.send(b"cannot be done")
    for dead in connection.channel().consume("orders.dead", timeout=10):
        dead.ack()
        reason = dead.headers["x-death"][0]["reason"]
        print(f"dead letter after {len(attempts)} attempts: {dead.body.decode()}, {reason}")
        break
    channel.close()
    return len(attempts)


@contextmanager
def serve(folder: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `warren serve` (setStartPersistence, setStore_Time) as a process; return it and its URL."""
    command = [sys.executable, "-m", "warrenmq", "serve", "--data-dir", folder, "--durability", "fsync"]
    command += ["--port", "0", "--http-port", "off", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = re.search(r"amqp://\S+", process.stdout.readline())
        if ready is None:
            raise RuntimeError("the broker did not start")
        yield process, ready[0].replace("amqp://", "amqp://guest:guest@")
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def crash_and_recover() -> list[str]:
    """Broker.recover: the process is killed, and started again on its folder. Return the messages that it has."""
    with tempfile.TemporaryDirectory(prefix="mymq-") as folder:
        with serve(folder) as (process, url), client.connect(url) as connection:
            connection.channel().queue_declare("stored", durable=True)
            with client.SyncProducer(connection, routing_key="stored") as producer:
                producer.send_many(str(number) for number in range(100))
            os.kill(process.pid, signal.SIGKILL)
        with serve(folder) as (_, url), client.connect(url) as connection:
            bodies = []
            channel = connection.channel()
            while (delivery := channel.get("stored", auto_ack=True)) is not None:
                bodies.append(delivery.body.decode())
    print(f"killed and started again: {len(bodies)} messages, {bodies[0]} to {bodies[-1]}")
    return bodies


def main() -> None:
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        queues = request_queue(connection)
        produce(connection, queues)
        produce_delayed(connection)
        produce_one_way(connection)
        push(connection, queues[0])
        pull(connection, queues[1])
        filter_by_consumer(connection)
        retry(connection)
    crash_and_recover()


if __name__ == "__main__":
    main()
