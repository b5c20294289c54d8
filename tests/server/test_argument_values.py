"""Every argument of queues, exchanges, bindings and consumers, with every type of value: taken or refused, never 541.

Runs on a real broker with a data folder, and starts it again with what it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.wire import Address, Refusal, Refused, WireChannel, WireConnection
from tests.support.wire_format import Tagged
from warrenmq.core import deduplication
from warrenmq.core.arguments import COMPARED_QUEUE_ARGUMENTS
from warrenmq.core.durability import parse_durability
from warrenmq.embedded import Broker
from warrenmq.storage.options import StorageOptions

# What a proper refusal is: access, not found, precondition, not implemented. 541 is a bug.
PROPER = {403, 404, 405, 406, 540}
TIMES = (0, 1_700_000_000, 253_402_300_799, 253_402_300_800, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    *(Tagged("t", value) for value in (False, True)),
    *(Tagged("b", value) for value in (-128, 0, 127)),
    *(Tagged("B", value) for value in (0, 1, 255)),
    *(Tagged("s", value) for value in (-(2**15), 2**15 - 1)),
    *(Tagged("u", value) for value in (0, 2**16 - 1)),
    *(Tagged("I", value) for value in (-(2**31), -1, 0, 1, 2**31 - 1)),
    *(Tagged("i", value) for value in (0, 2**32 - 1)),
    *(Tagged("l", value) for value in (-(2**63), -(2**31) - 1, 2**31, 2**63 - 1)),
    *(Tagged("L", value) for value in (-(2**63), 2**63 - 1)),
    *(Tagged("f", value) for value in (0.0, float("nan"), float("-inf"))),
    *(Tagged("d", value) for value in (-0.0, 1.5, 1e308, float("inf"), float("nan"))),
    *(Tagged("T", value) for value in TIMES),
    *(Tagged("D", bytes((scale,)) + number.to_bytes(4, "big", signed=True)) for scale, number in
      ((0, 0), (255, 2**31 - 1), (255, -(2**31)), (1, 15))),
    *(Tagged("S", value) for value in (b"", b"1", b"first", b"5s", b"\xff\xfe", b"x\n\x1b\0", b"9" * 5000)),
    *(Tagged("x", value) for value in (b"", b"all", b"\xff")),
    None, [], [None, 1, "x", {}], {}, {"x-match": "all", "a": {"b": [1.5]}},
)  # fmt: skip
OF_QUEUES = (
    "x-delivery-limit",
    "x-dead-letter-strategy",
    "x-max-in-memory-length",
    "x-quorum-initial-group-size",
    "x-other",
)
OF_EXCHANGES = ("alternate-exchange", *deduplication.ARGUMENTS)
OF_BINDINGS = ("x-match", "x-key", "key")
OF_CONSUMERS = (
    "x-priority",
    "x-cancel-on-ha-failover",
    "x-stream-offset",
    "x-stream-filter",
    "x-stream-match-unfiltered",
    "x-stream-automatic-offset-tracking",
    "x-credit",
    "x-other",
)
QUEUE_TYPES = ("classic", "quorum", "stream")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arguments")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[Address]:
    options = StorageOptions(durability=parse_durability("os"))
    with Broker(data_dir=folder / "data", storage=options) as broker:
        yield Address.of_url(broker.url)
    with Broker(data_dir=folder / "data", storage=options):  # it starts again with all that it took
        pass


@pytest.fixture
def client(address: Address) -> Iterator[WireConnection]:
    with WireConnection(address) as connection:
        yield connection.open()


class Asking:
    """Asks on one channel after the other, as each refusal closes one. `faults` are answers that are none."""

    def __init__(self, client: WireConnection) -> None:
        self._client = client
        self._channel = client.channel()
        self.faults: list[tuple[str, Any, Refusal]] = []

    @property
    def channel(self) -> WireChannel:
        return self._channel

    def ask(self, method: str, value: Any, **arguments: Any) -> bool:
        """Whether it was taken."""
        try:
            self._channel.call(method, **arguments)
            return True
        except Refused as refused:
            refusal = refused.refusal
        if refusal.code not in PROPER:
            self.faults.append((method, value, refusal))
        if refusal.scope == "connection":
            self._client.answer_close()
            self._client = WireConnection(self._client.address).open()
        else:
            self._channel.send("channel.close-ok")
        self._channel = self._client.channel()
        return False


def text_of(value: Any) -> str:
    return repr(value)[:60]


@pytest.mark.parametrize("name", sorted({*COMPARED_QUEUE_ARGUMENTS, *OF_QUEUES}))
def test_arguments_of_queues(client: WireConnection, name: str) -> None:
    asking = Asking(client)
    for type in QUEUE_TYPES:
        for value in VALUES:
            arguments = {"x-queue-type": type, deduplication.ENABLED: True} | {name: value}
            queue = f"{name} {type} {text_of(value)}"
            if asking.ask("queue.declare", value, queue=queue, durable=True, arguments=arguments):
                asking.ask("queue.declare", value, queue=queue, durable=True, arguments=arguments)
                asking.ask("queue.declare", value, queue=queue, durable=True, arguments=arguments | {name: [value]})
                asking.channel.publish(b"x", routing_key=queue)
    assert asking.faults == []


@pytest.mark.parametrize("name", OF_EXCHANGES)
def test_arguments_of_exchanges(client: WireConnection, name: str) -> None:
    asking = Asking(client)
    for value in VALUES:
        wanted = {"exchange": f"{name} {text_of(value)}", "type": "direct", "durable": True}
        arguments = {deduplication.ENABLED: True} | {name: value}
        if asking.ask("exchange.declare", value, arguments=arguments, **wanted):
            asking.ask("exchange.declare", value, arguments=arguments, **wanted)
            asking.ask("exchange.declare", value, arguments=arguments | {name: [value]}, **wanted)
            asking.channel.publish(b"x", exchange=wanted["exchange"])
    assert asking.faults == []


@pytest.mark.parametrize("exchange", ["amq.headers", "amq.topic", "amq.direct"])
@pytest.mark.parametrize("name", OF_BINDINGS)
def test_arguments_of_bindings(client: WireConnection, exchange: str, name: str) -> None:
    asking = Asking(client)
    asking.channel.call("queue.declare", queue="bound", durable=True)
    for value in VALUES:
        binding = {"queue": "bound", "exchange": exchange, "arguments": {"x-match": "all-with-x"} | {name: value}}
        for method in ("queue.bind", "queue.bind", "queue.unbind", "queue.unbind", "queue.bind"):
            asking.ask(method, value, **binding)
            asking.channel.publish(b"x", {"headers": {name: value}}, exchange=exchange)
        binding = {"source": exchange, "destination": "amq.fanout", "arguments": {name: value}}
        for method in ("exchange.bind", "exchange.unbind"):
            asking.ask(method, value, **binding)
    assert asking.faults == []


@pytest.mark.parametrize("type", QUEUE_TYPES)
@pytest.mark.parametrize("name", OF_CONSUMERS)
def test_arguments_of_consumers(client: WireConnection, name: str, type: str) -> None:
    asking = Asking(client)
    queue = f"consumed {type}"
    asking.channel.call("queue.declare", queue=queue, durable=True, arguments={"x-queue-type": type})
    for value in VALUES:
        asking.channel.call("basic.qos", prefetch_count=1)
        if asking.ask("basic.consume", value, queue=queue, consumer_tag="c", arguments={name: value}):
            asking.channel.call("basic.cancel", consumer_tag="c")
    assert asking.faults == []


@pytest.mark.parametrize("value", [Tagged("T", seconds) for seconds in TIMES], ids=str)
@pytest.mark.parametrize("name", ["x-priority", "x-max-length"])
def test_a_timestamp_is_no_integer(client: WireConnection, name: str, value: Tagged) -> None:
    channel = client.channel()
    queue = channel.call("queue.declare", exclusive=True)["queue"]
    if name == "x-priority":
        refusal = channel.refused("basic.consume", queue=queue, arguments={name: value})
    else:
        refusal = channel.refused("queue.declare", queue="timed", arguments={name: value})
    assert refusal.code == 406
    assert '"expected integer, got timestamp"' in refusal.text
