"""The channel that a producer or RPC client has for itself, reopened when the broker closes it.

A lost connection recovers its channels, but a channel that the broker closes, for a publish to a missing exchange for
example, stays closed and fails everything unconfirmed on it. So each producer has its own, opened at first use and
again when needed. Given a URL or a factory instead of a connection, it also connects at first use, making one attempt
per `get`: the owner does the retries. It closes the connection that it made.

Written by tools/unasync.py from aio/dedicated_channel.py: change that, then run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warrenmq.client.blocking.primitives import Lock, locked
from warrenmq.client.errors import ChannelClosed, ClientError, CloseReason
from warrenmq.client.factory import ConnectionFactory

if TYPE_CHECKING:
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.blocking.connection import Connection

_CLOSED_BY_OWNER = CloseReason("client", 200, "the owner of this channel is closed")


class DedicatedChannel:
    """Returns the open channel, opening one if there is none. `prepare` sets up a new one."""

    __slots__ = ("_channel", "_connection", "_is_closed", "_lock", "_prepare", "factory", "owns_connection")

    def __init__(self, where: str | ConnectionFactory | Connection, prepare: Callable[[Channel], object]) -> None:
        self._connection: Connection | None = None
        self.owns_connection = isinstance(where, (str, ConnectionFactory))
        if isinstance(where, (str, ConnectionFactory)):
            self.factory = (ConnectionFactory(where) if isinstance(where, str) else where).with_(attempts=1)
        else:
            self.factory, self._connection = where.factory, where
        self._prepare = prepare
        self._channel: Channel | None = None
        self._is_closed = False
        self._lock = Lock()

    @property
    def current(self) -> Channel | None:
        """The channel if it is open; never waits."""
        channel = self._channel
        return channel if channel is not None and channel.is_open else None

    @property
    def has_ended(self) -> bool:
        """Whether it is closed, or its connection has ended and it may not make another."""
        return self._is_closed or (
            not self.owns_connection and self._connection is not None and self._connection.is_closed
        )

    def get(self, timeout: float) -> Channel:
        """Return the open channel; raise if it cannot be opened in time."""
        return self.current or self._open(timeout)

    def close(self) -> None:
        """Close the channel, and the connection if it made it, and open no other."""
        self._is_closed = True
        channel, connection = self.current, self._connection
        if channel is not None:
            channel.close()
        if self.owns_connection and connection is not None:
            connection.close()

    def _open(self, timeout: float) -> Channel:
        with locked(self._lock, timeout, "the channel was not opened in time"):
            if self._is_closed:
                raise ChannelClosed(_CLOSED_BY_OWNER)
            current = self.current
            if current is not None:
                return current
            try:
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
                if self._is_closed:  # meanwhile
                    self.close()
