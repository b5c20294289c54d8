"""Connections that go through the breaker, and what is known of their recovery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.client.behaviour.faces import Inbox
from tests.client.conftest import Connect
from tests.support.breaker import Breaker
from warrenmq import client

FAST = client.Recovery(initial=0.01, longest=0.1)


class Watched:
    """A connection through the breaker with its recovery events."""

    def __init__(self, connection: Any, breaker: Breaker) -> None:
        self.connection = connection
        self.breaker = breaker
        self.events = Inbox()
        connection.add_recovery_listener(self.events)

    def channel(self) -> Any:
        return self.connection.channel()

    def wait_lost(self) -> Any:
        return self.events.until(lambda event: event.kind == "lost")

    def wait_recovered(self) -> Any:
        return self.events.until(lambda event: event.kind == "recovered")

    def lose(self) -> None:
        """Cut it, and return when it has recovered."""
        self.breaker.reset()
        self.wait_lost()
        self.wait_recovered()


Watch = Callable[..., Watched]


@pytest.fixture
def watch(connect: Connect, breaker: Breaker) -> Watch:
    def make(**settings: Any) -> Watched:
        settings = {"recovery": FAST, "close_timeout": 2.0, "connect_timeout": 10.0} | settings
        return Watched(connect(breaker.url, **settings), breaker)

    return make


@pytest.fixture
def watched(watch: Watch) -> Watched:
    return watch()


@pytest.fixture
def other(connect: Connect) -> Any:
    """A channel of a connection that is not broken."""
    return connect().channel()
