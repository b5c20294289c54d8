"""RabbitMQ's firehose: copies of all that is published and delivered in a virtual host, while it is open.

They go to the topic exchange `amq.rabbitmq.trace`, with the key `publish.{exchange}` or `deliver.{queue}`, the body as
it was, and in their headers what RabbitMQ puts there. Copies of copies are not made. As in RabbitMQ it is shut after a
start.

Copies are made where something happens and published when the turn ends, never in the middle of a delivery.

Owned by the loop thread.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import datetime
from typing import Any

from warrenmq.core.broker import Broker
from warrenmq.core.channel import Channel
from warrenmq.core.consumer import Consumer
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.queue import Queue
from warrenmq.core.vhost import TRACE_EXCHANGE, VHost
from warrenmq.protocol.errors import ProtocolError
from warrenmq.protocol.properties import BasicProperties, content_header

_PROPERTIES = BasicProperties.__slots__


class Firehose:
    """One per broker; open for each virtual host on its own. `on_change` is called when one is opened or shut."""

    def __init__(self, broker: Broker, node: str | None = None) -> None:
        self._broker = broker
        self._node = node or f"warren@{platform.node()}"
        self._copies: list[tuple[VHost, str, dict[str, Any], bytes]] = []
        self.on_change: Callable[[], None] = _nothing

    @property
    def is_open(self) -> bool:
        return any(vhost.is_tapped for vhost in self._broker.vhosts.values())

    @property
    def has_copies(self) -> bool:
        return bool(self._copies)

    def open_vhosts(self) -> list[str]:
        return [name for name, vhost in self._broker.vhosts.items() if vhost.is_tapped]

    def switch(self, vhost: str, is_open: bool) -> bool:
        """Open or shut it; says whether there is such a virtual host."""
        found = self._broker.vhosts.get(vhost)
        if found is None:
            return False
        found.tap(is_open)
        self.on_change()
        return True

    # -- what happens ------------------------------------------------------------------------------------------------

    def published(self, channel: Channel, message: Message, queues: list[Queue]) -> None:
        """A message came in."""
        if self._is_heard(channel.vhost, message):
            more = {
                "vhost": channel.vhost.name,
                "connection": channel.connection_name,
                "channel": channel.number,
                "user": channel.user,
                "routed_queues": [queue.name for queue in queues],
            }
            self._add(channel.vhost, f"publish.{message.exchange}", message, more)

    def delivered(self, entry: QueuedMessage, queue: Queue, who: object) -> None:
        """A message goes out to a consumer, or to a channel that asked for it."""
        channel: Channel = who.channel if isinstance(who, Consumer) else who  # type: ignore[assignment]
        if self._is_heard(channel.vhost, entry.message):
            more = {
                "redelivered": int(entry.redelivered),
                "vhost": channel.vhost.name,
                "connection": channel.connection_name,
                "channel": channel.number,
                "user": channel.user,
            }
            self._add(channel.vhost, f"deliver.{queue.name}", entry.message, more)

    def _is_heard(self, vhost: VHost, message: Message) -> bool:
        return vhost.exchanges[TRACE_EXCHANGE].binding_count > 0 and message.exchange != TRACE_EXCHANGE

    def _add(self, vhost: VHost, key: str, message: Message, more: dict[str, Any]) -> None:
        headers = {
            "exchange_name": message.exchange,
            "routing_keys": _routing_keys(message),
            "properties": _table_of(message),
            "node": self._node,
            **more,
        }
        self._copies.append((vhost, key, headers, message.body))

    # -- the turn ends -----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Send all copies on their way; what that delivers is copied no more."""
        copies, self._copies = self._copies, []
        for vhost, key, headers, body in copies:
            header = content_header(len(body), BasicProperties(headers=headers))
            vhost.publish(TRACE_EXCHANGE, _short(key), header, body, is_internal=True)


def _routing_keys(message: Message) -> list[str]:
    """The key of the publish, and those of its CC header."""
    keys = [message.routing_key]
    copies = (_properties(message).headers or {}).get("CC")
    if isinstance(copies, list):
        keys += [key for key in copies if isinstance(key, str)]
    return keys


def _table_of(message: Message) -> dict[str, Any]:
    """The properties that the message has, as a table."""
    properties = _properties(message)
    table: dict[str, Any] = {}
    for name in _PROPERTIES:
        value = getattr(properties, name)
        if value is not None:
            table[name] = int(value.timestamp()) if isinstance(value, datetime) else value
    return table


def _properties(message: Message) -> BasicProperties:
    try:
        return message.properties
    except ProtocolError:
        return BasicProperties()


def _short(key: str) -> str:
    """A key is a short string: prefix and name may be longer together."""
    octets = key.encode("utf-8", "surrogateescape")
    return key if len(octets) <= 255 else octets[:255].decode("utf-8", "ignore")


def _nothing() -> None:
    """Nobody listens."""
