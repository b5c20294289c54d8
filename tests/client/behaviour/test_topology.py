"""Exchanges, queues and bindings: declared, looked at, bound, emptied and deleted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import Connect, Namer
from tests.support.waiting import wait_until
from warrenmq import client

from .faces import Inbox


def exists(connect: Connect, queue: str) -> bool:
    channel = connect().channel()
    try:
        channel.queue_declare(queue, passive=True)
    except client.NotFound:
        return False
    return True


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_exchange_of_each_type_routes(channel: Any, queue: str, name: Namer, kind: str) -> None:
    exchange = name(kind)
    channel.exchange_declare(exchange, kind)
    arguments = {"x-match": "any", "colour": "red"} if kind == "headers" else None
    channel.queue_bind(queue, exchange, "a.*" if kind == "topic" else "a.b", arguments)
    properties = client.Properties(headers={"colour": "red"})
    channel.publish(exchange, "a.b", b"hello", properties)
    channel.queue_declare(queue, passive=True)  # the publish is before it on the channel
    assert channel.get(queue, auto_ack=True).body == b"hello"


def test_exchange_is_declared_again_as_it_was_and_not_otherwise(connection: Any, name: Namer) -> None:
    exchange = name("exchange")
    for _ in range(2):
        connection.channel().exchange_declare(exchange, "topic", durable=True, auto_delete=False, internal=False)
    with pytest.raises(client.PreconditionFailed):
        connection.channel().exchange_declare(exchange, "fanout")
    connection.channel().exchange_declare(exchange, passive=True)


def test_passive_declare_of_a_missing_exchange(channel: Any, name: Namer) -> None:
    with pytest.raises(client.NotFound):
        channel.exchange_declare(name("missing"), passive=True)


def test_internal_exchange_takes_no_publish_but_bindings(connection: Any, name: Namer) -> None:
    outer, inner = name("outer"), name("inner")
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.exchange_declare(outer, "fanout")
    channel.exchange_declare(inner, "fanout", internal=True)
    channel.exchange_bind(inner, outer)
    channel.queue_bind(queue, inner)
    channel.confirm_select()
    channel.publish(outer, "", b"through").result(30)
    assert channel.get(queue, auto_ack=True).body == b"through"
    forbidden = connection.channel()
    forbidden.confirm_select()
    with pytest.raises(client.PublishFailed):
        forbidden.publish(inner, "", b"directly").result(30)
    with pytest.raises(client.AccessRefused):
        forbidden.queue_declare(queue, passive=True)


def test_exchange_bindings_come_and_go(channel: Any, queue: str, name: Namer) -> None:
    source, destination = name("source"), name("destination")
    channel.exchange_declare(source, "topic")
    channel.exchange_declare(destination, "fanout")
    channel.queue_bind(queue, destination)
    channel.exchange_bind(destination, source, "news.#")
    channel.confirm_select()
    channel.publish(source, "news.today", b"1").result(30)
    channel.exchange_unbind(destination, source, "news.#")
    channel.publish(source, "news.today", b"2").result(30)
    assert channel.get(queue, auto_ack=True).body == b"1"
    assert channel.get(queue, auto_ack=True) is None


def test_exchange_is_deleted_only_if_unused_when_asked_so(connection: Any, name: Namer) -> None:
    exchange = name("exchange")
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.exchange_declare(exchange)
    channel.queue_bind(queue, exchange, "key")
    with pytest.raises(client.PreconditionFailed):
        connection.channel().exchange_delete(exchange, if_unused=True)
    channel.queue_unbind(queue, exchange, "key")
    channel.exchange_delete(exchange, if_unused=True)
    channel.exchange_delete(exchange)  # there is none: as RabbitMQ has it, no error
    with pytest.raises(client.NotFound):
        channel.exchange_declare(exchange, passive=True)


def test_auto_delete_exchange_goes_with_its_last_binding(connection: Any, queue: str, name: Namer) -> None:
    exchange = name("exchange")
    channel = connection.channel()
    channel.exchange_declare(exchange, auto_delete=True)
    channel.queue_bind(queue, exchange, "key")
    channel.queue_unbind(queue, exchange, "key")
    with pytest.raises(client.NotFound):
        channel.exchange_declare(exchange, passive=True)


def test_server_names_a_queue(channel: Any) -> None:
    first, second = channel.queue_declare("", exclusive=True), channel.queue_declare("", exclusive=True)
    assert first.queue.startswith("amq.gen-")
    assert first.queue != second.queue
    assert (first.message_count, first.consumer_count) == (0, 0)


def test_queue_state_counts_messages_and_consumers(connection: Any, channel: Any, queue: str) -> None:
    for body in (b"1", b"2", b"3"):
        channel.publish("", queue, body)
    state = wait_until(
        lambda: (found := channel.queue_declare(queue, passive=True)).message_count == 3 and found, "3 messages"
    )
    assert (state.queue, state.consumer_count) == (queue, 0)
    other = connection.channel()
    other.qos(1)
    other.consume(queue, lambda delivery: None)
    state = wait_until(
        lambda: (
            (found := channel.queue_declare(queue, passive=True)).consumer_count and found.message_count == 2 and found
        )
    )
    assert state.consumer_count == 1


def test_durable_queue_with_arguments(connection: Any, name: Namer) -> None:
    queue = name("queue")
    arguments = {"x-max-length": 10}
    connection.channel().queue_declare(queue, durable=True, arguments=arguments)
    connection.channel().queue_declare(queue, durable=True, arguments=arguments)
    with pytest.raises(client.PreconditionFailed) as failed:
        connection.channel().queue_declare(queue, durable=True)
    reason = failed.value.reason
    assert (reason.by, reason.reply_code, reason.class_id, reason.method_id) == ("server", 406, 50, 10)
    assert "inequivalent arg 'x-max-length'" in reason.reply_text
    assert "queue.declare" in str(failed.value)


def test_exclusive_queue_is_locked_for_others(connect: Connect, name: Namer) -> None:
    queue = name("queue")
    owner = connect()
    owner.channel().queue_declare(queue, exclusive=True)
    with pytest.raises(client.ResourceLocked):
        connect().channel().queue_declare(queue, passive=True)
    owner.close()
    wait_until(lambda: not exists(connect, queue), "the end of an exclusive queue")


def test_auto_delete_queue_goes_with_its_last_consumer(connect: Connect, channel: Any, name: Namer) -> None:
    queue = name("queue")
    channel.queue_declare(queue, auto_delete=True)
    consumer = channel.consume(queue, lambda delivery: None)
    assert exists(connect, queue)
    consumer.cancel()
    wait_until(lambda: not exists(connect, queue), "the end of an auto-delete queue")


def test_binding_with_a_key_and_arguments_is_undone_by_the_same(channel: Any, queue: str) -> None:
    arguments = {"x-match": "all", "n": 7, "who": "anna"}
    channel.queue_bind(queue, "amq.headers", "", arguments)
    channel.confirm_select()
    properties = client.Properties(headers={"n": 7, "who": "anna", "more": True})
    channel.publish("amq.headers", "", b"1", properties).result(30)
    channel.queue_unbind(queue, "amq.headers", "", arguments)
    channel.publish("amq.headers", "", b"2", properties).result(30)
    assert channel.queue_declare(queue, passive=True).message_count == 1


def test_binding_what_is_not_there(connection: Any, queue: str, name: Namer) -> None:
    with pytest.raises(client.NotFound):
        connection.channel().queue_bind(queue, name("missing"), "key")
    with pytest.raises(client.NotFound):
        connection.channel().queue_bind(name("missing"), "amq.direct", "key")
    with pytest.raises(client.NotFound):
        connection.channel().exchange_bind(name("missing"), "amq.direct", "key")


def test_default_exchange_cannot_be_touched(connection: Any, queue: str) -> None:
    with pytest.raises(client.AccessRefused):
        connection.channel().queue_bind(queue, "", "key")
    with pytest.raises(client.AccessRefused):
        connection.channel().exchange_declare("amq.of-our-own", "direct")
    with pytest.raises(client.AccessRefused):
        connection.channel().exchange_delete("amq.direct")


def test_purge_and_delete_tell_how_many_messages(channel: Any, name: Namer) -> None:
    queue = name("queue")
    channel.queue_declare(queue)
    for _ in range(3):
        channel.publish("", queue, b"x")
    assert channel.queue_purge(queue) == 3
    assert channel.queue_purge(queue) == 0
    for _ in range(2):
        channel.publish("", queue, b"x")
    assert channel.queue_delete(queue) == 2
    assert channel.queue_delete(queue) == 0  # there is none: as RabbitMQ has it, no error


def test_queue_is_deleted_only_if_empty_or_unused_when_asked_so(connection: Any, channel: Any, name: Namer) -> None:
    queue = name("queue")
    channel.queue_declare(queue)
    channel.publish("", queue, b"x")
    channel.queue_declare(queue, passive=True)
    with pytest.raises(client.PreconditionFailed):
        connection.channel().queue_delete(queue, if_empty=True)
    consumer = channel.consume(queue, lambda delivery: delivery.ack())
    with pytest.raises(client.PreconditionFailed):
        connection.channel().queue_delete(queue, if_unused=True)
    consumer.cancel()
    wait_until(lambda: channel.queue_declare(queue, passive=True).message_count == 0)
    assert channel.queue_delete(queue, if_unused=True, if_empty=True) == 0


def test_names_in_any_script(channel: Any, name: Namer) -> None:
    queue, exchange, key = name("очередь 世界 ü"), name("börse ∑"), "ключ.🐇"
    channel.exchange_declare(exchange, "topic")
    assert channel.queue_declare(queue).queue == queue
    channel.queue_bind(queue, exchange, key)
    channel.publish(exchange, key, b"x")
    channel.queue_declare(queue, passive=True)
    delivery = channel.get(queue, auto_ack=True)
    assert (delivery.exchange, delivery.routing_key) == (exchange, key)


@pytest.mark.parametrize("length", [255, 256])
def test_names_of_up_to_255_bytes(connection: Any, length: int) -> None:
    channel = connection.channel()
    queue = "ü" * ((length - 1) // 2) + "x" * (length - (length - 1) // 2 * 2)
    assert len(queue.encode()) == length
    if length == 255:
        assert channel.queue_declare(queue, exclusive=True).queue == queue
        return
    with pytest.raises(client.Misuse):
        channel.queue_declare(queue, exclusive=True)
    assert channel.queue_declare("", exclusive=True).queue, "misuse sends nothing and harms nothing"


def test_arguments_that_cannot_be_said_are_misuse(channel: Any) -> None:
    with pytest.raises(client.Misuse):
        channel.queue_declare("", exclusive=True, arguments={"x": object()})
    assert channel.queue_declare("", exclusive=True).queue


def test_counts_of_a_queue(connection: Any, channel: Any, queue: str) -> None:
    assert (channel.message_count(queue), channel.consumer_count(queue)) == (0, 0)
    for number in range(3):
        channel.publish("", queue, b"%d" % number)
    assert channel.message_count(queue) == 3
    channel.consume(queue, Inbox())
    assert channel.consumer_count(queue) == 1
    with pytest.raises(client.NotFound):
        channel.message_count("no such queue")
    with pytest.raises(client.NotFound):
        connection.channel().consumer_count("no such queue")


def test_unbind_all_removes_every_binding_of_this_connection(channel: Any, queue: str, name: Namer) -> None:
    other = channel.queue_declare("", exclusive=True).queue
    for each in (queue, other):
        channel.queue_bind(each, "amq.direct", name("a"))
    channel.queue_bind(queue, "amq.topic", name("b"))
    channel.queue_bind(queue, "amq.headers", "", {"x-match": "all", "colour": name("red")})
    assert channel.unbind_all(queue) == 3
    channel.publish("amq.direct", name("a"), b"x")
    channel.publish("amq.topic", name("b"), b"x")
    assert channel.message_count(other) == 1
    assert channel.message_count(queue) == 0
    assert channel.unbind_all(queue) == 0
