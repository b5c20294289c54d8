"""What clients may declare is bounded: refused with RabbitMQ's codes and texts, and only what is new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import warrenmq
from tests.support.wire import Address, Refusal, WireChannel, WireConnection
from warrenmq.core.broker import Broker
from warrenmq.core.limits import Limits
from warrenmq.core.vhost import PREDECLARED
from warrenmq.storage.memory_store import MemoryStorage

PREDECLARED_EXCHANGES = len(PREDECLARED) + 1  # and that of the firehose
LIMITS = Limits(max_queues=3, max_exchanges=PREDECLARED_EXCHANGES + 2, max_bindings=3, consumer_max_per_channel=2)


def connect(broker: warrenmq.Broker) -> WireConnection:
    return WireConnection(Address.of_url(broker.url)).open()


@pytest.fixture
def connection() -> Iterator[WireConnection]:
    with warrenmq.Broker(limits=LIMITS) as broker, connect(broker) as connection:
        yield connection


@pytest.fixture
def channel(connection: WireConnection) -> WireChannel:
    return connection.channel(1)


def declare(channel: WireChannel, *queues: str) -> None:
    for queue in queues:
        channel.call("queue.declare", queue=queue)


# -- queues


def test_one_queue_too_many_is_refused_and_a_deleted_one_makes_room(
    connection: WireConnection, channel: WireChannel
) -> None:
    declare(channel, "a", "b", "c")
    declare(channel, "a", "b", "c")  # again
    assert channel.refused("queue.declare", queue="d") == Refusal(
        "channel",
        406,
        "PRECONDITION_FAILED - cannot declare queue 'd': queue limit in vhost '/' (3) is reached",
        "queue.declare",
    )
    again = connection.channel(2)
    declare(again, "a")
    again.call("queue.declare", queue="a", passive=True)
    again.call("queue.delete", queue="a")
    declare(again, "d")


@pytest.mark.parametrize("kind", [{"exclusive": True}, {"durable": True}, {"auto_delete": True}])
def test_queues_of_every_kind_count(connection: WireConnection, channel: WireChannel, kind: dict[str, bool]) -> None:
    for queue in "abc":
        channel.call("queue.declare", queue=queue, **kind)
    refusal = channel.refused("queue.declare", queue="d", **kind)
    assert (refusal.code, refusal.text.endswith("queue limit in vhost '/' (3) is reached")) == (406, True)


def test_server_named_queues_count(channel: WireChannel) -> None:
    for _ in range(3):
        channel.call("queue.declare", queue="")
    refusal = channel.refused("queue.declare", queue="")
    assert re.fullmatch(
        r"PRECONDITION_FAILED - cannot declare queue 'amq\.gen-[\w-]{22}': queue limit in vhost '/' \(3\) is reached",
        refusal.text,
    )


def test_queues_that_go_with_their_connection_make_room(connection: WireConnection, channel: WireChannel) -> None:
    with WireConnection(connection.address).open() as other:
        others = other.channel(1)
        for queue in "abc":
            others.call("queue.declare", queue=queue, exclusive=True)
        other.close()
    declare(channel, "a", "b", "c")


def test_invalid_arguments_are_reported_first(channel: WireChannel) -> None:
    declare(channel, "a", "b", "c")
    refusal = channel.refused("queue.declare", queue="d", arguments={"x-message-ttl": -1})
    assert "queue limit" not in refusal.text


def test_streams_of_the_broker_itself_are_never_refused() -> None:
    vhost = Broker(MemoryStorage(), limits=Limits(max_queues=1)).vhosts["/"]
    for name in ("warren.events", "warren.analysis"):
        vhost.declare_queue(name, True, False, False, {"x-queue-type": "stream"}, None)
    assert len(vhost.queues) == 2


# -- exchanges


def test_one_exchange_too_many_is_refused_and_a_deleted_one_makes_room(
    connection: WireConnection, channel: WireChannel
) -> None:
    for name in ("a", "b", "a", "b"):
        channel.call("exchange.declare", exchange=name, type="fanout")
    assert channel.refused("exchange.declare", exchange="c", type="fanout") == Refusal(
        "channel",
        406,
        "PRECONDITION_FAILED - cannot declare exchange 'c' in vhost '/': "
        f"exchange limit of {LIMITS.max_exchanges} is reached",
        "exchange.declare",
    )
    again = connection.channel(2)
    again.call("exchange.declare", exchange="amq.direct", type="direct", durable=True)
    again.call("exchange.delete", exchange="a")
    again.call("exchange.declare", exchange="c", type="fanout")


# -- bindings


def test_one_binding_too_many_is_refused_and_a_removed_one_makes_room(
    connection: WireConnection, channel: WireChannel
) -> None:
    declare(channel, "q")
    for key in ("1", "2", "3", "1"):
        channel.call("queue.bind", queue="q", exchange="amq.direct", routing_key=key)
    assert channel.refused("queue.bind", queue="q", exchange="amq.direct", routing_key="4") == Refusal(
        "channel",
        406,
        "PRECONDITION_FAILED - cannot bind queue 'q' to exchange 'amq.direct' in vhost '/': "
        "binding limit of 3 is reached",
        "queue.bind",
    )
    again = connection.channel(2)
    refusal = again.refused("exchange.bind", destination="amq.fanout", source="amq.direct", routing_key="4")
    assert "cannot bind exchange 'amq.fanout' to exchange 'amq.direct'" in refusal.text
    last = connection.channel(3)
    last.call("queue.unbind", queue="q", exchange="amq.direct", routing_key="1")
    last.call("queue.bind", queue="q", exchange="amq.direct", routing_key="4")
    last.call("queue.delete", queue="q")  # and its bindings
    declare(last, "q")
    for key in "123":
        last.call("queue.bind", queue="q", exchange="amq.direct", routing_key=key)


# -- consumers


def test_one_consumer_too_many_closes_the_connection(channel: WireChannel) -> None:
    declare(channel, "q")
    for tag in "ab":
        channel.call("basic.consume", queue="q", consumer_tag=tag)
    assert channel.refused("basic.consume", queue="q", consumer_tag="c") == Refusal(
        "connection", 530, "NOT_ALLOWED - reached maximum (2) of consumers per channel", "basic.consume"
    )


def test_consumers_of_other_channels_and_cancelled_ones_do_not_count(
    connection: WireConnection, channel: WireChannel
) -> None:
    declare(channel, "q")
    for tag in "abcdef":
        channel.call("basic.consume", queue="q", consumer_tag=tag)
        if tag > "a":
            channel.call("basic.cancel", consumer_tag=tag)
    connection.channel(2).call("basic.consume", queue="q", consumer_tag="a")
    channel.call("basic.consume", queue="q", consumer_tag="b")
    refusal = channel.refused("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
    assert refusal.text == "NOT_ALLOWED - reached maximum (2) of consumers per channel"


# -- the start


def test_a_start_recovers_everything_also_above_a_limit(tmp_path: Path) -> None:
    with warrenmq.Broker(data_dir=tmp_path) as broker, connect(broker) as connection:
        channel = connection.channel(1)
        for name in "abcd":
            channel.call("exchange.declare", exchange=name, type="fanout", durable=True)
            channel.call("queue.declare", queue=name, durable=True)
            channel.call("queue.bind", queue=name, exchange=name)
    with warrenmq.Broker(data_dir=tmp_path, limits=LIMITS) as broker, connect(broker) as connection:
        channel = connection.channel(1)
        for name in "abcd":
            channel.call("exchange.declare", exchange=name, type="fanout", durable=True)
            channel.call("queue.declare", queue=name, durable=True)
            channel.call("queue.bind", queue=name, exchange=name)
        assert channel.refused("queue.declare", queue="e").code == 406


def test_zero_is_no_limit() -> None:
    with warrenmq.Broker(limits=Limits(0, 0, 0, 0)) as broker, connect(broker) as connection:
        channel = connection.channel(1)
        channel.call("exchange.declare", exchange="e", type="fanout")
        declare(channel, "q")
        channel.call("queue.bind", queue="q", exchange="e")
        channel.call("basic.consume", queue="q")
