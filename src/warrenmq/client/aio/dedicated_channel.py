"""A channel of one's own that is there again after the broker closed it: what producers and RPC clients stand on.

A lost connection brings its channels back by itself; but a channel that the broker closed, for a publish to an exchange
that is not there for example, stays closed, and takes only its owner's other messages with it. So each producer has its
own, opened at first use and again when needed. Given a URL or a factory instead of a connection, it connects at first
use too, once per call of `get`: its owner tries again. That connection is closed with it.

Owned by the connection's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from warrenmq.client.errors import CallTimedOut, ChannelClosed, ClientError, CloseReason
from warrenmq.client.factory import ConnectionFactory

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection

_CLOSED_BY_OWNER = CloseReason("client", 200, "the owner of this channel is closed")


def _factory_of(where: str | ConnectionFactory) -> ConnectionFactory:
    return (ConnectionFactory(where) if isinstance(where, str) else where).with_(attempts=1)


class DedicatedChannel:
    """Returns the open channel, opening one where there is none. `prepare` sets up a new one."""

    __slots__ = ("_channel", "_connection", "_is_closed", "_lock", "_prepare", "factory", "owns_connection")

    def __init__(
        self, where: str | ConnectionFactory | Connection, prepare: Callable[[Channel], Awaitable[object]]
    ) -> None:
        self._connection: Connection | None = None
        self.owns_connection = isinstance(where, (str, ConnectionFactory))
        if isinstance(where, (str, ConnectionFactory)):
            self.factory = _factory_of(where)
        else:
            self.factory, self._connection = where.factory, where
        self._prepare = prepare
        self._channel: Channel | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    @property
    def current(self) -> Channel | None:
        channel = self._channel
        return channel if channel is not None and channel.is_open else None

    @property
    def is_over(self) -> bool:
        return self._is_closed or (
            not self.owns_connection and self._connection is not None and self._connection.is_closed
        )

    async def get(self, timeout: float) -> Channel:
        current = self.current
        if current is not None:
            return current
        try:
            async with asyncio.timeout(timeout):
                return await self._open(timeout)
        except TimeoutError as late:
            if isinstance(late, ClientError):
                raise
            raise CallTimedOut("the channel was not opened in time") from None

    async def close(self) -> None:
        self._is_closed = True
        channel, connection = self.current, self._connection
        if channel is not None:
            await channel.close()
        if self.owns_connection and connection is not None:
            await connection.close()

    async def _open(self, timeout: float) -> Channel:
        async with self._lock:
            if self._is_closed:
                raise ChannelClosed(_CLOSED_BY_OWNER)
            current = self.current
            if current is not None:
                return current
            try:
                connection = self._connection
                if connection is None or (self.owns_connection and connection.is_closed):
                    connection = self._connection = await self.factory.connect_async(timeout)
                channel = await connection.channel(timeout=timeout)
                try:
                    await self._prepare(channel)
                except ClientError:
                    await channel.close()
                    raise
                self._channel = channel
                return channel
            finally:
                if self._is_closed:  # meanwhile
                    await self.close()
