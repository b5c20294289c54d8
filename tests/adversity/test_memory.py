"""What clients make the broker hold is what its metrics say: the sum by kind is compared with the process's memory.

A broker in a process of its own is loaded with much of one kind. Its resident memory and the sum must grow alike: the
sum may neither miss what is there nor invent what is not.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import warrenmq
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire import WireConnection
from tests.support.wire_format import BODY, HEADER, METHOD, pack_frame, pack_method, pack_publish

MIB = 1024 * 1024
PIECE = 128_000
# The sum is this much of what the resident memory grew by. The estimates were measured on one machine, compiled; the
# allocator rounds up, and memory that was free before is used first.
LEAST, MOST = 0.6, 1.5
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


class Measured(BrokerProcess):
    """A broker that keeps everything in memory and never raises the alarm."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Path("none"), {"WARREN_MEMORY_LIMIT": "0"}, folder / "broker.log", "0")
        self.clients = ExitStack()

    def metrics(self) -> dict[str, int]:
        """Memory by kind, and what the process takes."""
        found = re.search(r"HTTP on (http://[^ ]+): ", self.log())
        assert found
        with urllib.request.urlopen(found[1] + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        sizes = {kind: int(size) for kind, size in re.findall(r'warren_memory_bytes\{kind="(\w+)"\} (\d+)', text)}
        resident = re.search(r"^process_resident_memory_bytes (\d+)$", text, re.MULTILINE)
        assert resident
        return sizes | {"resident": int(resident[1])}

    def client(self) -> WireConnection:
        client = self.clients.enter_context(WireConnection(self.address)).open()
        client.channel()
        return client


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Measured]:
    with Measured(tmp_path) as broker:
        broker.ready()
        wait_until(lambda: "HTTP on" in broker.log(), "HTTP")
        with broker.clients:
            client = broker.client()  # so that all code has run once
            client.send("queue.declare", 1, queue="first")
            client.expect("queue.declare-ok", 1)
            client.send_bytes(publishes(100, 1000, routing_key="first"))
            client.send("queue.purge", 1, queue="first")
            client.expect("queue.purge-ok", 1)
            broker.metrics()
            yield broker


def publishes(count: int, size: int, **arguments: Any) -> bytes:
    return pack_publish(1, b"x" * size, None, **arguments) * count


def methods(name: str, count: int, **arguments: Callable[[int], str]) -> bytes:
    """This method many times; each argument is a function of its number."""
    return b"".join(
        pack_frame(METHOD, 1, pack_method(name, no_wait=True, **{key: of(n) for key, of in arguments.items()}))
        for n in range(count)
    )


def finish(client: WireConnection, number: int = 2) -> None:
    """Wait until all that was sent has been read."""
    client.channel(number)


def require_growth(broker: Measured, before: dict[str, int], kind: str, at_least: int, least: float = LEAST) -> None:
    """The memory of this kind has grown, no other has by much, and all of it together as the process has."""
    after = broker.metrics()
    growth = {name: after[name] - before[name] for name in after}
    resident = growth.pop("resident")
    assert growth[kind] >= at_least, growth
    assert growth[kind] >= 0.9 * sum(growth.values()), growth
    assert least * resident <= sum(growth.values()) <= MOST * resident, (resident, growth)


