"""Publishes that a queue rejects, on the wire."""

from __future__ import annotations

import pytest

from tests.support.dialogue import Dialogue
from tests.support.rejecting import add_rejecting_queue
from tests.support.socketless import SocketlessServer
from tests.support.wire_format import pack_publish


@pytest.fixture
def client() -> Dialogue:
    server = SocketlessServer()
    add_rejecting_queue(server.broker.vhosts["/"])
    client = Dialogue(server).open()
    client.say("queue.declare", 1, queue="q")
    client.hear()
    return client


def test_a_rejected_publish_is_nacked_in_its_place(client: Dialogue) -> None:
    client.say("confirm.select", 1)
    client.hear()
    client.line.send(b"".join(pack_publish(1, b"", None, routing_key=key) for key in ("q", "q", "full", "full", "q")))
    answers = [(answer.name, answer["delivery_tag"], answer["multiple"]) for answer in client.methods()]
    assert answers == [("basic.ack", 2, True), ("basic.nack", 4, True), ("basic.ack", 5, False)]


def test_a_commit_with_a_rejected_publish_closes_the_channel(client: Dialogue) -> None:
    client.say("tx.select", 1)
    client.publish(b"", "full")
    client.publish(b"", "q")
    client.say("tx.commit", 1)
    _, close = client.methods()
    assert (close.name, close["reply_code"]) == ("channel.close", 406)
    assert close["reply_text"] == "PRECONDITION_FAILED - partial tx completion"
    assert len(client.server.broker.vhosts["/"].queues["q"].backlog) == 1
