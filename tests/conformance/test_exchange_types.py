"""The exchange types of RabbitMQ's plugins: refusals word by word, and where messages go.

A RabbitMQ has them with rabbitmq_consistent_hash_exchange, rabbitmq_random_exchange, rabbitmq_sharding and
rabbitmq_recent_history_exchange enabled; a type that the broker does not know is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.conformance.cases import AcceptedCase, RefusedCase, call, declare_exchange, declare_queue, label_of
from tests.conformance.conftest import Connect, Namer
from tests.support.wire import Refused, WireChannel

HASHING, MODULUS, RANDOM, HISTORY = "x-consistent-hash", "x-modulus-hash", "x-random", "x-recent-history"
PICKING = (HASHING, MODULUS, RANDOM)


@pytest.fixture
def declare(connect: Connect, channel: WireChannel, name: Namer) -> Any:
    """Declare an exchange; the test is skipped if the broker lacks the type."""

    def make(kind: str, label: str = "exchange", **arguments: Any) -> str:
        require_type(connect, name, kind)
        channel.call("exchange.declare", exchange=name(label), type=kind, arguments=arguments)
        return name(label)

    return make


def require_type(connect: Connect, name: Namer, kind: str) -> None:
    try:
        connect().channel(1).call("exchange.declare", exchange=name(f"probe of {kind}"), type=kind)
    except Refused as refused:
        if refused.refusal.code != 503:
            raise
        pytest.skip(f"the broker has no {kind}")


def refused_weight(key: str, words: str) -> RefusedCase:
    return RefusedCase(
        f"bind with weight {key or 'empty'}",
        given=(declare_exchange(kind=HASHING), declare_queue(exclusive=True)),
        when=call("queue.bind", queue="{queue}", exchange="{exchange}", routing_key=key),
        code=406,
        text=f"PRECONDITION_FAILED - The binding key must be {words}",
    )


def refused_arguments(kind: str, arguments: Mapping[str, Any], words: str) -> RefusedCase:
    return RefusedCase(
        f"declare {kind} {arguments}",
        when=declare_exchange(kind=kind, arguments=arguments),
        code=406,
        text=f"PRECONDITION_FAILED - {words}",
    )


def refused_length(value: Any, shown: str) -> RefusedCase:
    words = f"Invalid argument {shown}, 'x-recent-history-length' must be a positive integer"
    return refused_arguments(HISTORY, {"x-recent-history-length": value}, words)


REFUSED = [
    refused_weight("0", "greater than 0"),
    refused_weight("-1", "greater than 0"),
    refused_weight("", "an integer: <<>>"),
    refused_weight("abc", 'an integer: <<"abc">>'),
    refused_weight(" 1", 'an integer: <<" 1">>'),
    refused_weight("1.5", 'an integer: <<"1.5">>'),
    refused_weight("1_0", 'an integer: <<"1_0">>'),
    refused_arguments(HASHING, {"hash-property": "app_id"}, "Unsupported property: app_id"),
    refused_arguments(HASHING, {"hash-property": ""}, "Unsupported property: "),
    refused_arguments(
        HASHING,
        {"hash-header": "h", "hash-property": "message_id"},
        "hash-header and hash-property are mutually exclusive",
    ),
    refused_arguments(
        HASHING, {"hash-header": "h", "hash-property": "none"}, "hash-header and hash-property are mutually exclusive"
    ),
    refused_length(0, "0"),
    refused_length(-1, "-1"),
    refused_length("5", '<<"5">>'),
    refused_length(True, "true"),
    refused_length(None, "undefined"),
    refused_length([1], "[{signedint,1}]"),
]

ACCEPTED = [
    *(
        AcceptedCase(
            f"bind with weight {key}",
            given=(declare_exchange(kind=HASHING), declare_queue(exclusive=True)),
            when=call("queue.bind", queue="{queue}", exchange="{exchange}", routing_key=key),
        )
        for key in ("1", "+5", "007", "100")
    ),
    AcceptedCase(
        "unbind what is no weight",
        given=(declare_exchange(kind=HASHING), declare_queue(exclusive=True)),
        when=call("queue.unbind", queue="{queue}", exchange="{exchange}", routing_key="abc"),
    ),
    *(
        AcceptedCase(f"hash {property}", when=declare_exchange(kind=HASHING, arguments={"hash-property": property}))
        for property in ("message_id", "correlation_id", "timestamp")
    ),
    AcceptedCase(
        "redeclare with another header, even one that is refused",
        given=(declare_exchange(kind=HASHING, arguments={"hash-header": "a"}),),
        when=declare_exchange(kind=HASHING, arguments={"hash-header": "b", "hash-property": "none"}),
    ),
    AcceptedCase(
        "redeclare with another length, even one that is refused",
        given=(declare_exchange(kind=HISTORY, arguments={"x-recent-history-length": 3}),),
        when=declare_exchange(kind=HISTORY, arguments={"x-recent-history-length": 0}),
    ),
]


@pytest.mark.parametrize("case", [*REFUSED, *ACCEPTED], ids=label_of)
def test_answer(case: RefusedCase | AcceptedCase, channel: WireChannel, connect: Connect, name: Namer) -> None:
    for step in (*case.given, case.when):
        if step.method == "exchange.declare":
            require_type(connect, name, step.arguments["type"])
    case.run(channel, name)


# -- one queue for each message --------------------------------------------------------------------------------------


def bind_some(channel: WireChannel, exchange: str, weights: tuple[int, ...]) -> list[str]:
    queues = []
    for weight in weights:
        queues.append(str(channel.call("queue.declare", exclusive=True)["queue"]))
        channel.call("queue.bind", queue=queues[-1], exchange=exchange, routing_key=str(weight))
    return queues


def counts(channel: WireChannel, queues: list[str]) -> list[int]:
    return [int(channel.call("queue.declare", queue=queue, passive=True)["message_count"]) for queue in queues]


def publish_all(channel: WireChannel, exchange: str, count: int, **properties: Any) -> None:
    """Keys from 0 on; a property may be a function of the number."""
    channel.call("confirm.select")
    for number in range(count):
        filled = {name: value(number) if callable(value) else value for name, value in properties.items()}
        channel.publish(b"%d" % number, filled, exchange=exchange, routing_key=str(number))
    waiting = set(range(1, count + 1))
    while waiting:
        ack = channel.expect("basic.ack")
        waiting -= set(range(1, ack["delivery_tag"] + 1)) if ack["multiple"] else {ack["delivery_tag"]}


@pytest.mark.parametrize("kind", PICKING)
def test_each_message_goes_to_one_queue(channel: WireChannel, declare: Any, kind: str) -> None:
    exchange = declare(kind)
    queues = bind_some(channel, exchange, (1, 1, 1))
    publish_all(channel, exchange, 300)
    channel.barrier()
    found = counts(channel, queues)
    assert sum(found) == 300
    assert all(found)


def test_weights_are_shares(channel: WireChannel, declare: Any) -> None:
    exchange = declare(HASHING)
    queues = bind_some(channel, exchange, (1, 3))
    publish_all(channel, exchange, 2000)
    light, heavy = counts(channel, queues)
    assert light + heavy == 2000
    assert 380 < light < 620  # 500 and 6 deviations


def test_of_two_weights_of_a_queue_the_first_counts(channel: WireChannel, declare: Any) -> None:
    exchange = declare(HASHING)
    queues = bind_some(channel, exchange, (1, 1))
    channel.call("queue.bind", queue=queues[1], exchange=exchange, routing_key="9")
    publish_all(channel, exchange, 1000)
    assert 400 < counts(channel, queues)[0] < 600


@pytest.mark.parametrize("kind", [MODULUS, RANDOM])
def test_a_queue_that_is_bound_twice_gets_twice_as_much(channel: WireChannel, declare: Any, kind: str) -> None:
    exchange = declare(kind)
    queues = bind_some(channel, exchange, (1, 1))
    channel.call("queue.bind", queue=queues[1], exchange=exchange, routing_key="9")
    publish_all(channel, exchange, 1000)
    assert 240 < counts(channel, queues)[0] < 430  # 333 and 6 deviations


@pytest.mark.parametrize("kind", [HASHING, MODULUS])
def test_equal_keys_go_to_the_same_queue(channel: WireChannel, declare: Any, kind: str) -> None:
    exchange = declare(kind)
    queues = bind_some(channel, exchange, (1,) * 4)
    for _ in range(30):
        channel.publish(b"m", {}, exchange=exchange, routing_key="same")
    channel.barrier()
    assert sorted(counts(channel, queues)) == [0, 0, 0, 30]


@pytest.mark.parametrize(
    ("arguments", "properties"),
    [
        ({"hash-header": "h"}, {"headers": lambda number: {"h": number % 10}}),
        ({"hash-header": "h"}, {"headers": lambda number: {"h": str(number % 10)}}),
        ({"hash-property": "message_id"}, {"message_id": lambda number: str(number % 10)}),
        ({"hash-property": "correlation_id"}, {"correlation_id": lambda number: str(number % 10)}),
        ({"hash-property": "timestamp"}, {"timestamp": lambda number: 1_700_000_000 + number % 10}),
    ],
    ids=["integer header", "text header", "message id", "correlation id", "timestamp"],
)
def test_equal_values_go_to_the_same_queue(
    channel: WireChannel, declare: Any, arguments: dict[str, str], properties: dict[str, Any]
) -> None:
    exchange = declare(HASHING, **arguments)
    queues = bind_some(channel, exchange, (1,) * 4)
    publish_all(channel, exchange, 100, **properties)
    places: dict[int, set[str]] = {}
    for queue in queues:
        while (message := channel.get(queue)) is not None:
            places.setdefault(int(message.body) % 10, set()).add(queue)
    assert len(places) == 10
    assert all(len(place) == 1 for place in places.values())


@pytest.mark.parametrize("arguments", [{"hash-header": "h"}, {"hash-property": "message_id"}])
def test_messages_without_the_value_go_to_the_same_queue(
    channel: WireChannel, declare: Any, arguments: dict[str, str]
) -> None:
    exchange = declare(HASHING, **arguments)
    queues = bind_some(channel, exchange, (1,) * 4)
    publish_all(channel, exchange, 40)
    assert sorted(counts(channel, queues)) == [0, 0, 0, 40]


@pytest.mark.parametrize("kind", PICKING)
def test_cc_makes_no_copies(channel: WireChannel, declare: Any, kind: str) -> None:
    exchange = declare(kind)
    queues = bind_some(channel, exchange, (1,) * 4)
    publish_all(channel, exchange, 40, headers={"CC": ["one", "two", "three"]})
    assert sum(counts(channel, queues)) == 40


@pytest.mark.parametrize("kind", [*PICKING, HISTORY])
def test_without_a_binding_the_alternate_takes_it(channel: WireChannel, declare: Any, name: Namer, kind: str) -> None:
    channel.call("exchange.declare", exchange=name("spare"), type="fanout")
    exchange = declare(kind, **{"alternate-exchange": name("spare")})
    channel.publish(b"nobody's", exchange=exchange, mandatory=True)
    assert channel.content("basic.return").body == b"nobody's"
    queue = str(channel.call("queue.declare", exclusive=True)["queue"])
    channel.call("queue.bind", queue=queue, exchange=name("spare"))
    channel.publish(b"spared", exchange=exchange, mandatory=True)
    channel.barrier(queue)
    message = channel.get(queue)
    assert message is not None
    assert message.body == b"spared"


# -- recent history --------------------------------------------------------------------------------------------------


def bodies(channel: WireChannel, queue: str) -> list[bytes]:
    found = []
    while (message := channel.get(queue)) is not None:
        found.append(message.body)
    return found


def test_a_binding_brings_the_last_messages(channel: WireChannel, declare: Any, queue: str) -> None:
    exchange = declare(HISTORY, **{"x-recent-history-length": 3})
    publish_all(channel, exchange, 5)
    for value in (True, "true"):
        channel.publish(b"%r" % value, {"headers": {"x-recent-history-no-store": value}}, exchange=exchange)
        channel.expect("basic.ack")
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="one")
    message = channel.get(queue)
    assert message is not None
    assert (message.body, message["exchange"], message["routing_key"]) == (b"3", exchange, "3")
    assert bodies(channel, queue) == [b"4", b"'true'"]
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="one")
    assert bodies(channel, queue) == []
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="two")
    assert bodies(channel, queue) == [b"3", b"4", b"'true'"]


def test_twenty_are_kept_by_default(channel: WireChannel, declare: Any, queue: str) -> None:
    exchange = declare(HISTORY)
    publish_all(channel, exchange, 30)
    channel.call("queue.bind", queue=queue, exchange=exchange)
    assert bodies(channel, queue) == [b"%d" % number for number in range(10, 30)]


def test_an_exchange_that_is_bound_passes_the_history_on(
    channel: WireChannel, declare: Any, queue: str, name: Namer
) -> None:
    exchange = declare(HISTORY)
    publish_all(channel, exchange, 3)
    channel.call("exchange.declare", exchange=name("behind"), type="fanout")
    channel.call("queue.bind", queue=queue, exchange=name("behind"))
    channel.call("exchange.bind", source=exchange, destination=name("behind"))
    assert sorted(bodies(channel, queue)) == [b"0", b"1", b"2"]  # RabbitMQ: the newest first


def test_an_exchange_without_history_binds(channel: WireChannel, declare: Any, queue: str, name: Namer) -> None:
    exchange = declare(HISTORY)
    channel.call("exchange.declare", exchange=name("behind"), type="fanout")
    channel.call("exchange.bind", source=exchange, destination=name("behind"))
    channel.call("queue.bind", queue=queue, exchange=name("behind"))
    channel.publish(b"later", exchange=exchange)
    channel.barrier(queue)
    assert bodies(channel, queue) == [b"later"]
