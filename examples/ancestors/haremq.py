"""HareMQ's joint debugging: one producer, two consumers, and an exchange that is fanout, then direct, then topic.

    python examples/ancestors/haremq.py [--url URL]

Without `--url` the program runs a broker of its own.
"""

from __future__ import annotations

import argparse

import warrenmq
from warrenmq import client

EXCHANGE = "exchange1"
BINDINGS = {"queue1": "queue1", "queue2": "news.music.#"}
RUNS = (("fanout", ""), ("direct", "queue1"), ("topic", "news.music.pop"))
MESSAGES = 10
END = b"end"


def declare(channel: client.Channel, exchange_type: str) -> None:
    """AMQP refuses to redeclare an exchange with another type, so the one of the last run is deleted."""
    channel.exchange_delete(EXCHANGE)
    channel.exchange_declare(EXCHANGE, exchange_type, durable=True)
    for queue, binding_key in BINDINGS.items():
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, EXCHANGE, binding_key)


def produce(channel: client.Channel, routing_key: str) -> None:
    """publish_client: the messages, then one to each queue by its name, which ends its consumer."""
    for number in range(MESSAGES):
        channel.publish(EXCHANGE, routing_key, f"hello {number}", client.Properties(message_id=str(number)))
    for queue in BINDINGS:
        channel.publish("", queue, END)


def consume(url: str, queue: str) -> list[str]:
    """consume_client: ack each message by its delivery tag, and cancel."""
    bodies = []
    with client.connect(url, name=f"consumer of {queue}") as connection:
        channel = connection.channel()
        consumer = channel.consume(queue, consumer_tag=f"consumer-{queue}", timeout=10)
        for delivery in consumer:
            delivery.ack()
            if delivery.body == END:
                break
            bodies.append(delivery.body.decode())
    return bodies


def run(url: str, exchange_type: str, routing_key: str) -> dict[str, list[str]]:
    """Return what each queue's consumer received."""
    with client.connect(url, name="producer") as connection:
        channel = connection.channel()
        declare(channel, exchange_type)
        produce(channel, routing_key)
        received = {queue: consume(url, queue) for queue in BINDINGS}
    counts = ", ".join(f"{queue} {len(bodies)}" for queue, bodies in received.items())
    print(f"{exchange_type:6} key={routing_key or '(none)':14} {counts}")
    return received


def count(url: str) -> tuple[int, int]:
    """getable_count and wait_ack_count: of three messages one is with a consumer. Return (ready, unacked)."""
    with client.connect(url) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        for number in range(3):
            channel.publish("", queue, str(number))
        unacked = [channel.get(queue)]
        ready = channel.message_count(queue)
        print(f"ready {ready}, unacked {len(unacked)}")
    return ready, len(unacked)


def walk(url: str) -> None:
    for exchange_type, routing_key in RUNS:
        run(url, exchange_type, routing_key)
    count(url)


def main() -> None:
    parser = argparse.ArgumentParser(description="HareMQ's walk-through")
    parser.add_argument("--url", help="of a running broker")
    arguments = parser.parse_args()
    if arguments.url:
        walk(arguments.url)
    else:
        with warrenmq.Broker() as broker:
            walk(broker.url)


if __name__ == "__main__":
    main()
