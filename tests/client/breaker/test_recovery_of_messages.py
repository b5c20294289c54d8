"""What a loss does to messages: confirms, resending, delivery tags of the old life, transactions."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.client.conftest import Connect, Namer
from tests.support.breaker import DOWN, UP, Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .conftest import Watch, Watched


def bodies(other: Any, queue: str) -> list[bytes]:
    found = []
    while (delivery := other.get(queue, auto_ack=True)) is not None:
        found.append(delivery.body)
    return found


@pytest.fixture
def queue(other: Any, name: Namer) -> str:
    return str(other.queue_declare(name("queue")).queue)


# -- publishing


def test_confirm_mode_comes_back(watched: Watched, queue: str, other: Any) -> None:
    channel = watched.channel()
    channel.confirm_select()
    channel.publish("", queue, b"before").result(PATIENCE)
    watched.lose()
    confirmation = channel.publish("", queue, b"after")
    confirmation.result(PATIENCE)
    with pytest.raises(client.Unroutable):
        channel.publish("", "no such queue", b"x", mandatory=True).result(PATIENCE)
    assert bodies(other, queue) == [b"before", b"after"]


def test_unconfirmed_publish_fails_with_the_connection(watched: Watched, breaker: Breaker, queue: str) -> None:
    channel = watched.channel()
    channel.confirm_select()
    breaker.hold(UP)
    confirmations = [channel.publish("", queue, b"%d" % number) for number in range(3)]
    breaker.refuse()
    breaker.reset()
    for each in confirmations:
        assert isinstance(each.exception(PATIENCE), client.PublishLost)
    with pytest.raises(client.ConnectionLost):
        channel.publish("", queue, b"while away")
    breaker.calm()
    watched.wait_recovered()
    with pytest.raises((client.PublishLost, client.ConnectionLost)):
        channel.wait_for_confirms(timeout=PATIENCE)
    channel.publish("", queue, b"after").result(PATIENCE)


def test_publish_without_confirms_while_away_raises(watched: Watched, breaker: Breaker, queue: str) -> None:
    channel = watched.channel()
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    with pytest.raises(client.ConnectionLost):
        channel.publish("", queue, b"while away")
    breaker.calm()
    watched.wait_recovered()
    channel.publish("", queue, b"after")


def test_unconfirmed_publish_is_sent_again_by_choice(watch: Watch, breaker: Breaker, queue: str, other: Any) -> None:
    watched = watch(unconfirmed="resend")
    channel = watched.channel()
    channel.confirm_select()
    breaker.hold(UP)
    properties = client.Properties(message_id="7", headers={"a": [1, None]})
    confirmations = [channel.publish("", queue, b"%d" % number, properties) for number in range(50)]
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    confirmations += [channel.publish("", queue, b"%d" % number) for number in range(50, 100)]
    assert not any(each.done() for each in confirmations)
    breaker.calm()
    for each in confirmations:
        each.result(PATIENCE)
    channel.wait_for_confirms(timeout=PATIENCE)
    first = other.get(queue, auto_ack=True)
    assert (first.body, first.properties.message_id, first.headers) == (b"0", "7", {"a": [1, None]})
    assert bodies(other, queue) == [b"%d" % number for number in range(1, 100)]


def test_what_was_sent_without_its_confirm_is_sent_twice(
    watch: Watch, breaker: Breaker, queue: str, other: Any
) -> None:
    """At least once: the broker has it, and the client cannot know."""
    watched = watch(unconfirmed="resend")
    channel = watched.channel()
    channel.confirm_select()
    breaker.hold(DOWN)
    confirmation = channel.publish("", queue, b"x")
    wait_until(lambda: other.queue_declare(queue, passive=True).message_count == 1)
    breaker.reset()
    breaker.calm()
    confirmation.result(PATIENCE)
    assert bodies(other, queue) == [b"x", b"x"]


def test_resending_keeps_what_is_published_without_confirms(
    watch: Watch, breaker: Breaker, queue: str, other: Any
) -> None:
    watched = watch(unconfirmed="resend")
    channel = watched.channel()
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    for number in range(5):
        channel.publish("", queue, b"%d" % number)
    breaker.calm()
    watched.wait_recovered()
    wait_until(lambda: other.queue_declare(queue, passive=True).message_count == 5)
    assert bodies(other, queue) == [b"%d" % number for number in range(5)]


def test_resending_is_bounded(watch: Watch, breaker: Breaker, queue: str) -> None:
    watched = watch(unconfirmed="resend", output_limit=100_000)
    channel = watched.channel()
    channel.confirm_select()
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    kept = []
    with pytest.raises((client.CallTimedOut, client.ConnectionLost)):
        for _ in range(1000):
            kept.append(channel.publish("", queue, b"x" * 10_000, timeout=0.1))
    assert 1 <= len(kept) <= 20
    breaker.calm()
    for each in kept:
        each.result(PATIENCE)


def test_resend_keeps_its_routing_key_after_a_queue_is_renamed(watch: Watch, other: Any) -> None:
    """A routing key is the program's own: it is sent as it was given."""
    watched = watch(unconfirmed="resend")
    channel = watched.channel()
    channel.confirm_select()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.queue_bind(queue, "amq.direct", "stable")
    watched.lose()
    channel.publish("amq.direct", "stable", b"x", mandatory=True).result(PATIENCE)
    assert channel.get(queue, auto_ack=True).body == b"x"


