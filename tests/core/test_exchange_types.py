"""Exchanges that lead a message to one queue: cached routes, CC, alternates, transactions, e2e bindings, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker, waiting
from warrenmq.core.broker import Broker
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.exchange import Exchange
from warrenmq.core.message import address_of
from warrenmq.core.outcome import QUEUED
from warrenmq.core.queue import Queue
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.memory_store import MemoryStorage

PICKING = ("x-consistent-hash", "x-least-loaded", "x-modulus-hash", "x-random")
BY_KEY = ("x-consistent-hash", "x-modulus-hash")


def declare(channel: ClientChannel, name: str, type: str, durable: bool = False, **arguments: Any) -> Exchange:
    renamed = {key.replace("_", "-"): value for key, value in arguments.items()}
    return channel.vhost.declare_exchange(name, type, durable, False, False, renamed)


def bind_some(channel: ClientChannel, exchange: str, count: int = 4, durable: bool = False) -> list[Queue]:
    queues = [channel.declare(f"{exchange}.{number}", durable=durable) for number in range(count)]
    for queue in queues:
        channel.bind(exchange, queue, "1")
    return queues


def counts(queues: list[Queue]) -> list[int]:
    return [queue.message_count() for queue in queues]


def is_cached(channel: ClientChannel, exchange: str) -> bool:
    route = channel.vhost.make_route(channel.vhost.exchange(exchange), "k", address_of(exchange, "k"), False)
    return route.queues is not None


@pytest.mark.parametrize("type", PICKING)
def test_each_message_goes_to_one_queue(channel: ClientChannel, type: str) -> None:
    declare(channel, "x", type)
    queues = bind_some(channel, "x")
    for number in range(200):
        channel.publish(b"m", str(number), "x")
    assert sum(counts(queues)) == 200
    assert all(counts(queues))


@pytest.mark.parametrize("type", PICKING)
def test_keys_of_cc_and_bcc_make_no_copies(channel: ClientChannel, type: str) -> None:
    declare(channel, "x", type)
    queues = bind_some(channel, "x")
    for number in range(50):
        channel.publish(b"m", "same", "x", headers={"CC": [str(number), "other"], "BCC": ["third"]})
    assert sum(counts(queues)) == 50
    assert (max(counts(queues)) == 50) is (type in BY_KEY)


@pytest.mark.parametrize(
    ("type", "arguments", "expected"),
    [
        ("x-consistent-hash", {}, True),
        ("x-consistent-hash", {"hash_header": "h"}, False),
        ("x-consistent-hash", {"hash_property": "message_id"}, False),
        ("x-modulus-hash", {}, True),
        ("x-random", {}, False),
        ("x-least-loaded", {}, False),
        ("x-recent-history", {}, False),
    ],
)
def test_only_routes_by_the_key_alone_are_cached(
    channel: ClientChannel, type: str, arguments: dict[str, str], expected: bool
) -> None:
    declare(channel, "x", type, **arguments)
    bind_some(channel, "x")
    assert is_cached(channel, "x") is expected
    channel.declare_exchange("before", "fanout")
    channel.bind("before", channel.vhost.exchange("x"))
    assert is_cached(channel, "before") is expected


@pytest.mark.parametrize("type", [*PICKING, "x-recent-history"])
@pytest.mark.parametrize("mandatory", [False, True])
def test_without_a_binding_the_alternate_exchange_takes_it(channel: ClientChannel, type: str, mandatory: bool) -> None:
    channel.declare_exchange("spare", "fanout")
    declare(channel, "x", type, alternate_exchange="spare")
    channel.publish(b"a", "k", "x", mandatory=True)
    assert [returned.text for returned in channel.returns()] == ["NO_ROUTE"]
    spare = channel.declare("spare")
    channel.bind("spare", spare)
    channel.publish(b"b", "k", "x", mandatory=mandatory)
    queue = channel.declare("q")
    channel.bind("x", queue, "1")
    before = waiting(queue)
    channel.publish(b"c", "k", "x", mandatory=mandatory)
    assert (waiting(spare), waiting(queue)) == ("b", before + "c")
    assert channel.returns() == []


@pytest.mark.parametrize("type", PICKING)
def test_one_exchange_spreads_over_others_that_spread_again(channel: ClientChannel, type: str) -> None:
    declare(channel, "x", "x-random")
    queues = []
    for name in ("left", "right"):
        channel.bind("x", declare(channel, name, type), "1")
        queues += bind_some(channel, name, 3)
    for number in range(300):
        channel.publish(b"m", str(number), "x")
    assert sum(counts(queues)) == 300
    assert all(counts(queues))


@pytest.mark.parametrize("arguments", [{"hash_header": "h"}, {"hash_property": "message_id"}])
def test_equal_values_go_to_the_same_queue_whatever_the_key(channel: ClientChannel, arguments: dict[str, str]) -> None:
    declare(channel, "x", "x-consistent-hash", **arguments)
    queues = bind_some(channel, "x")
    for number in range(120):
        value = str(number % 12)
        channel.publish(b"%x" % (number % 12), str(number), "x", headers={"h": value}, message_id=value)
    found = [set(waiting(queue)) for queue in queues]
    assert sum(map(len, found)) == 12  # none is in two queues
    assert sum(counts(queues)) == 120
    assert sum(map(bool, found)) > 1


def test_the_brokers_own_publishes_are_spread_too(channel: ClientChannel) -> None:
    for type in PICKING:
        declare(channel, type, type)
        queues = bind_some(channel, type, 2)
        for number in range(40):
            header = content_header(1, BasicProperties())
            assert channel.vhost.publish(type, str(number), header, b"m") == QUEUED
        assert sum(counts(queues)) == 40
        assert all(counts(queues))


@pytest.mark.parametrize("type", PICKING)
def test_a_transaction_delivers_on_commit(channel: ClientChannel, type: str) -> None:
    declare(channel, "x", type)
    queues = bind_some(channel, "x")
    channel.core.select_transactions()
    for number in range(20):
        channel.publish(b"m", str(number), "x")
    assert sum(counts(queues)) == 0
    channel.core.commit()
    assert sum(counts(queues)) == 20
    channel.publish(b"m", "k", "x")
    channel.core.rollback()
    assert sum(counts(queues)) == 20


def test_the_load_is_ready_and_unacked_messages(channel: ClientChannel) -> None:
    declare(channel, "x", "x-least-loaded")
    first, second, third = bind_some(channel, "x", 3)
    channel.publish_all("abc", first.name)
    channel.publish_all("def", second.name)
    channel.consume(second, prefetch=2)
    assert channel.bodies() == "de"
    channel.publish_all("g", third.name)
    for letter in "1234":
        channel.publish(letter.encode(), "k", "x")
    assert [waiting(queue) for queue in (first, second, third)] == ["abc3", "f4", "g12"]
    channel.ack(2, multiple=True)
    assert channel.bodies() == "f4"
    channel.publish(b"5", "k", "x")
    assert waiting(second) == "5"


def test_a_queue_whose_consumer_takes_messages_without_acks_has_no_load(channel: ClientChannel) -> None:
    declare(channel, "x", "x-least-loaded")
    busy, idle = bind_some(channel, "x", 2)
    channel.consume(idle, no_ack=True)
    for letter in "abcd":
        channel.publish(letter.encode(), "k", "x")
    assert (waiting(busy), channel.bodies()) == ("a", "bcd")


def test_an_exchange_has_no_load(channel: ClientChannel) -> None:
    declare(channel, "x", "x-least-loaded")
    (queue,) = bind_some(channel, "x", 1)
    channel.bind("x", channel.declare_exchange("next", "fanout"))
    after = channel.declare("after")
    channel.bind("next", after)
    for letter in "abcd":
        channel.publish(letter.encode(), "k", "x")
    assert (waiting(queue), waiting(after)) == ("a", "bcd")


def test_a_transaction_goes_by_the_loads_at_commit(channel: ClientChannel, other: ClientChannel) -> None:
    declare(channel, "x", "x-least-loaded")
    first, second = bind_some(channel, "x", 2)
    other.publish_all("a", first.name)
    channel.core.select_transactions()
    for letter in "1234":
        channel.publish(letter.encode(), "k", "x")
    other.publish_all("bcd", second.name)
    channel.core.commit()
    assert (waiting(first), waiting(second)) == ("a124", "bcd3")


@pytest.mark.parametrize("type", PICKING)
def test_duplicates_are_dropped_before_a_queue_is_chosen(channel: ClientChannel, type: str) -> None:
    declare(channel, "x", type, x_message_deduplication=True)
    queues = bind_some(channel, "x")
    for number in range(60):
        channel.publish(b"m", str(number), "x", headers={"x-deduplication-header": str(number % 20)})
    assert sum(counts(queues)) == 20


@pytest.mark.parametrize("type", BY_KEY)
def test_a_restart_leads_keys_to_the_same_queues(type: str) -> None:
    storage = MemoryStorage()
    channel = Client(make_broker(storage)).channel()
    declare(channel, "x", type, durable=True)
    for number, queue in enumerate([channel.declare(f"q{number}", durable=True) for number in (3, 1, 2, 0)]):
        channel.bind("x", queue, str(number + 1))
        channel.bind("x", queue, "7")
    for number in range(100):
        channel.publish(b"%d " % number, str(number), "x", delivery_mode=PERSISTENT)
    before = {name: waiting(queue) for name, queue in channel.vhost.queues.items()}
    channel = Client(make_broker(storage)).channel()
    for queue in channel.vhost.queues.values():
        channel.vhost.queues[queue.name].purge()
    for number in range(100):
        channel.publish(b"%d " % number, str(number), "x")
    assert {name: waiting(queue) for name, queue in channel.vhost.queues.items()} == before


@pytest.mark.parametrize(
    ("type", "arguments", "words"),
    [
        ("x-consistent-hash", {"hash-property": "app_id"}, "Unsupported property: app_id"),
        (
            "x-consistent-hash",
            {"hash-header": "h", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        (
            "x-consistent-hash",
            {"hash-header": 5},
            "invalid type 'signedint' for arg 'hash-header' in exchange 'x' in vhost '/'",
        ),
        (
            "x-recent-history",
            {"x-recent-history-length": 0},
            "Invalid argument 0, 'x-recent-history-length' must be a positive integer",
        ),
        (
            "x-recent-history",
            {"x-recent-history-length": "5"},
            "Invalid argument <<\"5\">>, 'x-recent-history-length' must be a positive integer",
        ),
        (
            "x-recent-history",
            {"x-recent-history-length": True},
            "Invalid argument true, 'x-recent-history-length' must be a positive integer",
        ),
    ],
)
def test_bad_arguments_are_refused_with_rabbitmqs_text(
    channel: ClientChannel, type: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        channel.vhost.declare_exchange("x", type, False, False, False, arguments)
    assert refused.value.text == words
    channel.vhost.declare_exchange("x", "direct", False, False, False, arguments)  # to others they mean nothing


def test_a_weight_that_is_refused_leaves_no_binding(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    declare(channel, "x", "x-consistent-hash")
    size = broker.stats.definition_bytes
    with pytest.raises(PreconditionFailed, match='The binding key must be an integer: <<"many">>'):
        channel.bind("x", queue, "many")
    assert (len(channel.vhost.bindings), broker.stats.definition_bytes) == (0, size)
    assert channel.vhost.unbind("x", queue, "many", {}) is False


def test_a_redeclaration_compares_no_argument_of_these_types(channel: ClientChannel) -> None:
    hashing = declare(channel, "x", "x-consistent-hash", hash_header="a")
    assert declare(channel, "x", "x-consistent-hash", hash_property="message_id") is hashing
    history = declare(channel, "h", "x-recent-history")
    assert declare(channel, "h", "x-recent-history", x_recent_history_length=0) is history
