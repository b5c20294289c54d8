"""Direct reply-to: a pseudo-queue per channel that answers come back through."""

from __future__ import annotations

import pytest

from tests.conformance.cases import AcceptedCase, RefusedCase, call, label_of, publish
from tests.conformance.conftest import Connect, Namer
from tests.support.wire import Refusal, WireChannel

REPLY_TO = "amq.rabbitmq.reply-to"
CONSUME = call("basic.consume", queue=REPLY_TO, no_ack=True)
MISSING = f"NOT_FOUND - no queue '{REPLY_TO}' in vhost '/'"

REFUSED = [
    RefusedCase(
        "consume with acknowledgements",
        call("basic.consume", queue=REPLY_TO),
        406,
        "PRECONDITION_FAILED - reply consumer cannot acknowledge",
    ),
    RefusedCase("consume twice", CONSUME, 406, "PRECONDITION_FAILED - reply consumer already set", given=(CONSUME,)),
    RefusedCase(
        "ask without a consumer",
        publish(properties={"reply_to": REPLY_TO}),
        406,
        "PRECONDITION_FAILED - fast reply consumer does not exist",
    ),
    RefusedCase("get", call("basic.get", queue=REPLY_TO, no_ack=True), 404, MISSING),
    RefusedCase("purge", call("queue.purge", queue=REPLY_TO), 404, MISSING),
    RefusedCase("bind", call("queue.bind", queue=REPLY_TO, exchange="amq.direct"), 404, MISSING),
    RefusedCase(
        "declare an address that is nobody's",
        call("queue.declare", queue=f"{REPLY_TO}.nobody", passive=True),
        404,
        f"NOT_FOUND - no queue '{REPLY_TO}.nobody' in vhost '/'",
    ),
]

ACCEPTED = [
    AcceptedCase("consume", CONSUME),
    AcceptedCase(
        "consume again after cancel",
        CONSUME,
        given=(
            call("basic.consume", queue=REPLY_TO, no_ack=True, consumer_tag="one"),
            call("basic.cancel", consumer_tag="one"),
        ),
    ),
    AcceptedCase(
        "declare",
        call("queue.declare", queue=REPLY_TO),
        answer={"queue": REPLY_TO, "message_count": 0, "consumer_count": 1},
    ),
    AcceptedCase(
        "declare passively",
        call("queue.declare", queue=REPLY_TO, passive=True),
        answer={"queue": REPLY_TO, "message_count": 0, "consumer_count": 1},
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=label_of)
def test_refused(case: RefusedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize("case", ACCEPTED, ids=label_of)
def test_accepted(case: AcceptedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


def ask(client: WireChannel, server: WireChannel, queue: str) -> str:
    """Send a request from one to the other; the address that the answer must go to."""
    client.call("basic.consume", queue=REPLY_TO, consumer_tag="answers", no_ack=True)
    client.publish(b"question", {"reply_to": REPLY_TO, "correlation_id": "42"}, routing_key=queue)
    client.barrier(queue)
    request = server.get(queue)
    assert request is not None
    assert request.properties["correlation_id"] == "42"
    return str(request.properties["reply_to"])


def test_an_answer_finds_the_channel_that_asked(connect: Connect, channel: WireChannel, name: Namer) -> None:
    server = connect().channel()
    server.call("queue.declare", queue=name("requests"))
    address = ask(channel, server, name("requests"))
    assert address.startswith(f"{REPLY_TO}.")
    server.publish(b"answer", {"correlation_id": "42"}, routing_key=address)
    answer = channel.content()
    assert (answer.body, answer.properties) == (b"answer", {"correlation_id": "42"})
    assert answer["consumer_tag"] == "answers"
    assert (answer["exchange"], answer["routing_key"]) == ("", address)


def test_an_answer_is_confirmed(connect: Connect, channel: WireChannel, name: Namer) -> None:
    server = connect().channel()
    server.call("queue.declare", queue=name("requests"))
    address = ask(channel, server, name("requests"))
    server.call("confirm.select")
    server.publish(b"answer", routing_key=address)
    assert server.expect("basic.ack")["delivery_tag"] == 1
    assert channel.content().body == b"answer"


def test_a_server_can_see_whether_anybody_waits(connect: Connect, channel: WireChannel, name: Namer) -> None:
    server = connect().channel()
    server.call("queue.declare", queue=name("requests"))
    address = ask(channel, server, name("requests"))
    assert server.call("queue.declare", queue=address, passive=True)["consumer_count"] == 1
    channel.call("basic.cancel", consumer_tag="answers")
    text = f"NOT_FOUND - no queue '{address}' in vhost '/'"
    refusal = server.refused("queue.declare", queue=address, passive=True)
    assert refusal == Refusal("channel", 404, text, "queue.declare")


def test_a_late_answer_is_unroutable(connect: Connect, channel: WireChannel, name: Namer) -> None:
    server = connect().channel()
    server.call("queue.declare", queue=name("requests"))
    address = ask(channel, server, name("requests"))
    channel.close()
    server.publish(b"too late", routing_key=address, mandatory=True)
    assert server.content("basic.return").body == b"too late"


@pytest.mark.parametrize("nobody", [REPLY_TO, f"{REPLY_TO}.nobody"])
def test_a_reply_without_a_requester_is_unroutable(channel: WireChannel, nobody: str) -> None:
    channel.publish(b"answer", routing_key=nobody, mandatory=True)
    assert channel.content("basic.return").body == b"answer"
