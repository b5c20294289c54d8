"""Consumers: callbacks in order, iteration, cancel, qos, get; what happens when a callback fails."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from tests.client.conftest import Connect, Namer
from tests.support.breaker import DOWN, Breaker
from tests.support.waiting import let_time_pass, wait_until
from warrenmq import client

from .faces import PATIENCE, Inbox

PAUSE = 1.0  # longer than a message on its way takes on a busy machine


def fill(channel: Any, queue: str, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        channel.publish("", queue, b"%d" % number)
    channel.queue_declare(queue, passive=True)


def numbers(deliveries: list[Any]) -> list[int]:
    return [int(each.body) for each in deliveries]


# -- get


def test_get_returns_all_of_the_message(channel: Any, name: Namer) -> None:
    queue = name("queue")
    channel.queue_declare(queue)
    channel.queue_bind(queue, "amq.topic", "a.#")
    channel.publish("amq.topic", "a.b", b"hello", client.Properties(type="greeting"))
    channel.publish("amq.topic", "a.c", b"more")
    channel.queue_declare(queue, passive=True)
    delivery = channel.get(queue)
    assert (delivery.exchange, delivery.routing_key, delivery.body) == ("amq.topic", "a.b", b"hello")
    assert (delivery.properties.type, delivery.redelivered, delivery.message_count) == ("greeting", False, 1)
    assert delivery.channel == channel
    assert not delivery.consumer_tag
    assert delivery.ack() is True


def test_get_from_an_empty_queue_is_none(channel: Any, queue: str) -> None:
    assert channel.get(queue) is None
    assert channel.get(queue, auto_ack=True) is None


def test_get_from_a_missing_queue(channel: Any, name: Namer) -> None:
    with pytest.raises(client.NotFound):
        channel.get(name("missing"))


# -- callbacks


def test_callback_is_given_every_message_in_order(channel: Any, queue: str) -> None:
    inbox = Inbox()
    consumer = channel.consume(queue, inbox)
    fill(channel, queue, 300)
    deliveries = inbox.take(300)
    assert numbers(deliveries) == list(range(300))
    assert {each.consumer_tag for each in deliveries} == {consumer.tag}
    assert [each.delivery_tag for each in deliveries] == list(range(1, 301))
    assert {each.message_count for each in deliveries} == {None}
    assert consumer.queue == queue


@pytest.mark.skipif("WARREN_TEST_URL" in os.environ, reason="RabbitMQ has no x-filter")
@pytest.mark.parametrize("asked", ["n > 2 AND priority = 1", {"n": 3}])
def test_a_filter_leaves_the_other_messages_to_others(channel: Any, queue: str, asked: Any) -> None:
    for number in range(5):
        channel.publish("", queue, b"%d" % number, client.Properties(headers={"n": number}, priority=number % 2))
    inbox = Inbox()
    channel.consume(queue, inbox, filter=asked)
    assert numbers(inbox.take(1)) == [3]
    assert channel.message_count(queue) == 4


def test_callbacks_of_a_channel_never_overlap(channel: Any, queue: str) -> None:
    inside, seen, done = threading.Lock(), [], threading.Event()

    def callback(delivery: Any) -> None:
        assert inside.acquire(blocking=False), "two callbacks of one channel at once"
        seen.append(int(delivery.body))
        if len(seen) == 60:
            done.set()
        inside.release()

    second = channel.queue_declare("", exclusive=True).queue
    channel.consume(queue, callback)
    channel.consume(second, callback)
    for number in range(30):
        channel.publish("", queue, b"%d" % number)
        channel.publish("", second, b"%d" % (1000 + number))
    assert done.wait(PATIENCE), seen
    assert [number for number in seen if number < 1000] == list(range(30))
    assert [number for number in seen if number >= 1000] == list(range(1000, 1030))


def test_several_consumers_on_a_channel_each_with_its_callback(channel: Any) -> None:
    inboxes = {}
    for label in "abc":
        queue = channel.queue_declare("", exclusive=True).queue
        inboxes[label] = Inbox()
        channel.consume(queue, inboxes[label], consumer_tag=label, auto_ack=True)
        channel.publish("", queue, label)
    for label, inbox in inboxes.items():
        delivery = inbox.next()
        assert (delivery.body, delivery.consumer_tag) == (label.encode(), label)
    assert all(inbox.stays_empty(0.05) for inbox in inboxes.values())


def test_consumers_of_one_queue_share_its_messages(connection: Any, channel: Any, queue: str) -> None:
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        channel.consume(queue, inbox, auto_ack=True)
    fill(channel, queue, 20)
    wait_until(lambda: sum(inbox.count for inbox in inboxes) == 20)
    assert [inbox.count for inbox in inboxes] == [10, 10]


def test_callback_may_call_its_channel_and_wait(channel: Any, queue: str) -> None:
    inbox = Inbox()

    def callback(delivery: Any) -> None:
        answers = channel.queue_declare("", exclusive=True).queue
        channel.publish("", answers, b"answer to " + delivery.body)
        state = channel.queue_declare(answers, passive=True)
        delivery.ack()
        inbox(state.queue == answers, channel.get(answers, auto_ack=True).body)

    channel.consume(queue, callback)
    fill(channel, queue, 3)
    assert inbox.take(3) == [(True, b"answer to %d" % number) for number in range(3)]


def test_callback_may_consume_and_cancel(channel: Any, queue: str) -> None:
    inbox = Inbox()
    second = channel.queue_declare("", exclusive=True).queue

    def first_only(delivery: Any) -> None:
        delivery.channel.cancel(delivery.consumer_tag)
        delivery.channel.consume(second, inbox, auto_ack=True)
        delivery.ack()

    channel.qos(1)
    channel.consume(queue, first_only)
    fill(channel, queue, 2)
    channel.publish("", second, b"7")
    assert inbox.next().body == b"7"
    assert channel.get(queue, auto_ack=True).body == b"1"


def test_failing_callback_is_reported_to_the_exception_handler(connect: Connect) -> None:
    told, seen = Inbox(), Inbox()
    connection = connect(exception_handler=lambda *args: told(args))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue

    def callback(delivery: Any) -> None:
        seen(delivery)
        if int(delivery.body) % 2:
            raise RuntimeError(f"no {delivery.body.decode()}")
        delivery.ack()

    channel.consume(queue, callback)
    fill(channel, queue, 6)
    assert numbers(seen.take(6)) == list(range(6))
    errors = [str(each[1]) for each in told.take(3)]
    assert errors == ["no 1", "no 3", "no 5"]
    assert connection.is_open
    assert channel.is_open
    # Nothing was acked or nacked for the failed ones: they are still ours.
    assert channel.queue_declare(queue, passive=True).message_count == 0
    channel.recover()
    assert sorted(numbers(seen.take(3))) == [1, 3, 5]


def test_failing_exception_handler_is_ignored(connect: Connect) -> None:
    def handler(*args: Any) -> None:
        raise RuntimeError("the handler, too")

    def callback(delivery: Any) -> None:
        delivery.ack()
        raise RuntimeError("on purpose")

    channel = connect(exception_handler=handler).channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.consume(queue, callback)
    fill(channel, queue, 5)
    wait_until(lambda: channel.queue_declare(queue, passive=True).message_count == 0)
    assert channel.is_open


# -- tags, cancel


def test_consumer_tag_is_made_or_given(channel: Any, queue: str) -> None:
    made, given = channel.consume(queue, Inbox()), channel.consume(queue, Inbox(), consumer_tag="mine ü")
    assert made.tag
    assert given.tag == "mine ü"
    assert made.tag != given.tag


def test_consumer_tag_in_use_is_refused(channel: Any, queue: str) -> None:
    channel.consume(queue, Inbox(), consumer_tag="mine")
    with pytest.raises((client.Misuse, client.ConnectionClosed, client.ConnectionLost)):
        channel.consume(queue, Inbox(), consumer_tag="mine")


def test_cancel_by_consumer_and_by_tag(channel: Any, queue: str) -> None:
    inbox = Inbox()
    for how in ("object", "tag", "method"):
        consumer = channel.consume(queue, inbox, auto_ack=True)
        fill(channel, queue, 1)
        inbox.next()
        if how == "object":
            channel.cancel(consumer)
        elif how == "tag":
            channel.cancel(consumer.tag)
        else:
            consumer.cancel()
        fill(channel, queue, 1)
        assert inbox.stays_empty(0.1)
        assert channel.queue_purge(queue) == 1
        assert channel.queue_declare(queue, passive=True).consumer_count == 0


def test_cancel_twice_is_no_error(channel: Any, queue: str) -> None:
    consumer = channel.consume(queue, Inbox())
    consumer.cancel()
    consumer.cancel()
    assert channel.is_open


def test_default_consumer_receives_what_belongs_to_no_consumer(channel: Any, queue: str) -> None:
    known, unknown = Inbox(), Inbox()
    channel.set_default_consumer(unknown)
    consumer = channel.consume(queue, known)
    forget(channel, consumer.tag)
    channel.publish("", queue, b"for nobody")
    delivery = unknown.next()
    assert (delivery.body, delivery.consumer_tag) == (b"for nobody", consumer.tag)
    assert delivery.ack() is True
    channel.set_default_consumer(None)
    channel.publish("", queue, b"ignored")
    assert unknown.stays_empty()
    assert known.stays_empty(0)


def forget(channel: Any, tag: str) -> None:
    """Remove the consumer on this side only, as if the broker's deliveries had crossed a cancel."""
    getattr(channel, "_real", channel)._engine_channel.state.consumers.pop(tag)


