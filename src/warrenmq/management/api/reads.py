"""Awaits reads of messages that core answers with a callback, now or after a read from disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from warrenmq.management.errors import NotFound, Unavailable

Result = TypeVar("Result")

# Seconds until a read fails, and between checks whether its queue was deleted: such a read is never answered.
TIME_LIMIT = 10.0
CHECK_INTERVAL = 0.25


async def answer_to(read: Callable[[Callable[[Result], None]], object], is_gone: Callable[[], bool]) -> Result:
    """Call `read` with a callback, and return what the callback is called with.

    Raise NotFound if `is_gone` becomes true meanwhile, Unavailable if the answer takes too long.
    """
    answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    read(lambda result: None if answer.done() else answer.set_result(result))
    for _ in range(round(TIME_LIMIT / CHECK_INTERVAL)):
        await asyncio.wait([answer], timeout=CHECK_INTERVAL)
        if answer.done():
            return answer.result()
        if is_gone():
            answer.cancel()
            raise NotFound("Not Found")
    answer.cancel()
    raise Unavailable(f"the messages on disk could not be read within {TIME_LIMIT:g} seconds", {"Retry-After": "10"})
