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
    """`from_any_thread` schedules a call on the loop; `set_reading` pauses or resumes reading the socket."""

    __slots__ = ("_all", "_from_any_thread", "_full", "_is_awaited", "_limit", "_open_calls", "_set_reading")

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
        self._open_calls = 0

    def add(self, work_queue: WorkQueue) -> WorkQueue:
        """Watch this queue; return it."""
        work_queue.resume_at = self._limit // 2
        work_queue.on_drained = partial(self._from_any_thread, partial(self._on_drained, work_queue))
        self._all.add(work_queue)
        return work_queue

    def check(self, work_queue: WorkQueue) -> None:
        """Pause reading if items put into the queue took it past the limit."""
        if work_queue.is_full or work_queue.pending() <= self._limit:
            return
        work_queue.is_full = True
        self._full.add(work_queue)
        self.review()
        if work_queue.pending() <= work_queue.resume_at:  # it drained before `is_full` was set
            self._on_drained(work_queue)

    # -- reading -----------------------------------------------------------------------------------------------------

    def begin_call(self) -> None:
        """Keep reading until `end_call`: a caller waits for a reply."""
        self._open_calls += 1
        self.review()

    def end_call(self) -> None:
        self._open_calls -= 1
        self.review()

    def review(self) -> None:
        """Read if no queue is full, or if a caller waits for the server."""
        if self._full:
            self._set_reading(self._open_calls > 0 or self._is_awaited())

    def review_soon(self) -> None:
        """Call `review` on the loop. Any thread."""
        if self._full:
            self._from_any_thread(self.review)

    # -- the end -----------------------------------------------------------------------------------------------------

    def discard(self, work_queue: WorkQueue) -> None:
        """Remove a stopped queue; one with a task stays until that ends."""
        self._forget_full(work_queue)
        if not work_queue.has_task:
            self._all.discard(work_queue)

    def remove(self, work_queue: WorkQueue) -> None:
        """Remove a queue whose task is about to end."""
        self._forget_full(work_queue)
        self._all.discard(work_queue)

    async def wait_ended(self, work_queue: WorkQueue) -> bool:
        """Wait for the end of a stopped queue; return False if called from its own user code."""
        self._forget_full(work_queue)
        has_ended = await work_queue.ended()
        if has_ended:
            self._all.discard(work_queue)
        return has_ended

    async def wait_all_ended(self) -> bool:
        """Wait for all user code that is running; return False if called from one of them."""
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
