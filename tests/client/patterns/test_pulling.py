"""Pulling in batches on both faces."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.behaviour.faces import PATIENCE
from tests.client.conftest import Namer
from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .making import InThread, count_of, make


def publish(channel: Any, queue: str, numbers: range) -> list[bytes]:
    bodies = [b"%d" % number for number in numbers]
    for body in bodies:
        channel.publish("", queue, body)
    return bodies


def pull_until(puller: Any, count: int, most: int = 100) -> list[bytes]:
    """Pull and ack until N have come."""
    seen: list[bytes] = []
    while len(seen) < count:
        batch = puller.pull(most, timeout=PATIENCE)
        assert batch, f"{len(seen)} came, not {count}"
        assert len(batch) <= most
        seen += [delivery.body for delivery in batch]
        batch.ack_all()
    return seen


def test_all_messages_come_in_order_and_are_acked(face: Any, connection: Any, channel: Any, kept: str) -> None:
    bodies = publish(channel, kept, range(500))
    with make(face, "PullConsumer", connection, kept, prefetch=50) as puller:
        assert pull_until(puller, 500, most=7) == bodies
    assert count_of(channel, kept) == 0


def test_empty_queue_returns_an_empty_batch(face: Any, connection: Any, kept: str) -> None:
    with make(face, "PullConsumer", connection, kept) as puller:
        assert puller.pull(timeout=0.05) == []
        assert puller.pull(timeout=0) == []


def test_pull_waits_for_the_first_message(face: Any, connection: Any, channel: Any, kept: str) -> None:
    with make(face, "PullConsumer", connection, kept) as puller:
        pulling = InThread(puller.pull, 10, PATIENCE)
        channel.publish("", kept, b"late")
        assert [delivery.body for delivery in pulling.result()] == [b"late"]


def test_what_is_not_settled_goes_back_at_the_end(face: Any, connection: Any, channel: Any, kept: str) -> None:
    publish(channel, kept, range(10))
    with make(face, "PullConsumer", connection, kept) as puller:
        wait_until(lambda: count_of(channel, kept) == 0, "all are in hand")  # so no batch is smaller than asked for
        first = puller.pull(1, timeout=PATIENCE)
        first.ack_all()
        puller.pull(2, timeout=PATIENCE).nack_all(requeue=False)
        puller.pull(3, timeout=PATIENCE)
    wait_until(lambda: count_of(channel, kept) == 7, "the rest is back")


def test_batch_is_acked_in_a_transaction_or_redelivered(
    face: Any, connection: Any, channel: Any, name: Namer, kept: str
) -> None:
    target = name("target")
    channel.queue_declare(target)
    bodies = publish(channel, kept, range(4))
    with make(face, "PullConsumer", connection, kept, prefetch=4) as puller:
        wait_until(lambda: count_of(channel, kept) == 0, "all are in hand")
        batch = puller.pull(4, timeout=PATIENCE)
        with pytest.raises(KeyError), puller.transaction(batch) as transacted:
            transacted.publish("", target, b"none")
            raise KeyError
        seen: list[bytes] = []
        while len(seen) < 4:
            batch = puller.pull(4, timeout=PATIENCE)
            assert all(each.redelivered for each in batch)
            with puller.transaction(batch) as transacted:
                for each in batch:
                    transacted.publish("", target, each.body)
            seen += [each.body for each in batch]
    assert seen == bodies
    assert (count_of(channel, kept), count_of(channel, target)) == (0, 4)


def test_prefetch_bounds_what_is_in_hand(face: Any, connection: Any, channel: Any, kept: str) -> None:
    publish(channel, kept, range(10))
    with make(face, "PullConsumer", connection, kept, prefetch=4) as puller:
        held: list[Any] = []
        while len(held) < 4:
            held += puller.pull(10, timeout=PATIENCE)
        assert puller.pull(10, timeout=0.05) == []
        assert count_of(channel, kept) == 6
        held[0].ack()
        assert len(puller.pull(10, timeout=PATIENCE)) == 1


def test_loss_of_the_connection_doubles_nothing_that_was_acked(
    face: Any, shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    publish(channel, kept, range(100))
    with make(face, "PullConsumer", shaky, kept) as puller:
        seen = pull_until(puller, 10, most=10)
        wait_until(lambda: count_of(channel, kept) == 0, "all are in hand")
        stale = puller.pull(10, timeout=PATIENCE)
        shaky.channel().close()  # the broker answers in order, so the acks before it have arrived
        breaker.reset()
        breaker.wait_for_connections(2)
        seen += pull_until(puller, 90, most=10)
        stale.ack_all()
        assert puller.pull(timeout=0.05) == []
    assert sorted(seen, key=int) == [b"%d" % number for number in range(100)]
    assert count_of(channel, kept) == 0


def test_deleted_queue_raises_after_the_last_message(face: Any, connection: Any, channel: Any, kept: str) -> None:
    publish(channel, kept, range(2))
    with make(face, "PullConsumer", connection, kept) as puller:
        wait_until(lambda: count_of(channel, kept) == 0, "both are in hand")
        assert len(puller.pull(1, timeout=PATIENCE)) == 1
        channel.queue_delete(kept)
        rest = puller.pull(timeout=PATIENCE)
        assert [delivery.body for delivery in rest] == [b"1"]
        with pytest.raises(client.ConsumerCancelled):
            puller.pull(timeout=PATIENCE)


def test_closed_connection_raises(face: Any, connection: Any, kept: str) -> None:
    puller = make(face, "PullConsumer", connection, kept)
    puller.pull(timeout=0)
    connection.close()
    with pytest.raises(client.ClientError):
        puller.pull(timeout=PATIENCE)
    puller.close()


def test_missing_queue_and_invalid_numbers(face: Any, connection: Any, kept: str) -> None:
    with pytest.raises(client.NotFound):
        make(face, "PullConsumer", connection, "no such queue").pull()
    with pytest.raises(client.Misuse):
        make(face, "PullConsumer", connection, kept, prefetch=0)
    with make(face, "PullConsumer", connection, kept) as puller, pytest.raises(client.Misuse):
        puller.pull(0)
