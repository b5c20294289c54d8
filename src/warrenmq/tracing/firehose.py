"""RabbitMQ's firehose: copies of all messages published and delivered in a virtual host, while it is on.

Copies go to the topic exchange `amq.rabbitmq.trace` with the routing key `publish.{exchange}` or `deliver.{queue}`, the
same body, and the headers that RabbitMQ adds. Copies are not copied again. As in RabbitMQ, it is off after a start.

Copies are made at once and published at the end of the turn, never in the middle of a delivery.

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
from warrenmq.core.snapshot import message_properties
from warrenmq.core.vhost import TRACE_EXCHANGE, VHost
from warrenmq.protocol.properties import BasicProperties, content_header


class Firehose:
    """One per broker, switched per virtual host. `on_change` is called after a switch."""

    def __init__(self, broker: Broker, node: str | None = None) -> None:
        self._broker = broker
        self._node = node or f"warren@{platform.node()}"
        self._copies: list[tuple[VHost, str, dict[str, Any], bytes]] = []
        self.on_change: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        return any(vhost.is_tapped for vhost in self._broker.vhosts.values())

    @property
    def has_copies(self) -> bool:
        return bool(self._copies)

    def open_vhosts(self) -> list[str]:
        return [name for name, vhost in self._broker.vhosts.items() if vhost.is_tapped]

    def switch(self, vhost: str, is_open: bool) -> bool:
        """Switch it on or off; return False if there is no such virtual host."""
        found = self._broker.vhosts.get(vhost)
        if found is None:
            return False
        found.tap(is_open)
        self.on_change()
        return True

    # -- what happens ------------------------------------------------------------------------------------------------

    def published(self, channel: Channel, message: Message, queues: list[Queue]) -> None:
        """Copy a published message."""
        more = {"routed_queues": [queue.name for queue in queues]}
        self._copy(channel, f"publish.{message.exchange}", message, more)

    def delivered(self, entry: QueuedMessage, queue: Queue, who: object) -> None:
        """Copy a message delivered to a consumer, or to a channel that polled."""
        channel: Channel = who.channel if isinstance(who, Consumer) else who  # type: ignore[assignment]
        self._copy(channel, f"deliver.{queue.name}", entry.message, {"redelivered": int(entry.redelivered)})

    def _copy(self, channel: Channel, key: str, message: Message, more: dict[str, Any]) -> None:
        """Copy the message, unless it is a copy itself or nothing is bound to the exchange of copies."""
        vhost = channel.vhost
        if vhost.exchanges[TRACE_EXCHANGE].binding_count == 0 or message.exchange == TRACE_EXCHANGE:
            return
        headers = {
            "exchange_name": message.exchange,
            "routing_keys": _routing_keys(message),
            "properties": _table_of(message),
            "node": self._node,
            "vhost": vhost.name,
            "connection": channel.connection_name,
            "channel": channel.number,
            "user": channel.user,
            **more,
        }
        self._copies.append((vhost, key, headers, message.body))

    # -- the turn ends -----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish all copies; their deliveries are not copied."""
        copies, self._copies = self._copies, []
        for vhost, key, headers, body in copies:
            header = content_header(len(body), BasicProperties(headers=headers))
            vhost.publish(TRACE_EXCHANGE, _short(key), header, body, is_internal=True)


def _routing_keys(message: Message) -> list[str]:
    """Return the routing key, and those of the CC header."""
    keys = [message.routing_key]
    copies = message_properties(message.header).get("headers", {}).get("CC")
    if isinstance(copies, list):
        keys += [key for key in copies if isinstance(key, str)]
    return keys


def _table_of(message: Message) -> dict[str, Any]:
    """Return the properties that are set, as a table."""
    values = message_properties(message.header).items()
    return {name: int(value.timestamp()) if isinstance(value, datetime) else value for name, value in values}


def _short(key: str) -> str:
    """Cut the key to a short string: prefix and name may be longer together."""
    data = key.encode("utf-8", "surrogateescape")
    return key if len(data) <= 255 else data[:255].decode("utf-8", "ignore")
