"""A connection to a virtual host, from connection.open to its end.

It owns its channels and its exclusive queues, and is listed in `Broker.connections`. The server creates it after the
handshake and owns the socket.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warrenmq.core.channel import Channel
from warrenmq.core.memory import CHANNEL, size_of_connection
from warrenmq.core.stats import Traffic
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.ports import Outbox
    from warrenmq.core.queue import Queue
    from warrenmq.core.vhost import VHost


class Connection:
    """One client connection, with its negotiated parameters.

    `name` is as in RabbitMQ: the addresses of both ends. `host` and `port` are the broker's.
    """

    __slots__ = (
        "channel_max",
        "channels",
        "client_properties",
        "connected_at_ms",
        "exclusive_queues",
        "frame_max",
        "heartbeat",
        "host",
        "name",
        "outbox",
        "peer_host",
        "peer_port",
        "port",
        "traffic",
        "user",
        "vhost",
    )

    def __init__(
        self,
        vhost: VHost,
        user: str,
        outbox: Outbox,
        *,
        name: str = "",
        traffic: Traffic | None = None,
        peer_host: str = "",
        peer_port: int = 0,
        host: str = "",
        port: int = 0,
        connected_at_ms: int = 0,
        client_properties: Mapping[str, Any] | None = None,
        channel_max: int = 0,
        frame_max: int = 0,
        heartbeat: int = 0,
    ) -> None:
        self.vhost = vhost
        self.user = user
        self.outbox = outbox
        self.name = name
        self.traffic = traffic or Traffic()
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.host = host
        self.port = port
        self.connected_at_ms = connected_at_ms
        self.client_properties: Mapping[str, Any] = client_properties or {}
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat
        self.channels: dict[int, Channel] = {}
        self.exclusive_queues: dict[Queue, None] = {}

    def open(self) -> None:
        """Add the connection to the broker's list."""
        broker = self.vhost.broker
        broker.connections[self] = None
        broker.stats.definition_bytes += size_of_connection(self)

    def open_channel(self, number: int) -> Channel:
        channel = self.channels[number] = Channel(self, number)
        channel.stats.definition_bytes += CHANNEL
        return channel

    def close_channel(self, number: int, reason: int = schema.R_CHANNEL_CLOSED) -> None:
        """Close the channel if there is one of that number; `reason` is why its unacked deliveries are requeued."""
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.close(reason)
            channel.stats.definition_bytes -= CHANNEL

    def close(self) -> None:
        """Close the channels, delete the exclusive queues and leave the broker's list. May be called twice."""
        broker = self.vhost.broker
        broker.withdraw(self)
        for number in list(self.channels):
            self.close_channel(number, schema.R_CONNECTION_CLOSED)
        for queue in list(self.exclusive_queues):
            self.vhost.remove_queue(queue)
        if self in broker.connections:
            del broker.connections[self]
            broker.stats.definition_bytes -= size_of_connection(self)
