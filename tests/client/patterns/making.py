"""Producers, services and the like of either face, spoken to as if blocking (see tests/client/behaviour/faces.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tests.client.behaviour.faces import PATIENCE
from warrenmq import client
from warrenmq.client import aio

FAST = client.Recovery(initial=0.01, longest=0.1)
QUICK = {"interval": 0.01, "longest": 0.05}


def make(face: Any, kind: str, connection: Any, *args: Any, **settings: Any) -> Any:
    """One of that kind on that connection."""
    if face.name == "blocking":
        return getattr(client, kind)(connection, *args, **settings)
    return face.call(lambda: getattr(aio, kind)(getattr(connection, "_real", connection), *args, **settings))


def handler_of(face: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A handler that may block: on aio it is awaited in a thread."""
    if face.name == "blocking":
        return function

    async def handle(delivery: Any) -> Any:
        return await asyncio.to_thread(function, delivery)

    return handle


def setup_of(face: Any, queue: str, **settings: Any) -> Callable[[Any], Any]:
    """A handler's setup: declare the queue. On aio it returns a coroutine, which the service awaits."""
    return lambda channel: channel.queue_declare(queue, **settings)


class InThread:
    """A call that is waited for later."""

    def __init__(self, function: Callable[..., Any], *args: Any, **settings: Any) -> None:
        self._function = lambda: function(*args, **settings)
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="a test's call", daemon=True)
        self._thread.start()

    def result(self, limit: float = PATIENCE) -> Any:
        self._thread.join(limit)
        assert not self._thread.is_alive(), "the call does not end"
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            self._error = error


def count_of(channel: Any, queue: str) -> int:
    """How many messages stand in the queue."""
    return int(channel.queue_declare(queue, passive=True).message_count)
