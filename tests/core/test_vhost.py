"""A virtual host: declare, bind, delete, and invalidation of cached routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, waiting
from warrenmq.core import vhost as vhost_module
from warrenmq.core.broker import Broker
from warrenmq.core.errors import (
    AccessRefused,
    BrokerError,
    CommandInvalid,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from warrenmq.core.memory import ROUTE
from warrenmq.core.message import address_of
from warrenmq.core.queue import Queue
from warrenmq.core.vhost import VHost

# -- exchanges


def test_it_begins_with_the_exchanges_of_the_standard(broker: Broker) -> None:
    types = {name: exchange.type for name, exchange in broker.vhosts["/"].exchanges.items()}
    assert types == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.topic": "topic",
        "amq.rabbitmq.trace": "topic",
    }


def test_declaring_the_same_exchange_again_returns_the_same_one(channel: ClientChannel) -> None:
    first = channel.declare_exchange("x", "topic", durable=True, alternate="a")
    assert channel.declare_exchange("x", "topic", durable=True, alternate="a") is first


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        ({"type": "fanout"}, "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'fanout' but current is"),
        ({"durable": True}, "inequivalent arg 'durable' .* received 'true' but current is 'false'"),
        ({"auto_delete": True}, "inequivalent arg 'auto_delete'"),
        ({"internal": True}, "inequivalent arg 'internal'"),
        ({"alternate": "a"}, "inequivalent arg 'alternate-exchange' .* but current is none"),
    ],
)
def test_declaring_another_exchange_by_the_same_name_is_refused(
    channel: ClientChannel, difference: dict[str, Any], text: str
) -> None:
    channel.declare_exchange("x")
    with pytest.raises(PreconditionFailed, match=text):
        channel.declare_exchange("x", **difference)


def test_unknown_types_and_reserved_names_are_refused(channel: ClientChannel) -> None:
    with pytest.raises(CommandInvalid, match="unknown exchange type 'x-odd'"):
        channel.declare_exchange("x", "x-odd")
    with pytest.raises(AccessRefused, match=r"exchange name 'amq\.mine' contains reserved prefix 'amq\.\*'"):
        channel.declare_exchange("amq.mine")
    with pytest.raises(AccessRefused):
        channel.vhost.delete_exchange("amq.topic", if_unused=False)
    with pytest.raises(AccessRefused, match="operation not permitted on the default exchange"):
        channel.vhost.delete_exchange("", if_unused=False)


def test_an_exchange_is_deleted_with_its_bindings_at_both_ends(channel: ClientChannel, queue: Queue) -> None:
    middle = channel.declare_exchange("middle", "fanout")
    channel.bind("amq.fanout", middle)
    channel.bind("middle", queue)
    channel.vhost.delete_exchange("middle", if_unused=False)
    assert len(channel.vhost.bindings) == 0
    channel.declare_exchange("middle", "fanout")
    channel.publish(b"1", "", "amq.fanout")
    channel.publish(b"2", "", "middle")
    assert waiting(queue) == ""
    channel.vhost.delete_exchange("no such exchange", if_unused=True)


def test_an_exchange_in_use_is_not_deleted_if_unused_was_asked(channel: ClientChannel, queue: Queue) -> None:
    channel.declare_exchange("x", "fanout")
    channel.bind("x", queue)
    with pytest.raises(PreconditionFailed, match="exchange 'x' in vhost '/' in use"):
        channel.vhost.delete_exchange("x", if_unused=True)
    channel.unbind("x", queue)
    channel.vhost.delete_exchange("x", if_unused=True)
    assert "x" not in channel.vhost.exchanges


@pytest.mark.parametrize("end", ["unbind", "delete queue"])
def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: ClientChannel, queue: Queue, end: str) -> None:
    channel.declare_exchange("x", "fanout", auto_delete=True)
    assert "x" in channel.vhost.exchanges
    channel.bind("x", queue)
    channel.bind("x", channel.declare("second"))
    if end == "unbind":
        channel.unbind("x", channel.vhost.queues["second"])
        channel.unbind("x", queue, "never bound")
        assert "x" in channel.vhost.exchanges
        channel.unbind("x", queue)
    else:
        channel.delete(channel.vhost.queues["second"])
        assert "x" in channel.vhost.exchanges
        channel.delete(queue)
    assert "x" not in channel.vhost.exchanges


def test_auto_delete_exchanges_go_one_after_the_other(channel: ClientChannel, queue: Queue) -> None:
    channel.declare_exchange("outer", "fanout", auto_delete=True)
    inner = channel.declare_exchange("inner", "fanout", auto_delete=True)
    channel.bind("outer", inner)
    channel.bind("inner", queue)
    channel.delete(queue)
    assert not {"outer", "inner"} & set(channel.vhost.exchanges)


# -- queues


def test_declaring_the_same_queue_again_returns_the_same_one(channel: ClientChannel, queue: Queue) -> None:
    assert channel.declare("q") is queue


@pytest.mark.parametrize(
    ("difference", "refusal", "text"),
    [
        ({"durable": True}, PreconditionFailed, "inequivalent arg 'durable' for queue 'q' in vhost '/'"),
        ({"auto_delete": True}, PreconditionFailed, "inequivalent arg 'auto_delete'"),
        ({"exclusive": True}, ResourceLocked, "cannot obtain exclusive access"),
        ({"arguments": {"x-max-length": 1}}, PreconditionFailed, "inequivalent arg 'x-max-length' .* current is none"),
    ],
)
def test_declaring_another_queue_by_the_same_name_is_refused(
    channel: ClientChannel, queue: Queue, difference: dict[str, Any], refusal: type[BrokerError], text: str
) -> None:
    with pytest.raises(refusal, match=text):
        channel.declare("q", **difference)


def test_a_queue_without_a_name_gets_one_of_its_own(channel: ClientChannel) -> None:
    names = {channel.declare().name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("amq.gen-") for name in names)
    with pytest.raises(AccessRefused, match=r"queue name 'amq\.mine' contains reserved prefix"):
        channel.declare("amq.mine")


def test_a_queue_that_does_not_exist_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="no queue 'none' in vhost '/'"):
        client.vhost.queue("none", client.connection)


# -- bindings


def test_the_same_binding_again_changes_nothing(channel: ClientChannel, queue: Queue) -> None:
    for _ in range(3):
        channel.bind("amq.direct", queue, "k")
    channel.unbind("amq.direct", queue, "k")
    assert len(channel.vhost.bindings) == 0
    channel.publish(b"1", "k", "amq.direct")
    assert waiting(queue) == ""


def test_bindings_differ_by_their_arguments_but_not_by_the_order_of_them(channel: ClientChannel, queue: Queue) -> None:
    channel.bind("amq.direct", queue, "k", a=1, b=2)
    channel.bind("amq.direct", queue, "k", b=2, a=1)
    channel.bind("amq.direct", queue, "k")
    assert len(channel.vhost.bindings) == 2
    channel.unbind("amq.direct", queue, "k")
    channel.publish(b"1", "k", "amq.direct")
    assert waiting(queue) == "1"


def test_unbinding_what_was_never_bound_is_fine(channel: ClientChannel, queue: Queue) -> None:
    channel.unbind("amq.direct", queue, "k")


def test_a_headers_binding_must_make_sense(channel: ClientChannel, queue: Queue) -> None:
    with pytest.raises(PreconditionFailed):
        channel.bind("amq.headers", queue, **{"x-match": "most"})
    assert len(channel.vhost.bindings) == 0


def test_binding_to_an_exchange_that_does_not_exist_is_refused(channel: ClientChannel, queue: Queue) -> None:
    for operation in (channel.bind, channel.unbind):
        with pytest.raises(NotFound, match="no exchange 'nowhere' in vhost '/'"):
            operation("nowhere", queue)


def test_a_deleted_queue_leaves_no_bindings(channel: ClientChannel, queue: Queue) -> None:
    for exchange in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers"):
        channel.bind(exchange, queue, "k", a=1)
    channel.delete(queue)
    assert len(channel.vhost.bindings) == 0
    channel.declare("q")
    for exchange in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers"):
        channel.publish(b"1", "k", exchange, headers={"a": 1}, mandatory=True)
    assert len(channel.returns()) == 4


# -- routes


def remember(vhost: VHost, exchange: str, key: str) -> None:
    """Do what a session does after a publish: keep the route under the method's bytes."""
    address = address_of(exchange, key)
    vhost.find_route(address, exchange, key, address, False, False)


