"""Direct reply-to: a reply reaches only the requesting channel."""

from __future__ import annotations

import pytest

from tests.support.client import Client, ClientChannel, assert_nothing_is_held
from warrenmq.core.broker import Broker
from warrenmq.core.errors import NotAllowed, PreconditionFailed
from warrenmq.core.publish_rules import ADDRESS_PREFIX, DIRECT_REPLY_TO
from warrenmq.core.queue import Queue


def asked(channel: ClientChannel, queue: Queue) -> str:
    """Publish a question from the channel; the address that its receiver sees."""
    channel.publish(b"?", queue.name, reply_to=DIRECT_REPLY_TO)
    question = Client(channel.client.broker).channel().get(queue)
    assert question is not None
    assert question.message.properties.reply_to is not None
    return question.message.properties.reply_to


def test_a_question_carries_the_address_of_its_channel(channel: ClientChannel, queue: Queue) -> None:
    address = channel.start_replies()
    assert address.startswith(ADDRESS_PREFIX)
    assert asked(channel, queue) == address
    assert asked(channel, queue) == address


def test_an_answer_reaches_the_channel_that_asked(
    broker: Broker, client: Client, channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    channel.start_replies("tag")
    client.channel().start_replies("tag")
    other.publish(b"!", asked(channel, queue), mandatory=True, correlation_id="7")
    (answer,) = channel.deliveries()
    assert (answer.consumer, answer.tag, answer.body, answer.redelivered) == ("tag", 1, b"!", False)
    assert answer.message.properties.correlation_id == "7"
    assert other.returns() == []
    assert_nothing_is_held(broker)


def test_answers_and_other_deliveries_count_tags_together(
    channel: ClientChannel, other: ClientChannel, queue: Queue
) -> None:
    address = channel.start_replies("replies")
    channel.consume(queue, "work")
    other.publish(b"1", address)
    other.publish(b"2", "q")
    other.publish(b"3", address)
    assert [(said.consumer, said.tag) for said in channel.deliveries()] == [("replies", 1), ("work", 2), ("replies", 3)]
    channel.ack(3 - 1)
    with pytest.raises(PreconditionFailed):
        channel.ack(1)


def test_another_reply_to_is_left_alone(channel: ClientChannel, queue: Queue) -> None:
    channel.start_replies()
    channel.publish(b"?", "q", reply_to="my.own.queue")
    got = channel.get(queue)
    assert got is not None
    assert got.message.properties.reply_to == "my.own.queue"


def test_asking_without_waiting_for_answers_is_refused(channel: ClientChannel, queue: Queue) -> None:
    with pytest.raises(PreconditionFailed, match="fast reply consumer does not exist"):
        channel.publish(b"?", "q", reply_to=DIRECT_REPLY_TO)


@pytest.mark.parametrize("end", ["cancel", "close", "disconnect"])
def test_answers_to_a_channel_that_stopped_waiting_come_back(
    broker: Broker, client: Client, channel: ClientChannel, other: ClientChannel, end: str
) -> None:
    address = channel.start_replies("tag")
    if end == "cancel":
        channel.core.cancel("tag")
    elif end == "close":
        channel.close()
    else:
        client.close()
    other.publish(b"!", address, mandatory=True)
    assert [returned.code for returned in other.returns()] == [312]
    assert channel.deliveries() == []
    assert not broker.reply_queues


def test_a_channel_can_wait_again_under_a_new_address(channel: ClientChannel) -> None:
    first = channel.start_replies("tag")
    channel.core.cancel("tag")
    assert channel.start_replies("tag") != first


def test_the_tag_of_the_reply_consumer_is_used_once(channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, "taken")
    with pytest.raises(NotAllowed, match="attempt to reuse consumer tag 'taken'"):
        channel.start_replies("taken")
    channel.start_replies("replies")
    with pytest.raises(NotAllowed, match="attempt to reuse consumer tag 'replies'"):
        channel.consume(queue, "replies")


def test_an_answer_that_finds_the_socket_full_is_dropped(
    broker: Broker, client: Client, channel: ClientChannel, other: ClientChannel
) -> None:
    address = channel.start_replies()
    client.outbox.is_congested = True
    other.publish(b"!", address)
    client.outbox.drain()
    assert channel.deliveries() == []
    assert_nothing_is_held(broker)


def test_answers_can_be_confirmed_and_held_in_transactions(
    broker: Broker, channel: ClientChannel, other: ClientChannel
) -> None:
    address = channel.start_replies()
    other.core.select_transactions()
    other.publish(b"!", address)
    assert channel.deliveries() == []
    other.core.commit()
    assert channel.bodies() == "!"


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_reply_committed_after_its_requester_left_is_returned(
    channel: ClientChannel, other: ClientChannel, end: str
) -> None:
    address = channel.start_replies("tag")
    other.core.select_transactions()
    other.publish(b"!", address, mandatory=True)
    if end == "cancel":
        channel.core.cancel("tag")
    else:
        channel.close()
    other.core.commit()
    assert channel.deliveries() == []
    assert [returned.body for returned in other.returns()] == [b"!"]
