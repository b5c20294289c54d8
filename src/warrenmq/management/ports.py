"""What the HTTP side asks of tracing: the biography of a message, a search, the rules of what is kept, the firehose.

Protocols: whatever has these methods fits, so that pages and API are tested without a broker. Everything is called on
the loop; what takes long awaits a thread inside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from warrenmq.tracing.biography import Biography
from warrenmq.tracing.rules import TraceRule
from warrenmq.tracing.search import TracePage, TraceQuery


@dataclass(frozen=True, slots=True)
class Origin:
    """The address of a client ("" for a local socket); not `is_direct`: perhaps only that of a proxy before it."""

    address: str
    is_direct: bool = True


# Name, password and origin -> whether that user may come in; TooManyFailures where that cannot be tried now.
Login = Callable[[str, str, Origin], Awaitable[bool]]


# What a handler changes in the broker: done in a turn, and awaited until it is as safe as a declared queue.
Change = Callable[[Callable[[], Any]], Awaitable[Any]]


class TraceReader(Protocol):
    """Reads the event log. Raises OSError (TracingUnavailable is one) where it cannot be read."""

    def biography(self, key: str) -> Coroutine[Any, Any, Biography | None]:
        """Of the message with this message-id or uid; None if nothing is kept of it."""

    def search(self, query: TraceQuery) -> Coroutine[Any, Any, TracePage]:
        """Messages that fit, the newest first. ValueError for a cursor that is none."""


class TraceRules(Protocol):
    """The rules, and how they are changed; a change returns when it is as safe as a declared queue is."""

    def all(self) -> Sequence[TraceRule]: ...

    async def put(self, name: str, definition: Mapping[str, Any]) -> bool:
        """Set a rule; whether it is new. ValueError says what is wrong with it."""

    async def remove(self, name: str) -> bool:
        """Whether there was one. ValueError if it is fixed."""


class Firehose(Protocol):
    """RabbitMQ's firehose: copies of all that is published and delivered in a virtual host, while it is open there."""

    def open_vhosts(self) -> Sequence[str]: ...

    def switch(self, vhost: str, is_open: bool) -> bool:
        """Whether there is such a virtual host."""
