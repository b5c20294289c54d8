"""Waiting for what the test cannot be told of, with an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

LIMIT = 30.0


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Look until it holds."""
    deadline = time.monotonic() + LIMIT
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline, "it never held"
        await asyncio.sleep(0.001)