CHANGES: dict[str, Callable[[ClientChannel], object]] = {
    "bind": lambda channel: channel.bind("amq.direct", channel.vhost.queues["q"], "new"),
    "unbind": lambda channel: channel.unbind("amq.direct", channel.vhost.queues["q"], "k"),
    "bind exchanges": lambda channel: channel.bind("amq.direct", channel.vhost.exchange("amq.fanout"), "k"),
    "declare queue": lambda channel: channel.declare("new"),
    "delete queue": lambda channel: channel.delete(channel.vhost.queues["q"]),
    "declare exchange": lambda channel: channel.declare_exchange("missing"),
    "delete exchange": lambda channel: channel.vhost.delete_exchange("x", if_unused=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_where_keys_lead_drops_the_cached_routes(
    channel: ClientChannel, queue: Queue, change: str
) -> None:
    channel.declare_exchange("x", alternate="missing")
    channel.bind("amq.direct", queue, "k")
    remember(channel.vhost, "amq.direct", "k")
    CHANGES[change](channel)
    assert not channel.vhost.routes


def test_the_dictionary_of_routes_stays_the_same_one(channel: ClientChannel, queue: Queue) -> None:
    """Sessions hold on to it."""
    routes = channel.vhost.routes
    remember(channel.vhost, "", "q")
    assert routes is channel.vhost.routes
    channel.delete(queue)
    assert routes is channel.vhost.routes
    assert not routes


@pytest.mark.parametrize("change", ["same bind", "unbind nothing", "declare again", "consume", "publish", "purge"])
def test_whatever_leaves_keys_alone_leaves_the_routes_alone(channel: ClientChannel, queue: Queue, change: str) -> None:
    channel.bind("amq.direct", queue, "k")
    remember(channel.vhost, "amq.direct", "k")
    if change == "same bind":
        channel.bind("amq.direct", queue, "k")
    elif change == "unbind nothing":
        channel.unbind("amq.direct", queue, "other")
    elif change == "declare again":
        channel.declare("q")
    elif change == "consume":
        channel.consume(queue)
    elif change == "publish":
        channel.publish(b"1", "k", "amq.direct")
    else:
        queue.purge()
    assert channel.vhost.routes


def test_routes_through_a_headers_exchange_are_made_for_each_message(channel: ClientChannel, queue: Queue) -> None:
    vhost = channel.vhost
    channel.bind("amq.direct", vhost.exchange("amq.headers"), "k")
    direct = vhost.exchange("amq.direct")
    assert vhost.make_route(direct, "k", address_of("amq.direct", "k"), False).queues is None
    assert vhost.make_route(direct, "other", address_of("amq.direct", "other"), False).queues == []


def test_routes_that_are_never_used_again_do_not_fill_the_memory(channel: ClientChannel) -> None:
    stats = channel.vhost.broker.stats
    assert stats.route_bytes == 0
    largest, was_dropped = 0, False
    for number in range(vhost_module.MAX_ROUTE_BYTES // ROUTE):
        channel.vhost.find_route(number.to_bytes(4, "big"), "amq.direct", "k", b"", False, False)
        was_dropped = was_dropped or stats.route_bytes < largest
        largest = max(largest, stats.route_bytes)
    assert was_dropped
    assert vhost_module.MAX_ROUTE_BYTES // 2 < largest <= vhost_module.MAX_ROUTE_BYTES


def test_routes_to_many_queues_do_not_fill_the_memory_either(channel: ClientChannel) -> None:
    for number in range(100):
        channel.bind("amq.fanout", channel.declare(f"q{number}"), "")
    vhost, stats = channel.vhost, channel.vhost.broker.stats
    for number in range(1000):
        vhost.find_route(b"%d" % number, "amq.fanout", "k", b"", False, False)
    assert stats.route_bytes >= 1000 * 100 * 8
    channel.bind("amq.direct", vhost.queues["q0"], "k")
    assert (stats.route_bytes, vhost.routes) == (0, {})
