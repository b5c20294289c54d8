"""A small shop that runs until Ctrl-C: orders come in, consumers pack, bill and write mails. Something to look at.

    python examples/shop.py [--url URL] [--rate 40] [--seconds 0] [--trouble 90]

After `--trouble` seconds things go wrong, as they do: one of the two packers takes messages and settles none of them,
the mailer becomes slow, and a few orders are so broken that billing requeues them again and again. `--trouble 0`
means never.
"""

from __future__ import annotations

import argparse
import random
import signal
import threading
import time
from types import FrameType

from warrenmq import client

EXCHANGE = "shop"
QUEUES = {"packing": "order.paid.#", "billing": "order.#", "mail": "order.created.*"}
CONSUMERS = {"packer-1": "packing", "packer-2": "packing", "clerk": "billing", "mailer": "mail"}
WORK_SECONDS = {"packing": 0.004, "billing": 0.002, "mail": 0.006}
REGIONS = ("eu", "us", "jp", "br")
BROKEN = "order.paid.broken"
BROKEN_ORDERS = 3


class Shop:
    """One connection, a publisher and its consumers; trouble begins at this time of the monotonic clock."""

    def __init__(self, connection: client.Connection, rate: float, trouble_at: float) -> None:
        self.connection = connection
        self.rate = rate
        self.trouble_at = trouble_at
        self.closing = threading.Event()

    def open(self) -> None:
        channel = self.connection.channel()
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        for queue, key in QUEUES.items():
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, EXCHANGE, key)
        channel.close()
        for name, queue in CONSUMERS.items():
            self._hire(name, queue)

    @property
    def is_troubled(self) -> bool:
        return time.monotonic() >= self.trouble_at

    def _hire(self, name: str, queue: str) -> None:
        channel = self.connection.channel()
        channel.qos(prefetch_count=20)

        def work(delivery: client.Delivery) -> None:
            if name == "packer-2" and self.is_troubled:
                return  # takes it, and never says anything
            self.closing.wait(WORK_SECONDS[queue] * (12 if name == "mailer" and self.is_troubled else 1))
            is_broken = queue == "billing" and delivery.routing_key == BROKEN
            if self.closing.wait(0.1 if is_broken else 0):
                return  # what is not settled waits for the next consumer
            if is_broken:
                delivery.nack(requeue=True)
            else:
                delivery.ack()

        channel.consume(queue, work, consumer_tag=name)

    def sell(self) -> None:
        """Publish orders until the shop closes."""
        channel = self.connection.channel()
        chance = random.Random()
        broken = number = 0
        while not self.closing.wait(chance.expovariate(self.rate)):
            number += 1
            step = chance.choice(("created", "paid", "paid", "shipped"))
            key = f"order.{step}.{chance.choice(REGIONS)}"
            if self.is_troubled and broken < BROKEN_ORDERS:
                broken, key = broken + 1, BROKEN
            elif number % 50 == 0:
                key = "refund.asked"  # nobody listens to these
            properties = client.Properties(
                message_id=f"order-{number}", correlation_id=f"basket-{number // 4}", delivery_mode=2
            )
            channel.publish(EXCHANGE, key, b'{"order": %d}' % number, properties)


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/")
    wanted.add_argument("--rate", type=float, default=40.0, help="orders per second")
    wanted.add_argument("--seconds", type=float, default=0.0, help="close after this many seconds; 0: at Ctrl-C")
    wanted.add_argument("--trouble", type=float, default=90.0, help="when things go wrong; 0: never")
    flags = wanted.parse_args()
    with client.connect(flags.url, name="shop") as connection:
        shop = Shop(connection, flags.rate, time.monotonic() + flags.trouble if flags.trouble else float("inf"))

        def close(number: int, frame: FrameType | None) -> None:
            shop.closing.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, close)
        shop.open()
        print(f"the shop is open: {flags.rate:g} orders per second; Ctrl-C closes it", flush=True)
        if flags.seconds:
            threading.Timer(flags.seconds, shop.closing.set).start()
        shop.sell()
    print("the shop is closed")


if __name__ == "__main__":
    main()
