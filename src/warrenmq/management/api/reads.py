"""Awaits reads of messages that core answers with a callback, now or after a read from disk."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.datastructures import QueryParams

from warrenmq.core.delayed import Cursor
from warrenmq.management.api.messages import MAX_RESPONSE
from warrenmq.management.errors import BadRequest, NotFound, Unavailable

Result = TypeVar("Result")
Message = TypeVar("Message")

# Delayed messages are read with their bodies, this many at a time.
READ_AT_ONCE = 20
CURSOR = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")

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


async def list_delayed(
    list_from: Callable[[Cursor | None, int, Callable[[list[Message], Cursor | None], None]], None],
    is_gone: Callable[[], bool],
    after: Cursor | None,
    count: int,
    show: Callable[[Message], dict[str, Any]],
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the next `count` messages that wait for a time, and `next` of the response; None after the last one."""

    async def read(wanted: int) -> tuple[list[Message], Cursor | None]:
        return await answer_to(
            lambda receive: list_from(after, wanted, lambda *page: receive(page)),  # `after` is the current one
            is_gone,
        )

    found: list[dict[str, Any]] = []
    size = 0
    while True:
        page, last = await read(min(READ_AT_ONCE, count - len(found)))
        some = [show(message) for message in page]
        found += some
        size += sum(len(values.get("payload", "")) for values in some)
        if last is None:
            return found, None
        after = last
        if len(found) >= count or size > MAX_RESPONSE:
            following, _ = await read(1)
            return found, "{}:{}".format(*after) if following else None


def cursor_of(params: QueryParams) -> Cursor | None:
    """Parse the parameter `from`, which is `next` of an earlier response of `list_delayed`."""
    text = params.get("from")
    if not text:
        return None
    found = CURSOR.fullmatch(text)
    if found is None:
        raise BadRequest("'from' must be the 'next' of an earlier response")
    return int(found[1]), int(found[2])
