"""The whole server without a socket: real sessions, a real broker, a clock that stands still until a test moves it.

`SocketlessServer.connect` returns the client's end of a connection as a `Line`: bytes go in by `send`, the server's
answers come out by `receive`, and a turn of the broker ends with each `send`.

Owned by the test's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from warrenmq.core.broker import Broker
from warrenmq.core.ports import Storage
from warrenmq.core.reserved import ADMINISTRATOR
from warrenmq.core.users import EVERYTHING
from warrenmq.server.connection import AmqpConnection
from warrenmq.server.listener import AmqpServer, Listener
from warrenmq.server.options import ServerOptions
from warrenmq.server.ticker import Ticker
from warrenmq.storage.memory_store import MemoryStorage


class ManualLoop:
    """The part of an event loop that the server's turn needs: what is called soon is called by `run`."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], object]] = deque()

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._soon.append(callback)

    def run(self) -> None:
        while self._soon:
            self._soon.popleft()()


class SocketlessServer(AmqpServer):
    """Listens nowhere. `clock` is its time; tests move it."""

    def __init__(self, options: ServerOptions | None = None, storage: Storage | None = None) -> None:
        options = options or ServerOptions()
        broker = Broker(storage or MemoryStorage())
        broker.users.add(options.default_user, options.default_pass, [ADMINISTRATOR])
        broker.users.grant(options.default_user, None, EVERYTHING, EVERYTHING, EVERYTHING)
        super().__init__(broker, options, self.now_ms)
        self.clock = 0.0
        self.loop = ManualLoop()
        self.ticker = Ticker(self.loop, broker, self.now_ms, clock=self.now)  # type: ignore[arg-type]
        self.ticker.after_turn = self.alarms.check_memory

    def now(self) -> float:
        return self.clock

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.clock * 1000)

    def connect(self) -> Line:
        return Line(self)


class Line:
    """A connection in memory, seen from the client's end; also the server's transport."""

    def __init__(self, server: SocketlessServer) -> None:
        self._server = server
        self._written: list[bytes] = []
        self._unread = b""  # sent while the server did not read
        self.is_closed = False  # by the server
        self.is_reading = True
        self.read_takes = 0.0  # so long the server is at each piece that it reads
        self.connection = AmqpConnection(server, Listener("memory", 0))
        self.connection.connection_made(self)  # type: ignore[arg-type]

    # -- the client's end --------------------------------------------------------------------------------------------

    def send(self, data: bytes | memoryview, ends_turn: bool = True) -> None:
        """Give the server these bytes, as its event loop would, and let the turn end."""
        self._unread += data
        self._let_read()
        if ends_turn:
            self._server.loop.run()

    def _let_read(self) -> None:
        rest = memoryview(self._unread)
        while rest and not self.is_closed and self.is_reading:
            buffer = self.connection.get_buffer(-1)
            assert len(buffer) > 0, "the server has no room for what it has not read"
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            self._server.clock += self.read_takes
            self.connection.buffer_updated(size)
        self._unread = bytes(rest)

    def receive(self) -> bytes:
        """What the server has written since the last call."""
        self._server.loop.run()
        written, self._written = b"".join(self._written), []
        return written

    def pass_time(self, seconds: float) -> None:
        self._server.clock += seconds
        self.connection.check_time(self._server.clock)
        self._server.loop.run()

    def hang_up(self) -> None:
        """The client's socket is gone."""
        if not self.is_closed:
            self.is_closed = True
            self.connection.connection_lost(None)
        self._server.loop.run()

    # -- the server's transport --------------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> None:
        if not self.is_closed:
            self._written.append(bytes(data))

    def writelines(self, chunks: Iterable[bytes | memoryview]) -> None:
        for chunk in chunks:
            self.write(chunk)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._server.loop.call_soon(lambda: self.connection.connection_lost(None))

    abort = close

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        if not self.is_reading:
            self.is_reading = True
            self._server.loop.call_soon(self._let_read)

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is ever held back here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 50000) if name == "peername" else None


class InternalErrors(logging.Handler):
    """Gathers what the server logs as its own fault, with the traceback, while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))

    def __enter__(self) -> Self:
        logging.getLogger("warrenmq").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        logging.getLogger("warrenmq").removeHandler(self)
