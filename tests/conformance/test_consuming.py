"""basic.consume, cancel, get and qos: who gets which message, how many at once, and in what order."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.cases import AcceptedCase, RefusedCase, call, declare_queue, label_of
from tests.conformance.conftest import Namer
from tests.support.wire import Refusal, WireChannel, WireConnection
from tests.support.wire_format import Tagged

CONSUME = call("basic.consume", queue="{queue}", consumer_tag="one")
IN_USE = "ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"


def invalid_priority(value: Any, kind: str) -> RefusedCase:
    return RefusedCase(
        f"x-priority {value!r}",
        call("basic.consume", queue="{queue}", arguments={"x-priority": value}),
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{{queue}}' in vhost '/': "
        f'"expected integer, got {kind}"',
        given=(declare_queue(),),
    )


REFUSED = [
    RefusedCase("consume from a missing queue", CONSUME, 404, "NOT_FOUND - no queue '{queue}' in vhost '/'"),
    RefusedCase(
        "consume from a missing queue without waiting",
        call("basic.consume", queue="{queue}", consumer_tag="one", no_wait=True),
        404,
        "NOT_FOUND - no queue '{queue}' in vhost '/'",
    ),
    RefusedCase(
        "get from a missing queue",
        call("basic.get", queue="{queue}"),
        404,
        "NOT_FOUND - no queue '{queue}' in vhost '/'",
    ),
    RefusedCase(
        "a consumer tag twice",
        CONSUME,
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 'one'",
        given=(declare_queue(), CONSUME),
        scope="connection",
    ),
    RefusedCase(
        "exclusive beside another",
        call("basic.consume", queue="{queue}", exclusive=True),
        403,
        IN_USE,
        given=(declare_queue(), CONSUME),
    ),
    RefusedCase(
        "beside an exclusive one",
        CONSUME,
        403,
        IN_USE,
        given=(declare_queue(), call("basic.consume", queue="{queue}", exclusive=True)),
    ),
    invalid_priority("high", "longstr"),
    invalid_priority(1.5, "double"),
    invalid_priority(True, "bool"),
    invalid_priority(None, "void"),
    RefusedCase(
        "prefetch by size",
        call("basic.qos", prefetch_size=1),
        540,
        "NOT_IMPLEMENTED - prefetch_size!=0 (1)",
        scope="connection",
    ),
]

ACCEPTED = [
    AcceptedCase("its own tag", CONSUME, given=(declare_queue(),), answer={"consumer_tag": "one"}),
    AcceptedCase(
        "the empty name for the queue declared last", call("basic.consume", queue=""), given=(declare_queue(),)
    ),
    AcceptedCase(
        "x-priority of 64 bits",
        call("basic.consume", queue="{queue}", arguments={"x-priority": Tagged("l", 2**40)}),
        given=(declare_queue(),),
    ),
    AcceptedCase(
        "negative x-priority",
        call("basic.consume", queue="{queue}", arguments={"x-priority": -5}),
        given=(declare_queue(),),
    ),
    AcceptedCase(
        "arguments that mean nothing to the broker",
        call("basic.consume", queue="{queue}", arguments={"x-note": [1, 2]}),
        given=(declare_queue(),),
    ),
    AcceptedCase(
        "cancel a tag that nobody has",
        call("basic.cancel", consumer_tag="nobody"),
        answer={"consumer_tag": "nobody"},
    ),
    AcceptedCase(
        "exclusive again after the first was cancelled",
        call("basic.consume", queue="{queue}", exclusive=True),
        given=(
            declare_queue(),
            call("basic.consume", queue="{queue}", consumer_tag="one", exclusive=True),
            call("basic.cancel", consumer_tag="one"),
        ),
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=label_of)
def test_refused(case: RefusedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize("case", ACCEPTED, ids=label_of)
def test_accepted(case: AcceptedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


def publish_numbers(channel: WireChannel, queue: str, count: int) -> None:
    for number in range(count):
        channel.publish(str(number).encode(), routing_key=queue)
    channel.barrier(queue)


def test_made_up_tags_are_unique_and_reserved(channel: WireChannel, queue: str) -> None:
    tags = [channel.call("basic.consume", queue=queue)["consumer_tag"] for _ in range(3)]
    assert len(set(tags)) == 3
    assert all(re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tag) for tag in tags)


def test_a_tag_belongs_to_its_channel(connection: WireConnection, name: Namer) -> None:
    queue = name("shared")
    first, second = connection.channel(1), connection.channel(2)
    first.call("queue.declare", queue=queue)
    first.call("basic.consume", queue=queue, consumer_tag="same")
    second.call("basic.consume", queue=queue, consumer_tag="same")


def test_a_delivery_says_where_it_came_from(channel: WireChannel, queue: str, name: Namer) -> None:
    channel.call("queue.bind", queue=queue, exchange="amq.topic", routing_key=name("*"))
    channel.call("basic.consume", queue=queue, consumer_tag="mine")
    channel.publish(b"hello", exchange="amq.topic", routing_key=name("key"))
    assert channel.content().method.arguments == {
        "consumer_tag": "mine",
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "amq.topic",
        "routing_key": name("key"),
    }


def test_get_says_how_many_are_left(channel: WireChannel, queue: str) -> None:
    publish_numbers(channel, queue, 2)
    first = channel.get(queue)
    assert first is not None
    assert first.method.arguments == {
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "",
        "routing_key": queue,
        "message_count": 1,
    }
    second = channel.get(queue)
    assert second is not None
    assert (second["delivery_tag"], second["message_count"]) == (2, 0)
    channel.send("basic.get", queue=queue)
    assert channel.expect("basic.get-empty").arguments == {"cluster_id": ""}


def test_delivery_tags_count_per_channel_over_gets_and_deliveries(channel: WireChannel, queue: str) -> None:
    publish_numbers(channel, queue, 2)
    got = [channel.get(queue, no_ack=True), channel.get(queue, no_ack=False)]
    channel.call("basic.consume", queue=queue, no_ack=True)
    channel.publish(b"more", routing_key=queue)
    assert [message["delivery_tag"] for message in got if message] == [1, 2]
    assert channel.content()["delivery_tag"] == 3


def test_no_local_is_ignored(channel: WireChannel, queue: str) -> None:
    channel.call("basic.consume", queue=queue, no_local=True)
    channel.publish(b"own", routing_key=queue)
    assert channel.content().body == b"own"


def test_consume_without_waiting_is_not_answered(channel: WireChannel, queue: str) -> None:
    channel.send("basic.consume", queue=queue, consumer_tag="quiet", no_wait=True)
    channel.publish(b"hello", routing_key=queue)
    assert channel.content()["consumer_tag"] == "quiet"


def test_cancel_without_waiting_is_not_answered(channel: WireChannel, queue: str) -> None:
    channel.call("basic.consume", queue=queue, consumer_tag="quiet")
    channel.send("basic.cancel", consumer_tag="quiet", no_wait=True)
    channel.barrier(queue)
    publish_numbers(channel, queue, 1)
    assert channel.get(queue) is not None


def test_after_cancel_nothing_more_comes_but_what_came_can_be_acked(channel: WireChannel, queue: str) -> None:
    channel.call("basic.consume", queue=queue, consumer_tag="brief")
    channel.publish(b"first", routing_key=queue)
    delivery = channel.content()
    assert channel.call("basic.cancel", consumer_tag="brief")["consumer_tag"] == "brief"
    publish_numbers(channel, queue, 1)
    channel.send("basic.ack", delivery_tag=delivery["delivery_tag"])
    answer = channel.call("queue.declare", queue=queue, passive=True)
    assert (answer["message_count"], answer["consumer_count"]) == (1, 0)


def test_messages_come_in_the_order_of_publishing(channel: WireChannel, queue: str) -> None:
    publish_numbers(channel, queue, 50)
    channel.call("basic.consume", queue=queue, no_ack=True)
    assert [channel.content().body for _ in range(50)] == [str(number).encode() for number in range(50)]


def test_consumers_take_turns(channel: WireChannel, queue: str) -> None:
    for tag in "abc":
        channel.call("basic.consume", queue=queue, consumer_tag=tag, no_ack=True)
    for _ in range(6):
        channel.publish(b"", routing_key=queue)
    tags = [channel.content()["consumer_tag"] for _ in range(6)]
    assert tags[:3] == tags[3:]
    assert sorted(tags[:3]) == ["a", "b", "c"]


def test_the_highest_priority_goes_first_while_it_has_room(channel: WireChannel, queue: str) -> None:
    channel.call("basic.qos", prefetch_count=2)
    channel.call("basic.consume", queue=queue, consumer_tag="low", arguments={"x-priority": -1})
    channel.call("basic.consume", queue=queue, consumer_tag="plain")
    channel.call("basic.consume", queue=queue, consumer_tag="high", arguments={"x-priority": 5})
    for _ in range(6):
        channel.publish(b"", routing_key=queue)
    tags = [channel.content()["consumer_tag"] for _ in range(6)]
    assert tags == ["high", "high", "plain", "plain", "low", "low"]


def test_prefetch_holds_back_each_consumer(channel: WireChannel, queue: str) -> None:
    channel.call("basic.qos", prefetch_count=1)
    for tag in ("one", "two"):
        channel.call("basic.consume", queue=queue, consumer_tag=tag)
    for _ in range(3):
        channel.publish(b"", routing_key=queue)
    deliveries = {
        message["consumer_tag"]: message["delivery_tag"] for message in (channel.content(), channel.content())
    }
    assert deliveries.keys() == {"one", "two"}
    channel.barrier(queue)
    channel.send("basic.ack", delivery_tag=deliveries["two"])
    assert channel.content()["consumer_tag"] == "two"


def test_global_prefetch_holds_back_the_whole_channel(channel: WireChannel, queue: str) -> None:
    channel.call("basic.qos", **{"prefetch_count": 2, "global": True})
    for tag in ("one", "two"):
        channel.call("basic.consume", queue=queue, consumer_tag=tag)
    for _ in range(3):
        channel.publish(b"", routing_key=queue)
    assert [channel.content()["delivery_tag"] for _ in range(2)] == [1, 2]
    channel.barrier(queue)
    channel.send("basic.ack", delivery_tag=1)
    assert channel.content()["delivery_tag"] == 3


def test_prefetch_is_for_consumers_that_come_after(channel: WireChannel, queue: str) -> None:
    channel.call("basic.consume", queue=queue, consumer_tag="before")
    channel.call("basic.qos", prefetch_count=1)
    for _ in range(3):
        channel.publish(b"", routing_key=queue)
    assert [channel.content()["delivery_tag"] for _ in range(3)] == [1, 2, 3]


def test_prefetch_does_not_hold_back_without_acknowledgements(channel: WireChannel, queue: str) -> None:
    channel.call("basic.qos", prefetch_count=1)
    channel.call("basic.consume", queue=queue, no_ack=True)
    for _ in range(3):
        channel.publish(b"", routing_key=queue)
    assert [channel.content()["delivery_tag"] for _ in range(3)] == [1, 2, 3]


def test_prefetch_does_not_count_what_was_got(channel: WireChannel, queue: str) -> None:
    channel.call("basic.qos", prefetch_count=1)
    publish_numbers(channel, queue, 3)
    assert channel.get(queue, no_ack=False) is not None
    assert channel.get(queue, no_ack=False) is not None
    channel.call("basic.consume", queue=queue)
    assert channel.content().body == b"2"


def test_a_raised_prefetch_of_the_channel_lets_more_through(channel: WireChannel, queue: str) -> None:
    channel.call("basic.qos", **{"prefetch_count": 1, "global": True})
    channel.call("basic.consume", queue=queue)
    for _ in range(2):
        channel.publish(b"", routing_key=queue)
    assert channel.content()["delivery_tag"] == 1
    channel.barrier(queue)
    channel.call("basic.qos", **{"prefetch_count": 2, "global": True})
    assert channel.content()["delivery_tag"] == 2


def test_a_tag_can_be_used_again_after_cancel(channel: WireChannel, queue: str) -> None:
    for _ in range(2):
        channel.call("basic.consume", queue=queue, consumer_tag="again")
        channel.call("basic.cancel", consumer_tag="again")


def test_delete_if_unused_counts_consumers_of_all_channels(connection: WireConnection) -> None:
    first, second = connection.channel(1), connection.channel(2)
    queue = first.call("queue.declare", exclusive=True)["queue"]
    second.call("basic.consume", queue=queue)
    text = f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"
    refusal = first.refused("queue.delete", queue=queue, if_unused=True)
    assert refusal == Refusal("channel", 406, text, "queue.delete")
