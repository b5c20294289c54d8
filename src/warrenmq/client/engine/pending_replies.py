"""Matches replies to calls: the calls in flight on one channel, in the order in which they were sent.

A broker answers the calls of a channel in order, so a reply belongs to the oldest call without one. A caller that gave
up (time-out, cancelled task) keeps its position, so that its late reply is not taken for another's.

Owned by the connection's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from warrenmq.client.errors import ClientError


class PendingReply:
    """One call: the methods that answer it, the caller's future, and a callback for a reply that comes too late."""

    __slots__ = ("expects", "future", "on_late_reply")

    def __init__(
        self, expects: tuple[type, ...], future: asyncio.Future[Any], on_late_reply: Callable[[Any], None] | None
    ) -> None:
        self.expects = expects
        self.future = future
        self.on_late_reply = on_late_reply


class PendingReplies:
    """The calls in flight on one channel."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: deque[PendingReply] = deque()

    def add(self, *expects: type, on_late_reply: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Expect one of these methods; call it before sending the request."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending.append(PendingReply(expects, future, on_late_reply))
        return future

    def withdraw(self, future: asyncio.Future[Any]) -> None:
        """Remove the newest call: it could not be sent."""
        if self._pending and self._pending[-1].future is future:
            self._pending.pop()

    def resolve(self, reply: object, kind: type) -> bool:
        """Pass the reply to the oldest call; return False if that expects no reply of this kind."""
        if not self._pending or kind not in self._pending[0].expects:
            return False
        call = self._pending.popleft()
        if not call.future.done():
            call.future.set_result(reply)
        elif call.on_late_reply is not None:
            call.on_late_reply(reply)
        return True

    def fail_all(self, error: ClientError) -> None:
        """Raise the error in all callers: no reply will come."""
        pending, self._pending = self._pending, deque()
        for call in pending:
            if not call.future.done():
                call.future.set_exception(error)
