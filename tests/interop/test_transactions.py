"""Clients that know transactions publish and acknowledge all or nothing."""

from __future__ import annotations

import pytest

from .clients.contract import GLANCE, Channel, Client, Feature, Refused, Scope
from .conftest import Namer

pytestmark = pytest.mark.needs(Feature.TRANSACTIONS)


@pytest.fixture
def watcher(client: Client) -> Channel:
    """A second channel, which sees only what is committed."""
    return client.channel()


@pytest.fixture
def queue(watcher: Channel, name: Namer) -> str:
    made = name("queue")
    watcher.declare_queue(made)
    return made


def depth(watcher: Channel, queue: str) -> int:
    return watcher.declare_queue(queue, passive=True).messages


def test_published_messages_wait_for_the_commit(channel: Channel, watcher: Channel, queue: str) -> None:
    channel.select_transactions()
    channel.publish("", queue, b"1")
    channel.publish("", queue, b"2")
    # Answered on the same channel, so the broker has read both publishes by now.
    channel.declare_queue(queue, passive=True)
    assert depth(watcher, queue) == 0
    channel.commit()
    assert depth(watcher, queue) == 2


def test_rolled_back_messages_never_appear(channel: Channel, watcher: Channel, queue: str) -> None:
    channel.select_transactions()
    channel.publish("", queue, b"dropped")
    channel.rollback()
    channel.publish("", queue, b"kept")
    channel.commit()
    delivery = watcher.get(queue, no_ack=True)
    assert delivery is not None
    assert (delivery.body, delivery.remaining) == (b"kept", 0)


def test_messages_of_an_open_transaction_go_with_the_channel(channel: Channel, watcher: Channel, queue: str) -> None:
    channel.select_transactions()
    channel.publish("", queue, b"lost")
    channel.close()
    assert depth(watcher, queue) == 0


def test_acknowledgements_wait_for_the_commit(client: Client, channel: Channel, watcher: Channel, queue: str) -> None:
    watcher.publish("", queue, b"1")
    watcher.publish("", queue, b"2")
    channel.select_transactions()
    channel.consume(queue)
    first, second = channel.take(2)
    channel.ack(first.tag)
    channel.commit()
    channel.ack(second.tag)
    channel.close()
    # The second ack was never committed: its message is back, the first is gone.
    again = watcher.get(queue, no_ack=True)
    assert again is not None
    assert (again.body, again.redelivered, again.remaining) == (b"2", True, 0)


def test_rolled_back_ack_can_be_given_again(channel: Channel, watcher: Channel, queue: str) -> None:
    watcher.publish("", queue, b"1")
    channel.select_transactions()
    channel.consume(queue)
    delivery = channel.take(1)[0]
    channel.ack(delivery.tag)
    channel.rollback()
    assert channel.next_delivery(GLANCE) is None  # a rollback does not redeliver
    channel.ack(delivery.tag)
    channel.commit()
    channel.close()
    assert depth(watcher, queue) == 0


def test_publish_and_ack_are_committed_together_over_several_queues(
    channel: Channel, watcher: Channel, queue: str, name: Namer
) -> None:
    onward = [name("onward 1"), name("onward 2")]
    for each in onward:
        watcher.declare_queue(each)
    watcher.publish("", queue, b"work")
    channel.select_transactions()
    channel.consume(queue)
    delivery = channel.take(1)[0]
    for each in onward:
        channel.publish("", each, b"result")
    channel.ack(delivery.tag)
    channel.declare_queue(queue, passive=True)
    assert [depth(watcher, each) for each in onward] == [0, 0]
    channel.commit()
    assert [depth(watcher, each) for each in onward] == [1, 1]
    channel.close()
    assert depth(watcher, queue) == 0


@pytest.mark.needs(Feature.RETURN_WITHOUT_CONFIRM)
def test_mandatory_message_is_returned_at_the_commit(channel: Channel, name: Namer) -> None:
    missing = name("missing queue")
    channel.select_transactions()
    channel.publish("", missing, b"back to me", mandatory=True)
    assert channel.next_return(GLANCE) is None
    channel.commit()
    returned = channel.next_return()
    assert returned is not None
    assert (returned.code, returned.routing_key) == (312, missing)


def test_commit_without_select_is_refused(channel: Channel) -> None:
    with pytest.raises(Refused) as refused:
        channel.commit()
    assert (refused.value.scope, refused.value.code) == (Scope.CHANNEL, 406)
    assert refused.value.text == "PRECONDITION_FAILED - channel is not transactional"


def test_confirms_and_transactions_exclude_each_other(client: Client) -> None:
    first, second = client.channel(), client.channel()
    first.select_confirms()
    with pytest.raises(Refused) as refused:
        first.select_transactions()
    assert refused.value.code == 406
    assert refused.value.text == "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    second.select_transactions()
    with pytest.raises(Refused) as refused:
        second.select_confirms()
    assert refused.value.code == 406
    assert refused.value.text == "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
