"""Waiting for what the test cannot be told of, with an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Look until it holds."""
    for _ in range(10_000):
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never held")
