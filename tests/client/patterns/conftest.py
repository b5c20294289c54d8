"""A connection through the breaker that recovers quickly, and a queue that outlives it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import Connect, Namer
from tests.support.breaker import Breaker

from .making import FAST


@pytest.fixture
def shaky(connect: Connect, breaker: Breaker) -> Any:
    """A connection through the breaker."""
    return connect(breaker.url, recovery=FAST, connect_timeout=10.0, close_timeout=2.0)


@pytest.fixture
def kept(channel: Any, name: Namer) -> str:
    """A queue that every connection may use, and that the loss of one does not delete."""
    queue = name("kept")
    channel.queue_declare(queue)
    return queue
