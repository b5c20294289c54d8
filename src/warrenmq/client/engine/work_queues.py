"""The work queues of one connection, and backpressure: when the socket is not read.

Reading pauses while a work queue holds more than the limit, and resumes when it is down to half. It never pauses while
a caller waits for the server: the full worker may depend on that reply.

Owned by the connection's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from warrenmq.client.engine.consumers import WorkQueue


class WorkQueues:
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
        self._all: set[WorkQueue] = set()
        self._full: set[WorkQueue] = set()
        self._waits = 0

    def add(self, work_queue: WorkQueue) -> WorkQueue:
        work_queue.resume_at = self._limit // 2
        work_queue.on_drained = partial(self._from_any_thread, partial(self._on_drained, work_queue))
        self._all.add(work_queue)
        return work_queue

    def check(self, work_queue: WorkQueue) -> None:
        """It was given something: is that too much?"""
        if work_queue.is_full or work_queue.pending() <= self._limit:
            return
        work_queue.is_full = True
        self._full.add(work_queue)
        self.review()
        if work_queue.pending() <= work_queue.resume_at:  # it was quicker than we
            self._on_drained(work_queue)

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

    def discard(self, work_queue: WorkQueue) -> None:
        """It was stopped, and who stopped it does not wait for its end."""
        self._forget_full(work_queue)
        if not work_queue.has_task:
            self._all.discard(work_queue)

    def drop(self, work_queue: WorkQueue) -> None:
        """Its task is about to end."""
        self._forget_full(work_queue)
        self._all.discard(work_queue)

    async def wait_ended(self, work_queue: WorkQueue) -> bool:
        """It was stopped: wait for its end; False: it is its own user code that asks."""
        self._forget_full(work_queue)
        has_ended = await work_queue.ended()
        if has_ended:
            self._all.discard(work_queue)
        return has_ended

    async def wait_all_ended(self) -> bool:
        """Wait for the user's code that runs just now; False: it is itself who asks."""
        ended = [await self.wait_ended(work_queue) for work_queue in list(self._all)]
        return all(ended)

    def _on_drained(self, work_queue: WorkQueue) -> None:
        if work_queue.is_full and work_queue.pending() <= work_queue.resume_at:
            self._forget_full(work_queue)

    def _forget_full(self, work_queue: WorkQueue) -> None:
        work_queue.is_full = False
        if work_queue in self._full:
            self._full.discard(work_queue)
            if self._full:
                self.review()
            else:
                self._set_reading(True)
