"""A node: one broker with its storage and its edges, started and stopped in order.

The composition root: the only place that knows everybody. Needs a running event loop; `cli serve` and `embedded`
provide one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from warrenmq import __version__
from warrenmq.core.broker import Broker
from warrenmq.core.users import EVERYTHING
from warrenmq.server.listener import AmqpServer
from warrenmq.server.options import ServerOptions
from warrenmq.storage.data_dir import DataDir, DataDirError
from warrenmq.storage.memory_store import MemoryStorage

if TYPE_CHECKING:
    from warrenmq.management.server import HttpServer


class StartError(Exception):
    """The node cannot start; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Where a node listens and what it keeps. Port 0 is any free one; http_port None is no HTTP at all."""

    host: str = "127.0.0.1"
    port: int = 5672
    http_port: int | None = 15672
    data_dir: Path | None = None
    server: ServerOptions = field(default_factory=ServerOptions)


class Node:
    """Everything that one process serves."""

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.broker = Broker(MemoryStorage())
        self.broker.users.add(options.server.default_user, options.server.default_pass)
        self.broker.users.grant(options.server.default_user, None, EVERYTHING, EVERYTHING, EVERYTHING)
        self._amqp = AmqpServer(self.broker, options.server)
        self._http: HttpServer | None = None
        self._data_dir = DataDir(options.data_dir) if options.data_dir is not None else None
        self._state = "starting"

    @property
    def host(self) -> str:
        return self.options.host

    @property
    def amqp_port(self) -> int:
        return self._amqp.port

    @property
    def http_port(self) -> int | None:
        return self._http.port if self._http is not None else None

    @property
    def url(self) -> str:
        server = self.options.server
        user, password = quote(server.default_user, safe=""), quote(server.default_pass, safe="")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp://{user}:{password}@{host}:{self.amqp_port}/"

    def ready(self) -> tuple[bool, str]:
        """Whether the node takes connections, or why not."""
        return self._state == "ready", self._state

    def loop_lag(self) -> float:
        """Seconds by which the last regular job came late."""
        return self._amqp.loop_lag

    async def start(self) -> None:
        """Take the data folder, then listen; StartError if either cannot be had."""
        try:
            if self._data_dir is not None:
                self._data_dir.lock()
            await self._listen("AMQP", self.options.port, self._amqp.start)
            if self.options.http_port is not None:
                # FastAPI is heavy: an embedded broker without HTTP must not pay for it.
                from warrenmq.management.app import NodeView
                from warrenmq.management.server import HttpServer

                view = NodeView(self.broker, self.ready, self.loop_lag, __version__)
                self._http = HttpServer(view)
                await self._listen("HTTP", self.options.http_port, self._http.start)
        except DataDirError as error:
            raise StartError(str(error)) from None
        except BaseException:
            await self.stop()
            raise
        self._state = "ready"

    async def _listen(self, what: str, port: int, start: Callable[[str, int], Awaitable[None]]) -> None:
        try:
            await start(self.options.host, port)
        except OSError as error:
            where = f"{self.options.host}:{port}"
            if error.errno == errno.EADDRINUSE:
                raise StartError(
                    f"{what} port in use: {where} (choose another one, or stop what listens there)"
                ) from None
            reason = error.strerror or os.strerror(error.errno) if error.errno else str(error)
            raise StartError(f"cannot listen for {what} on {where}: {reason}") from None

    async def stop(self, grace: float = 2.0) -> None:
        """Close connections with 320, stop listening, give the data folder back. Safe to call twice.

        Clients have `grace` seconds to answer before they are hung up on.
        """
        self._state = "stopping"
        if self._http is not None:
            await self._http.stop()
            self._http = None
        await self._amqp.stop(grace)
        if self._data_dir is not None:
            self._data_dir.unlock()
        self._state = "stopped"
