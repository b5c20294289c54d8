"""The broker on the other end of a raw socket, and names that nobody else uses.

With WARREN_TEST_URL set, the tests talk to the broker at that address instead of an embedded one: with a RabbitMQ
there, a test that fails is a test that is wrong.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance.features import Topology
from tests.support.wire import Address, ChannelRefusal, WireChannel, WireConnection

Connect = Callable[..., WireConnection]
Namer = Callable[[str], str]


@pytest.fixture(scope="session")
def address() -> Iterator[Address]:
    given = os.environ.get("WARREN_TEST_URL")
    if given:
        yield Address.of_url(given)
        return
    import warrenmq

    with warrenmq.Broker() as broker:
        yield Address.of_url(broker.url)


@pytest.fixture
def dial(address: Address, name: Namer) -> Iterator[Callable[[], WireConnection]]:
    """Open a socket and leave the handshake to the test. Asks for `name` so that sockets close before its cleaning."""
    dialled: list[WireConnection] = []

    def make() -> WireConnection:
        dialled.append(WireConnection(address))
        return dialled[-1]

    yield make
    for connection in dialled:
        connection.socket.close()


@pytest.fixture
def connect(dial: Callable[[], WireConnection]) -> Connect:
    """Open a connection; capabilities and tuning are passed on."""

    def make(capabilities: dict[str, Any] | None = None, **tuning: int) -> WireConnection:
        return dial().open(capabilities, **tuning)

    return make


@pytest.fixture
def connection(connect: Connect) -> WireConnection:
    return connect()


@pytest.fixture
def channel(connection: WireConnection) -> WireChannel:
    return connection.channel(1)


@pytest.fixture
def name(address: Address) -> Iterator[Namer]:
    """Make names for queues and exchanges; whatever has one is deleted afterwards."""
    made: list[str] = []
    prefix = f"conformance.{uuid.uuid4().hex[:12]}"

    def make(label: str) -> str:
        if f"{prefix}.{label}" not in made:
            made.append(f"{prefix}.{label}")
        return f"{prefix}.{label}"

    yield make
    if made:
        with WireConnection(address).open() as cleaner:
            for each in made:
                _delete(cleaner, "queue.delete", queue=each)
                _delete(cleaner, "exchange.delete", exchange=each)


@pytest.fixture(scope="session")
def is_rabbitmq_3(address: Address) -> bool:
    """The broker is a RabbitMQ before 4.0. Where it differs, the tests expect what 4.x does: docs/differences.md."""
    if "WARREN_TEST_URL" not in os.environ:
        return False  # WarrenMQ claims to be a RabbitMQ, too, for clients that look
    with WireConnection(address) as connection:
        properties = connection.start()["server_properties"]
    return bool(properties["product"] == "RabbitMQ" and properties["version"].startswith("3."))


@pytest.fixture
def topology(channel: WireChannel, name: Namer) -> Topology:
    return Topology(channel, name)


@pytest.fixture
def queue(channel: WireChannel) -> str:
    """A queue of the test's own connection, declared on its channel, gone with it."""
    return str(channel.call("queue.declare", exclusive=True)["queue"])


def _delete(cleaner: WireConnection, method: str, **arguments: str) -> None:
    channel = cleaner.channel()
    try:
        channel.call(method, **arguments)
    except ChannelRefusal as closed:
        # An exclusive queue goes with its connection, whose end the broker may not have noticed yet.
        if closed.refusal.code != 405:
            raise
        channel.send("channel.close-ok")
    else:
        channel.close()
