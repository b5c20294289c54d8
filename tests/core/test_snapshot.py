"""Views of connections and channels."""

from __future__ import annotations

from dataclasses import replace

from tests.support.client import Client
from tests.support.outbox import RecordingOutbox
from warrenmq.core.broker import Broker
from warrenmq.core.connection import Connection
from warrenmq.core.snapshot import ChannelView, ConnectionView, channels, connections, overview
from warrenmq.core.stats import Traffic


def test_a_connection_shows_its_client_and_its_traffic(broker: Broker) -> None:
    traffic = Traffic()
    connection = Connection(
        broker.vhosts["/"],
        "guest",
        RecordingOutbox(),
        name="10.0.0.1:50000 -> 10.0.0.2:5672",
        traffic=traffic,
        peer_host="10.0.0.1",
        peer_port=50000,
        host="10.0.0.2",
        port=5672,
        connected_at_ms=1_700_000_000_000,
        client_properties={"product": "pika"},
        channel_max=2047,
        frame_max=131072,
        heartbeat=60,
    )
    assert connections(broker) == []
    connection.open()
    connection.open_channel(1)
    traffic.bytes_in, traffic.bytes_out = 100, 20
    (before,) = connections(broker)
    assert before == ConnectionView(
        name="10.0.0.1:50000 -> 10.0.0.2:5672",
        vhost="/",
        user="guest",
        peer_host="10.0.0.1",
        peer_port=50000,
        host="10.0.0.2",
        port=5672,
        connected_at_ms=1_700_000_000_000,
        client_properties={"product": "pika"},
        channel_max=2047,
        frame_max=131072,
        heartbeat=60,
        channels=1,
        bytes_in=100,
        bytes_out=20,
    )
    traffic.bytes_in = 150
    connection.close_channel(1)
    assert before.bytes_in == 100, "a view does not change"
    assert connections(broker) == [replace(before, channels=0, bytes_in=150)]
    connection.close()
    assert connections(broker) == []


def test_a_channel_shows_what_it_holds(broker: Broker) -> None:
    channel = Client(broker).channel()
    queue = channel.declare("q")
    channel.consume(queue, prefetch=5)
    channel.core.limit_prefetch(7, True)
    channel.core.select_confirms()
    channel.publish_all("abc", "q")
    (view,) = channels(broker)
    fresh = ChannelView("", 1, "/", "guest", 1, 5, 7, 3, True, 3, False, 0, 0)
    assert view == fresh
    channel.ack(1)
    broker.end_turn()
    assert channels(broker) == [replace(fresh, unacked=2, unconfirmed=0)]


def test_a_transaction_shows_what_waits_for_its_commit(broker: Broker) -> None:
    channel = Client(broker).channel()
    queue = channel.declare("q")
    channel.publish_all("ab", "q")
    channel.consume(queue)
    channel.core.select_transactions()
    channel.publish_all("xyz", "q")
    broker.end_turn()
    channel.ack(2, multiple=True)
    (view,) = channels(broker)
    assert (view.is_transactional, view.is_confirming) == (True, False)
    assert (view.uncommitted_publishes, view.uncommitted_acks, view.unacked) == (3, 2, 0)
    channel.core.rollback()
    (view,) = channels(broker)
    assert (view.uncommitted_publishes, view.uncommitted_acks, view.unacked) == (0, 0, 2)


def test_channels_are_listed_by_connection_and_counted(broker: Broker) -> None:
    one, two = Client(broker), Client(broker)
    for client in (one, two, one):
        client.channel()
    assert [view.number for view in channels(broker)] == [1, 2, 1]
    assert overview(broker).channels == 3