def test_messages_of_a_cancelled_consumer_can_still_be_acked(channel: Any, queue: str) -> None:
    inbox = Inbox()
    consumer = channel.consume(queue, inbox)
    fill(channel, queue, 3)
    deliveries = inbox.take(3)
    consumer.cancel()
    assert [each.ack() for each in deliveries] == [True] * 3
    channel.recover()
    assert channel.queue_declare(queue, passive=True).message_count == 0


def test_deleting_the_queue_cancels_its_consumers(connection: Any, name: Namer) -> None:
    queue, cancelled = name("queue"), Inbox()
    channel = connection.channel()
    channel.queue_declare(queue)
    consumer = channel.consume(queue, Inbox(), on_cancel=cancelled)
    connection.channel().queue_delete(queue)
    told = cancelled.next()
    assert getattr(told, "tag", told) == consumer.tag
    assert channel.is_open
    consumer.cancel()  # it is gone: no error


def test_users_cancel_is_not_reported_as_the_servers(channel: Any, queue: str) -> None:
    cancelled = Inbox()
    channel.consume(queue, Inbox(), on_cancel=cancelled).cancel()
    assert cancelled.stays_empty()


def test_exclusive_consumer_shuts_others_out(connection: Any, channel: Any, queue: str) -> None:
    channel.consume(queue, Inbox(), exclusive=True)
    with pytest.raises(client.AccessRefused):
        connection.channel().consume(queue, Inbox())


