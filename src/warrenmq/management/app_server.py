"""uvicorn with the HTTP application; the signals of the process stay with the program that runs the node.

Importing this module loads FastAPI and uvicorn, which takes longer than the rest of a start (server.py).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from warrenmq.management.app import create_app
from warrenmq.management.connection import HttpConnection
from warrenmq.management.options import HttpOptions
from warrenmq.management.view import NodeView

GRACE_SECONDS = 2


class AppServer(uvicorn.Server):
    """Serves one node. `is_serving` is set when requests are answered."""

    def __init__(
        self,
        node: NodeView,
        clock: Callable[[], float],
        options: HttpOptions,
        listening: Collection[str],
        on_refused: Callable[[], None] | None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(node, clock, options, listening),
                http=partial(HttpConnection, options, on_refused),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # its warnings are a line per request
                access_log=False,
                server_header=False,
                proxy_headers=False,  # uvicorn would trust 127.0.0.1; proxies.py decides
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self.is_serving = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.is_serving.set()
