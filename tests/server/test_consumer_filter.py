"""`x-filter` of basic.consume through real sessions: what is refused, and how the refusal reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer


@pytest.fixture
def client() -> Dialogue:
    return Dialogue(SocketlessServer()).open()


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("a = ", '"expected a name or value, got the end at position 5"'),
        ("priority > 3 AND", '"expected a name or value, got the end at position 17"'),
        (5, '"expected a table or a text, got signedint"'),
        (None, '"expected a table or a text, got void"'),
        ({"x-match": "some"}, "expected all, any, all-with-x, or any-with-x"),
    ],
)
@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_what_is_no_filter_is_refused(client: Dialogue, value: Any, fault: str, kind: str) -> None:
    client.say("queue.declare", 1, queue="q", durable=True, arguments={"x-queue-type": kind})
    assert client.hear() == ["queue.declare-ok"]
    client.say("basic.consume", 1, queue="q", arguments={"x-filter": value})
    (close,) = client.methods()
    text = close.arguments["reply_text"]
    assert close.arguments["reply_code"] == 406
    assert text.startswith("PRECONDITION_FAILED - invalid arg 'x-filter' for queue 'q' in vhost '/': ")
    assert text.endswith(fault)


def test_replies_have_no_filter(client: Dialogue) -> None:
    client.say("basic.consume", 1, queue="amq.rabbitmq.reply-to", no_ack=True, arguments={"x-filter": "a = 1"})
    (close,) = client.methods()
    text = "PRECONDITION_FAILED - reply consumer cannot have x-filter"
    assert (close.arguments["reply_code"], close.arguments["reply_text"]) == (406, text)
