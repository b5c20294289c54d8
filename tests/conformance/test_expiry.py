"""Message expiry: by queue argument, by message, by both; what it removes and what it never touches."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.features import LONG_MS, Topology, deaths, history
from tests.support.wire import WireChannel

SHORT_MS = 50
SOON = str(SHORT_MS)
LATE = str(LONG_MS)


# -- which time counts -----------------------------------------------------------------------------------------------


def test_a_queue_with_a_ttl_drops_its_messages_after_it(topology: Topology) -> None:
    queue = topology.queue(message_ttl=SHORT_MS)
    topology.publish(queue, b"one", b"two")
    topology.await_depth(queue, 0)


def test_a_message_with_an_expiration_is_dropped_after_it(topology: Topology) -> None:
    queue = topology.queue()
    topology.publish(queue, b"one", expiration=SOON)
    topology.await_depth(queue, 0)


@pytest.mark.parametrize(
    ("queue_ms", "message_ms"), [(SHORT_MS, LONG_MS), (LONG_MS, SHORT_MS)], ids=["of-the-queue", "of-the-message"]
)
def test_the_lower_of_the_two_times_counts(topology: Topology, queue_ms: int, message_ms: int) -> None:
    queue = topology.queue(message_ttl=queue_ms)
    topology.publish(queue, b"one", expiration=str(message_ms))
    topology.await_depth(queue, 0)


def test_a_message_without_any_time_stays(topology: Topology) -> None:
    queue = topology.queue()
    topology.publish(queue, b"one")
    topology.let_pass(SHORT_MS)
    assert topology.bodies(queue) == [b"one"]


def test_a_time_that_has_not_passed_changes_nothing(topology: Topology) -> None:
    queue = topology.queue(message_ttl=LONG_MS)
    topology.publish(queue, b"one")
    topology.publish(queue, b"two", expiration=LATE)
    topology.let_pass(SHORT_MS)
    assert topology.bodies(queue) == [b"one", b"two"]


def test_each_queue_has_its_own_time(topology: Topology) -> None:
    fanout = topology.exchange("fanout")
    brief, lasting = topology.queue("brief", message_ttl=SHORT_MS), topology.queue("lasting")
    for queue in (brief, lasting):
        topology.bind(queue, fanout)
    topology.channel.publish(b"one", exchange=fanout)
    topology.await_depth(brief, 0)
    assert topology.bodies(lasting) == [b"one"]


def test_the_time_of_a_message_counts_in_every_queue(topology: Topology) -> None:
    fanout = topology.exchange("fanout")
    queues = [topology.queue("first"), topology.queue("second", message_ttl=LONG_MS)]
    for queue in queues:
        topology.bind(queue, fanout)
    topology.channel.publish(b"one", {"expiration": SOON}, exchange=fanout)
    for queue in queues:
        topology.await_depth(queue, 0)


def test_the_largest_times_are_accepted_and_mean_what_they_say(topology: Topology) -> None:
    queue = topology.queue(message_ttl=315_360_000_000)
    topology.publish(queue, b"one", expiration="315360000000")
    topology.let_pass(SHORT_MS)
    assert topology.bodies(queue) == [b"one"]


# -- zero ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["queue", "message"])
def test_with_a_time_of_zero_a_message_that_no_consumer_takes_is_gone(topology: Topology, by: str) -> None:
    queue = topology.queue(**{"message_ttl": 0} if by == "queue" else {})
    topology.publish(queue, b"one", **{} if by == "queue" else {"expiration": "0"})
    topology.await_depth(queue, 0)
    assert topology.bodies(queue) == []


@pytest.mark.parametrize("by", ["queue", "message"])
@pytest.mark.parametrize("no_ack", [False, True])
def test_with_a_time_of_zero_a_waiting_consumer_gets_the_message(topology: Topology, by: str, no_ack: bool) -> None:
    queue = topology.queue(**{"message_ttl": 0} if by == "queue" else {})
    topology.channel.call("basic.consume", queue=queue, no_ack=no_ack)
    topology.publish(queue, b"one", **{} if by == "queue" else {"expiration": "0"})
    assert topology.channel.content().body == b"one"


def test_with_a_time_of_zero_a_requeued_message_is_dead_lettered(topology: Topology) -> None:
    queue = topology.queue(message_ttl=0, **topology.grave())
    topology.channel.call("basic.qos", prefetch_count=1)
    topology.channel.call("basic.consume", queue=queue, consumer_tag="once")
    topology.publish(queue, b"one")
    tag = topology.channel.content()["delivery_tag"]
    topology.channel.call("basic.cancel", consumer_tag="once")
    topology.reject(tag, requeue=True)
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "expired", 1)]


def test_with_a_time_of_zero_a_message_counts_for_the_length_before_it_is_gone(topology: Topology) -> None:
    queue = topology.queue(max_length=1, **topology.grave())
    topology.publish(queue, b"waits")
    topology.publish(queue, b"expires", expiration="0")
    died = topology.take(topology.name("grave"), 2)
    assert {(message.body, deaths(message)[0]["reason"]) for message in died} == {
        (b"waits", "maxlen"),
        (b"expires", "expired"),
    }


def test_with_a_time_of_zero_and_a_dead_letter_exchange_every_message_moves_on(topology: Topology) -> None:
    queue = topology.queue(message_ttl=0, **topology.grave())
    topology.publish(queue, b"one", b"two", b"three")
    died = topology.take(topology.name("grave"), 3)
    assert [message.body for message in died] == [b"one", b"two", b"three"]
    assert [deaths(message)[0]["reason"] for message in died] == ["expired"] * 3


# -- what is delivered never was expired -----------------------------------------------------------------------------


def test_an_expired_message_behind_one_that_stays_is_not_delivered(topology: Topology) -> None:
    queue = topology.queue()
    topology.publish(queue, b"stays")
    topology.publish(queue, b"expires", expiration=SOON)
    topology.let_pass(SHORT_MS)
    assert topology.bodies(queue) == [b"stays"]


def test_an_expired_message_between_others_is_not_delivered(topology: Topology) -> None:
    queue = topology.queue()
    topology.publish(queue, b"one")
    topology.publish(queue, b"expires", expiration=SOON)
    topology.publish(queue, b"two", expiration=LATE)
    topology.let_pass(SHORT_MS)
    assert topology.bodies(queue) == [b"one", b"two"]


def test_a_consumer_that_comes_late_gets_only_what_has_not_expired(topology: Topology) -> None:
    queue = topology.queue()
    topology.publish(queue, b"expires", expiration=SOON)
    topology.publish(queue, b"stays", expiration=LATE)
    topology.let_pass(SHORT_MS)
    topology.channel.call("basic.consume", queue=queue, no_ack=True)
    assert topology.channel.content().body == b"stays"


def test_what_waits_for_credit_expires(topology: Topology) -> None:
    queue = topology.queue(message_ttl=SHORT_MS, **topology.grave())
    topology.channel.call("basic.qos", prefetch_count=1)
    topology.channel.call("basic.consume", queue=queue, consumer_tag="busy")
    topology.publish(queue, b"delivered", b"waits")
    assert topology.channel.content().body == b"delivered"
    topology.channel.call("basic.cancel", consumer_tag="busy")
    assert topology.take_one(topology.name("grave")).body == b"waits"


# -- unacked messages ------------------------------------------------------------------------------------------------


def test_what_is_unacked_does_not_expire(topology: Topology) -> None:
    queue = topology.queue(message_ttl=SHORT_MS, **topology.grave())
    topology.channel.call("basic.consume", queue=queue, consumer_tag="holds")
    topology.publish(queue, b"held")
    tag = topology.channel.content()["delivery_tag"]
    topology.channel.call("basic.cancel", consumer_tag="holds")
    topology.let_pass(2 * SHORT_MS)
    topology.channel.send("basic.ack", delivery_tag=tag)
    topology.publish(queue, b"next")
    assert topology.take_one(topology.name("grave")).body == b"next"


@pytest.mark.parametrize("by", ["queue", "message"])
def test_a_requeued_message_keeps_its_time(topology: Topology, by: str) -> None:
    limit = 300
    queue = topology.queue(**{"message_ttl": limit} if by == "queue" else {})
    topology.publish(queue, b"old", **{} if by == "queue" else {"expiration": str(limit)})
    tags = topology.hold(queue)
    topology.let_pass(limit + 1)
    topology.reject(*tags, requeue=True)
    assert topology.channel.get(queue) is None


def test_a_requeued_message_whose_time_has_not_come_is_delivered_again(topology: Topology) -> None:
    queue = topology.queue(message_ttl=LONG_MS)
    topology.publish(queue, b"again")
    topology.reject(*topology.hold(queue), requeue=True)
    again = topology.take_one(queue)
    assert (again.body, again["redelivered"]) == (b"again", True)


def test_messages_requeued_by_a_closed_channel_expire(topology: Topology, connect: Connect) -> None:
    queue = topology.queue(**topology.grave())
    topology.publish(queue, b"held", expiration="300")
    holder = connect().channel()
    assert holder.get(queue, no_ack=False) is not None
    topology.let_pass(301)
    holder.close()
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "expired", 1)]


# -- what the publisher sees -----------------------------------------------------------------------------------------


def test_the_expiration_is_delivered_as_it_was_published(topology: Topology) -> None:
    queue = topology.queue(message_ttl=LONG_MS)
    topology.publish(queue, b"one", expiration=LATE)
    topology.publish(queue, b"two")
    first, second = topology.take(queue, 2)
    assert first.properties["expiration"] == LATE
    assert "expiration" not in second.properties


def test_a_message_that_expires_at_once_is_confirmed_and_not_returned(topology: Topology) -> None:
    queue = topology.queue(message_ttl=0)
    topology.confirm()
    topology.channel.publish(b"one", routing_key=queue, mandatory=True)
    assert topology.answers(1) == ["ack"]


@pytest.mark.parametrize("by", ["queue", "message"])
def test_expired_messages_leave_in_order(topology: Topology, by: str) -> None:
    queue = topology.queue(**topology.grave(), **({"message_ttl": SHORT_MS} if by == "queue" else {}))
    bodies = [b"%d" % number for number in range(50)]
    topology.publish(queue, *bodies, **({"expiration": SOON} if by == "message" else {}))
    assert [message.body for message in topology.take(topology.name("grave"), 50)] == bodies


def test_purging_counts_what_has_not_expired(topology: Topology) -> None:
    queue = topology.queue()
    topology.publish(queue, b"expires", expiration=SOON)
    topology.publish(queue, b"stays")
    topology.let_pass(SHORT_MS)
    assert topology.channel.call("queue.purge", queue=queue)["message_count"] == 1


def test_a_message_published_in_a_transaction_expires_after_the_commit(
    topology: Topology, channel: WireChannel
) -> None:
    queue = topology.queue(message_ttl=SHORT_MS, **topology.grave())
    channel.call("tx.select")
    topology.publish(queue, b"one")
    channel.call("tx.commit")
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "expired", 1)]
