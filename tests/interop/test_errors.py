"""Every client hears the same code and text, on the right scope, and goes on with another channel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .clients.contract import Channel, Client, Feature, Refused, Scope
from .conftest import Connect, Namer


def refusal_of(act: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as refused:
        act()
    return refused.value


def assert_channel_refused(client: Client, refused: Refused, code: int, text: str) -> None:
    assert (refused.scope, refused.code, refused.text) == (Scope.CHANNEL, code, text)
    # The connection lives on.
    assert client.is_open
    state = client.channel().declare_queue(exclusive=True)
    assert state.messages == 0


def test_missing_queue_is_not_found(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("missing")
    refused = refusal_of(lambda: channel.declare_queue(queue, passive=True))
    assert_channel_refused(client, refused, 404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")


def test_consuming_or_getting_from_a_missing_queue_is_not_found(client: Client, name: Namer) -> None:
    queue = name("missing")
    for act in ("consume", "get", "purge_queue"):
        channel = client.channel()
        refused = refusal_of(lambda: getattr(channel, act)(queue))  # noqa: B023
        assert_channel_refused(client, refused, 404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")


def test_missing_exchange_is_not_found(client: Client, channel: Channel, name: Namer) -> None:
    exchange = name("missing")
    refused = refusal_of(lambda: channel.declare_exchange(exchange, "direct", passive=True))
    assert_channel_refused(client, refused, 404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'")


def test_binding_to_a_missing_exchange_is_not_found(client: Client, channel: Channel, name: Namer) -> None:
    exchange, queue = name("missing"), name("queue")
    channel.declare_queue(queue)
    refused = refusal_of(lambda: channel.bind_queue(queue, exchange, "key"))
    assert_channel_refused(client, refused, 404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'")


def test_publishing_to_a_missing_exchange_closes_the_channel(client: Client, channel: Channel, name: Namer) -> None:
    exchange = name("missing")
    channel.publish(exchange, "key", b"lost")
    assert_channel_refused(client, channel.wait_closed(), 404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'")


def test_publishing_with_confirms_to_a_missing_exchange_is_refused(
    client: Client, channel: Channel, name: Namer
) -> None:
    exchange = name("missing")
    channel.select_confirms()
    refused = refusal_of(lambda: channel.confirm(exchange, "key", b"lost"))
    assert_channel_refused(client, refused, 404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'")


def test_declaring_a_queue_otherwise_is_refused(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    refused = refusal_of(lambda: channel.declare_queue(queue, durable=True))
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
        "received 'true' but current is 'false'"
    )
    assert_channel_refused(client, refused, 406, text)


def test_declaring_a_queue_with_other_arguments_is_refused(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue, arguments={"x-max-length": 10})
    refused = refusal_of(lambda: channel.declare_queue(queue, arguments={"x-max-length": 11}))
    assert (refused.scope, refused.code) == (Scope.CHANNEL, 406)
    assert refused.text == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '{queue}' in vhost '/': "
        "received '11' but current is '10'"
    )


def test_declaring_an_exchange_otherwise_is_refused(client: Client, channel: Channel, name: Namer) -> None:
    exchange = name("exchange")
    channel.declare_exchange(exchange, "direct")
    refused = refusal_of(lambda: channel.declare_exchange(exchange, "topic"))
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{exchange}' in vhost '/': "
        "received 'topic' but current is 'direct'"
    )
    assert_channel_refused(client, refused, 406, text)


def test_invalid_queue_argument_is_refused(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("queue")
    refused = refusal_of(lambda: channel.declare_queue(queue, arguments={"x-message-ttl": -1}))
    assert_channel_refused(
        client,
        refused,
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '{queue}' in vhost '/': {{value_negative,-1}}",
    )


def test_exclusive_queue_is_locked_for_others(connect: Connect, name: Namer) -> None:
    owner, other = connect(), connect()
    queue = name("queue")
    own_channel = owner.channel()
    own_channel.declare_queue(queue, exclusive=True)
    own_channel.bind_queue(queue, "amq.direct", "key")
    text = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the "
        "original declaration."
    )
    for act in ("consume", "get", "purge_queue", "delete_queue", "declare_queue"):
        channel = other.channel()
        refused = refusal_of(lambda: getattr(channel, act)(queue))  # noqa: B023
        assert_channel_refused(other, refused, 405, text)
    for act in ("bind_queue", "unbind_queue"):
        channel = other.channel()
        refused = refusal_of(lambda: getattr(channel, act)(queue, "amq.direct", "key"))  # noqa: B023
        assert_channel_refused(other, refused, 405, text)


def test_reserved_names_are_refused(client: Client) -> None:
    channel = client.channel()
    refused = refusal_of(lambda: channel.declare_exchange("amq.mine", "direct"))
    assert_channel_refused(
        client, refused, 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    )
    channel = client.channel()
    refused = refusal_of(lambda: channel.declare_queue("amq.mine"))
    assert_channel_refused(
        client, refused, 403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    )


def test_queue_that_the_server_named_is_declared_again_only_passively(client: Client, channel: Channel) -> None:
    queue = channel.declare_queue(exclusive=True).name
    assert channel.declare_queue(queue, passive=True).name == queue
    refused = refusal_of(lambda: channel.declare_queue(queue, exclusive=True))
    assert_channel_refused(
        client, refused, 403, f"ACCESS_REFUSED - queue name '{queue}' contains reserved prefix 'amq.*'"
    )


def test_predeclared_exchange_cannot_be_deleted(client: Client, channel: Channel) -> None:
    refused = refusal_of(lambda: channel.delete_exchange("amq.topic"))
    assert_channel_refused(
        client, refused, 403, "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed"
    )


def test_queue_is_deleted_only_if_unused_or_empty(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.publish("", queue, b"stays")
    channel.declare_queue(queue, passive=True)
    other = client.channel()
    refused = refusal_of(lambda: other.delete_queue(queue, if_empty=True))
    assert_channel_refused(client, refused, 406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty")
    channel.consume(queue)
    another = client.channel()
    refused = refusal_of(lambda: another.delete_queue(queue, if_unused=True))
    assert_channel_refused(client, refused, 406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use")


def test_exchange_is_deleted_only_if_unused(client: Client, channel: Channel, name: Namer) -> None:
    exchange, queue = name("exchange"), name("queue")
    channel.declare_exchange(exchange, "direct")
    channel.declare_queue(queue)
    channel.bind_queue(queue, exchange, "key")
    refused = refusal_of(lambda: channel.delete_exchange(exchange, if_unused=True))
    assert_channel_refused(client, refused, 406, f"PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use")


def test_exclusive_consumer_keeps_others_away(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.consume(queue, exclusive=True)
    other = client.channel()
    refused = refusal_of(lambda: other.consume(queue))
    assert_channel_refused(client, refused, 403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use")


@pytest.mark.parametrize("settle", ["ack", "reject"])
def test_unknown_delivery_tag_closes_the_channel(client: Client, channel: Channel, settle: str) -> None:
    getattr(channel, settle)(99)
    assert_channel_refused(client, channel.wait_closed(), 406, "PRECONDITION_FAILED - unknown delivery tag 99")


def test_acknowledging_twice_closes_the_channel(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.consume(queue)
    channel.publish("", queue, b"body")
    tag = channel.take(1)[0].tag
    channel.ack(tag)
    channel.ack(tag)
    assert_channel_refused(client, channel.wait_closed(), 406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


def test_publishing_as_another_user_is_refused(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.publish("", queue, b"forged", {"user_id": "somebody"})
    assert_channel_refused(
        client,
        channel.wait_closed(),
        406,
        "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'",
    )


def test_reply_to_must_be_consumed_without_acknowledging(client: Client, channel: Channel) -> None:
    refused = refusal_of(lambda: channel.consume("amq.rabbitmq.reply-to"))
    assert_channel_refused(client, refused, 406, "PRECONDITION_FAILED - reply consumer cannot acknowledge")


def test_unknown_exchange_type_closes_the_connection(client: Client, channel: Channel, name: Namer) -> None:
    exchange = name("exchange")
    refused = refusal_of(lambda: channel.declare_exchange(exchange, "nonsense"))
    assert (refused.scope, refused.code) == (Scope.CONNECTION, 503)
    assert refused.text == "COMMAND_INVALID - unknown exchange type 'nonsense'"
    assert not client.is_open


@pytest.mark.needs(Feature.DUPLICATE_TAG)
def test_consumer_tag_used_twice_closes_the_connection(client: Client, channel: Channel, name: Namer) -> None:
    queue = name("queue")
    channel.declare_queue(queue)
    channel.consume(queue, tag="mine")
    refused = refusal_of(lambda: channel.consume(queue, tag="mine"))
    assert (refused.scope, refused.code) == (Scope.CONNECTION, 530)
    assert refused.text == "NOT_ALLOWED - attempt to reuse consumer tag 'mine'"
