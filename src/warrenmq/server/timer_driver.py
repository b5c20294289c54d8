"""Runs the broker's timers on the event loop: one loop timer for the earliest of them, if there are any.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio

from warrenmq.core.broker import Broker
from warrenmq.server.ticker import Ticker

# Read the clock again after this many seconds, as it may have been set meanwhile.
MAX_WAIT = 60.0


class TimerDriver:
    """Runs due timers in a turn of their own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ticker: Ticker, broker: Broker) -> None:
        self._loop = loop
        self._ticker = ticker
        self._turn = broker.turn
        self._timers = broker.timers
        self._handle: asyncio.TimerHandle | None = None
        self._timers.on_earlier = self._arm
        self._arm()

    def stop(self) -> None:
        self._timers.on_earlier = None
        self._disarm()

    def _arm(self) -> None:
        self._disarm()
        due_ms = self._timers.next_due_ms()
        if due_ms is not None:
            delay = max(0.0, (due_ms - self._turn.now_ms) / 1000)
            self._handle = self._loop.call_later(min(delay, MAX_WAIT), self._run)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self._ticker.schedule()
        try:
            self._timers.advance(self._turn.now_ms)
        finally:
            self._arm()
