"""Length limits: what counts, which message is dropped, and what the publisher receives."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.features import Topology, history
from tests.support.wire import Refusal

REJECTING = pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])


# -- drop-head -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"overflow": "drop-head"}], ids=["by-default", "asked-for"])
def test_the_oldest_messages_give_way(topology: Topology, arguments: dict[str, str]) -> None:
    queue = topology.queue(max_length=2, **arguments)
    topology.publish(queue, b"one", b"two", b"three", b"four")
    topology.await_depth(queue, 2)
    assert topology.bodies(queue) == [b"three", b"four"]


def test_dropped_messages_are_confirmed(topology: Topology) -> None:
    queue = topology.queue(max_length=1)
    topology.confirm()
    topology.publish(queue, b"one", b"two", b"three")
    assert topology.answers(3) == ["ack", "ack", "ack"]
    assert topology.bodies(queue) == [b"three"]


def test_a_queue_at_its_limit_takes_what_follows_a_delivery(topology: Topology) -> None:
    queue = topology.queue(max_length=2)
    topology.publish(queue, b"one", b"two")
    assert topology.take_one(queue).body == b"one"
    topology.publish(queue, b"three")
    assert topology.bodies(queue) == [b"two", b"three"]


def test_unacked_messages_do_not_count(topology: Topology) -> None:
    queue = topology.queue(max_length=2)
    topology.publish(queue, b"one", b"two")
    tags = topology.hold(queue, 2)
    topology.publish(queue, b"three", b"four")
    topology.await_depth(queue, 2)
    topology.channel.send("basic.ack", delivery_tag=tags[-1], multiple=True)
    assert topology.bodies(queue) == [b"three", b"four"]


def test_requeued_messages_give_way_first(topology: Topology) -> None:
    queue = topology.queue(max_length=2, **topology.grave())
    topology.publish(queue, b"one", b"two")
    tags = topology.hold(queue, 2)
    topology.publish(queue, b"three", b"four")
    topology.reject(*tags, requeue=True)
    assert [message.body for message in topology.take(topology.name("grave"), 2)] == [b"one", b"two"]
    assert topology.bodies(queue) == [b"three", b"four"]


def test_a_message_that_meets_a_waiting_consumer_does_not_count(topology: Topology) -> None:
    queue = topology.queue(max_length=1)
    topology.channel.call("basic.consume", queue=queue)
    topology.publish(queue, b"one", b"two", b"three")
    assert [topology.channel.content().body for _ in range(3)] == [b"one", b"two", b"three"]


def test_dropped_messages_are_dead_lettered_in_order(topology: Topology) -> None:
    queue = topology.queue(max_length=1, **topology.grave())
    topology.publish(queue, b"one", b"two", b"three")
    died = topology.take(topology.name("grave"), 2)
    assert [message.body for message in died] == [b"one", b"two"]
    assert [history(message) for message in died] == [[(queue, "maxlen", 1)]] * 2


def test_each_queue_has_its_own_limit(topology: Topology) -> None:
    fanout = topology.exchange("fanout")
    short, long = topology.queue("short", max_length=1), topology.queue("long")
    for queue in (short, long):
        topology.bind(queue, fanout)
    for body in (b"one", b"two"):
        topology.channel.publish(body, exchange=fanout)
    assert topology.bodies(short) == [b"two"]
    assert topology.bodies(long) == [b"one", b"two"]


# -- bytes -----------------------------------------------------------------------------------------------------------


def test_the_bytes_of_bodies_count(topology: Topology) -> None:
    queue = topology.queue(max_length_bytes=10)
    topology.publish(queue, b"aaaa", b"bbbb", b"cc")
    topology.await_depth(queue, 3)
    topology.publish(queue, b"d")
    assert topology.bodies(queue) == [b"bbbb", b"cc", b"d"]


def test_properties_do_not_count(topology: Topology) -> None:
    queue = topology.queue(max_length_bytes=3)
    topology.publish(queue, b"one", headers={"note": "x" * 1000}, message_id="y" * 100)
    assert topology.bodies(queue) == [b"one"]


def test_empty_messages_take_no_bytes(topology: Topology) -> None:
    queue = topology.queue(max_length_bytes=0)
    topology.publish(queue, *[b""] * 5)
    topology.await_depth(queue, 5)
    topology.publish(queue, b"x")
    topology.await_depth(queue, 0)


def test_a_message_over_the_limit_empties_the_queue(topology: Topology) -> None:
    queue = topology.queue(max_length_bytes=10, **topology.grave())
    topology.publish(queue, b"aaaa", b"bbbb", b"much too long")
    topology.await_depth(queue, 0)
    died = topology.take(topology.name("grave"), 3)
    assert [message.body for message in died] == [b"aaaa", b"bbbb", b"much too long"]


def test_unacked_bytes_do_not_count(topology: Topology) -> None:
    queue = topology.queue(max_length_bytes=4)
    topology.publish(queue, b"aaaa")
    topology.hold(queue)
    topology.publish(queue, b"bbbb")
    assert topology.bodies(queue) == [b"bbbb"]


def test_of_two_limits_the_one_that_is_reached_counts(topology: Topology) -> None:
    queue = topology.queue(max_length=3, max_length_bytes=10)
    topology.publish(queue, b"a", b"b", b"c", b"d")
    topology.await_depth(queue, 3)
    topology.publish(queue, b"eeeeeeee")
    assert topology.bodies(queue) == [b"c", b"d", b"eeeeeeee"]
    topology.publish(queue, b"ffffff", b"ggggg")
    assert topology.bodies(queue) == [b"ggggg"]


# -- limits of zero --------------------------------------------------------------------------------------------------


def test_with_a_limit_of_zero_nothing_stays(topology: Topology) -> None:
    queue = topology.queue(max_length=0, **topology.grave())
    topology.confirm()
    topology.publish(queue, b"one")
    assert topology.answers(1) == ["ack"]
    topology.await_depth(queue, 0)
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "maxlen", 1)]


def test_with_a_limit_of_zero_a_waiting_consumer_is_served(topology: Topology) -> None:
    queue = topology.queue(max_length=0)
    topology.channel.call("basic.consume", queue=queue)
    topology.publish(queue, b"one")
    assert topology.channel.content().body == b"one"


@REJECTING
def test_with_a_limit_of_zero_every_publish_is_rejected_even_if_a_consumer_waits(
    topology: Topology, connect: Connect, overflow: str
) -> None:
    queue = topology.queue(max_length=0, overflow=overflow)
    consumer = connect().channel()
    consumer.call("basic.consume", queue=queue)
    topology.confirm()
    topology.publish(queue, b"one")
    assert topology.answers(1) == ["nack"]
    consumer.barrier(queue)


# -- reject-publish --------------------------------------------------------------------------------------------------


@REJECTING
def test_a_publisher_with_confirms_receives_nacks_for_rejected_messages(topology: Topology, overflow: str) -> None:
    queue = topology.queue(max_length=2, overflow=overflow)
    topology.confirm()
    topology.publish(queue, b"one", b"two", b"three", b"four")
    assert topology.answers(4) == ["ack", "ack", "nack", "nack"]
    assert topology.bodies(queue) == [b"one", b"two"]


@REJECTING
def test_a_publisher_without_confirms_receives_nothing(topology: Topology, overflow: str) -> None:
    queue = topology.queue(max_length=1, overflow=overflow)
    topology.publish(queue, b"one", b"two")
    topology.channel.barrier(queue)
    assert topology.bodies(queue) == [b"one"]


def test_a_rejected_message_is_not_returned(topology: Topology) -> None:
    queue = topology.queue(max_length=1, overflow="reject-publish")
    topology.confirm()
    for body in (b"one", b"two"):
        topology.channel.publish(body, routing_key=queue, mandatory=True)
    assert topology.answers(2) == ["ack", "nack"]


def test_after_a_delivery_there_is_room_again(topology: Topology) -> None:
    queue = topology.queue(max_length=1, overflow="reject-publish")
    topology.publish(queue, b"one")
    topology.hold(queue)
    topology.confirm()
    topology.publish(queue, b"two", b"three")
    assert topology.answers(2) == ["ack", "nack"]
    assert topology.bodies(queue) == [b"two"]


def test_rejection_by_bytes(topology: Topology) -> None:
    queue = topology.queue(max_length_bytes=5, overflow="reject-publish")
    topology.confirm()
    topology.publish(queue, b"four", b"two", b"1", b"")
    assert topology.answers(4) == ["ack", "nack", "ack", "ack"]
    assert topology.bodies(queue) == [b"four", b"1", b""]


def test_where_one_of_several_queues_rejects_the_others_keep_the_message(topology: Topology) -> None:
    fanout = topology.exchange("fanout")
    queues = [topology.queue("open"), topology.queue("full", max_length=1, overflow="reject-publish")]
    for queue in queues:
        topology.bind(queue, fanout)
    topology.confirm()
    for body in (b"one", b"two"):
        topology.channel.publish(body, exchange=fanout)
    assert topology.answers(2) == ["ack", "nack"]
    assert [topology.bodies(queue) for queue in queues] == [[b"one", b"two"], [b"one"]]


def test_requeued_messages_may_exceed_the_limit(topology: Topology) -> None:
    queue = topology.queue(max_length=1, overflow="reject-publish")
    topology.publish(queue, b"one")
    tags = topology.hold(queue)
    topology.publish(queue, b"two")
    topology.reject(*tags, requeue=True)
    topology.await_depth(queue, 2)
    topology.confirm()
    topology.publish(queue, b"three")
    assert topology.answers(1) == ["nack"]
    assert topology.bodies(queue) == [b"one", b"two"]


def test_reject_publish_does_not_dead_letter(topology: Topology) -> None:
    queue = topology.queue(max_length=1, overflow="reject-publish", **topology.grave())
    topology.confirm()
    topology.publish(queue, b"one", b"two")
    assert topology.answers(2) == ["ack", "nack"]
    topology.reject(*topology.hold(queue))
    assert topology.take_one(topology.name("grave")).body == b"one"


def test_reject_publish_dlx_dead_letters_what_it_rejects(topology: Topology) -> None:
    queue = topology.queue(max_length=1, overflow="reject-publish-dlx", **topology.grave())
    topology.confirm()
    topology.publish(queue, b"one", b"two", b"three")
    assert topology.answers(3) == ["ack", "nack", "nack"]
    died = topology.take(topology.name("grave"), 2)
    assert [(message.body, history(message)) for message in died] == [
        (b"two", [(queue, "maxlen", 1)]),
        (b"three", [(queue, "maxlen", 1)]),
    ]
    assert topology.bodies(queue) == [b"one"]


def test_a_rejected_publish_fails_the_commit_and_the_rest_stays(topology: Topology, connect: Connect) -> None:
    queue, other = topology.queue(max_length=1, overflow="reject-publish"), topology.queue("other")
    publisher = connect().channel()
    publisher.call("tx.select")
    for key in (queue, queue, other):
        publisher.publish(b"one", routing_key=key)
    refusal = publisher.refused("tx.commit")
    assert refusal == Refusal("channel", 406, "PRECONDITION_FAILED - partial tx completion", refusal.method)
    assert (topology.bodies(queue), topology.bodies(other)) == ([b"one"], [b"one"])


def test_a_full_queue_of_dead_letters_rejects_in_silence(topology: Topology) -> None:
    grave = topology.queue("grave", max_length=1, overflow="reject-publish")
    queue = topology.queue(max_length=0, dead_letter_exchange="", dead_letter_routing_key=grave)
    topology.confirm()
    topology.publish(queue, b"one", b"two")
    assert topology.answers(2) == ["ack", "ack"]
    topology.await_depth(grave, 1)
    assert topology.bodies(grave) == [b"one"]
