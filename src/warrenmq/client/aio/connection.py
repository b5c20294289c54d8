"""A connection on the user's event loop: the engine as users see it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from warrenmq.client.aio.channel import Channel
from warrenmq.client.aio.primitives import check_callback
from warrenmq.client.aio.worker import Worker
from warrenmq.client.connection_base import ConnectionBase
from warrenmq.client.engine.connection import EngineConnection
from warrenmq.client.factory import ConnectionFactory, ConnectionOptions, as_factory

if TYPE_CHECKING:
    from warrenmq.client.engine.channel import EngineChannel

Result = TypeVar("Result")


class Connection(ConnectionBase):
    """A connection to the broker, opened by `await connect(...)`. It belongs to the event loop that it was opened on.

    After an unexpected loss it reconnects and redeclares everything that was declared on it (see Recovery); calls made
    meanwhile wait. Listeners may be plain or coroutine functions.
    """

    _check_callback = staticmethod(check_callback)

    def __init__(self, factory: ConnectionFactory) -> None:
        self._engine = EngineConnection(factory, Worker)
        self._engine.facade = self

    async def channel(self, timeout: float | None = None) -> Channel:
        """Open a channel."""
        return Channel(self, await self._engine.channel(timeout))

    async def close(self, reply_code: int = 200, reply_text: str = "Goodbye", timeout: float | None = None) -> None:
        """Close the connection in any state; a second close waits for the first."""
        await self._engine.close(reply_code, reply_text, timeout)

    async def update_secret(self, secret: str | bytes, reason: str = "", timeout: float | None = None) -> None:
        """Send the server a new secret (a fresh token) before the old one expires; a recovery logs in with it."""
        await self._engine.update_secret(secret, reason, timeout)

    @property
    def channels(self) -> dict[int, Channel]:
        """The open channels by number."""
        return {number: each.facade for number, each in self._engine.channels.items() if each.is_open}

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    # -- for channels and consumers ----------------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None) -> Coroutine[Any, Any, Result]:
        """Return what to await; the engine keeps the timeout."""
        return coroutine

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._engine.spawn(work)

    async def _close_channel(self, channel: EngineChannel, code: int, text: str, timeout: float | None) -> None:
        await channel.close(code, text, timeout=timeout)


class Connecting:
    """A connection to be opened: `connection = await connect(url)`, or `async with connect(url) as connection`."""

    def __init__(self, factory: ConnectionFactory) -> None:
        self._factory = factory
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._connect().__await__()

    async def _connect(self) -> Connection:
        return await self._factory.connect_async()

    async def __aenter__(self) -> Connection:
        self._connection = await self._connect()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._connection.close()


def connect(
    url: str | Iterable[str] | ConnectionFactory | None = None, /, **options: Unpack[ConnectionOptions]
) -> Connecting:
    """Open a connection on the running event loop.

    async with aio.connect("amqp://localhost", heartbeat=30) as connection:
        channel = await connection.channel()

    `attempts=10, wait=1` waits for a broker that is not up yet: ten attempts, one second apart.
    """
    return Connecting(as_factory(url, options))
