"""A channel of one's own that is there again after the broker closed it: what producers and RPC clients stand on.

A lost connection brings its channels back by itself; but a channel that the broker closed, for a publish to an exchange
that is not there for example, stays closed, and takes only its owner's other messages with it. So each producer has its
own, opened at first use and again when needed. Thread-safe (`OwnChannel`); for one loop (`AsyncOwnChannel`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from warrenmq.client.errors import CallTimedOut, ChannelClosed, ClientError, CloseReason

if TYPE_CHECKING:
    from warrenmq.client import aio
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.blocking.connection import Connection

_CLOSED_BY_OWNER = CloseReason("client", 200, "the owner of this channel is closed")


class OwnChannel:
    """Gives the open channel, opening one where there is none. `prepare` sets up a new one."""

    __slots__ = ("_channel", "_connection", "_is_closed", "_lock", "_prepare")

    def __init__(self, connection: Connection, prepare: Callable[[Channel], object]) -> None:
        self._connection = connection
        self._prepare = prepare
        self._channel: Channel | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def current(self) -> Channel | None:
        """The channel, if one is there and open; never waits."""
        channel = self._channel
        return channel if channel is not None and channel.is_open else None

    def get(self, timeout: float) -> Channel:
        """The open channel; raises when it cannot be had in time."""
        return self.current or self._open(timeout)

    def close(self) -> None:
        """Close the channel, and open no other."""
        self._is_closed = True
        channel = self.current
        if channel is not None:
            channel.close()

    def _open(self, timeout: float) -> Channel:
        if not self._lock.acquire(timeout=timeout):
            raise CallTimedOut("the channel was not opened in time")
        try:
            if self._is_closed:
                raise ChannelClosed(_CLOSED_BY_OWNER)
            current = self.current
            if current is not None:
                return current
            channel = self._connection.channel(timeout=timeout)
            try:
                self._prepare(channel)
            except ClientError:
                channel.close()
                raise
            self._channel = channel
            if self._is_closed:  # meanwhile
                channel.close()
            return channel
        finally:
            self._lock.release()


class AsyncOwnChannel:
    """`OwnChannel` on an event loop."""

    __slots__ = ("_channel", "_connection", "_is_closed", "_lock", "_prepare")

    def __init__(self, connection: aio.Connection, prepare: Callable[[aio.Channel], Awaitable[object]]) -> None:
        self._connection = connection
        self._prepare = prepare
        self._channel: aio.Channel | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    @property
    def current(self) -> aio.Channel | None:
        channel = self._channel
        return channel if channel is not None and channel.is_open else None

    async def get(self, timeout: float) -> aio.Channel:
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
        channel = self.current
        if channel is not None:
            await channel.close()

    async def _open(self, timeout: float) -> aio.Channel:
        async with self._lock:
            if self._is_closed:
                raise ChannelClosed(_CLOSED_BY_OWNER)
            current = self.current
            if current is not None:
                return current
            channel = await self._connection.channel(timeout=timeout)
            try:
                await self._prepare(channel)
            except ClientError:
                await channel.close()
                raise
            self._channel = channel
            if self._is_closed:  # meanwhile
                await channel.close()
            return channel
