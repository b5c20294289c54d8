"""Publisher confirms and transactions: each tag once and in order; all at commit or nothing."""

from __future__ import annotations

import pytest

from tests.conformance.cases import AcceptedCase, RefusedCase, call, label_of, publish
from tests.conformance.conftest import Connect, Namer
from tests.support.wire import Refusal, WireChannel

CONFIRM, TX = call("confirm.select"), call("tx.select")
NOT_TRANSACTIONAL = "PRECONDITION_FAILED - channel is not transactional"

REFUSED = [
    RefusedCase(
        "tx after confirm", TX, 406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode", given=(CONFIRM,)
    ),
    RefusedCase(
        "confirm after tx", CONFIRM, 406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", given=(TX,)
    ),
    RefusedCase(
        "confirm after tx without waiting",
        call("confirm.select", no_wait=True),
        406,
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
        given=(TX,),
    ),
    RefusedCase("commit without tx", call("tx.commit"), 406, NOT_TRANSACTIONAL),
    RefusedCase("rollback without tx", call("tx.rollback"), 406, NOT_TRANSACTIONAL),
    RefusedCase(
        "unknown exchange in tx, at once",
        publish(exchange="{exchange}"),
        404,
        "NOT_FOUND - no exchange '{exchange}' in vhost '/'",
        given=(TX,),
    ),
    RefusedCase(
        "unknown tag in tx, at once",
        call("basic.ack", delivery_tag=1),
        406,
        "PRECONDITION_FAILED - unknown delivery tag 1",
        given=(TX,),
    ),
]

ACCEPTED = [
    AcceptedCase("confirm twice", CONFIRM, given=(CONFIRM,)),
    AcceptedCase("tx twice", TX, given=(TX,)),
    AcceptedCase("commit of nothing", call("tx.commit"), given=(TX,)),
    AcceptedCase("rollback of nothing", call("tx.rollback"), given=(TX,)),
]


