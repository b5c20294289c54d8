"""The HTTP port of a fake node, for what must be asked from outside of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.management.fakes import FakeNode
from warrenmq.management.server import HttpServer

LIMIT = 30


@contextmanager
def served(node: FakeNode, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """Serve in another thread; return the URL."""
    started = threading.Event()
    ports: list[int] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        server = HttpServer(node.view(), clock)
        await server.start("127.0.0.1", 0)
        ports.append(server.port)
        started.set()
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(LIMIT)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT)
        loop.close()