def test_bodies_in_transit(broker: Measured) -> None:
    before = broker.metrics()
    for _ in range(5):
        client = broker.client()
        header = b"\x00\x3c\x00\x00" + (50 * MIB).to_bytes(8, "big") + b"\x00\x00"
        client.send_bytes(
            pack_frame(METHOD, 1, pack_method("basic.publish", routing_key="q"))
            + pack_frame(HEADER, 1, header)
            + pack_frame(BODY, 1, b"x" * PIECE) * (8 * MIB // PIECE)
        )
    wait_until(lambda: broker.metrics()["bodies_in_transit"] >= 39 * MIB)
    require_growth(broker, before, "bodies_in_transit", 39 * MIB)


def test_headers_in_transit(broker: Measured) -> None:
    client = broker.client()
    for number in range(2, 302):
        client.channel(number)
    before = broker.metrics()
    table = b"\x04textS" + (100_000).to_bytes(4, "big") + b"x" * 100_000
    header = b"\x00\x3c\x00\x00" + (1000).to_bytes(8, "big") + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    for number in range(2, 302):
        publish = pack_frame(METHOD, number, pack_method("basic.publish", routing_key="q"))
        client.send_bytes(publish + pack_frame(HEADER, number, header))
    finish(client, 1000)
    require_growth(broker, before, "bodies_in_transit", 300 * 100_000)


def test_transactions(broker: Measured) -> None:
    client = broker.client()
    client.send("tx.select", 1)
    client.expect("tx.select-ok", 1)
    before = broker.metrics()
    client.send_bytes(publishes(20_000, 2000, routing_key="first"))
    finish(client)
    require_growth(broker, before, "transactions", 40_000_000)


@pytest.mark.parametrize("queues", [1, 10])
def test_messages(broker: Measured, queues: int) -> None:
    client = broker.client()
    client.send_bytes(
        methods("queue.declare", queues, queue=lambda n: f"q{n}")
        + methods("queue.bind", queues, queue=lambda n: f"q{n}", exchange=lambda _: "amq.fanout")
    )
    finish(client)
    before = broker.metrics()
    client.send_bytes(publishes(4_000, 10_000, exchange="amq.fanout"))
    finish(client, 3)
    require_growth(broker, before, "messages", 40_000_000)


def test_history(broker: Measured) -> None:
    client = broker.client()
    arguments = {"x-recent-history-length": 4_000}
    client.send("exchange.declare", 1, exchange="h", type="x-recent-history", arguments=arguments)
    client.expect("exchange.declare-ok", 1)
    before = broker.metrics()
    client.send_bytes(publishes(4_000, 10_000, exchange="h"))
    finish(client)
    require_growth(broker, before, "history", 40_000_000)


def test_unacked(broker: Measured) -> None:
    client = broker.client()
    before = broker.metrics()
    client.send_bytes(publishes(4_000, 10_000, routing_key="first"))
    client.send("basic.consume", 1, queue="first", consumer_tag="c")
    client.expect("basic.consume-ok", 1)
    for _ in range(4_000):
        client.read_content(client.expect("basic.deliver", 1))
    require_growth(broker, before, "unacked", 40_000_000)


def test_outboxes(broker: Measured) -> None:
    """Clients that fetch much and read nothing; the system's buffers take some of it."""
    readers = [broker.client() for _ in range(8)]
    before = broker.metrics()
    for reader in readers:
        reader.send_bytes(publishes(100, 120_000, routing_key="first"))
        reader.send_bytes(pack_frame(METHOD, 1, pack_method("basic.get", queue="first", no_ack=True)) * 100)
    wait_until(lambda: broker.metrics()["outboxes"] >= 30 * MIB and broker.metrics()["messages"] == 0)
    # Uncompiled, output is joined to one copy, and the bodies that it was made of leave holes.
    require_growth(broker, before, "outboxes", 30 * MIB, least=LEAST if warrenmq.COMPILED else 0.4)


@pytest.mark.parametrize("length", [10, 200])
def test_routes(broker: Measured, length: int) -> None:
    client = broker.client()
    before = broker.metrics()
    keys = (f"{number:0{length}}" for number in range(40_000))
    client.send_bytes(b"".join(pack_publish(1, b"", None, exchange="amq.topic", routing_key=key) for key in keys))
    finish(client)
    require_growth(broker, before, "routes", 15_000_000)


def test_definitions(broker: Measured) -> None:
    client = broker.client()
    before = broker.metrics()
    client.send_bytes(
        methods("queue.declare", 10_000, queue=lambda n: f"queue {n}")
        + methods(
            "queue.bind",
            10_000,
            queue=lambda n: f"queue {n}",
            exchange=lambda _: "amq.topic",
            routing_key=lambda n: f"key.{n}.#",
        )
        + methods("basic.consume", 10_000, queue=lambda n: f"queue {n}", consumer_tag=lambda n: f"tag {n}")
    )
    finish(client)
    require_growth(broker, before, "definitions", 35_000_000)


def test_definitions_with_long_arguments(broker: Measured) -> None:
    client = broker.client()
    before = broker.metrics()
    arguments = {f"x-{number}": f"a value {number}" for number in range(1000)}
    declare = (pack_method("queue.declare", queue=f"q{n}", no_wait=True, arguments=arguments) for n in range(200))
    client.send_bytes(b"".join(pack_frame(METHOD, 1, payload) for payload in declare))
    finish(client)
    require_growth(broker, before, "definitions", 20_000_000)


def test_connections_and_channels(broker: Measured) -> None:
    before = broker.metrics()
    for _ in range(10):
        client = broker.client()
        client.send_bytes(b"".join(pack_frame(METHOD, n, pack_method("channel.open")) for n in range(2, 2001)))
        client.expect("channel.open-ok", 2000)
    for _ in range(200):
        broker.client()
    require_growth(broker, before, "definitions", 15_000_000)


def test_ids_that_deduplication_remembers(broker: Measured) -> None:
    client = broker.client()
    client.send("queue.declare", 1, queue="q", arguments={"x-message-deduplication": True, "x-cache-size": 1_000_000})
    client.expect("queue.declare-ok", 1)
    before = broker.metrics()
    for begin in range(0, 100_000, 5_000):
        client.send_bytes(
            b"".join(
                pack_publish(1, b"", {"headers": {"x-deduplication-header": f"{n}"}}, routing_key="q")
                for n in range(begin, begin + 5_000)
            )
        )
        client.send("queue.purge", 1, queue="q")
        client.expect("queue.purge-ok", 1)
    require_growth(broker, before, "deduplication", 10_000_000)
