"""Serves the HTTP application on the broker's own event loop, without touching the process's signals.

`start` returns when requests are answered and `port` is the port that was really bound; `stop` lets running requests
end, within a deadline. A port that is taken is the caller's OSError.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from warrenmq.management.app import NodeView, create_app

GRACE_SECONDS = 2


class HttpServer:
    """One listening HTTP port. Owned by the loop that starts it."""

    def __init__(self, node: NodeView, clock: Callable[[], float] = time.monotonic) -> None:
        self.port = 0
        self._app = create_app(node, clock)
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Bind (port 0: any free one) and serve; raises OSError where the port cannot be bound."""
        listening = await _bind(host, port)
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._serve(self._server, listening), name="warrenmq-http")
        serving = asyncio.create_task(self._server.is_serving.wait())
        await asyncio.wait({self._task, serving}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if self._task.done():
            await self._task  # raises what went wrong
            raise OSError(f"the HTTP server on {host}:{self.port} ended at once")

    async def stop(self) -> None:
        """Close the port; does nothing on a server that is not running."""
        task, self._task = self._task, None
        if task is None or self._server is None:
            return
        self._server.should_exit = True
        await task

    async def _serve(self, server: _Uvicorn, listening: socket.socket) -> None:
        try:
            await server.serve(sockets=[listening])
        finally:
            listening.close()


class _Uvicorn(uvicorn.Server):
    """uvicorn as a guest: signals belong to whoever runs the process, and the host hears when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_serving = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.is_serving.set()


async def _bind(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listening = socket.create_server(address[:2], family=family, backlog=128)
    listening.setblocking(False)
    return listening
