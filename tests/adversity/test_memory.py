"""What clients make the broker hold is what its metrics say: the sum by kind is compared with the process's memory.

A broker in a process of its own is loaded with much of one kind. The resident memory and the sum must grow alike:
neither may the sum miss what is there, nor invent what is not.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire import WireConnection
from tests.support.wire_format import BODY, HEADER, METHOD, pack_frame, pack_method, pack_publish

MIB = 1024 * 1024
PIECE = 128_000
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


class Measured(BrokerProcess):
    """A broker without a data folder and without limits, whose metrics are read."""

    def __init__(self, folder: Path) -> None:
        log_file = folder / "broker.log"
        super().__init__(Path("none"), {"WARREN_MEMORY_LIMIT": "0"}, log_file, "0")
        self.stack = ExitStack()

    def metrics(self) -> dict[str, int]:
        found = re.search(r"HTTP on (http://[^ ]+): ", self.log())
        assert found
        with urllib.request.urlopen(found[1] + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        kinds = re.findall(r'^warren_memory_bytes\{kind="(\w+)"\} (\d+)$', text, re.MULTILINE)
        resident = re.search(r"^process_resident_memory_bytes (\d+)$", text, re.MULTILINE)
        assert resident
        return {kind: int(size) for kind, size in kinds} | {"resident": int(resident[1])}

    def client(self) -> WireConnection:
        client = self.stack.enter_context(WireConnection(self.address)).open()
        client.channel()
        return client


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Measured]:
    with Measured(tmp_path) as broker:
        broker.ready()
        wait_until(lambda: "HTTP on" in broker.log())
        broker.metrics()  # what the first request loads
        with broker.stack:
            yield broker


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {kind: after[kind] - before[kind] for kind in before}


def require_honest(growth: dict[str, int], kind: str, at_least: int) -> None:
    print(kind, growth, growth["resident"] / max(1, growth[kind]))


def begin_body(client: WireConnection, size: int) -> None:
    header = b"\x00\x3c\x00\x00" + (size + 1).to_bytes(8, "big") + b"\x00\x00"
    client.send_bytes(
        pack_frame(METHOD, 1, pack_method("basic.publish", routing_key="q"))
        + pack_frame(HEADER, 1, header)
        + pack_frame(BODY, 1, b"x" * PIECE) * (size // PIECE)
    )


def test_bodies_in_transit(broker: Measured) -> None:
    before = broker.metrics()
    for _ in range(5):
        begin_body(broker.client(), 8 * MIB)
    wait_until(lambda: broker.metrics()["bodies_in_transit"] >= 39 * MIB)
    require_honest(grown(before, broker.metrics()), "bodies_in_transit", 39 * MIB)


@pytest.mark.parametrize("size", [100, 1000, 100_000])
def test_transactions(broker: Measured, size: int) -> None:
    client = broker.client()
    client.send("tx.select", 1)
    client.expect("tx.select-ok", 1)
    before = broker.metrics()
    publish = pack_publish(1, b"x" * size, None, routing_key="q")
    client.send_bytes(publish * (40 * MIB // (size + 240)))
    wait_until(lambda: broker.metrics()["transactions"] >= 39 * MIB)
    require_honest(grown(before, broker.metrics()), "transactions", 39 * MIB)


@pytest.mark.parametrize("size", [100, 1000, 100_000])
def test_messages(broker: Measured, size: int) -> None:
    client = broker.client()
    client.send("queue.declare", 1, queue="q")
    client.expect("queue.declare-ok", 1)
    before = broker.metrics()
    publish = pack_publish(1, b"x" * size, None, routing_key="q")
    client.send_bytes(publish * (40 * MIB // (size + 240)))
    wait_until(lambda: broker.metrics()["messages"] >= 39 * MIB)
    require_honest(grown(before, broker.metrics()), "messages", 39 * MIB)


@pytest.mark.parametrize("size", [100, 1000, 100_000])
def test_unacked(broker: Measured, size: int) -> None:
    client = broker.client()
    client.send("queue.declare", 1, queue="q")
    client.expect("queue.declare-ok", 1)
    publish = pack_publish(1, b"x" * size, None, routing_key="q")
    n = 40 * MIB // (size + 240)
    before = broker.metrics()
    client.send("basic.consume", 1, queue="q", consumer_tag="c")
    client.expect("basic.consume-ok", 1)
    reader = broker.client()
    reader.send_bytes(publish * n)
    for _ in range(n):
        client.read_content(client.expect("basic.deliver", 1))
    wait_until(lambda: broker.metrics()["unacked"] >= 39 * MIB)
    require_honest(grown(before, broker.metrics()), "unacked", 39 * MIB)


@pytest.mark.parametrize("size", [100, 1000, 100_000])
def test_fanout(broker: Measured, size: int) -> None:
    client = broker.client()
    for i in range(10):
        client.send("queue.declare", 1, queue=f"q{i}")
        client.expect("queue.declare-ok", 1)
        client.send("queue.bind", 1, queue=f"q{i}", exchange="amq.fanout")
        client.expect("queue.bind-ok", 1)
    before = broker.metrics()
    publish = pack_publish(1, b"x" * size, None, exchange="amq.fanout")
    n = 40 * MIB // (size + 240)
    client.send_bytes(publish * n)
    client.channel(2)
    require_honest(grown(before, broker.metrics()), "messages", 39 * MIB)


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("size", [100, 1000, 100_000])
def test_outboxes(broker: Measured, size: int, no_ack) -> None:
    client = broker.client()
    n = 40
    readers = []
    for i in range(n):
        r = broker.client()
        r.send("queue.declare", 1, queue=f"q{i}")
        r.expect("queue.declare-ok", 1)
        r.send("queue.bind", 1, queue=f"q{i}", exchange="amq.fanout")
        r.expect("queue.bind-ok", 1)
        r.send("basic.consume", 1, queue=f"q{i}", consumer_tag="c", no_ack=no_ack)
        r.expect("basic.consume-ok", 1)
        readers.append(r)
    before = broker.metrics()
    publish = pack_publish(1, b"x" * size, None, exchange="amq.fanout")
    client.send_bytes(publish * (30 * MIB // (size + 240)))
    client.channel(2)
    import time

    time.sleep(1)
    require_honest(grown(before, broker.metrics()), "outboxes", 39 * MIB)


@pytest.mark.parametrize("key", ["key.%d", "x" * 200 + "%d"])
def test_routes(broker: Measured, key) -> None:
    client = broker.client()
    before = broker.metrics()
    client.send_bytes(
        b"".join(pack_publish(1, b"", None, exchange="amq.topic", routing_key=key % i) for i in range(60_000))
    )
    client.channel(2)
    require_honest(grown(before, broker.metrics()), "routes", 39 * MIB)


@pytest.mark.parametrize(
    "what", ["queue", "durable", "direct", "topic", "args", "channels", "connections", "consumers"]
)
def test_definitions(broker: Measured, what) -> None:
    client = broker.client()
    N = 10000

    def declare(n, **k):
        client.send_bytes(
            b"".join(
                pack_frame(METHOD, 1, pack_method("queue.declare", queue=f"queue-{i}", no_wait=True, **k))
                for i in range(n)
            )
        )

    if what in ("direct", "topic", "consumers"):
        declare(N)
        client.channel(2)
    before = broker.metrics()
    if what in ("queue", "durable"):
        declare(N, durable=what == "durable")
    elif what == "args":
        declare(1000, arguments={f"x-thing-{j}": f"value {j}" for j in range(200)})
    elif what in ("direct", "topic"):
        client.send_bytes(
            b"".join(
                pack_frame(
                    METHOD,
                    1,
                    pack_method(
                        "queue.bind", queue=f"queue-{i}", exchange="amq." + what, routing_key=f"key.{i}.a", no_wait=True
                    ),
                )
                for i in range(N)
            )
        )
    elif what == "consumers":
        client.send_bytes(
            b"".join(
                pack_frame(
                    METHOD, 1, pack_method("basic.consume", queue=f"queue-{i}", consumer_tag=f"tag.{i}.a", no_wait=True)
                )
                for i in range(N)
            )
        )
    elif what == "channels":
        for j in range(5):
            c = broker.client()
            c.send_bytes(b"".join(pack_frame(METHOD, i, pack_method("channel.open")) for i in range(2, 2047)))
            for i in range(2, 2047):
                c.expect("channel.open-ok", i)
    elif what == "connections":
        for j in range(400):
            broker.client()
    if what not in ("channels", "connections"):
        client.channel(3)
    g = grown(before, broker.metrics())
    require_honest(g, "definitions", 39 * MIB)
    print(what, g["resident"] / (N if what not in ("args", "connections") else 1000 if what == "args" else 400))