def test_consuming_from_a_missing_queue(connection: Any, name: Namer) -> None:
    with pytest.raises(client.NotFound):
        connection.channel().consume(name("missing"), Inbox())
    with pytest.raises(client.NotFound):
        for _delivery in connection.channel().consume(name("missing")):
            pass


def test_consumer_priority_goes_through_as_an_argument(connection: Any, channel: Any, queue: str) -> None:
    channel.consume(queue, Inbox(), arguments={"x-priority": 5})
    assert channel.queue_declare(queue, passive=True).consumer_count == 1


# -- iteration


def test_iterating_a_consumer(channel: Any, queue: str) -> None:
    fill(channel, queue, 50)
    seen = []
    for delivery in channel.consume(queue, timeout=10):
        seen.append(int(delivery.body))
        delivery.ack()
        if len(seen) == 50:
            break
    assert seen == list(range(50))
    assert channel.is_open


def test_iteration_ends_after_inactivity(channel: Any, queue: str) -> None:
    fill(channel, queue, 3)
    consumer = channel.consume(queue, timeout=PAUSE)
    assert numbers(list(consumer)) == [0, 1, 2]
    assert channel.is_open


def test_iteration_ends_at_cancel_after_what_has_come(channel: Any, queue: str) -> None:
    fill(channel, queue, 3)
    consumer = channel.consume(queue, auto_ack=True, timeout=10)
    seen = []
    for delivery in consumer:
        seen.append(int(delivery.body))
        if len(seen) == 3:
            consumer.cancel()
    assert seen == [0, 1, 2]
    assert channel.queue_declare(queue, passive=True).consumer_count == 0


def test_iteration_is_ended_by_another_threads_cancel(channel: Any, queue: str) -> None:
    consumer = channel.consume(queue)
    timer = threading.Timer(0.1, consumer.cancel)
    timer.start()
    assert list(consumer) == []
    timer.join()


def test_iteration_is_ended_by_closing_the_channel_or_connection(connect: Connect) -> None:
    connection = connect()
    for closes in ("channel", "connection"):
        channel = connection.channel()
        consumer = channel.consume(channel.queue_declare("", exclusive=True).queue)
        timer = threading.Timer(0.1, channel.close if closes == "channel" else connection.close)
        timer.start()
        assert list(consumer) == []
        timer.join()


