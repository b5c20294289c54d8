"""Who reads the event log when: a few answers at a time, a bounded queue behind them.

An answer takes the interpreter for up to half a second in all, so any number of them at once would leave nothing to
the broker's clients. Owned by the loop.
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
    """What one answer may cost, and how many there are at a time."""

    events: int = 10_000  # decoded for one answer
    batches: int = 1_000  # opened for one answer
    seconds: float = 10.0  # that a biography is gathered for
    search_seconds: float = 4.0  # the same of a search, which has a cursor to go on from
    readers: int = 2
    waiting: int = 64
    waiting_seconds: float = 10.0


class Turns:
    """`most` counts the answers that were under way at once, at most."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.most = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, in order, and end it with the block. TracingBusy: too many wait, or it took too long."""
        if self._running >= self._limits.readers:
            await self._wait()  # the answer that ends hands its turn on
        else:
            self._running += 1
        self.most = max(self.most, self._running)
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self) -> None:
        if len(self._waiting) >= self._limits.waiting:
            raise self._busy()
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(self._limits.waiting_seconds):
                await mine
        except (TimeoutError, asyncio.CancelledError) as reason:
            if mine.done() and not mine.cancelled():
                self._hand_on()  # the turn came at the same moment
            elif mine in self._waiting:
                self._waiting.remove(mine)
            if isinstance(reason, TimeoutError):
                raise self._busy() from None
            raise

    def _hand_on(self) -> None:
        while self._waiting:
            next_one = self._waiting.popleft()
            if not next_one.done():  # or it was just cancelled
                next_one.set_result(None)
                return
        self._running -= 1

    def _busy(self) -> TracingBusy:
        text = f"{self._running} searches are under way and {len(self._waiting)} wait; try again later"
        return TracingBusy(text, max(1, round(self._limits.search_seconds)))