def test_close_fails_what_was_to_be_resent(watch: Watch, breaker: Breaker, queue: str) -> None:
    watched = watch(unconfirmed="resend")
    channel = watched.channel()
    channel.confirm_select()
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    confirmation = channel.publish("", queue, b"x")
    watched.connection.close()
    assert isinstance(confirmation.exception(PATIENCE), client.PublishLost)


def test_giving_up_fails_what_was_to_be_resent(watch: Watch, breaker: Breaker, queue: str) -> None:
    watched = watch(unconfirmed="resend", recovery=client.Recovery(initial=0.1, longest=0.1, attempts=3))
    channel = watched.channel()
    channel.confirm_select()
    breaker.refuse()
    breaker.hold(UP)
    confirmation = channel.publish("", queue, b"x")
    breaker.reset()
    assert isinstance(confirmation.exception(PATIENCE), client.PublishLost)


# -- consuming


def test_tags_of_the_old_life_are_never_acked_in_the_new(watched: Watched, queue: str, other: Any) -> None:
    channel, inbox = watched.channel(), Inbox()
    channel.consume(queue, inbox)
    for number in range(3):
        other.publish("", queue, b"%d" % number)
    old = inbox.take(3)
    old[0].ack()
    channel.queue_declare(queue, passive=True)  # the ack was heard
    watched.lose()
    again = inbox.take(2)
    assert [(each.body, each.redelivered) for each in again] == [(b"1", True), (b"2", True)]
    assert min(each.delivery_tag for each in again) > max(each.delivery_tag for each in old)
    # By delivery, by tag, several, all three ways: nothing is sent.
    assert old[1].ack() is False
    assert old[2].nack() is False
    assert old[2].reject() is False
    assert channel.ack(old[2].delivery_tag, multiple=True) is False
    assert channel.nack(old[1].delivery_tag) is False
    assert channel.is_open
    channel.recover()
    third = inbox.take(2)
    assert sorted(each.body for each in third) == [b"1", b"2"], "an old ack has hit a new delivery"
    assert [each.ack() for each in third] == [True, True]
    channel.recover()
    assert other.queue_declare(queue, passive=True).message_count == 0


def test_ack_while_away_is_false(watched: Watched, breaker: Breaker, queue: str, other: Any) -> None:
    channel, inbox = watched.channel(), Inbox()
    channel.consume(queue, inbox)
    other.publish("", queue, b"x")
    delivery = inbox.next()
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    assert delivery.ack() is False
    breaker.calm()
    watched.wait_recovered()
    again = inbox.next()
    assert (again.body, again.redelivered, again.ack()) == (b"x", True, True)


def test_tags_never_repeat_over_many_lives(watched: Watched, queue: str, other: Any) -> None:
    channel, inbox = watched.channel(), Inbox()
    channel.consume(queue, inbox)
    tags = []
    for number in range(4):
        for each in range(number + 1):
            other.publish("", queue, b"%d %d" % (number, each))
        for delivery in inbox.take(number + 1):
            tags.append(delivery.delivery_tag)
            assert delivery.ack() is True
        channel.queue_declare(queue, passive=True)
        watched.lose()
    assert tags == sorted(set(tags))


def test_deliveries_that_wait_for_the_worker_at_the_loss_are_stale(
    watched: Watched, breaker: Breaker, queue: str, other: Any
) -> None:
    """They may still be handed over, but their acks go nowhere, and each message is acked once in the end."""
    gate, acked = threading.Event(), []

    def callback(delivery: Any) -> None:
        gate.wait(PATIENCE)
        if delivery.ack():
            acked.append(delivery.body)

    channel = watched.channel()
    channel.consume(queue, callback)
    for number in range(10):
        other.publish("", queue, b"%d" % number)
    wait_until(lambda: other.queue_declare(queue, passive=True).message_count == 0)
    watched.lose()
    gate.set()
    wait_until(lambda: len(acked) >= 10)
    assert sorted(acked) == sorted(b"%d" % number for number in range(10))
    assert channel.is_open


# -- transactions


def test_transaction_over_a_loss_is_not_half_committed(watched: Watched, queue: str, other: Any) -> None:
    channel = watched.channel()
    with pytest.raises(client.ConnectionLost), channel.transaction():
        channel.publish("", queue, b"first half")
        watched.lose()
        channel.publish("", queue, b"second half")
    with channel.transaction():
        channel.publish("", queue, b"whole")
    assert bodies(other, queue) == [b"whole"]


def test_transaction_mode_comes_back(watched: Watched, queue: str, other: Any) -> None:
    channel = watched.channel()
    channel.tx_select()
    channel.publish("", queue, b"1")
    channel.tx_commit()
    watched.lose()
    try:
        channel.publish("", queue, b"2")
        channel.tx_commit()
    except client.ConnectionLost:  # raised once where the loss was not noticed
        channel.publish("", queue, b"2")
        channel.tx_commit()
    assert bodies(other, queue) == [b"1", b"2"]


# -- a queue of one's own that is gone


def test_messages_of_an_exclusive_queue_go_with_it(connect: Connect, watched: Watched) -> None:
    channel = watched.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.publish("", queue, b"x")
    wait_until(lambda: channel.queue_declare(queue, passive=True).message_count == 1)
    watched.lose()
    assert channel.get(queue) is None