def test_iteration_raises_the_channels_error(connection: Any, channel: Any, queue: str, name: Namer) -> None:
    consumer = channel.consume(queue)
    channel.publish(name("missing"), "", b"x")
    with pytest.raises(client.NotFound):
        for _delivery in consumer:
            pass


def test_iteration_raises_when_the_server_cancels(connection: Any, channel: Any, name: Namer) -> None:
    queue = name("queue")
    channel.queue_declare(queue)
    fill(channel, queue, 2)
    consumer = channel.consume(queue, auto_ack=True)
    seen = []
    with pytest.raises(client.ConsumerCancelled) as cancelled:
        for delivery in consumer:
            seen.append(int(delivery.body))
            if len(seen) == 2:
                connection.channel().queue_delete(queue)
    assert seen == [0, 1]
    assert consumer.tag in str(cancelled.value)
    assert channel.is_open


def test_two_iterations_on_one_channel_do_not_mix(channel: Any) -> None:
    queues = [channel.queue_declare("", exclusive=True).queue for _ in range(2)]
    consumers = [channel.consume(queue, auto_ack=True, timeout=PAUSE) for queue in queues]
    for number in range(10):
        channel.publish("", queues[number % 2], b"%d" % number)
    channel.qos(0)
    assert [numbers(list(consumer)) for consumer in consumers] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


# -- qos


def test_prefetch_bounds_what_is_unacked(channel: Any, queue: str) -> None:
    inbox = Inbox()
    channel.qos(3)
    channel.consume(queue, inbox)
    fill(channel, queue, 10)
    first = inbox.take(3)
    assert inbox.stays_empty()
    first[0].ack()
    assert numbers(inbox.take(1)) == [3]
    assert inbox.stays_empty(0.05)
    first[2].ack(multiple=True)
    assert numbers(inbox.take(2)) == [4, 5]


def test_prefetch_of_the_whole_channel(channel: Any, queue: str) -> None:
    inbox = Inbox()
    channel.qos(2, global_=True)
    channel.consume(queue, inbox)
    channel.consume(queue, inbox)
    fill(channel, queue, 10)
    inbox.take(2)
    assert inbox.stays_empty()


def test_prefetch_size_is_not_implemented_by_the_broker(connect: Connect) -> None:
    connection = connect(recovery=False)
    with pytest.raises((client.ConnectionClosed, client.ConnectionLost)) as failed:
        connection.channel().qos(0, prefetch_size=100)
    assert failed.value.reason.reply_code == 540


# -- pressure


def test_slow_callback_is_given_everything(connect: Connect) -> None:
    connection = connect(work_limit=50)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    gate, inbox = threading.Event(), Inbox()

    def callback(delivery: Any) -> None:
        gate.wait(10)
        inbox(delivery)

    channel.consume(queue, callback, auto_ack=True)
    fill(channel, queue, 2000)
    # Reading may be paused now, yet a call gets its reply.
    assert channel.queue_declare(queue, passive=True).consumer_count == 1
    assert connection.channel().queue_declare("", exclusive=True).queue
    gate.set()
    assert numbers(inbox.take(2000)) == list(range(2000))


def test_reading_stops_while_the_worker_is_behind(connect: Connect, breaker: Breaker, name: Namer) -> None:
    """Memory is bounded; our own pause is no silence of the server, which does not cost the connection."""
    queue, body, other = name("queue"), b"x" * 20_000, connect().channel()
    other.queue_declare(queue)
    other.confirm_select()
    for _ in range(2000):
        other.publish("", queue, body)
    other.wait_for_confirms(timeout=60)
    connection = connect(breaker.url, work_limit=50, heartbeat=2)
    lost, inbox, gate = Inbox(), Inbox(), threading.Event()
    connection.add_recovery_listener(lost)

    def callback(delivery: Any) -> None:
        gate.wait(PATIENCE)
        inbox(len(delivery.body))

    connection.channel().consume(queue, callback, auto_ack=True)
    let_time_pass(5.0)  # longer than a silent server is borne
    passed = breaker.bytes_passed(DOWN)
    assert passed < len(body) * 1000, "half of it was read although nobody works on it"
    assert lost.stays_empty(0)
    assert connection.is_open
    # A call gets its reply all the same.
    assert connection.channel().queue_declare("", exclusive=True).queue
    gate.set()
    assert inbox.take(2000) == [len(body)] * 2000
    assert lost.stays_empty(0)
