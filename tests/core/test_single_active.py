"""Single active consumer: election, failover and priorities."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept
from tests.support.client import Client, ClientChannel, assert_nothing_is_held, make_broker, waiting
from tests.support.crash import effort
from tests.support.outbox import Delivered
from warrenmq.core.broker import Broker
from warrenmq.core.errors import AccessRefused, ResourceLocked
from warrenmq.core.queue import Queue
from warrenmq.core.snapshot import consumers

SAC = {"x-single-active-consumer": True}


@pytest.fixture
def queue(channel: ClientChannel) -> Queue:
    return channel.declare("q", arguments=SAC)


def statuses(queue: Queue) -> dict[str, tuple[bool, str]]:
    return {view.tag: (view.active, view.activity_status) for view in consumers(queue)}


def active(queue: Queue) -> str:
    (tag,) = (view.tag for view in consumers(queue) if view.active)
    return tag


def test_only_the_first_consumer_gets_messages(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "first")
    other.consume(queue, "second")
    channel.publish_all("abc", "q")
    assert (channel.bodies(), other.bodies()) == ("abc", "")
    assert statuses(queue) == {"first": (True, "single_active"), "second": (False, "waiting")}


def test_consumers_of_other_queues_are_all_up(channel: ClientChannel) -> None:
    queue = channel.declare("plain")
    channel.consume(queue, "first")
    channel.consume(queue, "second")
    assert statuses(queue) == {"first": (True, "up"), "second": (True, "up")}


def test_messages_wait_for_an_active_consumer_without_credit(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "first", prefetch=1)
    other.consume(queue, "second")
    channel.publish_all("abc", "q")
    (delivered,) = channel.deliveries()
    assert (waiting(queue), other.bodies()) == ("bc", "")
    channel.ack(delivered.tag)
    assert (channel.bodies(), other.bodies()) == ("b", "")


def test_a_congested_active_consumer_stays_active(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "first")
    other.consume(queue, "second")
    channel.client.broker.end_turn()
    channel.client.outbox.is_congested = True
    other.publish_all("ab", "q")
    assert (channel.bodies(), other.bodies()) == ("", "")
    channel.client.outbox.drain()
    assert (channel.bodies(), other.bodies()) == ("ab", "")


def test_the_next_takes_over_when_the_active_one_is_cancelled(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "first", prefetch=1)
    other.consume(queue, "second")
    channel.publish_all("ab", "q")
    assert channel.bodies() == "a"
    channel.core.cancel("first")
    assert other.bodies() == "b"
    assert active(queue) == "second"
    channel.ack(1)  # what it held is still its own
    other.ack(1)
    assert_nothing_is_held(channel.client.broker)


@pytest.mark.parametrize("ends_with", ["channel", "connection"])
def test_what_a_lost_consumer_held_is_delivered_first_and_in_order(
    broker: Broker, channel: ClientChannel, other: ClientChannel, queue: Queue, ends_with: str
) -> None:
    channel.consume(queue, "first", prefetch=3)
    other.consume(queue, "second")
    other.publish_all("abcdef", "q")
    assert channel.bodies() == "abc"
    channel.ack(2)
    if ends_with == "channel":
        channel.close()
    else:
        channel.client.close()
    other.publish(b"g", "q")  # in the same turn
    assert other.bodies() == "acdefg"
    assert active(queue) == "second"


def test_a_connection_that_ends_with_several_consumers_passes_on_to_another_connection(
    broker: Broker, other: ClientChannel
) -> None:
    lost = Client(broker)
    first, second = lost.channel(), lost.channel()
    queue = first.declare("q", arguments=SAC)
    first.consume(queue, "first", prefetch=1)
    second.consume(queue, "second", prefetch=1)
    other.consume(queue, "third")
    other.publish_all("ab", "q")
    assert first.bodies() == "a"
    lost.close()
    assert (second.bodies(), other.bodies()) == ("", "ab")
    assert active(queue) == "third"


def test_consumers_take_over_by_priority_then_in_order_of_registration(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    clients = {}
    for tag, priority in (("active", 9), ("low", 1), ("high", 5), ("high too", 5)):
        clients[tag] = Client(broker)
        clients[tag].channel().consume(queue, tag, priority=priority)
        broker.end_turn()
    order = []
    while queue.consumers:
        order.append(active(queue))
        clients[order[-1]].close()
        broker.end_turn()
    assert order == ["active", "high", "high too", "low"]


def test_a_higher_priority_takes_over_when_all_that_the_active_one_holds_is_settled(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "first", prefetch=2)
    channel.publish_all("abcd", "q")
    first, second = channel.deliveries()
    other.consume(queue, "second", priority=1)
    channel.publish(b"e", "q")
    assert (channel.bodies(), other.bodies()) == ("", "")
    channel.ack(first.tag)
    assert (channel.bodies(), other.bodies(), active(queue)) == ("", "", "first")
    channel.reject(second.tag)
    assert (channel.bodies(), other.bodies(), active(queue)) == ("", "bcde", "second")
    assert statuses(queue)["first"] == (False, "waiting")


def test_a_higher_priority_takes_over_at_once_from_a_consumer_that_holds_nothing(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "first")
    channel.client.broker.end_turn()
    other.consume(queue, "second", priority=1)
    channel.publish(b"a", "q")  # in the same turn
    assert (channel.bodies(), other.bodies()) == ("", "a")


def test_a_takeover_waits_for_what_a_transaction_holds(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.core.select_transactions()
    channel.consume(queue, "first", prefetch=1)
    other.publish_all("ab", "q")
    (delivered,) = channel.deliveries()
    channel.ack(delivered.tag)
    other.consume(queue, "second", priority=1)
    assert (channel.bodies(), other.bodies()) == ("", "")
    channel.core.commit()
    assert (channel.bodies(), other.bodies()) == ("", "b")


def test_a_takeover_does_not_wait_for_the_credit_of_the_channel(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.core.limit_prefetch(1, True)
    channel.consume(queue, "first")
    blocking = channel.declare("blocking")
    channel.publish(b"a", "q")
    (delivered,) = channel.deliveries()
    other.consume(queue, "second", priority=1)
    channel.core.limit_prefetch(2, True)
    channel.consume(blocking, "blocked")
    channel.publish_all("xy", "blocking")
    assert channel.bodies() == "x"
    channel.core.limit_prefetch(1, True)  # `x` alone fills it
    channel.ack(delivered.tag)
    channel.publish(b"b", "q")
    assert (channel.bodies(), other.bodies()) == ("", "b")


def test_the_active_one_goes_on_when_the_higher_priority_leaves_before_it_took_over(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "first", prefetch=2)
    channel.publish_all("abc", "q")
    assert channel.bodies() == "ab"
    other.consume(queue, "second", priority=1)
    assert other.bodies() == ""
    other.close()
    channel.ack(1)
    assert channel.bodies() == "c"
    assert active(queue) == "first"


def test_an_equal_or_lower_priority_does_not_take_over(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "first", priority=1)
    other.consume(queue, "equal", priority=1)
    other.consume(queue, "lower", priority=0)
    channel.publish(b"a", "q")
    assert channel.bodies() == "a"


def test_consumers_without_acks_take_turns_at_being_active(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "first", no_ack=True)
    other.consume(queue, "second", no_ack=True)
    other.publish(b"a", "q")
    assert channel.bodies() == "a"
    channel.core.cancel("first")
    other.publish(b"b", "q")
    assert other.bodies() == "b"


def test_an_exclusive_consumer_is_refused(channel: ClientChannel, queue: Queue) -> None:
    with pytest.raises(AccessRefused) as refused:
        channel.consume(queue, exclusive=True)
    assert refused.value.reply_text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"


def test_a_consumer_that_requests_failover_cancels_is_accepted(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, arguments={"x-cancel-on-ha-failover": True})
    assert len(queue.consumers) == 1


def test_basic_get_takes_from_a_classic_queue(channel: ClientChannel, other: ClientChannel, queue: Queue) -> None:
    channel.publish(b"a", "q")
    channel.consume(queue, prefetch=1)
    got = other.get(queue)
    assert got is not None
    assert got.body == b"a"


def test_basic_get_is_refused_on_a_quorum_queue(channel: ClientChannel) -> None:
    arguments: dict[str, Any] = {**SAC, "x-queue-type": "quorum"}
    queue = channel.declare("quorum", durable=True, arguments=arguments)
    with pytest.raises(ResourceLocked) as refused:
        channel.get(queue)
    assert refused.value.reply_text == (
        "RESOURCE_LOCKED - cannot obtain access to locked queue 'quorum' in vhost '/'. basic.get operations are not "
        "supported by quorum queues with single active consumer"
    )


def test_a_paged_queue_goes_on_in_order_with_the_next_consumer(tmp_path: Path) -> None:
    kept = Kept(tmp_path, window=6000, page=1500)
    queue = kept.declare(**SAC)
    kept.publish(range(300))
    kept.settle()
    assert queue.backlog.paged > 0
    clients = [Client(kept.broker) for _ in range(4)]
    channels = [client.channel() for client in clients]
    for channel in channels:
        channel.consume(queue, prefetch=90)
    expected = 0
    for client, channel in zip(clients, channels, strict=True):
        delivered: list[Delivered] = []
        while len(delivered) < 90:
            kept.settle()
            delivered += channel.deliveries()
        assert [int(each.body[:8]) for each in delivered] == list(range(expected, expected + 90))
        channel.ack(delivered[59].tag, multiple=True)
        expected += 60
        client.close()


class World:
    """Consumers that come, go, ack and give back at random, against the rules of who is active."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = make_broker()
        self.publisher = Client(self.broker).channel()
        self.queue = self.publisher.declare("q", arguments=SAC)
        self.channels: dict[str, ClientChannel] = {}  # in order of registration
        self.priorities: dict[str, int] = {}
        self.held: dict[str, dict[int, int]] = {}  # by consumer, also if it is cancelled: tag to number
        self.waiting: list[int] = []
        self.active: str | None = None
        self.count = 0

    def step(self) -> None:
        getattr(self, self.random.choice(("publish", "publish", "add", "settle", "settle", "cancel", "close")))()
        self.choose()
        self.compare()

    def publish(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            self.publisher.publish(b"%d" % self.count, "q")
            self.waiting.append(self.count)
            self.count += 1

    def add(self) -> None:
        tag = f"c{self.random.getrandbits(40)}"
        self.priorities[tag] = self.random.randint(0, 2)
        self.held[tag] = {}
        self.channels[tag] = Client(self.broker).channel()
        prefetch = self.random.randint(0, 4)
        self.channels[tag].consume(self.queue, tag, priority=self.priorities[tag], prefetch=prefetch)

    def settle(self) -> None:
        """A consumer that holds something acks or requeues some of it."""
        holding = [tag for tag, held in self.held.items() if held and tag in self.channels]
        if holding:
            tag = self.random.choice(holding)
            for delivery in self.random.sample(sorted(self.held[tag]), self.random.randint(1, len(self.held[tag]))):
                number = self.held[tag].pop(delivery)
                if self.random.random() < 0.7:
                    self.channels[tag].ack(delivery)
                else:
                    self.channels[tag].reject(delivery)
                    self.waiting.append(number)
            self.waiting.sort()

    def cancel(self) -> None:
        if self.channels and self.random.random() < 0.5:
            tag = self.random.choice(list(self.channels))
            if not self.held[tag]:
                self.channels.pop(tag).core.cancel(tag)

    def close(self) -> None:
        if self.channels and self.random.random() < 0.7:
            tag = self.random.choice(list(self.channels))
            self.channels.pop(tag).client.close()
            self.waiting = sorted([*self.waiting, *self.held.pop(tag).values()])

    def choose(self) -> None:
        if self.active not in self.channels:
            self.active = None
        first = max(self.channels, key=lambda tag: self.priorities[tag], default=None)
        if self.active is None:
            self.active = first
            self.is_yielding = False
        elif first is not None and self.priorities[first] > self.priorities[self.active]:
            self.is_yielding = bool(self.held[self.active])
            if not self.is_yielding:
                self.active = first
        else:
            self.is_yielding = False

    def compare(self) -> None:
        for tag, channel in self.channels.items():
            delivered = channel.deliveries()
            assert not delivered or (tag == self.active and not self.is_yielding)
            for each in delivered:
                assert int(each.body) == self.waiting.pop(0)
                self.held[tag][each.tag] = int(each.body)
        assert self.queue.message_count() == len(self.waiting)
        if self.active is not None:
            assert active(self.queue) == self.active
            prefetch = consumers(self.queue)[list(self.channels).index(self.active)].prefetch
            has_credit = prefetch == 0 or len(self.held[self.active]) < prefetch
            assert not (self.waiting and has_credit and not self.is_yielding), "it has credit"


@pytest.mark.parametrize("seed", range(effort(30)))
def test_the_active_consumer_is_the_one_that_the_rules_say(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()


def test_a_queue_that_is_deleted_cancels_all_its_consumers(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, "first")
    other.consume(queue, "second")
    channel.delete(queue)
    assert (channel.cancels(), other.cancels()) == (["first"], ["second"])
