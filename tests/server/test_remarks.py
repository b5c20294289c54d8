"""What a client asks for in vain stands in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer


@pytest.fixture
def client(caplog: pytest.LogCaptureFixture) -> Dialogue:
    caplog.set_level(logging.WARNING)
    client = Dialogue(SocketlessServer()).open()
    client.say("queue.declare", 1, queue="q")
    return client


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"x-queue-type": "quorum", "x-max-in-memory-length": 3}, "x-max-in-memory-length"),
        ({"x-cache-size": 1000, "x-cache-ttl": 5}, "x-cache-size, x-cache-ttl"),
    ],
)
def test_an_argument_without_effect(
    client: Dialogue, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], named: str
) -> None:
    for _ in range(2):  # declaring again says nothing new
        client.say("queue.declare", 1, queue="with", durable=True, arguments=arguments)
    assert warnings(caplog) == [f"queue 'with': arguments without effect in this version: {named}"]


@pytest.mark.parametrize(
    ("key", "word"),
    [("a*", "a*"), ("foo#.bar", "foo#"), ("**", "**"), ("a.#b.*", "#b"), ("*.#", None), ("a.b", None), ("", None)],
)
def test_a_wildcard_inside_a_word(
    client: Dialogue, caplog: pytest.LogCaptureFixture, key: str, word: str | None
) -> None:
    client.say("queue.bind", 1, queue="q", exchange="amq.topic", routing_key=key)
    client.say("exchange.bind", 1, source="amq.topic", destination="amq.fanout", routing_key=key)
    client.say("queue.bind", 1, queue="q", exchange="amq.direct", routing_key=key)
    assert "channel.close" not in client.hear()
    text = (
        f"binding key '{key}' of topic exchange 'amq.topic': '{word}' matches only itself; "
        "'*' and '#' are wildcards only as whole words"
    )
    assert warnings(caplog) == ([text] * 2 if word else [])


def test_an_unbind_that_removes_nothing(client: Dialogue, caplog: pytest.LogCaptureFixture) -> None:
    client.say("queue.bind", 1, queue="q", exchange="amq.direct", routing_key="k")
    client.say("queue.unbind", 1, queue="q", exchange="amq.direct", routing_key="k")
    assert warnings(caplog) == []
    client.say("queue.unbind", 1, queue="q", exchange="amq.direct", routing_key="k")
    client.say("queue.unbind", 1, queue="none", exchange="amq.direct", routing_key="k")
    client.say("exchange.unbind", 1, source="amq.direct", destination="amq.fanout", routing_key="k")
    assert "channel.close" not in client.hear()
    assert warnings(caplog) == [
        "unbind of queue 'q' from exchange 'amq.direct', key 'k': no such binding",
        "unbind of queue 'none' from exchange 'amq.direct', key 'k': no such binding",
        "unbind of exchange 'amq.fanout' from exchange 'amq.direct', key 'k': no such binding",
    ]


def test_a_client_cannot_fill_the_log(client: Dialogue, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        client.say("queue.bind", 1, queue="q", exchange="amq.topic", routing_key=f"a*{number}")
        client.say("queue.unbind", 1, queue="q", exchange="amq.topic", routing_key="never")
        client.say("queue.declare", 1, queue=f"q{number}", arguments={"x-cache-size": 1})
    assert len(warnings(caplog)) == 30
