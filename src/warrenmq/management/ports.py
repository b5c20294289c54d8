"""Ports of the HTTP server to tracing: biographies, searches, trace rules, the firehose.

Protocols, so that pages and API can be tested without a broker. Everything is called on the loop; long work runs in a
thread.
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
    """The address of a client ("" for a local socket); if not `is_direct`, it may be that of a proxy."""

    address: str
    is_direct: bool = True


# Name, password and origin -> True if the login is valid; raises TooManyFailures if it was not checked.
Login = Callable[[str, str, Origin], Awaitable[bool]]


# Runs a change of the broker in a turn, and waits until it is as durable as a declared queue.
Change = Callable[[Callable[[], Any]], Awaitable[Any]]


class TraceReader(Protocol):
    """Reads the event log. Raises OSError (such as TracingUnavailable) if it cannot be read."""

    def biography(self, key: str) -> Coroutine[Any, Any, Biography | None]:
        """Return the biography of the message with this message-id or uid; None if it has no events."""

    def search(self, query: TraceQuery) -> Coroutine[Any, Any, TracePage]:
        """Return matching messages, the newest first. Raises ValueError for an invalid cursor."""


class TraceRules(Protocol):
    """The trace rules; a change returns when it is as durable as a declared queue."""

    def all(self) -> Sequence[TraceRule]: ...

    async def put(self, name: str, definition: Mapping[str, Any]) -> bool:
        """Set a rule; return True if it is new. Raises ValueError for an invalid one."""

    async def remove(self, name: str) -> bool:
        """Return True if the rule existed. Raises ValueError if it is fixed by the settings."""


class Firehose(Protocol):
    """RabbitMQ's firehose: copies of all messages published and delivered in a virtual host while it is on."""

    def open_vhosts(self) -> Sequence[str]: ...

    def switch(self, vhost: str, is_open: bool) -> bool:
        """Switch it on or off; return False if there is no such virtual host."""
