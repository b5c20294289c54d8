"""A live broker, a client library to drive it with, and names that nobody else uses.

With WARREN_TEST_URL set, the tests drive the broker at that address instead of an embedded one: with a RabbitMQ there,
a test that fails is a test that is wrong.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from .clients.catalog import CLIENTS
from .clients.contract import Channel, Client, Feature
from .clients.remote import stop_bridges
from .proxy import Proxy

Connect = Callable[..., Client]
Namer = Callable[[str], str]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*features): run only with client libraries that have these features")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a scenario once with every library that has what it needs."""
    if "client_class" not in metafunc.fixturenames:
        return
    needed: set[Feature] = set()
    for marker in metafunc.definition.iter_markers("needs"):
        needed.update(marker.args)
    able = [each for each in CLIENTS if not needed & each.lacks]
    metafunc.parametrize("client_class", able, ids=[each.name for each in able], indirect=True)


@pytest.fixture(scope="session")
def broker_url() -> Iterator[str]:
    given = os.environ.get("WARREN_TEST_URL")
    if given:
        yield given
        return
    import warrenmq

    with warrenmq.Broker() as broker:
        yield broker.url


@pytest.fixture(scope="session", autouse=True)
def _bridges() -> Iterator[None]:
    """End the processes of the clients in other languages with the session."""
    yield
    stop_bridges()


@pytest.fixture
def name(broker_url: str) -> Iterator[Namer]:
    """Make names for queues and exchanges; whatever has one is deleted afterwards."""
    made: list[str] = []
    prefix = f"interop.{uuid.uuid4().hex[:12]}"

    def make(label: str) -> str:
        made.append(f"{prefix}.{label}")
        return made[-1]

    yield make
    if made:
        connection = pika.BlockingConnection(pika.URLParameters(broker_url))
        channel = connection.channel()
        for each in made:
            channel.queue_delete(each)
            channel.exchange_delete(each)
        connection.close()


@pytest.fixture
def client_class(request: pytest.FixtureRequest) -> type[Client]:
    chosen: type[Client] = request.param
    reason = chosen.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return chosen


@pytest.fixture
def connect(client_class: type[Client], broker_url: str, name: Namer) -> Iterator[Connect]:
    """Connect with the library under test; closed afterwards."""
    opened: list[Client] = []

    def open_client(url: str | None = None, **options: Any) -> Client:
        opened.append(client_class(url or broker_url, **options))
        return opened[-1]

    yield open_client
    for each in reversed(opened):
        each.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def channel(client: Client) -> Channel:
    return client.channel()


@pytest.fixture
def proxy(broker_url: str) -> Iterator[Proxy]:
    with Proxy(broker_url) as running:
        yield running
