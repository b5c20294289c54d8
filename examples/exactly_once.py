"""An invoice for each order, exactly once: kill this program or the broker at any moment, and start it again.

    python examples/exactly_once.py [--url URL] [--batch 50] [--seconds 0.002] [--orders 0]

A batch of orders is taken from one queue, and its invoices are published to another, in one transaction: the broker
does both or neither. `--seconds` is what an invoice takes, and `--orders` publishes that many orders first.
"""

from __future__ import annotations

import argparse
import time

from warrenmq import client

ORDERS, INVOICES = "orders", "invoices"
PERSISTENT = client.Properties(delivery_mode=2)


def bill(order: bytes, seconds: float) -> bytes:
    time.sleep(seconds)
    return b"invoice for " + order


def sell(connection: client.Connection, count: int) -> None:
    with client.SyncProducer(connection, routing_key=ORDERS) as producer:
        producer.send_many(f"order {number}" for number in range(count))


def serve(connection: client.Connection, batch_size: int, seconds: float) -> None:
    """Write invoices until the connection is closed."""
    with client.PullConsumer(connection, ORDERS, prefetch=2 * batch_size) as puller:
        while True:
            orders = puller.pull(batch_size)
            if not orders:
                continue
            try:
                with puller.transaction(orders) as channel:
                    for order in orders:
                        channel.publish("", INVOICES, bill(order.body, seconds), PERSISTENT)
            except client.ConnectionLost:
                # Committed or not: then the orders come again.
                print("the connection was lost", flush=True)
            else:
                print(f"{len(orders)} invoices", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=0.002)
    parser.add_argument("--orders", type=int, default=0)
    options = parser.parse_args()
    with client.connect(options.url, attempts=None, wait=0.2) as connection:
        channel = connection.channel()
        for queue in (ORDERS, INVOICES):
            channel.queue_declare(queue, durable=True)
        sell(connection, options.orders)
        serve(connection, options.batch, options.seconds)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
