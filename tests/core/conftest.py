"""A broker without a socket, and clients of it."""

from __future__ import annotations

import pytest

from tests.support.client import Client, ClientChannel, make_broker
from warrenmq.core.broker import Broker
from warrenmq.core.queue import Queue


@pytest.fixture
def broker() -> Broker:
    return make_broker()


@pytest.fixture
def client(broker: Broker) -> Client:
    return Client(broker)


@pytest.fixture
def channel(client: Client) -> ClientChannel:
    return client.channel()


@pytest.fixture
def other(broker: Broker) -> ClientChannel:
    """A channel of another connection."""
    return Client(broker).channel()


@pytest.fixture
def queue(channel: ClientChannel) -> Queue:
    return channel.declare("q")
