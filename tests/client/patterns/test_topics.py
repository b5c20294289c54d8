"""Topics on both faces: what goes to which partition, and how members of a group share the partitions."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.client.conftest import Connect, Namer, own_broker_only
from tests.support.breaker import DOWN, Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .making import QUICK as QUICK_PAUSES
from .making import InThread, count_of, handler_of, make

PARTITIONS = 4
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "topic.py"
QUICK = {"check_interval": 0.05}


@pytest.fixture
def topic(channel: Any, name: Namer) -> Iterator[Any]:
    """A topic with a group `billing`, deleted afterwards."""
    made = channel.declare_topic(name("topic"), PARTITIONS, groups=["billing"])
    yield made
    if channel.is_open:
        for group in ("billing", "default"):
            made.delete_group(group)
        made.delete()


def publish(topic: Any, count: int, keys: int = 10, first: int = 0) -> list[bytes]:
    """Messages `key.number`, for each key in order."""
    bodies = [b"%d.%d" % (number % keys, number) for number in range(first, first + count)]
    confirmations = [topic.publish(body, key=body.split(b".")[0].decode()) for body in bodies]
    for each in confirmations:
        each.result()
    return bodies


def ready(channel: Any, topic: Any, group: str = "billing", partitions: int = PARTITIONS) -> list[int]:
    return [count_of(channel, f"{topic.name}.{group}.{number}") for number in range(partitions)]


def take(consumer: Any, count: int) -> list[bytes]:
    """Ack and return this many deliveries."""
    taken = []
    for delivery in consumer:
        delivery.ack()
        taken.append(delivery.body)
        if len(taken) == count:
            break
    return taken


def numbers_by_key(bodies: list[bytes]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = defaultdict(list)
    for body in bodies:
        key, number = body.split(b".")
        found[key].append(int(number))
    return found


def assert_in_order(bodies: list[bytes]) -> None:
    for numbers in numbers_by_key(bodies).values():
        assert numbers == sorted(numbers)


def wait_for_shares(*consumers: Any) -> None:
    """Wait until these members, and no others, share the partitions."""
    ids = sorted(each.id for each in consumers)

    def are_shared() -> bool:
        shares = [each.partitions for each in consumers]
        shared = sorted(number for share in shares for number in share)
        is_even = max(map(len, shares)) - min(map(len, shares)) <= 1
        return is_even and all(each.members == ids for each in consumers) and shared == list(range(PARTITIONS))

    wait_until(are_shared, "the members share the partitions")


# -- publishing --------------------------------------------------------------------------------------------------------


def test_messages_with_the_same_key_are_in_one_partition_in_order(channel: Any, topic: Any) -> None:
    publish(topic, 100)
    assert sum(ready(channel, topic)) == 100
    with topic.consume(group="billing", timeout=PATIENCE, **QUICK) as consumer:
        assert_in_order(take(consumer, 100))
    publish(topic, 20, keys=1)
    assert sorted(ready(channel, topic)) == [0, 0, 0, 20]


@own_broker_only
def test_messages_without_a_key_go_to_the_least_loaded_partition(channel: Any, topic: Any) -> None:
    publish(topic, 20, keys=1)
    for _ in range(20 * (PARTITIONS - 1)):
        topic.publish(b"anywhere").result()
    assert ready(channel, topic) == [20] * PARTITIONS


def test_messages_without_a_key_are_spread_where_the_broker_cannot_choose_by_load(
    connect: Connect, breaker: Breaker, channel: Any, name: Namer
) -> None:
    breaker.rewrite(DOWN, lambda frame: frame.replace(b"WarrenMQ", b"OtherOne"))  # what it says about itself
    other = connect(breaker.url).channel()
    topic = other.declare_topic(name("plain"), PARTITIONS, groups=["g"])
    confirmations = [topic.publish(b"anywhere") for _ in range(200)]
    for each in confirmations:
        each.result()
    counts = ready(channel, topic, "g")
    assert sum(counts) == 200
    assert min(counts) > 20
    with pytest.raises(client.NotFound):
        channel.exchange_declare(f"{topic.name}.least-loaded", passive=True)
    topic.delete_group("g")
    topic.delete()


def test_every_group_gets_every_message(channel: Any, topic: Any) -> None:
    with topic.consume(timeout=PATIENCE, **QUICK) as default:
        bodies = publish(topic, 50)
        assert sorted(take(default, 50)) == sorted(bodies)
    assert sum(ready(channel, topic)) == 50


def test_publish_to_a_topic_without_a_group_is_unroutable(channel: Any, name: Namer) -> None:
    topic = channel.declare_topic(name("lonely"))
    for key in (None, "key"):
        with pytest.raises(client.Unroutable):
            topic.publish(b"nobody wants it", key=key).result()
    topic.delete()


def test_messages_are_persistent_unless_said_otherwise(topic: Any) -> None:
    topic.publish(b"kept", key="1").result()
    topic.publish(b"not", key="1", properties=client.Properties(delivery_mode=1)).result()
    with topic.consume(group="billing", timeout=PATIENCE, **QUICK) as consumer:
        assert [next(iter(consumer)).properties.delivery_mode for _ in range(2)] == [2, 1]


# -- declaring ---------------------------------------------------------------------------------------------------------


def test_partitions_are_added_and_their_keys_stay_together(connection: Any, channel: Any, topic: Any) -> None:
    publish(topic, 100)
    before = ready(channel, topic)
    grown = channel.declare_topic(topic.name, PARTITIONS + 2, groups=["billing"])
    publish(topic, 100, first=100)
    after = ready(channel, topic, partitions=PARTITIONS + 2)
    assert sum(after) == 200
    assert all(old <= new <= 2 * old for old, new in zip(before, after, strict=False))  # none gets another's key
    with grown.consume(group="billing", timeout=PATIENCE, **QUICK) as consumer:
        assert len(take(consumer, 200)) == 200


def test_fewer_partitions_are_refused_with_their_number(connect: Connect, topic: Any) -> None:
    channel = connect().channel()
    with pytest.raises(client.Misuse, match="has 4 partitions, which cannot become fewer"):
        channel.declare_topic(topic.name, PARTITIONS - 1, groups=["billing"])
    with (
        pytest.raises(client.Misuse, match="has 4 partitions"),
        channel.declare_topic(topic.name, 1).consume(group="billing"),
    ):
        pass
    assert channel.is_open


def test_members_adopt_partitions_added_by_another(connect: Connect, topic: Any) -> None:
    with topic.consume(group="billing", **QUICK) as old:
        wait_until(lambda: len(old.partitions) == PARTITIONS, "it has all partitions")
        grown = connect().channel().declare_topic(topic.name, 3 * PARTITIONS)
        with grown.consume(group="billing", **QUICK) as new:
            wait_until(lambda: len(old.partitions) == len(new.partitions) == 6, "both share the new ones")
        wait_until(lambda: len(old.partitions) == 3 * PARTITIONS, "it keeps the new ones")


def test_arguments_apply_to_every_partition(channel: Any, name: Namer) -> None:
    topic = channel.declare_topic(name("short"), 1, groups=["g"], arguments={"x-max-length": 2})
    for _ in range(5):
        topic.publish(b"").result()
    assert topic.delete_group("g") == 2
    topic.delete()


@pytest.mark.parametrize("settings", [{"prefetch": 0}, {"drain": -1}, {"check_interval": 0}, {"group": "a.b"}])
def test_invalid_settings_are_refused(topic: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(client.Misuse):
        topic.consume(**settings)


@pytest.mark.parametrize("partitions", [0, 1001])
def test_invalid_numbers_of_partitions_are_refused(channel: Any, partitions: int) -> None:
    with pytest.raises(client.Misuse, match="1 to 1000 partitions"):
        channel.declare_topic("any", partitions)


# -- consuming ---------------------------------------------------------------------------------------------------------


def test_iteration_ends_at_the_timeout(topic: Any) -> None:
    with topic.consume(group="billing", timeout=0.05, **QUICK) as consumer:
        assert list(consumer) == []


def test_callback_gets_the_messages_of_each_partition_in_order(topic: Any) -> None:
    seen = Inbox()

    def handle(delivery: Any) -> None:
        delivery.ack()
        seen(delivery.body)

    with topic.consume(handle, group="billing", **QUICK):
        bodies = publish(topic, 200)
        taken = seen.take(200)
    assert sorted(taken) == sorted(bodies)
    assert_in_order(taken)


def test_consumer_with_callback_cannot_be_iterated(topic: Any) -> None:
    with topic.consume(print, group="billing") as consumer, pytest.raises(client.Misuse):
        next(iter(consumer))


@pytest.mark.parametrize("end", ["close", "stop"])
def test_end_waits_for_a_running_callback_whose_ack_counts(channel: Any, topic: Any, end: str) -> None:
    began, may_end = threading.Event(), threading.Event()

    def handle(delivery: Any) -> None:
        began.set()
        may_end.wait(PATIENCE)
        delivery.ack()

    publish(topic, 3, keys=1)
    consumer = topic.consume(handle, group="billing", **QUICK)
    consumer.__enter__()
    assert began.wait(PATIENCE)
    ending = InThread(getattr(consumer, end))
    assert not consumer.wait(timeout=0.2)
    may_end.set()
    assert consumer.wait(timeout=PATIENCE)
    ending.result()
    wait_until(lambda: sum(ready(channel, topic)) == 2, "the others are back")


def test_stop_waits_until_the_message_in_hand_is_settled(channel: Any, topic: Any) -> None:
    publish(topic, 3, keys=1)
    with topic.consume(group="billing", timeout=PATIENCE, **QUICK) as consumer:
        delivery = next(iter(consumer))
        consumer.stop()
        assert list(consumer) == []
        assert not consumer.wait(timeout=0.2)
        delivery.ack()
        assert consumer.wait(timeout=PATIENCE)
    assert sum(ready(channel, topic)) == 2


def test_unsettled_messages_are_back_in_order_after_the_close(channel: Any, topic: Any) -> None:
    bodies = publish(topic, 10, keys=1)
    with topic.consume(group="billing", timeout=PATIENCE, **QUICK) as consumer:
        assert next(iter(consumer)).body == bodies[0]
    with topic.consume(group="billing", timeout=PATIENCE, **QUICK) as consumer:
        assert take(consumer, 10) == bodies


def test_deleted_partition_raises(channel: Any, topic: Any) -> None:
    with topic.consume(group="billing", timeout=PATIENCE, **QUICK) as consumer:
        wait_until(lambda: len(consumer.partitions) == PARTITIONS, "it consumes")
        channel.queue_delete(f"{topic.name}.billing.0")
        with pytest.raises(client.ConsumerCancelled):
            next(iter(consumer))
        with pytest.raises(client.ConsumerCancelled):
            consumer.wait(timeout=PATIENCE)


def test_partition_whose_channel_the_broker_closes_is_consumed_anew(topic: Any) -> None:
    bodies = publish(topic, 3, keys=1)
    with topic.consume(group="billing", timeout=PATIENCE, **QUICK) as consumer:
        channel = next(iter(consumer)).channel
        channel.ack(999)  # 406: unknown delivery tag
        wait_until(lambda: not channel.is_open, "the broker has closed the channel")
        assert take(consumer, 3) == bodies


def test_closed_connection_ends_the_iteration(connect: Connect, topic: Any) -> None:
    connection = connect()
    with connection.channel().declare_topic(topic.name, PARTITIONS).consume(group="billing", **QUICK) as consumer:
        wait_until(lambda: len(consumer.partitions) == PARTITIONS, "it consumes")
        connection.close()
        assert list(consumer) == []


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_partitions_are_shared_evenly_as_members_join_and_leave(connect: Connect, topic: Any) -> None:
    others = [connect().channel().declare_topic(topic.name, PARTITIONS) for _ in range(2)]
    with topic.consume(group="billing", **QUICK) as first:
        wait_for_shares(first)
        with others[0].consume(group="billing", **QUICK) as second:
            wait_for_shares(first, second)
            assert len(first.partitions) == len(second.partitions) == 2
            with others[1].consume(group="billing", **QUICK) as third:
                wait_for_shares(first, second, third)
                assert sorted(len(each.partitions) for each in (first, second, third)) == [1, 1, 2]
            wait_for_shares(first, second)
        wait_for_shares(first)


def test_more_members_than_partitions_leaves_some_idle(topic: Any) -> None:
    members = [topic.consume(group="billing", **QUICK) for _ in range(PARTITIONS + 1)]
    for each in members:
        each.__enter__()
    wait_for_shares(*members)
    assert sorted(len(each.partitions) for each in members) == [0] + [1] * PARTITIONS
    for each in members:
        each.close()


def test_member_whose_connection_breaks_is_replaced(
    shaky: Any, breaker: Breaker, topic: Any, connect: Connect, channel: Any
) -> None:
    bodies = publish(topic, 100)
    broken = shaky.channel().declare_topic(topic.name, PARTITIONS)
    with topic.consume(group="billing", timeout=PATIENCE, **QUICK) as lasting:
        failing = broken.consume(group="billing", **QUICK)
        failing.__enter__()
        wait_for_shares(lasting, failing)
        breaker.refuse()
        breaker.reset()
        assert sorted(take(lasting, 100)) == sorted(bodies)
        wait_for_shares(lasting)
        breaker.refuse(False)
        wait_for_shares(lasting, failing)
        failing.close()
    assert sum(ready(channel, topic)) == 0


def hold_one_of_each(consumer: Any, channel: Any, topic: Any) -> list[Any]:
    """Fill the partitions, and take the first message of each without settling it."""
    publish(topic, 40, keys=40)
    filled = sum(count > 0 for count in ready(channel, topic))
    consumer.__enter__()
    wait_for_shares(consumer)
    return [next(iter(consumer)) for _ in range(filled)]


def test_partition_is_handed_over_once_its_message_is_settled(connect: Connect, topic: Any, channel: Any) -> None:
    first = topic.consume(group="billing", timeout=PATIENCE, prefetch=1, **QUICK)
    held = hold_one_of_each(first, channel, topic)
    second_topic = connect().channel().declare_topic(topic.name, PARTITIONS)
    with second_topic.consume(group="billing", timeout=0.3, **QUICK) as second:
        wait_for_shares(first, second)
        assert list(second) == []  # the first still has a message of each partition in hand
        for delivery in held:
            delivery.ack()
        received = {each.body for each in second}
        assert received
        assert received.isdisjoint(each.body for each in held)
    first.close()


def test_member_that_does_not_settle_loses_the_partition_after_the_drain_time(
    connect: Connect, topic: Any, channel: Any
) -> None:
    slow = topic.consume(group="billing", timeout=PATIENCE, prefetch=1, drain=0.1, **QUICK)
    held = hold_one_of_each(slow, channel, topic)
    other = connect().channel().declare_topic(topic.name, PARTITIONS)
    with other.consume(group="billing", timeout=PATIENCE, **QUICK) as prompt:
        wait_for_shares(slow, prompt)
        assert take(prompt, 1)[0] in {each.body for each in held}
    slow.close()


def test_forgotten_consumer_leaves_the_group(topic: Any) -> None:
    def forget() -> None:
        next(iter(topic.consume(group="billing", timeout=0.05, **QUICK)), None)

    forget()
    gc.collect()
    with topic.consume(group="billing", **QUICK) as lasting:
        wait_for_shares(lasting)


def test_example_runs(broker_url: str) -> None:
    command = [sys.executable, str(EXAMPLE), "--url", broker_url, "--orders", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 250 orders were handled once" in done.stdout


# -- services ----------------------------------------------------------------------------------------------------------


def test_services_share_a_topic(face: Any, connect: Connect, topic: Any, channel: Any) -> None:
    seen = Inbox()
    handler = client.consumer(topic.name, group="billing", partitions=PARTITIONS)(handler_of(face, seen))
    with make(face, "Service", connect(), handler):
        with make(face, "Service", connect(), handler):
            bodies = publish(topic, 60)
            taken = [each.body for each in seen.take(60)]
        publish(topic, 20, first=60)
        seen.take(20)
    assert sorted(taken) == sorted(bodies)
    assert sum(ready(channel, topic)) == 0


def test_service_parks_what_its_handler_fails_on(
    face: Any, connection: Any, topic: Any, channel: Any, name: Namer
) -> None:
    def fail(delivery: Any) -> None:
        raise ValueError("bad")

    failed = name("failed")
    decorate = client.consumer(
        topic.name, group="billing", dead_queue=failed, retries=1, interval=0.01, partitions=PARTITIONS
    )
    channel.queue_declare(failed)
    with make(face, "Service", connection, decorate(handler_of(face, fail))):
        publish(topic, 5)
        wait_until(lambda: count_of(channel, failed) == 5, "all are parked")
    assert sum(ready(channel, topic)) == 0


def test_service_joins_again_when_a_partition_was_deleted(face: Any, connection: Any, topic: Any, channel: Any) -> None:
    seen = Inbox()
    handler = client.consumer(topic.name, group="billing", partitions=PARTITIONS)(handler_of(face, seen))
    with make(face, "Service", connection, handler, retry=client.Retry(retries=100, **QUICK_PAUSES)):
        publish(topic, 10)
        seen.take(10)
        for number in range(PARTITIONS):
            channel.queue_delete(f"{topic.name}.billing.{number}")

        def arrives() -> bool:
            topic.publish(b"again", key="1").exception()
            return seen.count > 0

        wait_until(arrives, "it consumes again")


@pytest.mark.parametrize("settings", [{"prefetch": 0}, {"auto_ack": True}, {"exclusive": True}])
def test_handlers_of_a_group_refuse_what_cannot_be_shared(settings: dict[str, Any]) -> None:
    with pytest.raises(client.Misuse, match="consumer group"):
        client.consumer("orders", group="billing", **settings)
