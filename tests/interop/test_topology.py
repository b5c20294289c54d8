"""Every client declares, binds, counts and deletes exchanges and queues."""

from __future__ import annotations

import pytest

from .clients.contract import GLANCE, Channel, Client, Feature, Refused
from .conftest import Connect, Namer

KEYS_BY_KIND = [
    ("direct", "a.b", ["a.b"], ["a.c", "a"]),
    ("fanout", "ignored", ["a.b", "anything", ""], []),
    ("topic", "a.*.#", ["a.b", "a.b.c.d"], ["a", "b.a"]),
]


@pytest.mark.parametrize(("kind", "binding", "hits", "misses"), KEYS_BY_KIND, ids=[row[0] for row in KEYS_BY_KIND])
def test_exchange_routes_by_its_type(
    channel: Channel, name: Namer, kind: str, binding: str, hits: list[str], misses: list[str]
) -> None:
    exchange, queue = name("exchange"), name("queue")
    channel.declare_exchange(exchange, kind)
    channel.declare_queue(queue)
    channel.bind_queue(queue, exchange, binding)
    for key in [*hits, *misses]:
        channel.publish(exchange, key, key.encode())
    channel.consume(queue, no_ack=True)
    assert [delivery.routing_key for delivery in channel.take(len(hits))] == hits
    assert channel.next_delivery(GLANCE) is None


@pytest.mark.parametrize("match", ["all", "any"])
def test_headers_exchange_matches_headers(channel: Channel, name: Namer, match: str) -> None:
    exchange, queue = name("exchange"), name("queue")
    channel.declare_exchange(exchange, "headers")
    channel.declare_queue(queue)
    channel.bind_queue(queue, exchange, "", {"x-match": match, "color": "red", "size": 3})
    channel.publish(exchange, "", b"both", {"headers": {"color": "red", "size": 3}})
    channel.publish(exchange, "", b"one", {"headers": {"color": "red", "size": 4}})
    channel.publish(exchange, "", b"none", {"headers": {"color": "blue"}})
    channel.consume(queue, no_ack=True)
    expected = [b"both"] if match == "all" else [b"both", b"one"]
    assert [delivery.body for delivery in channel.take(len(expected))] == expected
    assert channel.next_delivery(GLANCE) is None


