"""A topic with a changing number of workers: watch the partitions move, and each customer's orders stay in order.

    python examples/topic.py [--url URL] [--orders 200]

Without a URL it starts a broker of its own. Workers join one by one, then leave; in the end it checks that every order
was handled once, in the order of its customer.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from contextlib import ExitStack

import warrenmq
from warrenmq import client

TOPIC, GROUP, PARTITIONS, CUSTOMERS = "example-orders", "billing", 8, 20


class Book:
    """What the workers have handled, by customer."""

    def __init__(self) -> None:
        self.handled: dict[str, list[int]] = defaultdict(list)
        self._changed = threading.Condition()
        self._count = 0

    def write(self, delivery: client.Delivery) -> None:
        with self._changed:
            self.handled[delivery.routing_key].append(int(delivery.body))
            self._count += 1
            self._changed.notify_all()
        delivery.ack()

    def wait_for(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count, timeout=60):
                raise SystemExit(f"only {self._count} of {count} orders were handled")


def are_shared(workers: list[client.TopicConsumer]) -> bool:
    """Whether the workers know each other, and each has its share of the partitions."""
    shares = sorted(len(each.partitions) for each in workers)
    know_each_other = all(len(each.members) == len(workers) for each in workers)
    return know_each_other and sum(shares) == PARTITIONS and shares[-1] - shares[0] <= 1


def run(url: str, orders: int) -> None:
    book = Book()
    with ExitStack() as stack:
        connections = [stack.enter_context(client.connect(url)) for _ in range(3)]
        topic = connections[0].channel().declare_topic(TOPIC, PARTITIONS, groups=[GROUP])
        sent = 0

        def send_and_show(workers: list[client.TopicConsumer]) -> None:
            nonlocal sent
            while not are_shared(workers):
                time.sleep(0.01)
            for number in range(sent, sent + orders):
                topic.publish(str(number), key=f"customer {number % CUSTOMERS}")
            topic.channel.wait_for_confirms()
            sent += orders
            book.wait_for(sent)
            print(f"{sent} orders handled; partitions of each worker: {[each.partitions for each in workers]}")

        workers: list[client.TopicConsumer] = []
        for connection in connections:
            declared = connection.channel().declare_topic(TOPIC, PARTITIONS)
            workers.append(declared.consume(book.write, group=GROUP, check_interval=0.2))
            send_and_show(workers)
        while len(workers) > 1:
            workers.pop().close()
            send_and_show(workers)
        workers.pop().close()
        topic.delete_group(GROUP)
        topic.delete()
    if any(numbers != sorted(set(numbers)) for numbers in book.handled.values()):
        raise SystemExit("a customer's orders were handled twice or out of order")
    print(f"all {sent} orders were handled once, in the order of each customer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a running broker")
    parser.add_argument("--orders", type=int, default=200, help="per step")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = arguments.url or stack.enter_context(warrenmq.Broker()).url
        run(url, arguments.orders)


if __name__ == "__main__":
    main()
