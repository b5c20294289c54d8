"""Waits for a condition that another thread, task or process brings about, and the few waits for real time.

A test never sleeps and hopes: it polls for a condition (`wait_until`, `until`), moves a clock of its own, or, where the
passing of real time is what is tested, says so by calling `let_time_pass`. `tests/house/test_contracts.py` checks that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")

LIMIT = 60.0
INTERVAL = 0.01


def wait_until(
    condition: Callable[[], Found], what: str = "the condition", limit: float = LIMIT, interval: float = INTERVAL
) -> Found:
    """Poll until the condition is true and return what it returned; fail after a time that no healthy run takes."""
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not true within {limit:g} s"
        time.sleep(interval)
    return found


async def until(
    condition: Callable[[], Any], what: str = "the condition", limit: float = LIMIT, interval: float = 0.001
) -> None:
    """The same on an event loop; the condition may be a coroutine function."""
    deadline = time.monotonic() + limit
    while True:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return
        assert time.monotonic() < deadline, f"{what}: not true within {limit:g} s"
        await asyncio.sleep(interval)


def let_time_pass(seconds: float) -> None:
    """Block this thread: for tests of deadlines and clocks that no test can move, such as another broker's."""
    time.sleep(seconds)


async def let_loop_run(seconds: float) -> None:
    """The same on an event loop, which runs on meanwhile."""
    await asyncio.sleep(seconds)
