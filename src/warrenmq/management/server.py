"""The HTTP port: opened at once, served on the broker's own event loop as soon as the application is loaded.

FastAPI takes longer to import than the rest of a start. So `start` only opens the port, and a thread imports FastAPI;
requests wait in the kernel until then.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from warrenmq.management.options import HttpOptions
from warrenmq.management.view import NodeView

if TYPE_CHECKING:
    from warrenmq.management.app_server import AppServer

log = logging.getLogger("warrenmq.http")


class HttpServer:
    """One listening HTTP port; `port` is the actual one. Owned by the loop that starts it."""

    def __init__(
        self,
        node: NodeView,
        clock: Callable[[], float] = time.monotonic,
        options: HttpOptions | None = None,
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        self.port = 0
        self._on_refused = on_refused  # called for each connection above the limit
        self._node = node
        self._clock = clock
        self._options = options or HttpOptions()
        self._server: AppServer | None = None
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen (port 0: any free one) and start loading the application; raise OSError if it cannot."""
        listening = await _listen(host, port)
        address, self.port = listening.getsockname()[:2]
        self._task = asyncio.create_task(self._serve(listening, (host, address)), name="warrenmq-http")

    async def stop(self) -> None:
        """Finish running requests within a deadline, and close the port. Safe to call twice."""
        self._is_stopping = True
        if self._server is not None:
            self._server.should_exit = True
        task, self._task = self._task, None
        if task is not None:
            await task

    async def _serve(self, listening: socket.socket, hosts: tuple[str, str]) -> None:
        try:
            options = self._options
            self._server = await asyncio.to_thread(_load, self._node, self._clock, options, hosts, self._on_refused)
            if not self._is_stopping:
                await self._server.serve(sockets=[listening])
        except Exception:  # the broker serves AMQP without it
            log.exception("HTTP server failed, port %d is closed until the next start; AMQP goes on", self.port)
        finally:
            listening.close()


def _load(
    node: NodeView,
    clock: Callable[[], float],
    options: HttpOptions,
    listening: Collection[str],
    on_refused: Callable[[], None] | None,
) -> AppServer:
    from warrenmq.management.app_server import AppServer

    return AppServer(node, clock, options, listening, on_refused)


async def _listen(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listening = socket.create_server(address[:2], family=family, backlog=128)
    listening.setblocking(False)
    return listening
