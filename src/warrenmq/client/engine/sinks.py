"""The sinks of one connection, and when their fullness stops the reading of the socket.

Reading pauses while a sink has more than the limit, and goes on when it has half of it. It never pauses while anybody
waits for what the server will say: that could be the very thing on which the full worker waits.

Owned by the connection's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from warrenmq.client.engine.consumers import Sink


class Sinks:
    """`from_any_thread` has the loop call something; `set_reading` pauses the socket or lets it go on."""

    __slots__ = ("_all", "_from_any_thread", "_full", "_is_awaited", "_limit", "_set_reading", "_waits")

    def __init__(
        self,
        limit: int,
        is_awaited: Callable[[], bool],
        set_reading: Callable[[bool], None],
        from_any_thread: Callable[[Callable[[], None]], None],
    ) -> None:
        self._limit = limit
        self._is_awaited = is_awaited
        self._set_reading = set_reading
        self._from_any_thread = from_any_thread
        self._all: set[Sink] = set()
        self._full: set[Sink] = set()
        self._waits = 0

    def adopt(self, sink: Sink) -> Sink:
        sink.resume_at = self._limit // 2
        sink.on_drained = partial(self._from_any_thread, partial(self._on_drained, sink))
        self._all.add(sink)
        return sink

    def check(self, sink: Sink) -> None:
        """It was given something: is that too much?"""
        if sink.is_full or sink.pending() <= self._limit:
            return
        sink.is_full = True
        self._full.add(sink)
        self.review()
        if sink.pending() <= sink.resume_at:  # it was quicker than we
            self._on_drained(sink)

    # -- waits -------------------------------------------------------------------------------------------------------

    def begin_wait(self) -> None:
        """Somebody waits for a reply."""
        self._waits += 1
        self.review()

    def end_wait(self) -> None:
        self._waits -= 1
        self.review()

    def review(self) -> None:
        """Read, unless workers are behind; and even then while anybody waits for what the server will say."""
        if self._full:
            self._set_reading(self._waits > 0 or self._is_awaited())

    def review_soon(self) -> None:
        """The same from any thread."""
        if self._full:
            self._from_any_thread(self.review)

    # -- the end -----------------------------------------------------------------------------------------------------

    def discard(self, sink: Sink) -> None:
        """It was stopped, and who stopped it does not wait for its end."""
        self._forget_full(sink)
        if not sink.has_task:
            self._all.discard(sink)

    def drop(self, sink: Sink) -> None:
        """Its task is about to end."""
        self._forget_full(sink)
        self._all.discard(sink)

    async def retire(self, sink: Sink) -> bool:
        """It was stopped: wait for its end; False: it is its own user code that asks."""
        self._forget_full(sink)
        has_ended = await sink.ended()
        if has_ended:
            self._all.discard(sink)
        return has_ended

    async def retire_all(self) -> bool:
        """Wait for the user's code that runs just now; False: it is itself who asks."""
        ended = [await self.retire(sink) for sink in list(self._all)]
        return all(ended)

    def _on_drained(self, sink: Sink) -> None:
        if sink.is_full and sink.pending() <= sink.resume_at:
            self._forget_full(sink)

    def _forget_full(self, sink: Sink) -> None:
        sink.is_full = False
        if sink in self._full:
            self._full.discard(sink)
            if self._full:
                self.review()
            else:
                self._set_reading(True)
