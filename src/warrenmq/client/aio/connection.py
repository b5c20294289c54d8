"""A connection on the user's own event loop: the engine, with what users need around it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from warrenmq.client.aio.channel import Channel
from warrenmq.client.aio.worker import Worker
from warrenmq.client.engine.connection import EngineConnection, RecoveryEvent
from warrenmq.client.engine.listener_list import do_nothing
from warrenmq.client.errors import CloseReason
from warrenmq.client.factory import ConnectionFactory, Settings, as_factory
from warrenmq.client.url import Address

if TYPE_CHECKING:
    from warrenmq.client.engine.channel import EngineChannel

Result = TypeVar("Result")


class Connection:
    """What `await connect(...)` gives. It belongs to the event loop that it was opened on."""

    def __init__(self, factory: ConnectionFactory) -> None:
        self._engine = EngineConnection(factory, Worker)
        self._engine.facade = self

    async def channel(self, timeout: float | None = None) -> Channel:
        """Open a channel."""
        return Channel(self, await self._engine.channel(timeout))

    async def close(self, reply_code: int = 200, reply_text: str = "Goodbye", timeout: float | None = None) -> None:
        """End the connection, whatever it is doing just now; the second close waits for the first."""
        await self._engine.close(reply_code, reply_text, timeout)

    async def update_secret(self, secret: str | bytes, reason: str = "", timeout: float | None = None) -> None:
        """Give the server a new secret before the old one expires; a recovery logs in with it."""
        await self._engine.update_secret(secret, reason, timeout)

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def factory(self) -> ConnectionFactory:
        return self._engine.factory

    @property
    def channels(self) -> dict[int, Channel]:
        """The open channels by their numbers."""
        channels = self._engine.channels
        return {number: each.facade for number, each in channels.items() if each.is_open}

    @property
    def is_open(self) -> bool:
        return self._engine.is_open

    @property
    def is_recovering(self) -> bool:
        return self._engine.is_recovering

    @property
    def is_closed(self) -> bool:
        """Ended for good."""
        return self._engine.is_closed

    @property
    def is_blocked(self) -> bool:
        """Whether the server does not read publishers for now."""
        return self._engine.is_blocked

    @property
    def close_reason(self) -> CloseReason | None:
        return self._engine.close_reason

    @property
    def name(self) -> str | None:
        return self._engine.name

    @property
    def address(self) -> Address | None:
        """Where the present or the last link goes."""
        return self._engine.address

    @property
    def server_properties(self) -> dict[str, Any]:
        return self._engine.server_properties

    # -- listeners: plain or async, run by the connection's worker ---------------------------------------------------

    def add_blocked_listener(
        self, on_blocked: Callable[[str], object], on_unblocked: Callable[[], object] = do_nothing
    ) -> None:
        """Told when the server stops reading publishers, with its reason, and when it goes on."""
        self._engine.blocked_listeners.add((on_blocked, on_unblocked))

    def remove_blocked_listener(
        self, on_blocked: Callable[[str], object], on_unblocked: Callable[[], object] = do_nothing
    ) -> bool:
        """Return False if this pair was not there."""
        return self._engine.blocked_listeners.remove((on_blocked, on_unblocked))

    def add_close_listener(self, listener: Callable[[CloseReason], object]) -> None:
        """Told of every loss (`is_final` False) and of the end."""
        self._engine.close_listeners.add(listener)

    def remove_close_listener(self, listener: Callable[[CloseReason], object]) -> bool:
        """Return False if it was not there."""
        return self._engine.close_listeners.remove(listener)

    def add_recovery_listener(self, listener: Callable[[RecoveryEvent], object]) -> None:
        """Told how a recovery goes: lost, trying, recovered, gave_up."""
        self._engine.recovery_listeners.add(listener)

    def remove_recovery_listener(self, listener: Callable[[RecoveryEvent], object]) -> bool:
        """Return False if it was not there."""
        return self._engine.recovery_listeners.remove(listener)

    def add_queue_renamed_listener(self, listener: Callable[[str, str], object]) -> None:
        """Told the old and the new name of a server-named queue after a recovery."""
        self._engine.renamed_listeners.add(listener)

    def remove_queue_renamed_listener(self, listener: Callable[[str, str], object]) -> bool:
        """Return False if it was not there."""
        return self._engine.renamed_listeners.remove(listener)

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

    def __repr__(self) -> str:
        return f"<Connection to {self.factory.url(self.address)}: {self._engine.state.value}>"


class Connecting:
    """A connection to come: `connection = await connect(url)`, or `async with connect(url) as connection`."""

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


def connect(url: str | Iterable[str] | ConnectionFactory | None = None, /, **settings: Unpack[Settings]) -> Connecting:
    """Open a connection on the running event loop.

    async with aio.connect("amqp://localhost", heartbeat=30) as connection:
        channel = await connection.channel()

    `attempts=10, wait=1` waits for a broker that is not up yet: ten attempts, one second apart.
    """
    return Connecting(as_factory(url, settings))
