"""Connections that recover without what was declared on them: services and RPC clients consume again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.client.conftest import Connect
from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .making import FAST, make


@pytest.fixture
def bare(connect: Connect, breaker: Breaker) -> Any:
    """A connection through the breaker that brings back its channels and nothing else."""
    return connect(breaker.url, recovery=replace(FAST, topology=False), connect_timeout=2.0, close_timeout=2.0)


def lose(connection: Any, breaker: Breaker) -> None:
    """Cut the connection, and return when it is back."""
    before = breaker.connections_made
    breaker.reset()
    breaker.wait_for_connections(before + 1)
    wait_until(lambda: connection.is_open, "the connection is back")


def test_service_consumes_again(face: Any, bare: Any, breaker: Breaker, channel: Any, kept: str) -> None:
    inbox = Inbox()
    with make(face, "Service", bare, client.consumer(kept)(inbox)):
        lose(bare, breaker)
        channel.publish("", kept, b"after")
        inbox.until(lambda delivery: delivery.body == b"after")


def test_pull_raises_if_its_consumer_was_cancelled(face: Any, bare: Any, breaker: Breaker, kept: str) -> None:
    with make(face, "PullConsumer", bare, kept) as puller:
        lose(bare, breaker)
        with pytest.raises(client.ConsumerCancelled):
            puller.pull(timeout=PATIENCE)


def test_rpc_client_consumes_again(face: Any, bare: Any, breaker: Breaker, connection: Any, kept: str) -> None:
    with (
        make(face, "Service", connection, client.consumer(kept)(lambda delivery: delivery.body)),
        make(face, "RpcClient", bare) as rpc,
    ):
        assert rpc.call("", kept, b"before", timeout=PATIENCE).body == b"before"
        lose(bare, breaker)
        assert rpc.call("", kept, b"after", timeout=PATIENCE).body == b"after"
