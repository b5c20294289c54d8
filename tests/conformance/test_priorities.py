"""Priority queues: order, what counts as which priority, and how priorities meet limits, expiry and requeues."""

from __future__ import annotations

import pytest

from tests.conformance.features import LONG_MS, Topology, history
from tests.support.wire_format import Tagged

SHORT_MS = 50


def publish(topology: Topology, queue: str, *given: tuple[int | None, bytes], **properties: str) -> None:
    """Publish bodies with priorities; None: without one."""
    for priority, body in given:
        more = {} if priority is None else {"priority": priority}
        topology.publish(queue, body, **more, **properties)


def test_higher_priorities_come_first(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    publish(topology, queue, (1, b"low"), (5, b"high"), (3, b"middle"))
    assert topology.bodies(queue) == [b"high", b"middle", b"low"]


def test_within_a_priority_the_order_of_publishing_counts(topology: Topology) -> None:
    queue = topology.queue(max_priority=2)
    publish(topology, queue, *((number % 3, b"%d" % number) for number in range(12)))
    assert topology.bodies(queue) == [b"2", b"5", b"8", b"11", b"1", b"4", b"7", b"10", b"0", b"3", b"6", b"9"]


def test_a_message_without_a_priority_has_the_lowest(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    publish(topology, queue, (None, b"none"), (0, b"zero"), (1, b"one"), (None, b"none again"))
    assert topology.bodies(queue) == [b"one", b"none", b"zero", b"none again"]


def test_a_priority_above_the_maximum_counts_as_the_maximum(topology: Topology) -> None:
    queue = topology.queue(max_priority=3)
    publish(topology, queue, (2, b"two"), (3, b"three"), (9, b"nine"), (255, b"most"), (3, b"three again"))
    assert topology.bodies(queue) == [b"three", b"nine", b"most", b"three again", b"two"]


def test_the_priority_is_delivered_as_it_was_published(topology: Topology) -> None:
    queue = topology.queue(max_priority=3)
    publish(topology, queue, (9, b"nine"), (None, b"none"))
    nine, none = topology.take(queue, 2)
    assert nine.properties["priority"] == 9
    assert "priority" not in none.properties


def test_a_queue_without_the_argument_ignores_priorities(topology: Topology) -> None:
    queue = topology.queue()
    publish(topology, queue, (1, b"one"), (9, b"nine"))
    assert topology.bodies(queue) == [b"one", b"nine"]


def test_with_a_maximum_of_zero_all_are_equal(topology: Topology) -> None:
    queue = topology.queue(max_priority=0)
    publish(topology, queue, (1, b"one"), (9, b"nine"))
    assert topology.bodies(queue) == [b"one", b"nine"]


def test_255_priorities(topology: Topology) -> None:
    queue = topology.queue(max_priority=255)
    publish(topology, queue, *((number, b"%d" % number) for number in range(256)))
    assert topology.bodies(queue) == [b"%d" % number for number in reversed(range(256))]


@pytest.mark.parametrize("tag", ["b", "B", "s", "u", "I", "i", "l"])
def test_the_argument_may_have_any_width(topology: Topology, tag: str) -> None:
    queue = topology.queue(max_priority=Tagged(tag, 5))
    publish(topology, queue, (1, b"low"), (5, b"high"))
    assert topology.bodies(queue) == [b"high", b"low"]


def test_the_depth_counts_all_priorities(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    publish(topology, queue, (1, b"low"), (5, b"high"), (None, b"none"))
    assert topology.take_one(queue)["message_count"] == 2
    assert topology.depth(queue) == 2
    assert topology.channel.call("queue.purge", queue=queue)["message_count"] == 2
    assert topology.bodies(queue) == []


# -- consumers -------------------------------------------------------------------------------------------------------


def test_a_consumer_with_credit_gets_a_low_message_at_once(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    topology.channel.call("basic.consume", queue=queue, no_ack=True)
    publish(topology, queue, (0, b"low"))
    assert topology.channel.content().body == b"low"
    publish(topology, queue, (5, b"high"))
    assert topology.channel.content().body == b"high"


def test_with_a_prefetch_the_next_message_is_the_highest_that_waits(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    topology.channel.call("basic.qos", prefetch_count=1)
    topology.channel.call("basic.consume", queue=queue)
    publish(topology, queue, (1, b"first"))
    message = topology.channel.content()
    publish(topology, queue, (1, b"low"), (3, b"middle"), (5, b"high"))
    topology.await_depth(queue, 3)
    seen = [message.body]
    for _ in range(3):
        topology.channel.send("basic.ack", delivery_tag=message["delivery_tag"])
        message = topology.channel.content()
        seen.append(message.body)
    assert seen == [b"first", b"high", b"middle", b"low"]


def test_a_consumer_that_comes_late_gets_the_highest_first(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    publish(topology, queue, (1, b"low"), (5, b"high"), (3, b"middle"))
    topology.await_depth(queue, 3)
    topology.channel.call("basic.consume", queue=queue, no_ack=True)
    assert [topology.channel.content().body for _ in range(3)] == [b"high", b"middle", b"low"]


# -- requeues --------------------------------------------------------------------------------------------------------


def test_requeued_messages_return_to_their_place_in_their_priority(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    publish(topology, queue, (3, b"a"), (3, b"b"), (1, b"c"))
    tags = topology.hold(queue, 3)
    publish(topology, queue, (3, b"d"), (1, b"e"), (5, b"f"))
    topology.reject(tags[1], tags[2], tags[0], requeue=True)
    topology.await_depth(queue, 6)
    assert [(message.body, message["redelivered"]) for message in topology.take(queue, 6)] == [
        (b"f", False),
        (b"a", True),
        (b"b", True),
        (b"d", False),
        (b"c", True),
        (b"e", False),
    ]


def test_recover_puts_all_priorities_back(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    publish(topology, queue, (1, b"low"), (5, b"high"), (3, b"middle"))
    topology.hold(queue, 3)
    topology.channel.call("basic.recover", requeue=True)
    topology.await_depth(queue, 3)
    assert topology.bodies(queue) == [b"high", b"middle", b"low"]


def test_ack_multiple_settles_across_priorities(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    publish(topology, queue, (1, b"low"), (5, b"high"), (3, b"middle"))
    tags = topology.hold(queue, 3)
    topology.channel.send("basic.ack", delivery_tag=tags[1], multiple=True)
    topology.channel.call("basic.recover", requeue=True)
    topology.await_depth(queue, 1)
    assert topology.bodies(queue) == [b"low"]


# -- with other features ---------------------------------------------------------------------------------------------


def test_at_the_limit_the_head_is_dropped_which_is_the_highest_priority(topology: Topology) -> None:
    queue = topology.queue(max_priority=5, max_length=2, **topology.grave())
    publish(topology, queue, (5, b"high"), (1, b"low"), (3, b"middle"))
    died = topology.take_one(topology.name("grave"))
    assert (died.body, history(died)) == (b"high", [(queue, "maxlen", 1)])
    assert topology.bodies(queue) == [b"middle", b"low"]


def test_at_the_limit_the_new_message_is_dropped_if_it_is_the_highest(topology: Topology) -> None:
    queue = topology.queue(max_priority=5, max_length=1)
    topology.confirm()
    publish(topology, queue, (1, b"low"), (5, b"high"))
    assert topology.answers(2) == ["ack", "ack"]
    assert topology.bodies(queue) == [b"low"]


def test_at_the_limit_in_bytes_the_head_is_dropped(topology: Topology) -> None:
    queue = topology.queue(max_priority=5, max_length_bytes=6)
    publish(topology, queue, (5, b"high"), (1, b"lo"), (3, b"mid"))
    topology.await_depth(queue, 2)
    assert topology.bodies(queue) == [b"mid", b"lo"]


def test_with_reject_publish_the_priority_of_the_new_message_does_not_matter(topology: Topology) -> None:
    queue = topology.queue(max_priority=5, max_length=1, overflow="reject-publish")
    topology.confirm()
    publish(topology, queue, (1, b"low"), (5, b"high"))
    assert topology.answers(2) == ["ack", "nack"]
    assert topology.bodies(queue) == [b"low"]


def test_messages_of_all_priorities_expire(topology: Topology) -> None:
    queue = topology.queue(max_priority=5, message_ttl=SHORT_MS, **topology.grave())
    publish(topology, queue, (1, b"low"), (5, b"high"), (3, b"middle"))
    died = topology.take(topology.name("grave"), 3)
    assert {message.body for message in died} == {b"low", b"high", b"middle"}
    topology.await_depth(queue, 0)


def test_an_expired_message_of_a_low_priority_is_not_delivered(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    publish(topology, queue, (1, b"expires"), expiration=str(SHORT_MS))
    publish(topology, queue, (5, b"high"), (1, b"low"))
    topology.let_pass(2 * SHORT_MS)
    assert topology.bodies(queue) == [b"high", b"low"]


def test_an_expired_message_of_a_high_priority_makes_way(topology: Topology) -> None:
    queue = topology.queue(max_priority=5, message_ttl=LONG_MS)
    publish(topology, queue, (5, b"expires"), expiration=str(SHORT_MS))
    publish(topology, queue, (1, b"low"))
    topology.let_pass(2 * SHORT_MS)
    assert topology.bodies(queue) == [b"low"]


def test_a_dead_letter_keeps_its_priority(topology: Topology) -> None:
    grave = topology.queue("grave", max_priority=9)
    queue = topology.queue(dead_letter_exchange="", dead_letter_routing_key=grave)
    publish(topology, queue, (1, b"low"), (9, b"high"), (None, b"none"))
    topology.reject(*topology.hold(queue, 3))
    topology.await_depth(grave, 3)
    died = topology.take(grave, 3)
    assert [(message.body, message.properties.get("priority")) for message in died] == [
        (b"high", 9),
        (b"low", 1),
        (b"none", None),
    ]


def test_a_rejected_message_leaves_its_priority_level(topology: Topology) -> None:
    queue = topology.queue(max_priority=5, **topology.grave())
    publish(topology, queue, (5, b"high"), (1, b"low"))
    topology.reject(*topology.hold(queue))
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "rejected", 1)]
    assert topology.bodies(queue) == [b"low"]


def test_a_priority_of_a_transaction_counts_after_the_commit(topology: Topology) -> None:
    queue = topology.queue(max_priority=5)
    topology.channel.call("tx.select")
    publish(topology, queue, (1, b"low"), (5, b"high"))
    topology.channel.call("tx.commit")
    assert topology.bodies(queue) == [b"high", b"low"]
