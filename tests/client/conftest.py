"""A broker, a face of the client to speak to it with, and names that nobody else uses.

With WARREN_TEST_URL set, the tests speak to the broker at that address instead of an embedded one; with
WARREN_TEST_RABBITMQ=1, to a private RabbitMQ that is started for the run. DIFFERENCES.md says what differs there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from tests.support.wire import Address, ChannelRefusal, WireChannel, WireConnection

Connect = Callable[..., Any]
Namer = Callable[[str], str]

IS_RABBITMQ = bool(os.environ.get("WARREN_TEST_RABBITMQ"))
IS_FOREIGN = IS_RABBITMQ or "WARREN_TEST_URL" in os.environ

own_broker_only = pytest.mark.skipif(IS_FOREIGN, reason="needs a WarrenMQ that the test may restart or starve")


@pytest.fixture(scope="session")
def broker_url() -> Iterator[str]:
    given = os.environ.get("WARREN_TEST_URL")
    if given:
        yield given
    elif IS_RABBITMQ:
        from benchmarks.brokers import running_rabbitmq

        with running_rabbitmq() as endpoint:
            yield f"amqp://guest:guest@127.0.0.1:{endpoint.port}/%2F"
    else:
        import warrenmq

        with warrenmq.Broker() as broker:
            yield f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"


@pytest.fixture
def name(broker_url: str) -> Iterator[Namer]:
    """Make names for queues and exchanges; whatever has one is deleted afterwards."""
    made: list[str] = []
    prefix = f"client.{uuid.uuid4().hex[:12]}"

    def make(label: str) -> str:
        if f"{prefix}.{label}" not in made:
            made.append(f"{prefix}.{label}")
        return f"{prefix}.{label}"

    yield make
    if made:
        with WireConnection(Address.of_url(broker_url)).open() as cleaner:
            for number, each in enumerate(made):
                _delete(cleaner.channel(2 * number + 1), "queue.delete", queue=each)
                _delete(cleaner.channel(2 * number + 2), "exchange.delete", exchange=each)


def _delete(channel: WireChannel, method: str, **arguments: str) -> None:
    try:
        channel.call(method, **arguments)
    except ChannelRefusal as refused:
        if refused.refusal.code not in (404, 405):
            raise


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest, broker_url: str, name: Namer) -> Iterator[Any]:
    """One face of the client. When the test is over and its connections are closed, nothing may be left running."""
    from tests.client.behaviour.faces import make_face

    made = make_face(request.param)
    yield made
    wait_until(lambda: not made.leftovers(), "nothing of the client is left running")
    made.close()


@pytest.fixture
def connect(face: Any, broker_url: str) -> Iterator[Connect]:
    """Connect with the face under test, to the broker unless an address is given; closed afterwards."""
    opened: list[Any] = []

    def make(url: Any = None, **settings: Any) -> Any:
        opened.append(face.connect(url or broker_url, **settings))
        return opened[-1]

    yield make
    for each in reversed(opened):
        each.close()


@pytest.fixture
def connection(connect: Connect) -> Any:
    return connect()


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


@pytest.fixture
def queue(channel: Any) -> str:
    """A queue of the test's own connection, gone with it."""
    return str(channel.queue_declare("", exclusive=True).queue)


@pytest.fixture
def breaker(broker_url: str) -> Iterator[Breaker]:
    """What breaks connections, on the way to the broker; ends after the connections that go through it."""
    with Breaker(broker_url) as made:
        yield made
