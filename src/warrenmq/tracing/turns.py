"""Limits how many answers read the event log at a time; the others wait in a bounded queue.

An answer takes up to half a second of the interpreter, so without a limit they would starve the broker's clients.
Owned by the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from warrenmq.tracing.search import TracingBusy


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What one answer may cost, and how many run at a time."""

    events: int = 10_000  # decoded for one answer
    batches: int = 1_000  # opened for one answer
    seconds: float = 10.0  # for a biography
    search_seconds: float = 4.0  # for a page of a search, which continues with a cursor
    readers: int = 2
    waiting: int = 64
    waiting_seconds: float = 10.0


class Turns:
    """`max_running` is the largest number of answers that ran at once."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.max_running = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, in order; the block releases it. TracingBusy: too many wait, or the wait was too long."""
        if self._running >= self._limits.readers:
            await self._wait()  # the answer that ends passes its turn on
        else:
            self._running += 1
        self.max_running = max(self.max_running, self._running)
        try:
            yield
        finally:
            self._release()

    async def _wait(self) -> None:
        if len(self._waiting) >= self._limits.waiting:
            raise self._busy()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._limits.waiting_seconds):
                await turn
        except (TimeoutError, asyncio.CancelledError) as reason:
            if turn.done() and not turn.cancelled():
                self._release()  # granted at the same moment
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(reason, TimeoutError):
                raise self._busy() from None
            raise

    def _release(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._running -= 1

    def _busy(self) -> TracingBusy:
        text = f"{self._running} searches are running and {len(self._waiting)} are waiting; try again later"
        return TracingBusy(text, max(1, round(self._limits.search_seconds)))
