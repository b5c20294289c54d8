"""ack, nack, reject and recover: what they settle, what they refuse, and where a message goes back to."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Namer
from tests.support.wire import Refusal, WireChannel, WireConnection

REFUSALS = pytest.mark.parametrize(
    ("method", "more"), [("basic.reject", {}), ("basic.nack", {}), ("basic.nack", {"multiple": 1})]
)


def hold(channel: WireChannel, queue: str, *bodies: bytes) -> list[int]:
    """Publish and get these messages without acknowledging; their delivery tags."""
    for body in bodies:
        channel.publish(body, routing_key=queue)
    tags = []
    for body in bodies:
        message = channel.get(queue, no_ack=False)
        assert message is not None
        assert message.body == body
        tags.append(message["delivery_tag"])
    return tags


def left(channel: WireChannel, queue: str) -> list[tuple[bytes, bool]]:
    """Every ready message, taken: its body and whether it came before."""
    return [(message.body, message["redelivered"]) for message in iter(lambda: channel.get(queue), None)]


def unknown(method: str, tag: int) -> Refusal:
    return Refusal("channel", 406, f"PRECONDITION_FAILED - unknown delivery tag {tag}", method)


@pytest.mark.parametrize("method", ["basic.ack", "basic.nack", "basic.reject"])
@pytest.mark.parametrize("tag", [0, 1, 2**63])
def test_a_tag_that_was_never_given_is_refused(channel: WireChannel, method: str, tag: int) -> None:
    assert channel.refused(method, delivery_tag=tag) == unknown(method, tag)


@pytest.mark.parametrize("method", ["basic.ack", "basic.nack"])
def test_multiple_up_to_a_tag_that_was_never_given_is_refused(channel: WireChannel, queue: str, method: str) -> None:
    hold(channel, queue, b"one")
    assert channel.refused(method, delivery_tag=5, multiple=True) == unknown(method, 5)


@pytest.mark.parametrize("method", ["basic.ack", "basic.nack"])
def test_multiple_up_to_zero_means_all_even_if_there_are_none(channel: WireChannel, queue: str, method: str) -> None:
    channel.send(method, delivery_tag=0, multiple=True)
    channel.barrier()
    hold(channel, queue, b"one", b"two")
    channel.send(method, delivery_tag=0, multiple=True)
    channel.call("basic.recover", requeue=True)
    assert left(channel, queue) == []


@pytest.mark.parametrize("multiple", [False, True])
def test_settling_twice_is_refused(channel: WireChannel, queue: str, multiple: bool) -> None:
    (tag,) = hold(channel, queue, b"one")
    channel.send("basic.ack", delivery_tag=tag, multiple=multiple)
    channel.barrier()
    assert channel.refused("basic.ack", delivery_tag=tag, multiple=multiple) == unknown("basic.ack", tag)


def test_multiple_up_to_a_tag_that_is_settled_is_refused(channel: WireChannel, queue: str) -> None:
    _, second = hold(channel, queue, b"one", b"two")
    channel.send("basic.ack", delivery_tag=second)
    assert channel.refused("basic.ack", delivery_tag=second, multiple=True) == unknown("basic.ack", second)


def test_what_needs_no_acknowledgement_cannot_be_acknowledged(channel: WireChannel, queue: str) -> None:
    channel.publish(b"gone", routing_key=queue)
    message = channel.get(queue, no_ack=True)
    assert message is not None
    assert channel.refused("basic.ack", delivery_tag=message["delivery_tag"]) == unknown("basic.ack", 1)


def test_tags_belong_to_their_channel(connection: WireConnection) -> None:
    first, second = connection.channel(1), connection.channel(2)
    queue = first.call("queue.declare", exclusive=True)["queue"]
    (tag,) = hold(first, queue, b"one")
    assert second.refused("basic.ack", delivery_tag=tag) == unknown("basic.ack", tag)
    first.send("basic.ack", delivery_tag=tag)
    first.barrier()


def test_ack_multiple_settles_up_to_the_tag(channel: WireChannel, queue: str) -> None:
    _, second, _ = hold(channel, queue, b"one", b"two", b"three")
    channel.send("basic.ack", delivery_tag=second, multiple=True)
    channel.call("basic.recover", requeue=True)
    assert left(channel, queue) == [(b"three", True)]


@pytest.mark.parametrize(
    ("method", "more"), [("basic.reject", {}), ("basic.nack", {}), ("basic.nack", {"multiple": 1})]
)
def test_without_requeue_the_message_is_gone(
    channel: WireChannel, queue: str, method: str, more: dict[str, int]
) -> None:
    (tag,) = hold(channel, queue, b"one")
    channel.send(method, delivery_tag=tag, requeue=False, **more)
    channel.barrier(queue)
    assert left(channel, queue) == []


@pytest.mark.parametrize(
    ("method", "more"), [("basic.reject", {}), ("basic.nack", {}), ("basic.nack", {"multiple": 1})]
)
def test_requeued_messages_return_to_their_place(
    channel: WireChannel, queue: str, method: str, more: dict[str, int]
) -> None:
    tags = hold(channel, queue, b"one", b"two")
    for body in (b"three", b"four"):
        channel.publish(body, routing_key=queue)
    for tag in tags[-1:] if more else reversed(tags):
        channel.send(method, delivery_tag=tag, requeue=True, **more)
    channel.barrier(queue)
    assert left(channel, queue) == [(b"one", True), (b"two", True), (b"three", False), (b"four", False)]


def test_requeue_in_any_order_keeps_the_order_of_publishing(channel: WireChannel, queue: str) -> None:
    first, second, third = hold(channel, queue, b"one", b"two", b"three")
    for tag in (second, first, third):
        channel.send("basic.reject", delivery_tag=tag, requeue=True)
    channel.barrier(queue)
    assert [body for body, _ in left(channel, queue)] == [b"one", b"two", b"three"]


def test_a_requeued_message_comes_to_the_consumer_again(channel: WireChannel, queue: str) -> None:
    channel.call("basic.consume", queue=queue)
    channel.publish(b"again", routing_key=queue)
    first = channel.content()
    channel.send("basic.nack", delivery_tag=first["delivery_tag"], requeue=True)
    second = channel.content()
    assert (second.body, second["redelivered"], second["delivery_tag"]) == (b"again", True, 2)


def test_recover_redelivers_what_is_held(channel: WireChannel, queue: str) -> None:
    channel.call("basic.consume", queue=queue, consumer_tag="same")
    channel.publish(b"again", routing_key=queue)
    assert channel.content()["redelivered"] is False
    channel.call("basic.recover", requeue=True)
    again = channel.content()
    assert (again["consumer_tag"], again["redelivered"], again["delivery_tag"]) == ("same", True, 2)


def test_recover_async_is_not_answered(channel: WireChannel, queue: str) -> None:
    hold(channel, queue, b"one")
    channel.send("basic.recover-async", requeue=True)
    channel.barrier(queue)
    assert left(channel, queue) == [(b"one", True)]


@pytest.mark.parametrize("method", ["basic.recover", "basic.recover-async"])
def test_recover_without_requeue_is_refused(channel: WireChannel, method: str) -> None:
    refusal = channel.refused(method, requeue=False)
    assert refusal == Refusal("connection", 540, "NOT_IMPLEMENTED - requeue=false", method)


def test_settling_goes_on_when_the_queue_is_gone(channel: WireChannel, name: Namer) -> None:
    queue = name("brief")
    channel.call("queue.declare", queue=queue)
    ack, nack = hold(channel, queue, b"one", b"two")
    channel.call("queue.delete", queue=queue)
    channel.send("basic.ack", delivery_tag=ack)
    channel.send("basic.nack", delivery_tag=nack, requeue=True)
    channel.barrier()
