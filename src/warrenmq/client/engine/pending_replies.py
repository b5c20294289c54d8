"""Who waits for which reply: the calls of one channel, in the order in which they were sent.

A broker answers the calls of a channel in their order, so a reply belongs to the first call that has none. A caller who
gave up (time-out, cancelled task) leaves its place in the line, so that its late reply is not taken for another's.

Owned by the connection's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from warrenmq.client.errors import ClientError


class PendingReply:
    """One call: the kinds of reply that answer it, the future of who waits, and what to do with a reply too late."""

    __slots__ = ("expects", "future", "on_late_reply")

    def __init__(
        self, expects: tuple[type, ...], future: asyncio.Future[Any], on_late_reply: Callable[[Any], None] | None
    ) -> None:
        self.expects = expects
        self.future = future
        self.on_late_reply = on_late_reply


class PendingReplies:
    """The calls that are under way on one channel."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: deque[PendingReply] = deque()

    def begin(self, *expects: type, on_late_reply: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Join the line, before the method is sent."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._line.append(PendingReply(expects, future, on_late_reply))
        return future

    def withdraw(self, future: asyncio.Future[Any]) -> None:
        """The method could not be sent after all: no reply will come. It was the last to join."""
        if self._line and self._line[-1].future is future:
            self._line.pop()

    def answer(self, reply: object, kind: type) -> bool:
        """Give the reply to whom it is for; False: nobody waits for one of its kind."""
        if not self._line or kind not in self._line[0].expects:
            return False
        call = self._line.popleft()
        if not call.future.done():
            call.future.set_result(reply)
        elif call.on_late_reply is not None:
            call.on_late_reply(reply)
        return True

    def fail(self, error: ClientError) -> None:
        """No reply will come to anybody."""
        line, self._line = self._line, deque()
        for call in line:
            if not call.future.done():
                call.future.set_exception(error)
