"""/metrics counts what queues do to messages by themselves: through a real client and the HTTP port."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import warrenmq
from tests.support.waiting import wait_until

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture(scope="module")
def broker() -> Iterator[warrenmq.Broker]:
    with warrenmq.Broker(http=True) as running:
        yield running


@pytest.fixture
def channel(broker: warrenmq.Broker) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("dead")
        yield channel
        for name in ("q", "dead", "other"):
            channel.queue_delete(name)


def scrape(broker: warrenmq.Broker) -> dict[str, int]:
    """What is counted by the features of queues."""
    with urllib.request.urlopen(broker.http_url + "/metrics") as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    names = ("warren_messages_d", "warren_publishes_rejected", "warren_dead_letter_cycles", "warren_consumer_timeouts")
    found = {name.removeprefix("warren_"): int(value) for name, value in lines if name.startswith(names)}
    del found["messages_delivered_total"]
    return found


def dropped(reason: str) -> str:
    return f'messages_dropped_total{{reason="{reason}"}}'


def dead_lettered(reason: str) -> str:
    return f'messages_dead_lettered_total{{reason="{reason}"}}'


def counts(broker: warrenmq.Broker, before: dict[str, int], **more: int) -> bool:
    """Whether just these have grown since, by so much."""
    after = scrape(broker)
    grown = {name: value - before[name] for name, value in after.items() if value != before[name]}
    return grown == more


def publish(channel: BlockingChannel, queue: str = "q", count: int = 1, **properties: Any) -> None:
    for _ in range(count):
        channel.basic_publish("", queue, b"body", pika.BasicProperties(**properties))


def get(channel: BlockingChannel, queue: str = "q") -> int:
    method, _, _ = channel.basic_get(queue)
    assert method is not None
    return int(method.delivery_tag)


def reject_two(channel: BlockingChannel, arguments: dict[str, Any]) -> None:
    channel.queue_declare("q", arguments=arguments)
    publish(channel, count=2)
    channel.basic_reject(get(channel), requeue=False)
    channel.basic_nack(get(channel), requeue=False)


def expire_two(channel: BlockingChannel, arguments: dict[str, Any]) -> None:
    channel.queue_declare("q", arguments=arguments | {"x-message-ttl": 100})
    publish(channel)
    publish(channel, expiration="1")


def push_two_out(channel: BlockingChannel, arguments: dict[str, Any]) -> None:
    channel.queue_declare("q", arguments=arguments | {"x-max-length": 1})
    publish(channel, count=3)


def deliver_two_too_often(channel: BlockingChannel, arguments: dict[str, Any]) -> None:
    quorum = {"x-queue-type": "quorum", "x-delivery-limit": 0}
    channel.queue_declare("q", durable=True, arguments=arguments | quorum)
    publish(channel, count=2)
    for _ in range(2):
        channel.basic_nack(get(channel), requeue=True)


REASONS = {
    "rejected": reject_two,
    "expired": expire_two,
    "maxlen": push_two_out,
    "delivery_limit": deliver_two_too_often,
}


@pytest.mark.parametrize(("reason", "kill"), REASONS.items())
def test_messages_that_leave_a_queue_are_counted_by_reason(
    broker: warrenmq.Broker, channel: BlockingChannel, reason: str, kill: Callable[..., None]
) -> None:
    before = scrape(broker)
    kill(channel, {})
    assert wait_until(lambda: counts(broker, before, **{dropped(reason): 2}))


@pytest.mark.parametrize(("reason", "kill"), REASONS.items())
def test_those_that_another_queue_takes_are_counted_as_dead_letters(
    broker: warrenmq.Broker, channel: BlockingChannel, reason: str, kill: Callable[..., None]
) -> None:
    before = scrape(broker)
    kill(channel, DEAD)
    assert wait_until(lambda: counts(broker, before, **{dropped(reason): 2, dead_lettered(reason): 2}))


def test_those_that_no_queue_takes_are_not(broker: warrenmq.Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("other", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    before = scrape(broker)
    reject_two(channel, {"x-dead-letter-exchange": "amq.topic"})
    assert wait_until(lambda: counts(broker, before, **{dropped("rejected"): 2}))
    channel.queue_delete("q")
    reject_two(channel, DEAD | {"x-dead-letter-routing-key": "other"})
    more = {dropped("rejected"): 4, "publishes_rejected_total": 2}
    assert wait_until(lambda: counts(broker, before, **more))


def test_publishes_that_a_full_queue_rejects(broker: warrenmq.Broker, channel: BlockingChannel) -> None:
    before = scrape(broker)
    channel.queue_declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(channel, count=3)
    assert wait_until(lambda: counts(broker, before, publishes_rejected_total=2))
    channel.queue_declare("other", arguments=DEAD | {"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    publish(channel, "other", count=3)
    more = {"publishes_rejected_total": 4, dead_lettered("maxlen"): 2}
    assert wait_until(lambda: counts(broker, before, **more))


def test_dead_letters_that_would_go_around_for_ever(broker: warrenmq.Broker, channel: BlockingChannel) -> None:
    before = scrape(broker)
    channel.queue_declare("q", arguments=DEAD | {"x-dead-letter-routing-key": "other", "x-message-ttl": 1})
    channel.queue_declare("other", arguments=DEAD | {"x-dead-letter-routing-key": "q", "x-message-ttl": 1})
    publish(channel)
    more = {dropped("expired"): 2, dead_lettered("expired"): 1, "dead_letter_cycles_total": 1}
    assert wait_until(lambda: counts(broker, before, **more))


def test_channels_that_are_closed_for_a_delivery_that_is_not_acked(
    broker: warrenmq.Broker, channel: BlockingChannel
) -> None:
    before = scrape(broker)
    arguments = {"x-queue-type": "quorum", "x-consumer-timeout": 100}
    channel.queue_declare("q", durable=True, arguments=arguments)
    publish(channel)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        other = connection.channel()
        other.basic_consume("q", lambda *_: None)
        assert wait_until(lambda: counts(broker, before, consumer_timeouts_total=1))


def test_messages_that_wait_for_a_time() -> None:
    hour = 3_600_000
    with warrenmq.Broker(http=True) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", arguments={"x-retry-max": 3, "x-retry-delay": hour})
        publish(channel, count=2)
        publish(channel, headers={"x-delay": hour})
        channel.basic_nack(get(channel), requeue=True)

        def metrics() -> list[int]:
            with urllib.request.urlopen(broker.http_url + "/metrics") as answer:
                found = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
            names = ("ready", "scheduled", "delayed_total", "retrying", "retried_total")
            return [int(found[f"warren_messages_{name}"]) for name in names]

        assert wait_until(lambda: metrics() == [1, 1, 1, 1, 1])
        channel.queue_delete("q")
        assert wait_until(lambda: metrics() == [0, 1, 1, 0, 1])


def test_memory_of_the_index_of_expiring_messages_and_of_histories(
    broker: warrenmq.Broker, channel: BlockingChannel
) -> None:
    def memory(kind: str) -> int:
        with urllib.request.urlopen(broker.http_url + "/metrics") as answer:
            text = answer.read().decode()
        (line,) = [line for line in text.splitlines() if line.startswith(f'warren_memory_bytes{{kind="{kind}"}}')]
        return int(line.rsplit(" ", 1)[1])

    assert (memory("expiry"), memory("history")) == (0, 0)
    channel.queue_declare("q")
    publish(channel, count=10, expiration="100000")
    assert wait_until(lambda: memory("expiry") == 120)
    channel.exchange_declare("recent", "x-recent-history")
    channel.basic_publish("recent", "", b"body")
    assert wait_until(lambda: memory("history") > 0)
    channel.exchange_delete("recent")
    channel.queue_delete("q")
    assert wait_until(lambda: memory("expiry") == memory("history") == 0)
