"""A channel of one's own that is there again after the broker closed it: what producers and RPC clients stand on.

A lost connection brings its channels back by itself; but a channel that the broker closed, for a publish to an exchange
that is not there for example, stays closed, and takes only its owner's other messages with it. So each producer has its
own, opened at first use and again when needed. Given a URL or a factory instead of a connection, it connects at first
use too, once per call of `get`: its owner tries again. That connection is closed with it.

Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from warrenmq.client.errors import CallTimedOut, ChannelClosed, ClientError, CloseReason
from warrenmq.client.factory import ConnectionFactory

if TYPE_CHECKING:
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.blocking.connection import Connection

_CLOSED_BY_OWNER = CloseReason("client", 200, "the owner of this channel is closed")


def _factory_of(where: str | ConnectionFactory) -> ConnectionFactory:
    return (ConnectionFactory(where) if isinstance(where, str) else where).with_(attempts=1)


class DedicatedChannel:
    """Returns the open channel, opening one where there is none. `prepare` sets up a new one."""

    __slots__ = ("_channel", "_connection", "_is_closed", "_lock", "_prepare", "factory", "owns_connection")

    def __init__(self, where: str | ConnectionFactory | Connection, prepare: Callable[[Channel], object]) -> None:
        self._connection: Connection | None = None
        self.owns_connection = isinstance(where, (str, ConnectionFactory))
        if isinstance(where, (str, ConnectionFactory)):
            self.factory = _factory_of(where)
        else:
            self.factory, self._connection = where.factory, where
        self._prepare = prepare
        self._channel: Channel | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def current(self) -> Channel | None:
        """The channel, if one is there and open; never waits."""
        channel = self._channel
        return channel if channel is not None and channel.is_open else None

    @property
    def is_over(self) -> bool:
        """Closed, or its connection has ended, and it may not make another."""
        return self._is_closed or (
            not self.owns_connection and self._connection is not None and self._connection.is_closed
        )

    def get(self, timeout: float) -> Channel:
        """The open channel; raises when it cannot be had in time."""
        return self.current or self._open(timeout)

    def close(self) -> None:
        """Close the channel, and the connection if it is its own; open no other."""
        self._is_closed = True
        channel, connection = self.current, self._connection
        if channel is not None:
            channel.close()
        if self.owns_connection and connection is not None:
            connection.close()

    def _open(self, timeout: float) -> Channel:
        if not self._lock.acquire(timeout=timeout):
            raise CallTimedOut("the channel was not opened in time")
        try:
            if self._is_closed:
                raise ChannelClosed(_CLOSED_BY_OWNER)
            current = self.current
            if current is not None:
                return current
            connection = self._connection
            if connection is None or (self.owns_connection and connection.is_closed):
                connection = self._connection = self.factory.connect(timeout)
            channel = connection.channel(timeout=timeout)
            try:
                self._prepare(channel)
            except ClientError:
                channel.close()
                raise
            self._channel = channel
            return channel
        finally:
            self._lock.release()
            if self._is_closed:  # meanwhile
                self.close()
