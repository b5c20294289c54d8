"""Automatic retry: `x-retry-*` as arguments of a queue, of a consumer, and as headers of a message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import (
    Client,
    ClientChannel,
    advance,
    assert_nothing_is_held,
    make_broker,
    waiting,
)
from tests.support.outbox import Delivered
from warrenmq.core.broker import Broker
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.limits import Limits
from warrenmq.core.queue import Queue
from warrenmq.core.retry_options import RetryOptions, retry_options

NOW = 1_000_000_000_000
LATE = 16  # timers may be this late


@pytest.fixture
def broker() -> Broker:
    return make_broker(now_ms=NOW, limits=Limits(consumer_timeout=60_000))


def declare(channel: ClientChannel, name: str = "q", **arguments: Any) -> Queue:
    return channel.declare(name, arguments={key.replace("_", "-"): value for key, value in arguments.items()})


def fail(channel: ClientChannel, queue: Queue, *, requeue: bool = True) -> None:
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag, requeue=requeue)


def retry_headers(delivered: Delivered | Any) -> dict[str, Any]:
    headers = delivered.message.properties.headers or {}
    return {name: headers[name] for name in ("x-delivery-count", "x-retry-reason") if name in headers}


def deaths_of(queue: Any) -> list[tuple[str, str, int]]:
    """Of the first message: queue, reason and count."""
    headers = next(iter(queue.backlog)).message.properties.headers
    return [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]]


@pytest.mark.parametrize("requeue", [True, False])
def test_a_rejected_message_returns_after_its_delay(channel: ClientChannel, broker: Broker, requeue: bool) -> None:
    queue = declare(channel, x_retry_delay=100)
    channel.publish_all("ab", "q")
    fail(channel, queue, requeue=requeue)
    assert (waiting(queue), queue.retrying()) == ("b", 1)
    advance(broker, 99)
    assert waiting(queue) == "b"
    advance(broker, 1 + LATE)
    assert (waiting(queue), queue.retrying()) == ("ba", 0)
    first, second = channel.get(queue), channel.get(queue)
    assert first is not None and second is not None  # noqa: PT018
    assert (first.redelivered, retry_headers(first)) == (False, {})
    assert (second.redelivered, retry_headers(second)) == (
        True,
        {"x-delivery-count": 1, "x-retry-reason": "rejected"},
    )
    assert_nothing_is_held(broker)


def test_others_are_delivered_meanwhile(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_max=3)
    channel.consume(queue, prefetch=1)
    channel.publish_all("abc", "q")
    (first,) = channel.deliveries()
    channel.reject(first.tag)
    (second,) = channel.deliveries()
    channel.ack(second.tag)
    assert (first.body, second.body, channel.bodies()) == (b"a", b"b", "c")


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ({}, [100, 200, 400, 800]),
        ({"x_retry_backoff": "exponential", "x_retry_max_delay": 300}, [100, 200, 300, 300]),
        ({"x_retry_backoff": "linear"}, [100, 200, 300, 400]),
        ({"x_retry_backoff": "fixed"}, [100, 100, 100, 100]),
    ],
)
def test_the_delay_grows(channel: ClientChannel, broker: Broker, backoff: dict[str, Any], delays: list[int]) -> None:
    queue = declare(channel, x_retry_delay=100, **backoff)
    channel.publish(b"a", "q")
    for delay in delays:
        fail(channel, queue)
        advance(broker, delay - 1)
        assert waiting(queue) == ""
        advance(broker, 1 + LATE)
        assert waiting(queue) == "a"


@pytest.mark.parametrize(("jitter", "lowest"), [(0, 1000), (0.25, 750), (1, 0)])
def test_jitter_takes_some_of_the_delay(jitter: float, lowest: int) -> None:
    options = RetryOptions(delay_ms=1000, jitter=jitter)
    assert options.delay_after(1, 0.0) == 1000
    assert options.delay_after(1, 1.0) == lowest


def test_retry_is_enabled_by_any_argument() -> None:
    assert retry_options({}, None) is None
    assert retry_options({"x-retry-delay": 5}, None) == RetryOptions(max=16, delay_ms=5)
    assert retry_options({"x-retry-max": 2}, None) == RetryOptions(max=2, delay_ms=1000)
    assert retry_options({"x-retry-delay": 5}, 7) == RetryOptions(max=7, delay_ms=5), "a quorum queue's delivery limit"


def test_after_the_last_attempt_it_is_dead_lettered(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(
        channel,
        x_retry_max=2,
        x_retry_delay=0,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    dead = channel.declare("dead")
    channel.publish(b"a", "q")
    for _ in range(3):
        assert waiting(dead) == ""
        fail(channel, queue)
        advance(broker, LATE)
    assert (waiting(queue), waiting(dead)) == ("", "a")
    assert deaths_of(dead) == [("q", "delivery_limit", 1)]
    assert "q.dead" not in broker.vhosts["/"].queues


def test_without_a_dead_letter_exchange_it_goes_to_a_queue_that_is_created(
    channel: ClientChannel, broker: Broker
) -> None:
    queue = declare(channel, x_retry_max=0)
    channel.publish_all("ab", "q")
    fail(channel, queue)
    fail(channel, queue, requeue=False)
    dead = broker.vhosts["/"].queues["q.dead"]
    assert (waiting(queue), waiting(dead), dead.is_durable) == ("", "ab", False)
    assert deaths_of(dead) == [("q", "delivery_limit", 1)]


def test_a_queue_whose_name_is_too_long_for_that_drops_it(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, "q" * 251, x_retry_max=0)
    channel.publish(b"a", queue.name)
    fail(channel, queue)
    assert list(broker.vhosts["/"].queues) == [queue.name]
    assert_nothing_is_held(broker)


def test_messages_of_a_lost_consumer_are_retried(client: Client, channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100)
    worker = client.channel()
    worker.consume(queue)
    channel.publish_all("ab", "q")
    assert worker.bodies() == "ab"
    worker.close()
    assert (waiting(queue), queue.retrying()) == ("", 2)
    advance(broker, 100 + LATE)
    assert waiting(queue) == "ab"
    got = channel.get(queue)
    assert got is not None
    assert retry_headers(got) == {"x-delivery-count": 1, "x-retry-reason": "channel_closed"}


def test_messages_that_time_out_are_retried(channel: ClientChannel, other: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100)
    channel.consume(queue)
    channel.publish(b"a", "q")
    assert channel.bodies() == "a"
    for _ in range(3):
        advance(broker, 30_000)
    (closed,) = channel.closes()
    assert "timed out" in closed.text
    advance(broker, 100 + LATE)
    got = other.get(queue)
    assert got is not None
    assert retry_headers(got) == {"x-delivery-count": 1, "x-retry-reason": "consumer_timeout"}


def test_recover_is_no_failure(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100)
    channel.publish(b"a", "q")
    channel.get(queue, no_ack=False)
    channel.core.recover()
    assert (waiting(queue), queue.retrying()) == ("a", 0)


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"x-retry-delay": 500}, 500),
        ({"x-retry-delay": "soon"}, 100),
        ({"x-retry-max": 0}, None),
        ({"x-retry-max": "0"}, 100),
        ({"x-retry-max-delay": 30}, 30),
    ],
)
def test_headers_override_the_arguments(
    channel: ClientChannel, broker: Broker, headers: dict[str, Any], delay: int | None
) -> None:
    queue = declare(channel, x_retry_delay=100)
    channel.publish(b"a", "q", headers=headers)
    fail(channel, queue)
    if delay is None:
        assert (waiting(queue), queue.retrying()) == ("", 0)
        return
    advance(broker, delay - 1)
    assert waiting(queue) == ""
    advance(broker, 1 + LATE)
    assert waiting(queue) == "a"


def test_headers_alone_do_not_enable_retry(channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.publish(b"a", "q", headers={"x-retry-max": 5})
    fail(channel, queue)
    assert waiting(queue) == "a"


def test_in_order_the_head_waits(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100, x_retry_max=1, x_retry_ordered=True)
    channel.publish_all("ab", "q")
    fail(channel, queue)
    assert (waiting(queue), channel.get(queue)) == ("ab", None)
    channel.consume(queue, prefetch=1)
    advance(broker, 99)
    assert channel.bodies() == ""
    advance(broker, 1 + LATE)
    (delivered,) = channel.deliveries()
    assert (delivered.body, retry_headers(delivered)) == (
        b"a",
        {"x-delivery-count": 1, "x-retry-reason": "rejected"},
    )
    channel.reject(delivered.tag)
    assert channel.bodies() == "b", "after the last attempt the next one's turn comes"
    assert waiting(broker.vhosts["/"].queues["q.dead"]) == "a"


def test_a_consumer_can_ask_for_retry(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.consume(queue, arguments={"x-retry-max": 1, "x-retry-delay": 100})
    channel.publish(b"a", "q")
    (first,) = channel.deliveries()
    channel.reject(first.tag, requeue=False)
    assert (waiting(queue), queue.retrying(), channel.bodies()) == ("", 1, "")
    advance(broker, 100 + LATE)
    (second,) = channel.deliveries()
    assert retry_headers(second) == {"x-delivery-count": 1, "x-retry-reason": "rejected"}
    channel.reject(second.tag)
    assert waiting(broker.vhosts["/"].queues["q.dead"]) == "a"


def test_what_other_consumers_of_that_queue_reject_is_not_retried(
    channel: ClientChannel, other: ClientChannel, broker: Broker
) -> None:
    queue = channel.declare("q")
    channel.consume(queue, arguments={"x-retry-delay": 100}, prefetch=1)
    other.consume(queue, prefetch=1)
    channel.publish_all("ab", "q")
    (_,), (plain,) = channel.deliveries(), other.deliveries()
    other.reject(plain.tag, requeue=False)
    assert (waiting(queue), queue.retrying()) == ("", 0)
    channel.publish(b"c", "q")
    (again,) = other.deliveries()
    other.reject(again.tag)
    assert [each.body for each in other.deliveries()] == [b"c"]


def test_the_arguments_of_the_queue_come_first(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100)
    channel.consume(queue, arguments={"x-retry-delay": 5000})
    channel.publish(b"a", "q")
    (first,) = channel.deliveries()
    channel.reject(first.tag)
    advance(broker, 100 + LATE)
    assert channel.bodies() == "a"


def test_a_retry_ignores_the_length_limit_of_new_messages(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100, x_max_length=1, x_overflow="reject-publish")
    channel.publish(b"a", "q")
    fail(channel, queue)
    channel.publish(b"b", "q")
    advance(broker, 100 + LATE)
    assert waiting(queue) == "ba"


def test_an_expiration_starts_again(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100)
    channel.publish(b"a", "q", expiration="50")
    fail(channel, queue)
    advance(broker, 100 + LATE)
    assert waiting(queue) == "a"
    advance(broker, 50 + 2 * LATE)
    assert waiting(queue) == ""


def test_a_purge_drops_what_waits_for_its_next_attempt(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100)
    channel.publish_all("ab", "q")
    fail(channel, queue)
    assert queue.purge() == 2
    advance(broker, 1000)
    assert waiting(queue) == ""
    assert_nothing_is_held(broker)


def test_a_deleted_queue_takes_its_retries_along(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, x_retry_delay=100)
    channel.publish_all("ab", "q")
    fail(channel, queue)
    with pytest.raises(PreconditionFailed, match="not empty"):
        channel.delete(queue, if_empty=True)
    channel.delete(queue)
    advance(broker, 1000)
    assert broker.vhosts["/"].queues == {}
    assert_nothing_is_held(broker)


def test_disabled_by_a_policy_what_waits_still_returns(channel: ClientChannel, broker: Broker) -> None:
    vhost = broker.vhosts["/"]
    vhost.policies.set("retry", "q", {"retry-delay": 100})
    queue = channel.declare("q")
    channel.publish_all("ab", "q")
    fail(channel, queue)
    vhost.policies.clear("retry")
    advance(broker, 0)
    fail(channel, queue)
    assert (waiting(queue), queue.retrying()) == ("b", 1)
    advance(broker, 100 + LATE)
    assert (waiting(queue), queue.retrying()) == ("ba", 0)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("x-retry-max", -1, "{value_negative,-1}"),
        ("x-retry-max", "2", '"expected integer, got longstr"'),
        ("x-retry-delay", -1, "{value_negative,-1}"),
        ("x-retry-backoff", "slow", "\"expected one of exponential, linear, fixed, got 'slow'\""),
        ("x-retry-max-delay", 1 << 50, f"{{value_too_large,{1 << 50}}}"),
        ("x-retry-jitter", 2, '"expected a number from 0 to 1, got 2"'),
        ("x-retry-ordered", "yes", "{unacceptable_type,longstr}"),
    ],
)
def test_invalid_arguments_are_refused(channel: ClientChannel, name: str, value: Any, fault: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        channel.declare("q", arguments={name: value})
    assert refused.value.text == f"invalid arg '{name}' for queue 'q' in vhost '/': {fault}"


def test_a_stream_has_no_retry(channel: ClientChannel) -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-retry-max'"):
        channel.declare("q", durable=True, arguments={"x-queue-type": "stream", "x-retry-max": 1})


def test_a_million_attempts_do_not_overflow_the_delay() -> None:
    assert RetryOptions(max=1_000_000).delay_after(1_000_000, 0.5) == 3_600_000