def test_default_exchange_routes_to_the_queue_of_that_name(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.publish("", queue, b"hello")
    channel.consume(queue, no_ack=True)
    delivery = channel.take(1)[0]
    assert (delivery.exchange, delivery.routing_key, delivery.body) == ("", queue, b"hello")


@pytest.mark.parametrize("exchange", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"])
def test_predeclared_exchanges_are_there(channel: Channel, name: Namer, exchange: str) -> None:
    kind = {"amq.match": "headers"}.get(exchange, exchange.removeprefix("amq."))
    channel.declare_exchange(exchange, kind, passive=True)
    channel.declare_exchange(exchange, kind, durable=True)


def test_server_names_a_queue_that_has_no_name(channel: Channel) -> None:
    first = channel.declare_queue(exclusive=True)
    second = channel.declare_queue(exclusive=True)
    assert first.name.startswith("amq.gen-")
    assert first.name != second.name
    channel.publish("", first.name, b"to the first")
    channel.consume(first.name, no_ack=True)
    assert channel.take(1)[0].routing_key == first.name


def test_passive_declare_returns_messages_and_consumers(client: Client, name: Namer) -> None:
    channel = client.channel()
    queue = name("queue")
    channel.declare_queue(queue)
    channel.select_confirms()
    for body in (b"1", b"2", b"3"):
        channel.confirm("", queue, body)
    assert channel.declare_queue(queue, passive=True).messages == 3
    other = client.channel()
    other.qos(1)
    other.consume(queue)
    other.take(1)
    state = channel.declare_queue(queue, passive=True)
    assert (state.name, state.messages, state.consumers) == (queue, 2, 1)


def test_declaring_again_with_the_same_arguments_is_fine(channel: Channel, name: Namer) -> None:
    exchange, queue = name("exchange"), name("queue")
    arguments = {"x-message-ttl": 60000, "x-expires": 600000, "x-max-length": 100, "x-max-priority": 5}
    for _ in range(2):
        channel.declare_exchange(exchange, "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
        assert channel.declare_queue(queue, durable=True, arguments=arguments).name == queue


def test_unbound_queue_gets_nothing_more(channel: Channel, name: Namer) -> None:
    exchange, queue = name("exchange"), name("queue")
    channel.declare_exchange(exchange, "direct")
    channel.declare_queue(queue)
    channel.bind_queue(queue, exchange, "key")
    channel.publish(exchange, "key", b"bound")
    channel.unbind_queue(queue, exchange, "key")
    channel.publish(exchange, "key", b"unbound")
    assert channel.delete_queue(queue) == 1


def test_queue_bound_twice_gets_one_copy(channel: Channel, name: Namer) -> None:
    exchange, queue = name("exchange"), name("queue")
    channel.declare_exchange(exchange, "topic")
    channel.declare_queue(queue)
    for binding in ("a.*", "a.#", "*.b", "a.b"):
        channel.bind_queue(queue, exchange, binding)
    channel.publish(exchange, "a.b", b"once")
    assert channel.purge_queue(queue) == 1


def test_purge_and_delete_tell_how_many_messages_went(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    for body in (b"1", b"2", b"3"):
        channel.publish("", queue, body)
    assert channel.purge_queue(queue) == 3
    assert channel.purge_queue(queue) == 0
    channel.publish("", queue, b"4")
    assert channel.delete_queue(queue) == 1
    assert channel.delete_queue(queue) == 0


def test_exchange_passes_messages_to_a_bound_exchange(channel: Channel, name: Namer) -> None:
    source, middle, queue = name("source"), name("middle"), name("queue")
    channel.declare_exchange(source, "topic")
    channel.declare_exchange(middle, "fanout")
    channel.declare_queue(queue)
    channel.bind_exchange(middle, source, "news.#")
    channel.bind_queue(queue, middle)
    channel.publish(source, "news.today", b"through both")
    channel.publish(source, "weather", b"not this")
    channel.consume(queue, no_ack=True)
    delivery = channel.take(1)[0]
    assert (delivery.exchange, delivery.routing_key) == (source, "news.today")
    channel.unbind_exchange(middle, source, "news.#")
    channel.publish(source, "news.tomorrow", b"unbound")
    assert channel.next_delivery(GLANCE) is None


def test_exchanges_bound_in_a_circle_deliver_once(channel: Channel, name: Namer) -> None:
    first, second, queue = name("first"), name("second"), name("queue")
    channel.declare_exchange(first, "fanout")
    channel.declare_exchange(second, "fanout")
    channel.declare_queue(queue)
    channel.bind_exchange(second, first)
    channel.bind_exchange(first, second)
    channel.bind_queue(queue, first)
    channel.bind_queue(queue, second)
    channel.publish(first, "", b"round and round")
    assert channel.purge_queue(queue) == 1


def test_alternate_exchange_takes_what_finds_no_queue(channel: Channel, name: Namer) -> None:
    exchange, alternate, queue, strays = name("exchange"), name("alternate"), name("queue"), name("strays")
    channel.declare_exchange(alternate, "fanout")
    channel.declare_exchange(exchange, "direct", arguments={"alternate-exchange": alternate})
    channel.declare_queue(queue)
    channel.declare_queue(strays)
    channel.bind_queue(queue, exchange, "known")
    channel.bind_queue(strays, alternate)
    channel.select_confirms()
    assert channel.confirm(exchange, "known", b"1", mandatory=True).returned is None
    assert channel.confirm(exchange, "unknown", b"2", mandatory=True).returned is None
    assert channel.purge_queue(queue) == 1
    assert channel.purge_queue(strays) == 1


def test_exclusive_queue_goes_with_its_connection(connect: Connect, name: Namer) -> None:
    owner, other = connect(), connect()
    queue = name("queue")
    owner.channel().declare_queue(queue, exclusive=True)
    owner.close()
    # Only now can another connection declare it otherwise than it was.
    assert other.channel().declare_queue(queue, durable=True).name == queue


def test_durable_is_no_matter_for_an_exclusive_queue(channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue, exclusive=True)
    assert channel.declare_queue(queue, exclusive=True, durable=True).name == queue


def test_auto_delete_queue_goes_with_its_last_consumer(client: Client, name: Namer) -> None:
    channel = client.channel()
    queue = name("queue")
    channel.declare_queue(queue, auto_delete=True)
    first, second = channel.consume(queue), channel.consume(queue)
    channel.cancel(first)
    assert channel.declare_queue(queue, passive=True).consumers == 1
    channel.cancel(second)
    with pytest.raises(Refused) as refused:
        client.channel().declare_queue(queue, passive=True)
    assert refused.value.code == 404


def test_auto_delete_exchange_goes_with_its_last_binding(client: Client, name: Namer) -> None:
    channel = client.channel()
    exchange, queue = name("exchange"), name("queue")
    channel.declare_exchange(exchange, "direct", auto_delete=True)
    channel.declare_queue(queue)
    channel.bind_queue(queue, exchange, "a")
    channel.bind_queue(queue, exchange, "b")
    channel.unbind_queue(queue, exchange, "a")
    channel.declare_exchange(exchange, "direct", passive=True)
    channel.unbind_queue(queue, exchange, "b")
    with pytest.raises(Refused) as refused:
        client.channel().declare_exchange(exchange, "direct", passive=True)
    assert refused.value.code == 404


@pytest.mark.needs(Feature.INTERNAL_EXCHANGE)
def test_internal_exchange_is_reached_only_through_another(client: Client, name: Namer) -> None:
    channel = client.channel()
    outer, inner, queue = name("outer"), name("inner"), name("queue")
    channel.declare_exchange(outer, "fanout")
    channel.declare_exchange(inner, "fanout", internal=True)
    channel.declare_queue(queue)
    channel.bind_exchange(inner, outer)
    channel.bind_queue(queue, inner)
    channel.publish(outer, "", b"by the door")
    channel.consume(queue, no_ack=True)
    channel.take(1)
    other = client.channel()
    other.publish(inner, "", b"through the wall")
    refused = other.wait_closed()
    assert refused.code == 403
    assert refused.text == f"ACCESS_REFUSED - cannot publish to internal exchange '{inner}' in vhost '/'"
