"""The event loop of the asyncio programs: uvloop where it is installed, for all of them alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


def run_on_loop(main: Coroutine[object, object, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
