"""A connection in the core: it is listed while it is open, and what it owns ends with it."""

from __future__ import annotations

import pytest

from tests.support.client import Client
from warrenmq.core.broker import Broker
from warrenmq.core.errors import ResourceLocked


def test_connections_are_listed_from_open_to_close(broker: Broker) -> None:
    first, second = Client(broker), Client(broker)
    assert list(broker.connections) == [first.connection, second.connection]
    first.close()
    assert list(broker.connections) == [second.connection]


def test_channels_are_found_by_their_number_while_they_are_open(broker: Broker) -> None:
    client, other = Client(broker), Client(broker)
    one, two = client.channel(), client.channel()
    other.channel()
    assert client.connection.channels == {1: one.core, 2: two.core}
    assert broker.channel_count == 3
    one.close()
    assert client.connection.channels == {2: two.core}
    assert not one.core.is_open
    client.close()
    assert client.connection.channels == {}
    assert not two.core.is_open
    assert broker.channel_count == 1


def test_exclusive_queues_go_with_their_connection_and_only_those(broker: Broker) -> None:
    client, other = Client(broker), Client(broker)
    mine = client.channel().declare("mine", exclusive=True)
    other.channel().declare("theirs", exclusive=True)
    client.channel().declare("shared")
    assert list(client.connection.exclusive_queues) == [mine]
    with pytest.raises(ResourceLocked):
        other.vhost.queue("mine", other.connection)
    client.close()
    assert sorted(broker.vhosts["/"].queues) == ["shared", "theirs"]
    assert mine.is_deleted
    client.close()
    assert sorted(broker.vhosts["/"].queues) == ["shared", "theirs"], "a second close does nothing"


def test_an_exclusive_queue_that_is_deleted_is_forgotten(broker: Broker) -> None:
    client = Client(broker)
    channel = client.channel()
    channel.delete(channel.declare("mine", exclusive=True))
    assert client.connection.exclusive_queues == {}


def test_an_answer_that_a_closed_connection_waited_for_is_not_given(broker: Broker) -> None:
    client = Client(broker)
    given: list[str] = []
    broker.when_durable(client.connection, 0, lambda: given.append("answer"))
    client.close()
    broker.end_turn()
    assert given == []
