"""kill -9 of the broker and of the client while messages move from queue to queue: each arrives exactly once.

The client is examples/exactly_once.py, and the same on asyncio: what a transaction acks in one queue it publishes to
another. The victim of each round is chosen at random, after a random number of messages; a broker is started again on
its folder, behind the same address, so that a client that lives reconnects.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversity.test_kill import SMALL
from tests.support.breaker import Breaker
from tests.support.crash import effort
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from warrenmq import client

ROOT = Path(__file__).resolve().parents[2]
ORDERS = 1500
BATCH = 20
PERSISTENT = client.Properties(delivery_mode=2)

AIO_PROGRAM = """
import asyncio, sys
from warrenmq.client import ConnectionLost, Properties, aio

async def main(url, batch):
    async with aio.connect(url, attempts=None, wait=0.2) as connection:
        async with aio.PullConsumer(connection, "orders", prefetch=2 * batch) as puller:
            while True:
                orders = await puller.pull(batch)
                if not orders:
                    continue
                try:
                    async with puller.transaction(orders) as channel:
                        for order in orders:
                            await asyncio.sleep(0.002)
                            body = b"invoice for " + order.body
                            await channel.publish("", "invoices", body, Properties(delivery_mode=2))
                except ConnectionLost:
                    pass

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


class Site:
    """A broker process and a client process, each of which can be killed; the breaker is the broker's address."""

    def __init__(self, folder: Path, face: str) -> None:
        self._folder = folder
        self._face = face
        self.broker = BrokerProcess(folder, SMALL).ready()
        self.breaker = Breaker(self._url)
        self.breaker.__enter__()
        self._client: subprocess.Popen[bytes] | None = None

    @property
    def _url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.broker.address.port}/%2F"

    def connect(self) -> client.Connection:
        return client.connect(self._url)

    def start_client(self) -> None:
        command = [sys.executable, str(ROOT / "examples" / "exactly_once.py")]
        command += ["--url", self.breaker.url, "--batch", str(BATCH)]
        if self._face == "aio":
            command = [sys.executable, "-c", AIO_PROGRAM, self.breaker.url, str(BATCH)]
        self._client = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill_client(self) -> None:
        if self._client is not None:
            self._client.kill()
            self._client.wait()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker = BrokerProcess(self._folder, SMALL).ready()
        self.breaker.aim(self._url)

    def close(self) -> None:
        self.kill_client()
        self.breaker.close()
        self.broker.__exit__(None, None, None)


@pytest.fixture(params=["blocking", "aio"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "data", request.param)
    yield made
    made.close()


def wait_for_invoices(site: Site, more: int) -> None:
    """Wait until there are that many more, or all."""
    with site.connect() as connection:
        channel = connection.channel()
        wanted = min(channel.message_count("invoices") + more, ORDERS)
        wait_until(lambda: channel.message_count("invoices") >= wanted, "messages move", interval=0.001)


@pytest.mark.parametrize("seed", range(effort(1)))
def test_each_message_moves_exactly_once(site: Site, seed: int) -> None:
    choice = random.Random(seed)
    with site.connect() as connection:
        channel = connection.channel()
        for queue in ("orders", "invoices"):
            channel.queue_declare(queue, durable=True)
        channel.confirm_select()
        for number in range(ORDERS):
            channel.publish("", "orders", b"%d" % number, PERSISTENT)
        channel.wait_for_confirms()
    site.start_client()
    victims = ["broker", "client", "both"] * effort(2)
    choice.shuffle(victims)
    for victim in victims:
        wait_for_invoices(site, choice.randrange(5, 150))
        if victim != "broker":
            site.kill_client()
        if victim != "client":
            site.kill_broker()
        if victim != "broker":
            site.start_client()
    wait_for_invoices(site, ORDERS)
    with site.connect() as connection:
        channel = connection.channel()
        wait_until(lambda: channel.message_count("orders") == 0, "all have moved")
        site.kill_client()
        found = Counter(delivery.body for delivery in channel.consume("invoices", auto_ack=True, timeout=1))
        assert channel.get("orders") is None
    assert found == {b"invoice for %d" % number: 1 for number in range(ORDERS)}, f"seed {seed}"
