"""How long things live: exclusive and auto-delete queues, auto-delete exchanges, consumers whose queue is deleted,
messages that were held by a channel that is gone, connections of a broker that stops."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.conformance.conftest import Connect, Namer
from tests.support.waiting import wait_until
from tests.support.wire import Address, ChannelRefusal, Refusal, WireChannel, WireConnection

HEARS_CANCEL = {"consumer_cancel_notify": True}


class Observer:
    """A connection of its own that looks whether things are there."""

    def __init__(self, connection: WireConnection) -> None:
        self.connection = connection

    def has_queue(self, queue: str) -> bool:
        return self._finds("queue.declare", queue=queue)

    def has_exchange(self, exchange: str) -> bool:
        return self._finds("exchange.declare", exchange=exchange)

    def waits_until_gone(self, finds: Callable[[str], bool], thing: str) -> None:
        """A broker may clean up after it has replied."""
        wait_until(lambda: not finds(thing), f"{thing} is gone")

    def _finds(self, method: str, **thing: str) -> bool:
        channel = self.connection.channel(7)
        try:
            channel.call(method, passive=True, **thing)
        except ChannelRefusal as closed:
            channel.send("channel.close-ok")
            if closed.refusal.code == 405:
                return True
            if closed.refusal.code != 404:
                raise
            return False
        channel.close()
        return True


@pytest.fixture
def observer(connect: Connect) -> Observer:
    return Observer(connect())


# -- queues


def test_an_auto_delete_queue_lives_until_its_last_consumer_is_cancelled(
    channel: WireChannel, observer: Observer, name: Namer
) -> None:
    queue = name("auto")
    channel.call("queue.declare", queue=queue, auto_delete=True)
    assert observer.has_queue(queue)
    for tag in ("one", "two"):
        channel.call("basic.consume", queue=queue, consumer_tag=tag)
    channel.call("basic.cancel", consumer_tag="one")
    assert observer.has_queue(queue)
    channel.call("basic.cancel", consumer_tag="two")
    observer.waits_until_gone(observer.has_queue, queue)


def test_an_auto_delete_queue_goes_with_the_channel_of_its_last_consumer(
    channel: WireChannel, observer: Observer, name: Namer
) -> None:
    channel.call("queue.declare", queue=name("auto"), auto_delete=True)
    channel.call("basic.consume", queue=name("auto"))
    channel.close()
    observer.waits_until_gone(observer.has_queue, name("auto"))


@pytest.mark.parametrize("politely", [True, False], ids=["close", "socket-lost"])
def test_an_auto_delete_queue_goes_with_the_connection_of_its_last_consumer(
    connection: WireConnection, observer: Observer, name: Namer, politely: bool
) -> None:
    channel = connection.channel()
    channel.call("queue.declare", queue=name("auto"), auto_delete=True)
    channel.call("basic.consume", queue=name("auto"))
    connection.close() if politely else connection.socket.close()
    observer.waits_until_gone(observer.has_queue, name("auto"))


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(
    connection: WireConnection, observer: Observer, name: Namer
) -> None:
    channel = connection.channel()
    channel.call("queue.declare", queue=name("auto"), auto_delete=True)
    channel.publish(b"got, not consumed", routing_key=name("auto"))
    assert channel.get(name("auto")) is not None
    connection.close()
    assert observer.has_queue(name("auto"))


@pytest.mark.parametrize("politely", [True, False], ids=["close", "socket-lost"])
def test_an_exclusive_queue_goes_with_its_connection(
    connection: WireConnection, observer: Observer, name: Namer, politely: bool
) -> None:
    channel = connection.channel()
    channel.call("queue.declare", queue=name("exclusive"), exclusive=True)
    connection.close() if politely else connection.socket.close()
    observer.waits_until_gone(observer.has_queue, name("exclusive"))


def test_an_exclusive_queue_outlives_its_channel(connection: WireConnection, name: Namer) -> None:
    first = connection.channel(1)
    first.call("queue.declare", queue=name("exclusive"), exclusive=True)
    first.close()
    connection.channel(2).call("queue.declare", queue=name("exclusive"), exclusive=True)


# -- exchanges


def declare_auto_delete(channel: WireChannel, *exchanges: str) -> None:
    for exchange in exchanges:
        channel.call("exchange.declare", exchange=exchange, type="direct", auto_delete=True)


def test_an_auto_delete_exchange_lives_until_its_last_binding_is_undone(
    channel: WireChannel, queue: str, observer: Observer, name: Namer
) -> None:
    exchange = name("auto")
    declare_auto_delete(channel, exchange)
    assert observer.has_exchange(exchange)
    for key in ("one", "two"):
        channel.call("queue.bind", queue=queue, exchange=exchange, routing_key=key)
    channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="one")
    assert observer.has_exchange(exchange)
    channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="two")
    observer.waits_until_gone(observer.has_exchange, exchange)


def test_an_auto_delete_exchange_goes_with_its_last_queue(
    channel: WireChannel, queue: str, observer: Observer, name: Namer
) -> None:
    declare_auto_delete(channel, name("auto"))
    channel.call("queue.bind", queue=queue, exchange=name("auto"))
    channel.call("queue.delete", queue=queue)
    observer.waits_until_gone(observer.has_exchange, name("auto"))


def test_only_the_source_of_an_undone_binding_is_deleted(channel: WireChannel, observer: Observer, name: Namer) -> None:
    source, destination = name("source"), name("destination")
    declare_auto_delete(channel, source, destination)
    channel.call("exchange.bind", source=source, destination=destination)
    channel.call("exchange.unbind", source=source, destination=destination)
    observer.waits_until_gone(observer.has_exchange, source)
    assert observer.has_exchange(destination)


def test_an_auto_delete_exchange_goes_with_its_last_destination(
    channel: WireChannel, observer: Observer, name: Namer
) -> None:
    source, destination = name("source"), name("destination")
    declare_auto_delete(channel, source, destination)
    channel.call("exchange.bind", source=source, destination=destination)
    channel.call("exchange.delete", exchange=destination)
    observer.waits_until_gone(observer.has_exchange, source)


def test_a_chain_of_auto_delete_exchanges_goes_together(
    channel: WireChannel, queue: str, observer: Observer, name: Namer
) -> None:
    source, destination = name("source"), name("destination")
    declare_auto_delete(channel, source, destination)
    channel.call("exchange.bind", source=source, destination=destination)
    channel.call("queue.bind", queue=queue, exchange=destination)
    channel.call("queue.delete", queue=queue)
    observer.waits_until_gone(observer.has_exchange, destination)
    observer.waits_until_gone(observer.has_exchange, source)


def test_an_auto_delete_exchange_that_was_never_bound_stays(
    connection: WireConnection, observer: Observer, name: Namer
) -> None:
    declare_auto_delete(connection.channel(), name("auto"))
    connection.close()
    assert observer.has_exchange(name("auto"))


# -- consumers


def test_a_client_with_the_capability_is_notified_that_its_queue_is_deleted(
    connect: Connect, channel: WireChannel, name: Namer
) -> None:
    channel.call("queue.declare", queue=name("brief"))
    listener = connect(HEARS_CANCEL).channel()
    listener.call("basic.consume", queue=name("brief"), consumer_tag="told")
    channel.call("queue.delete", queue=name("brief"))
    assert listener.expect("basic.cancel").arguments == {"consumer_tag": "told", "no_wait": True}
    listener.call("basic.cancel", consumer_tag="told")


def test_the_channel_that_deletes_the_queue_is_notified_after_its_reply(connect: Connect, name: Namer) -> None:
    channel = connect(HEARS_CANCEL).channel()
    channel.call("queue.declare", queue=name("brief"))
    channel.call("basic.consume", queue=name("brief"), consumer_tag="own")
    channel.call("queue.delete", queue=name("brief"))
    assert channel.expect("basic.cancel")["consumer_tag"] == "own"


def test_other_clients_are_not_notified(connect: Connect, channel: WireChannel, name: Namer) -> None:
    channel.call("queue.declare", queue=name("brief"))
    deaf = connect().channel()
    deaf.call("basic.consume", queue=name("brief"), consumer_tag="untold")
    channel.call("queue.delete", queue=name("brief"))
    channel.call("queue.declare", queue=name("brief"))
    deaf.barrier(name("brief"))
    deaf.call("basic.cancel", consumer_tag="untold")


# -- messages


def test_what_a_closed_channel_held_goes_back_in_order(connection: WireConnection) -> None:
    holder, other = connection.channel(1), connection.channel(2)
    queue = holder.call("queue.declare", exclusive=True)["queue"]
    for body in (b"one", b"two", b"three", b"four"):
        holder.publish(body, routing_key=queue)
    for _ in range(3):
        holder.get(queue, no_ack=False)
    holder.send("basic.ack", delivery_tag=2)
    holder.close()
    messages = list(iter(lambda: other.get(queue), None))
    assert [(each.body, each["redelivered"]) for each in messages] == [
        (b"one", True),
        (b"three", True),
        (b"four", False),
    ]


def test_what_a_failed_channel_held_goes_back(connection: WireConnection, name: Namer) -> None:
    holder, other = connection.channel(1), connection.channel(2)
    queue = holder.call("queue.declare", exclusive=True)["queue"]
    holder.publish(b"one", routing_key=queue)
    assert holder.get(queue, no_ack=False) is not None
    assert holder.refused("queue.declare", queue=name("missing"), passive=True).code == 404
    connection.channel(1)
    again = other.get(queue)
    assert again is not None
    assert again["redelivered"] is True


def test_what_a_lost_connection_held_goes_to_the_next_consumer(
    connect: Connect, channel: WireChannel, name: Namer
) -> None:
    queue = name("shared")
    channel.call("queue.declare", queue=queue)
    lost = connect()
    holder = lost.channel()
    holder.call("basic.consume", queue=queue)
    channel.publish(b"one", routing_key=queue)
    holder.content()
    channel.call("basic.consume", queue=queue)
    lost.socket.close()
    again = channel.content()
    assert (again.body, again["redelivered"]) == (b"one", True)


# -- the broker


def test_a_broker_that_stops_notifies_its_connections() -> None:
    import warrenmq

    broker = warrenmq.Broker()
    broker.start()
    with WireConnection(Address.of_url(broker.url)).open() as connection:
        connection.channel()
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
        assert connection.expect_refusal() == Refusal("connection", 320, text)
        stopping.join()