@pytest.mark.parametrize("case", REFUSED, ids=label_of)
def test_refused(case: RefusedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize("case", ACCEPTED, ids=label_of)
def test_accepted(case: AcceptedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


class Confirms:
    """Reads confirms off a channel and insists that each tag comes once."""

    def __init__(self, channel: WireChannel) -> None:
        self.channel = channel
        self.outcomes: dict[int, str] = {}
        self.sent = 0

    def publish(self, body: bytes = b"", **arguments: object) -> None:
        self.channel.publish(body, None, **arguments)
        self.sent += 1

    def collect(self) -> dict[int, str]:
        """Wait until each publish has its confirm; which were acked and which nacked."""
        while len(self.outcomes) < self.sent:
            confirm = self.channel.read()
            assert confirm.name in {"basic.ack", "basic.nack"}
            tag = confirm["delivery_tag"]
            open_below = [each for each in range(1, tag) if each not in self.outcomes] if confirm["multiple"] else []
            for each in (*open_below, tag):
                assert each not in self.outcomes, f"{each} was confirmed twice"
                assert each <= self.sent, f"{each} was never published"
                self.outcomes[each] = confirm.name.removeprefix("basic.")
        return self.outcomes


def test_each_publish_is_confirmed_once(channel: WireChannel, queue: str) -> None:
    channel.call("confirm.select")
    confirms = Confirms(channel)
    for _ in range(500):
        confirms.publish(b"safe", routing_key=queue)
    assert confirms.collect() == dict.fromkeys(range(1, 501), "ack")
    confirms.publish(b"one more", routing_key=queue)
    assert confirms.collect()[501] == "ack"
    channel.barrier(queue)


def test_counting_starts_with_select(channel: WireChannel, queue: str) -> None:
    channel.publish(b"uncounted", routing_key=queue)
    channel.call("confirm.select")
    channel.publish(b"counted", routing_key=queue)
    assert channel.expect("basic.ack")["delivery_tag"] == 1


def test_select_without_waiting_is_not_answered(channel: WireChannel, queue: str) -> None:
    channel.send("confirm.select", no_wait=True)
    channel.publish(b"counted", routing_key=queue)
    assert channel.expect("basic.ack")["delivery_tag"] == 1


def test_an_unroutable_message_is_confirmed(channel: WireChannel, name: Namer) -> None:
    channel.call("confirm.select")
    channel.publish(b"lost", routing_key=name("nowhere"))
    assert channel.expect("basic.ack").arguments == {"delivery_tag": 1, "multiple": False}


def test_a_return_comes_before_its_confirm(channel: WireChannel, name: Namer) -> None:
    channel.call("confirm.select")
    channel.publish(b"returned", routing_key=name("nowhere"), mandatory=True)
    assert channel.content("basic.return").body == b"returned"
    assert channel.expect("basic.ack")["delivery_tag"] == 1


def test_confirms_of_one_channel_are_its_own(connect: Connect, channel: WireChannel, queue: str) -> None:
    other = connect().channel()
    channel.call("confirm.select")
    other.call("confirm.select")
    channel.publish(b"one", routing_key=queue)
    assert channel.expect("basic.ack")["delivery_tag"] == 1
    other.publish(b"two", routing_key=queue)
    assert other.expect("basic.ack")["delivery_tag"] == 1


def test_transacted_messages_are_seen_at_commit(channel: WireChannel, queue: str) -> None:
    channel.call("tx.select")
    channel.publish(b"one", routing_key=queue)
    channel.publish(b"two", routing_key=queue)
    assert channel.call("queue.declare", queue=queue, passive=True)["message_count"] == 0
    channel.call("tx.commit")
    assert channel.call("queue.declare", queue=queue, passive=True)["message_count"] == 2


def test_rolled_back_messages_are_never_seen(channel: WireChannel, queue: str) -> None:
    channel.call("tx.select")
    channel.publish(b"never", routing_key=queue)
    channel.call("tx.rollback")
    channel.call("tx.commit")
    assert channel.get(queue) is None


def test_closing_the_channel_rolls_back(connect: Connect, channel: WireChannel, queue: str) -> None:
    transacting = channel.connection.channel(2)
    transacting.call("tx.select")
    transacting.publish(b"never", routing_key=queue)
    transacting.close()
    assert channel.get(queue) is None


def test_transacted_mandatory_messages_come_back_at_commit(channel: WireChannel, name: Namer) -> None:
    channel.call("tx.select")
    channel.publish(b"returned", routing_key=name("nowhere"), mandatory=True)
    channel.barrier()
    channel.send("tx.commit")
    assert channel.content("basic.return").body == b"returned"
    channel.expect("tx.commit-ok")


def test_rolled_back_acks_can_be_sent_again(channel: WireChannel, queue: str) -> None:
    channel.publish(b"one", routing_key=queue)
    channel.call("tx.select")
    channel.get(queue, no_ack=False)
    channel.send("basic.ack", delivery_tag=1)
    channel.call("tx.rollback")
    channel.send("basic.ack", delivery_tag=1)
    channel.call("tx.commit")
    channel.call("basic.recover", requeue=True)
    assert channel.get(queue) is None


def test_an_ack_twice_in_one_transaction_is_refused(channel: WireChannel, queue: str) -> None:
    channel.publish(b"one", routing_key=queue)
    channel.call("tx.select")
    channel.get(queue, no_ack=False)
    channel.send("basic.ack", delivery_tag=1)
    text = "PRECONDITION_FAILED - unknown delivery tag 1"
    assert channel.refused("basic.ack", delivery_tag=1) == Refusal("channel", 406, text, "basic.ack")


def test_a_transacted_requeue_waits_for_commit(channel: WireChannel, queue: str) -> None:
    channel.publish(b"one", routing_key=queue)
    channel.call("tx.select")
    channel.get(queue, no_ack=False)
    channel.send("basic.nack", delivery_tag=1, requeue=True)
    assert channel.get(queue) is None
    channel.call("tx.commit")
    again = channel.get(queue)
    assert again is not None
    assert again["redelivered"] is True


def test_closing_the_channel_requeues_transacted_acks(channel: WireChannel, queue: str) -> None:
    channel.publish(b"one", routing_key=queue)
    transacting = channel.connection.channel(2)
    transacting.call("tx.select")
    transacting.get(queue, no_ack=False)
    transacting.send("basic.ack", delivery_tag=1)
    transacting.close()
    again = channel.get(queue)
    assert again is not None
    assert again["redelivered"] is True
